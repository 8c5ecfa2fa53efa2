#include "compiler/codegen/source/reduce_text.h"

#include <limits>

#include "compiler/codegen/source/kernel_text.h"

namespace kiln::codegen::source {

using ir::ReduceKind;

ReduceText DescribeReduce(ReduceKind kind, DType type) {
  const double inf = std::numeric_limits<double>::infinity();
  const bool floating = IsFloat(type);
  const int bits = static_cast<int>(8 * DTypeSize(type));
  const int64_t least = type == DType::kU8 ? 0
                        : bits == 64       ? INT64_MIN
                                           : -(int64_t{1} << (bits - 1));
  const int64_t greatest = type == DType::kU8 ? 255 : ~least;
  auto literal = [&](double as_float, int64_t as_int) {
    return floating ? FloatLiteral(type, as_float) : IntLiteral(type, as_int);
  };
  switch (kind) {
    case ReduceKind::kSum:
      return {"KSum", literal(0, 0)};
    case ReduceKind::kProd:
      return {"KProd", literal(1, 1)};
    case ReduceKind::kMax:
      return {"KMaxOf", literal(-inf, least)};
    case ReduceKind::kMin:
      return {"KMinOf", literal(inf, greatest)};
    case ReduceKind::kLogAddExp:
      return {"KLogAddExpOf", literal(-inf, 0)};
    case ReduceKind::kAny:
      return {"KAnyOf", "false"};
    case ReduceKind::kAll:
      return {"KAllOf", "true"};
    case ReduceKind::kArgMax:
      return {"", literal(-inf, least), true};
    case ReduceKind::kArgMin:
      return {"", literal(inf, greatest), false};
  }
  return {};
}

}  // namespace kiln::codegen::source
