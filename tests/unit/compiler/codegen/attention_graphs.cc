#include "tests/unit/compiler/codegen/attention_graphs.h"

namespace kiln::codegen {

using lowering::GraphMaker;

GraphMaker AttentionGraph(AttentionCase c) {
  GraphMaker g;
  if (c.is_dynamic) c.batches = g.Symbol(c.batches);
  const auto input = [&](const lowering::Sizes& sizes, v1::DType type) {
    return g.Input(sizes, {}, type);
  };
  const auto operand = [&](int64_t rows, int64_t heads) {
    return input({c.batches, rows, heads, c.width}, c.type);
  };
  const int q = operand(c.queries, c.heads), k = operand(c.keys, c.key_heads),
            v = operand(c.keys, c.key_heads);
  v1::Argument mask = lowering::NoArg();
  if (c.mask != v1::DTYPE_UNSPECIFIED) {
    mask = lowering::Value(input(c.is_mask_of_keys
                                     ? lowering::Sizes{c.batches, 1, 1, c.keys}
                                     : lowering::Sizes{c.batches, c.heads, c.queries, c.keys},
                                 c.mask));
  }
  const auto by_heads = [&](int of, int64_t rows, int64_t heads) {
    return lowering::Value(g.Node("aten.permute.default",
                                  {lowering::Value(of), lowering::IntList({0, 2, 1, 3})},
                                  {c.batches, heads, rows, c.width}, c.type));
  };
  const auto qs = by_heads(q, c.queries, c.heads), ks = by_heads(k, c.keys, c.key_heads),
             vs = by_heads(v, c.keys, c.key_heads);
  const lowering::Sizes sizes = {c.batches, c.heads, c.queries, c.width};
  const v1::Argument causal = lowering::Bool(c.is_causal), dropout = lowering::Float(0);
  if (c.has_states) {
    const int out =
        g.Node("aten._scaled_dot_product_cudnn_attention.default",
               {qs, ks, vs, mask, lowering::Bool(true), dropout, causal}, sizes, c.type);
    g.Keyword("scale", lowering::Float(c.scale));
    g.Output(out);
    g.Output(g.MoreResult({c.batches, c.heads, c.queries, 1}));
    for (int i = 0; i < 2; ++i) g.Output(g.MoreResult({}, v1::DTYPE_INT64));
    return g;
  }
  const int out = g.Node("aten._scaled_dot_product_flash_attention_for_cpu.default",
                         {qs, ks, vs, dropout, causal}, sizes, c.type);
  g.MoreResult({c.batches, c.heads, c.queries});
  if (c.mask != v1::DTYPE_UNSPECIFIED) g.Keyword("attn_mask", mask);
  g.Keyword("scale", lowering::Float(c.scale));
  g.Output(out);
  if (c.has_log_sums) g.Output(out + 1);
  return g;
}

}  // namespace kiln::codegen
