// Graphs of one attention each, for tests of target ptx.
#pragma once

#include <cstdint>

#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::codegen {

struct AttentionCase {
  v1::DType type = v1::DTYPE_BFLOAT16;
  int64_t batches = 2, heads = 4, key_heads = 4, queries = 70, keys = 90, width = 64;
  bool is_causal = false, has_log_sums = false;
  v1::DType mask = v1::DTYPE_UNSPECIFIED;  // none
  bool is_mask_of_keys = false;            // one for all heads and rows
  double scale = 0.125;
  bool is_dynamic = false;  // how many batches there are is known at run time only
  // cuDNN's operator as training has it: states of random numbers are used.
  bool has_states = false;
};

// One attention of operands with rows of all heads one after another, as transformers' models
// have them.
lowering::GraphMaker AttentionGraph(AttentionCase c);

}  // namespace kiln::codegen
