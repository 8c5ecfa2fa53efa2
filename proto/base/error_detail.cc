#include "proto/base/error_detail.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kiln/v1/error.pb.h"

namespace kiln {
namespace {

constexpr absl::string_view kDetailUrl = "type.kiln/kiln.v1.ErrorDetail";

}  // namespace

absl::Status WithDetail(absl::Status status, const v1::ErrorDetail& detail) {
  if (!status.ok() && !status.GetPayload(kDetailUrl)) {
    status.SetPayload(kDetailUrl, absl::Cord(absl::string_view(detail.SerializeAsString())));
  }
  return status;
}

std::optional<v1::ErrorDetail> GetDetail(const absl::Status& status) {
  auto payload = status.GetPayload(kDetailUrl);
  v1::ErrorDetail detail;
  if (!payload || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

absl::Status BadGraphError(absl::string_view node, absl::string_view op, absl::string_view what,
                           absl::string_view expected) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::ErrorDetail::REASON_BAD_GRAPH);
  detail.set_node(std::string(node));
  detail.set_op(std::string(op));
  detail.set_expected(std::string(expected));
  std::string message = absl::StrCat("node '", node, "'");
  if (!op.empty()) absl::StrAppend(&message, " (", op, ")");
  absl::StrAppend(&message, ": ", what);
  if (!expected.empty()) absl::StrAppend(&message, "; expected ", expected);
  return WithDetail(absl::InvalidArgumentError(message), detail);
}

absl::Status Annotate(const absl::Status& status, absl::string_view prefix) {
  if (status.ok()) return status;
  absl::Status out(status.code(), absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload(
      [&out](absl::string_view url, const absl::Cord& value) { out.SetPayload(url, value); });
  return out;
}

}  // namespace kiln
