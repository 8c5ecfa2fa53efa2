#include "compiler/lowering/view.h"

#include "gtest/gtest.h"

namespace kiln::lowering {
namespace {

View MakeView(ir::Module& module, const std::vector<int64_t>& sizes) {
  ir::Buffer buffer;
  buffer.name = "x";
  for (const int64_t size : sizes) buffer.sizes.push_back(module.ints->Const(size));
  buffer.strides = module.ContiguousStrides(buffer.sizes);
  return WholeBuffer(module, module.AddBuffer(buffer));
}

Ints Consts(ir::Module& module, const std::vector<int64_t>& values) {
  Ints out;
  for (const int64_t value : values) out.push_back(module.ints->Const(value));
  return out;
}

TEST(View, ReshapeLeavesEqualDimensionsAlone) {
  ir::Module module;
  const View x = MakeView(module, {5, 6, 7});
  const View y = Reshape(*module.ints, x, Consts(module, {5, 2, 3, 7}));
  EXPECT_EQ(y.indices[0], y.vars[0]);
  EXPECT_EQ(y.indices[2], y.vars[3]);
}

TEST(View, ReshapeThereAndBackIsTheIdentity) {
  ir::Module module;
  const View x = MakeView(module, {4, 12, 64});
  const View y = Reshape(*module.ints, x, Consts(module, {4, 768}));
  const View z = Reshape(*module.ints, y, x.sizes);
  EXPECT_EQ(z.indices, z.vars);
}

TEST(View, PermutedBufferIsAStridedWindow) {
  ir::Module module;
  const View x = MakeView(module, {2, 3, 4});
  const auto window = AsWindow(module, Permute(*module.ints, x, {2, 0, 1}));
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->strides, Consts(module, {1, 12, 4}));
  EXPECT_TRUE(window->offset.is_const(0));
}

// Its longest stride is n * s - s, whose range alone leaves the sign open.
TEST(View, WindowOfWhatASymbolLacksOne) {
  ir::Module module;
  ir::IntContext& ints = *module.ints;
  const ir::IntExpr n = ints.NewSymbol("n", 2, int64_t{1} << 40, 5);
  const ir::IntExpr s = ints.NewSymbol("s", 2, int64_t{1} << 40, 7);
  ir::Buffer buffer;
  buffer.sizes = {ints.NewSymbol("rows", 2, 100, 3), s, ints.Add(n, -1)};
  buffer.strides = module.ContiguousStrides(buffer.sizes);
  const Ints strides = buffer.strides;
  const auto window = AsWindow(module, WholeBuffer(module, module.AddBuffer(buffer)));
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->strides, strides);
}

TEST(View, SliceHasAnOffsetAndRepeatIsNoWindow) {
  ir::Module module;
  const View x = MakeView(module, {10});
  const auto c = [&](int64_t v) { return module.ints->Const(v); };
  const auto window = AsWindow(module, Slice(*module.ints, x, 0, c(3), c(2), c(3)));
  ASSERT_TRUE(window.has_value());
  EXPECT_TRUE(window->offset.is_const(3));
  EXPECT_TRUE(window->strides[0].is_const(2));
  const View twice = Remap(*module.ints, x, {c(20)}, [&](const Ints& vars) {
    return Ints{module.ints->Mod(vars[0], c(10))};
  });
  EXPECT_FALSE(AsWindow(module, twice).has_value());
}

TEST(View, DenseMeansSomeOrderWithoutGaps) {
  ir::Module module;
  const Ints sizes = Consts(module, {2, 3, 4, 1});
  EXPECT_TRUE(IsDense(*module.ints, sizes, Consts(module, {12, 1, 3, 99})));
  EXPECT_FALSE(IsDense(*module.ints, sizes, Consts(module, {24, 1, 3, 1})));
  EXPECT_FALSE(IsDense(*module.ints, sizes, Consts(module, {0, 4, 1, 1})));
}

TEST(View, DenseStridesMayTakeASizeOfZeroForOne) {
  ir::Module module;
  ir::IntContext& ints = *module.ints;
  const ir::IntExpr n = ints.NewSymbol("n", 0, 9, 3);
  const ir::IntExpr eight = ints.Const(8), one = ints.Const(1);
  const ir::IntExpr positive = ints.Mul(eight, ints.Max(n, one));
  EXPECT_TRUE(IsDense(ints, {n, eight, n}, {positive, one, eight}));
  EXPECT_TRUE(IsDense(ints, {n, eight, n}, {ints.Mul(eight, n), one, eight}));
  EXPECT_FALSE(IsDense(ints, {n, eight, n}, {ints.Mul(positive, n), one, eight}));
}

TEST(View, MemoryOrderPutsTheGreatestStrideFirst) {
  ir::Module module;
  EXPECT_EQ(MemoryOrder(*module.ints, Consts(module, {2, 3, 4, 5}), Consts(module, {60, 1, 15, 3})),
            (std::vector<int>{0, 2, 3, 1}));
}

}  // namespace
}  // namespace kiln::lowering
