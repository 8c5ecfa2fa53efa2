#include "compiler/lowering/convolution_product.h"

namespace kiln::lowering {

using enum ir::ScalarOp;
using ir::IntExpr;

Ints Join(std::initializer_list<Ints> parts) {
  Ints all;
  for (const Ints& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Ints Part(const Ints& all, size_t begin, size_t count) {
  return Ints(all.begin() + begin, all.begin() + begin + count);
}

Ints Spatial(const Ints& sizes) {
  return Ints(sizes.begin() + 2, sizes.end());
}

Ints Consts(ir::IntContext& ints, const std::vector<int64_t>& values) {
  Ints exprs;
  for (const int64_t value : values) exprs.push_back(ints.Const(value));
  return exprs;
}

namespace {

// A temporary that contractions read in place, filled by `body`.
View Pack(NodeContext& n, const Convolution& c, const Ints& sizes, const NodeContext::Body& body) {
  const View packed = n.NewTemp(sizes, c.compute);
  KernelBuilder b = n.NewKernel();
  const Ints at = b.Outer(sizes);
  b.StartPhase();
  b.Store(packed, at, body(b, at));
  b.Finish(ir::Schedule::kPacking);
  return packed;
}

}  // namespace

Padded PadPlaces(NodeContext& n, const Convolution& c, const View& x, bool is_last,
                 const std::vector<int64_t>& low, const Ints& sizes) {
  ir::IntContext& ints = n.ints();
  const Ints batch{x.sizes[0]}, channels{x.sizes[1]};
  const View view =
      Pack(n, c, is_last ? Join({batch, sizes, channels}) : Join({batch, channels, sizes}),
           [&](KernelBuilder& b, const Ints& at) {
             Ints source{at[0], is_last ? at.back() : at[1]};
             for (size_t d = 0; d < low.size(); ++d) {
               source.push_back(ints.Add(at[d + (is_last ? 1 : 2)], -low[d]));
             }
             const Scalar mask = InsideMask(b, x.sizes, source);
             return b.Cast(b.LoadMasked(x, source, mask, 0), c.compute);
           });
  return {view, is_last, low};
}

Scalar LoadPadded(KernelBuilder& k, const Padded& padded, IntExpr batch, IntExpr channel,
                  Ints place) {
  for (size_t d = 0; d < place.size(); ++d) place[d] = k.ints().Add(place[d], padded.low[d]);
  return k.Load(padded.view, padded.is_last ? Join({{batch}, place, {channel}})
                                            : Join({{batch, channel}, place}));
}

void EmitProduct(NodeContext& n, const Convolution& c, const Product& product, const View& out,
                 bool is_blocked) {
  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(product.outer);
  const Ints inner = k.StartPhase(product.inner);
  const Scalar a = k.Cast(product.a(k, outer, inner), c.compute);
  const Scalar b = k.Cast(product.b(k, outer, inner), c.compute);
  const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Op(kMul, a, b));
  k.StartPhase();
  k.Store(out, product.at_out(outer), sum);
  k.Finish(is_blocked ? ir::Schedule::kContraction : ir::Schedule::kLoops);
}

}  // namespace kiln::lowering
