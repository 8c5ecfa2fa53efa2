#include "client/status_bridge.h"

#include <string>

#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"

struct kiln_status {
  absl::Status status;
  std::string message;
  std::string code_name;
  std::string node;
  std::string op;
  std::string expected;
  std::string reason;
  int64_t retry_after_ms = 0;
};

namespace kiln {

kiln_status* ToCStatus(const absl::Status& status) {
  if (status.ok()) return nullptr;
  auto* out = new kiln_status;
  out->status = status;
  out->message = std::string(status.message());
  out->code_name = absl::StatusCodeToString(status.code());
  if (auto detail = GetDetail(status)) {
    out->node = detail->node();
    out->op = detail->op();
    out->expected = detail->expected();
    out->reason = v1::ErrorDetail::Reason_Name(detail->reason());
    out->retry_after_ms = detail->retry_after_ms();
  }
  return out;
}

absl::Status FromCStatus(kiln_status* status) {
  if (status == nullptr) return absl::OkStatus();
  absl::Status out = status->status;
  delete status;
  return out;
}

}  // namespace kiln

extern "C" {

kiln_code kiln_status_code(const kiln_status* status) {
  return status == nullptr ? KILN_OK : static_cast<kiln_code>(status->status.code());
}
const char* kiln_status_code_name(const kiln_status* status) {
  return status == nullptr ? "OK" : status->code_name.c_str();
}
const char* kiln_status_message(const kiln_status* status) {
  return status == nullptr ? "" : status->message.c_str();
}
const char* kiln_status_node(const kiln_status* status) {
  return status == nullptr ? "" : status->node.c_str();
}
const char* kiln_status_op(const kiln_status* status) {
  return status == nullptr ? "" : status->op.c_str();
}
const char* kiln_status_expected(const kiln_status* status) {
  return status == nullptr ? "" : status->expected.c_str();
}
const char* kiln_status_reason(const kiln_status* status) {
  return status == nullptr ? "" : status->reason.c_str();
}
int64_t kiln_status_retry_after_ms(const kiln_status* status) {
  return status == nullptr ? 0 : status->retry_after_ms;
}
void kiln_status_destroy(kiln_status* status) {
  delete status;
}
kiln_status* kiln_status_create(kiln_code code, const char* message) {
  bool known = code > KILN_OK && code <= KILN_UNAUTHENTICATED;
  return kiln::ToCStatus(
      absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                   message == nullptr ? "" : message));
}

}  // extern "C"
