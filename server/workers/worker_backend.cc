#include "server/workers/worker_backend.h"

#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"

namespace kiln::server {
namespace {

bool HasReason(const absl::Status& status, v1::ErrorDetail::Reason reason) {
  auto detail = GetDetail(status);
  return detail && detail->reason() == reason;
}

}  // namespace

bool IsWorkerCrash(const absl::Status& status) {
  return HasReason(status, v1::ErrorDetail::REASON_WORKER_CRASHED);
}

bool IsWorkerDeath(const absl::Status& status) {
  return IsWorkerCrash(status) || HasReason(status, v1::ErrorDetail::REASON_WORKER_TIMEOUT) ||
         HasReason(status, v1::ErrorDetail::REASON_WORKER_MEMORY);
}

}  // namespace kiln::server
