#include "server/jobs/busy.h"

#include "absl/strings/str_cat.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"

namespace kiln::server {

absl::Status BusyError(absl::string_view what, absl::Duration retry_after) {
  absl::Duration rounded = absl::Ceil(retry_after, absl::Milliseconds(1));
  v1::ErrorDetail detail;
  detail.set_reason(v1::ErrorDetail::REASON_QUEUE_FULL);
  detail.set_retry_after_ms(absl::ToInt64Milliseconds(rounded));
  return WithDetail(absl::ResourceExhaustedError(
                        absl::StrCat(what, "; try again in ", absl::FormatDuration(rounded))),
                    detail);
}

}  // namespace kiln::server
