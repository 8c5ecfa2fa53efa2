// Conversions between double and the two 16-bit floating formats, rounding to nearest even.
#pragma once

#include <cstdint>

namespace kiln::ir {

double DoubleFromHalf(uint16_t bits);
uint16_t HalfFromDouble(double value);
double DoubleFromBFloat16(uint16_t bits);
uint16_t BFloat16FromDouble(double value);

}  // namespace kiln::ir
