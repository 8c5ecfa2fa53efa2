// The prelude's functions, compiled for one instruction set, as arrays in and arrays out.
#pragma once

namespace kiln::tools {

struct UnaryFunction {
  const char* name;
  void (*apply)(const float* x, float* y, long count);  // count: a multiple of 16
};
struct BinaryFunction {
  const char* name;
  void (*apply)(const float* x, const float* y, float* z, long count);
};
struct FunctionTable {
  const char* instruction_set;
  const UnaryFunction* unary;  // ends with a null name, as does binary
  const BinaryFunction* binary;
};

extern const FunctionTable kBaselineFunctions;
extern const FunctionTable kAvx2Functions;
extern const FunctionTable kAvx2FastMathFunctions;  // compiled as for the fast_math option
extern const FunctionTable kAvx512Functions;

}  // namespace kiln::tools
