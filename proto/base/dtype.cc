#include "proto/base/dtype.h"

#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

struct Row {
  absl::string_view name;
  int64_t size_bytes;
};

// Indexed by the number of the type.
constexpr Row kRows[] = {{"", 0},           {"bool", 1},     {"u8", 1},         {"i8", 1},
                         {"i16", 2},        {"i32", 4},      {"i64", 8},        {"f16", 2},
                         {"bf16", 2},       {"f32", 4},      {"f64", 8},        {"c64", 8},
                         {"c128", 16},      {"c32", 4},      {"u16", 2},        {"u32", 4},
                         {"u64", 8},        {"f8e4m3fn", 1}, {"f8e4m3fnuz", 1}, {"f8e5m2", 1},
                         {"f8e5m2fnuz", 1}, {"f8e8m0fnu", 1}};

}  // namespace

absl::string_view DTypeName(DType dtype) {
  return kRows[static_cast<int>(dtype)].name;
}

std::optional<DType> DTypeFromName(absl::string_view name) {
  for (size_t i = 1; i < std::size(kRows); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

absl::StatusOr<DType> DTypeFromProto(int number) {
  if (number < 1 || number >= static_cast<int>(std::size(kRows))) {
    return absl::InvalidArgumentError(absl::StrCat("unknown dtype number ", number));
  }
  return static_cast<DType>(number);
}

int64_t DTypeSize(DType dtype) {
  return kRows[static_cast<int>(dtype)].size_bytes;
}

}  // namespace kiln
