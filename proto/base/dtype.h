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
  // Opaque from here on: only library steps compute with them.
  kC64 = 11,   // complex of two F32
  kC128 = 12,  // complex of two F64
  kC32 = 13,   // complex of two F16
  kU16 = 14,
  kU32 = 15,
  kU64 = 16,
  kF8E4M3FN = 17,
  kF8E4M3FNUZ = 18,
  kF8E5M2 = 19,
  kF8E5M2FNUZ = 20,
  kF8E8M0FNU = 21,
};

// "bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c64", "c128", "c32",
// "u16", "u32", "u64", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0fnu".
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
// Of 16 bits; arithmetic is done in f32.
inline bool IsHalf(DType d) {
  return d == DType::kF16 || d == DType::kBF16;
}
// No kernel computes with it; it is moved whole, and library steps do the rest.
inline bool IsOpaque(DType d) {
  return d >= DType::kC64;
}
inline bool IsComplex(DType d) {
  return d == DType::kC64 || d == DType::kC128 || d == DType::kC32;
}
inline bool IsInteger(DType d) {
  return d >= DType::kU8 && d <= DType::kI64;
}  // without bool
inline bool IsIntegral(DType d) {
  return d <= DType::kI64;
}  // with bool

// The type that arithmetic on `dtype` is done in: f32 for f16 and bf16, else itself.
inline DType ComputeType(DType d) {
  return IsHalf(d) ? DType::kF32 : d;
}

}  // namespace kiln
