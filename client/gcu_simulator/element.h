// Elements of tiles as numbers of the processor.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "client/gcu_simulator/instruction_table.h"

namespace kiln::gcu_simulator {

inline bool IsFloating(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kF16 || type == ElementType::kBF16;
}

// Of i32, i8 and u8.
inline int64_t LeastOf(ElementType type) {
  return type == ElementType::kI32 ? INT32_MIN : type == ElementType::kI8 ? INT8_MIN : 0;
}
inline int64_t GreatestOf(ElementType type) {
  return type == ElementType::kI32 ? INT32_MAX : type == ElementType::kI8 ? INT8_MAX : UINT8_MAX;
}

inline float FloatOfBits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t BitsOfFloat(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float FloatOfHalf(uint16_t half) {
  _Float16 value = 0;
  std::memcpy(&value, &half, sizeof value);
  return static_cast<float>(value);
}

inline uint16_t HalfOfFloat(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits = 0;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

// To nearest, ties to even; NaN stays NaN.
inline uint16_t BfloatOfFloat(float value) {
  const uint32_t bits = BitsOfFloat(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The type's elements at data[i * stride], as floats. REQUIRES: IsFloating.
inline void LoadFloats(ElementType type, const uint8_t* data, int64_t stride, int64_t n,
                       float* out) {
  const auto at = [&](int64_t i, auto& value) {
    std::memcpy(&value, data + i * stride * static_cast<int64_t>(sizeof value), sizeof value);
  };
  uint16_t bits = 0;
  if (type == ElementType::kF32 && stride == 1) {
    std::memcpy(out, data, n * sizeof(float));
  } else if (type == ElementType::kF32) {
    for (int64_t i = 0; i < n; ++i) at(i, out[i]);
  } else if (type == ElementType::kF16) {
    for (int64_t i = 0; i < n; ++i) at(i, bits), out[i] = FloatOfHalf(bits);
  } else {
    for (int64_t i = 0; i < n; ++i) at(i, bits), out[i] = FloatOfBits(uint32_t{bits} << 16);
  }
}

inline void StoreFloats(ElementType type, const float* values, int64_t stride, int64_t n,
                        uint8_t* data) {
  const auto put = [&](int64_t i, auto value) {
    std::memcpy(data + i * stride * static_cast<int64_t>(sizeof value), &value, sizeof value);
  };
  if (type == ElementType::kF32 && stride == 1) {
    std::memcpy(data, values, n * sizeof(float));
  } else if (type == ElementType::kF32) {
    for (int64_t i = 0; i < n; ++i) put(i, values[i]);
  } else if (type == ElementType::kF16) {
    for (int64_t i = 0; i < n; ++i) put(i, HalfOfFloat(values[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) put(i, BfloatOfFloat(values[i]));
  }
}

// The same of i32, i8 and u8.
inline void LoadIntegers(ElementType type, const uint8_t* data, int64_t stride, int64_t n,
                         int64_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t* from = data + i * stride * ElementBytes(type);
    int32_t word = 0;
    if (type == ElementType::kI32) std::memcpy(&word, from, sizeof word);
    out[i] = type == ElementType::kI32  ? word
             : type == ElementType::kI8 ? static_cast<int8_t>(*from)
                                        : *from;
  }
}

// Wraps.
inline void StoreIntegers(ElementType type, const int64_t* values, int64_t stride, int64_t n,
                          uint8_t* data) {
  for (int64_t i = 0; i < n; ++i) {
    uint8_t* to = data + i * stride * ElementBytes(type);
    const auto word = static_cast<uint32_t>(values[i]);
    if (type == ElementType::kI32) {
      std::memcpy(to, &word, sizeof word);
    } else {
      *to = static_cast<uint8_t>(word);
    }
  }
}

}  // namespace kiln::gcu_simulator
