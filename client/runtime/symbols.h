// Where a run finds the values of a program's symbols: in inputs that are sizes, else in the sizes
// or strides of tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kiln/kiln.h"

namespace kiln {
namespace v1 {
class Program;
}
}  // namespace kiln

namespace kiln::runtime {

struct SymbolSource {
  enum class Kind : uint8_t { kNone, kScalar, kSize, kStride } kind = Kind::kNone;
  int input = 0;
  int dimension = 0;
  int64_t fixed = 0;  // of kNone: the symbol's only legal value or its hint; nothing depends on it
};

// One for each symbol. A scalar is preferred to a size, a size to a stride.
std::vector<SymbolSource> FindSymbolSources(const v1::Program& program);

// Reads the values. INVALID_ARGUMENT where an input lacks the dimension. REQUIRES: `inputs` has as
// many as the program; a scalar's data is not null.
absl::StatusOr<std::vector<int64_t>> ReadSymbols(absl::Span<const SymbolSource> sources,
                                                 absl::Span<const kiln_tensor> inputs);

}  // namespace kiln::runtime
