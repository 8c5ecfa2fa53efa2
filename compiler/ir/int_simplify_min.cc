// Minimum and maximum.
#include <algorithm>

#include "compiler/ir/int_impl.h"

namespace kiln::ir {

// Flattens, folds constants and drops every operand that another one beats.
IntExpr IntContext::Impl::MinMax(IntKind kind, absl::Span<const IntExpr> operands) {
  bool is_min = kind == IntKind::kMin;
  absl::InlinedVector<IntExpr, 8> parts;
  for (IntExpr operand : operands) {
    if (operand.kind() == kind) {
      absl::Span<const IntExpr> nested = operand.operands();
      parts.insert(parts.end(), nested.begin(), nested.end());
    } else {
      parts.push_back(operand);
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](IntExpr a, IntExpr b) { return CompareExprs(a, b) < 0; });
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());

  // Of two that are always equal the earlier one goes; it is gone when the later one is looked at.
  for (size_t i = 0; i < parts.size() && parts.size() > 1;) {
    bool beaten = false;
    for (size_t j = 0; j < parts.size() && !beaten; ++j) {
      if (i == j) continue;
      beaten = is_min ? ProvablyLessEqual(parts[j], parts[i], 0)
                      : ProvablyLessEqual(parts[i], parts[j], 0);
    }
    if (beaten) {
      parts.erase(parts.begin() + i);
    } else {
      ++i;
    }
  }
  return parts.size() == 1 ? parts[0] : Node(kind, parts);
}

}  // namespace kiln::ir
