#include "client/patience.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "proto/base/status_macros.h"

namespace kiln {

absl::Status SleepFor(absl::Duration duration, const Patience& patience) {
  const absl::Time end = absl::Now() + duration;
  while (patience != nullptr && end - absl::Now() > kPatience) {
    absl::SleepFor(kPatience);
    KILN_RETURN_IF_ERROR(patience());
  }
  absl::SleepFor(std::max(absl::ZeroDuration(), end - absl::Now()));
  return absl::OkStatus();
}

}  // namespace kiln
