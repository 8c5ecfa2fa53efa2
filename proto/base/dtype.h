// Element types of tensors and scalars.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

// The numbers are those of kiln.v1.DType.
enum class DType : uint8_t {
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kF16 = 7,
  kBF16 = 8,
  kF32 = 9,
  kF64 = 10,
  kC64 = 11,   // complex of two F32: library steps only
  kC128 = 12,  // complex of two F64: library steps only
};

// "bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c64", "c128".
absl::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(absl::string_view name);
// INVALID_ARGUMENT for zero or a number outside the list.
absl::StatusOr<DType> DTypeFromProto(int number);
inline int DTypeToProto(DType dtype) {
  return static_cast<int>(dtype);
}

int64_t DTypeSize(DType dtype);  // bytes an element
inline bool IsFloat(DType d) {
  return d >= DType::kF16 && d <= DType::kF64;
}
inline bool IsComplex(DType d) {
  return d >= DType::kC64;
}
inline bool IsInteger(DType d) {
  return d >= DType::kU8 && d <= DType::kI64;
}  // without bool
inline bool IsIntegral(DType d) {
  return d <= DType::kI64;
}  // with bool

// The type that arithmetic on `dtype` is done in: f32 for f16 and bf16, else itself.
inline DType ComputeType(DType d) {
  return d == DType::kF16 || d == DType::kBF16 ? DType::kF32 : d;
}

}  // namespace kiln
