// The reference interpreter: executes a module naively. Every stage and target is tested against
// it.
//
// Floating-point values of every type are kept and computed in double, so its results serve as a
// higher-precision reference: neither a store to a buffer of f32, f16 or bf16 nor a cast to one of
// them rounds. Integers are exact in their own width and wrap; a cast from a floating type to one
// truncates and wraps, and what int64 cannot hold, NaN included, becomes its least value. Shifts by
// the width or more, or by a negative count, shift everything out; sign(NaN) is 0. Contractions
// over floating types run as blocked matrix products, in the order of summation of the plain loops,
// so that BERT-base takes seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compiler/ir/module.h"
#include "proto/base/random_inputs.h"

namespace kiln::ir {

// A row-major value: `floats` for floating dtypes, `ints` for integral ones (bool: 0 or 1).
struct ReferenceTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes;
  std::vector<double> floats;
  std::vector<int64_t> ints;
};

struct InterpretOptions {
  // Called between operations; an error ends the run with it. May be empty.
  std::function<absl::Status(int done, int total)> progress;
  int64_t max_bytes = int64_t{1} << 34;  // of all values alive; more is RESOURCE_EXHAUSTED
  int threads = 0;  // of contractions; 0: one a processor. Results are the same
};

// REQUIRES: a verified module.
// `inputs`: one tensor for each kInput buffer's index, in any strides; `symbols`: the value of each
// symbol; `constants`: data of each kConstant. Returns one tensor for each output (sizes come as
// 0-d i64, `none` as an empty u8 tensor). UNIMPLEMENTED for a Library operation, OUT_OF_RANGE for
// an index tensor's value outside its dimension.
absl::StatusOr<std::vector<ReferenceTensor>> Interpret(const Module& module,
                                                       absl::Span<const HostTensor> inputs,
                                                       absl::Span<const int64_t> symbols,
                                                       absl::Span<const std::string> constants,
                                                       const InterpretOptions& options = {});

}  // namespace kiln::ir
