// _weight_int4pack_mm: weights of 4 bits in the order that a GPU's tensor cores take them.
#include "compiler/ir/packed_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;
using testing::Pointwise;

constexpr int kRows = 3, kColumns = 16, kDepth = 256;

// Numbers 0 to 15 of a matrix [columns, depth].
int NumberAt(int column, int k) {
  return (7 * column + 3 * k + k / 5) % 16;
}

// Word by word, lane by lane, as aten._convert_weight_to_int4pack makes them of such a matrix.
std::vector<double> Words(int inner) {
  std::vector<double> words;
  for (int eight = 0; eight < kColumns / 8; ++eight) {
    for (int tiles = 0; tiles < kDepth; tiles += 16 * inner) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int word = 0; word < inner / 2; ++word) {
          uint32_t bits = 0;
          for (int number = 0; number < 4; ++number) {
            const int k = tiles + 32 * word + 8 * number + lane % 4 * 2;
            const int column = 8 * eight + lane / 4;
            bits |= static_cast<uint32_t>(NumberAt(column, k)) << 4 * number;
            bits |= static_cast<uint32_t>(NumberAt(column, k + 1)) << (16 + 4 * number);
          }
          words.push_back(static_cast<int32_t>(bits));
        }
      }
    }
  }
  return words;
}

std::vector<double> X() {
  std::vector<double> x;
  for (int i = 0; i < kRows * kDepth; ++i) x.push_back(i % 11 - 5);
  return x;
}

// Quarters, which 16 bits hold.
std::vector<double> Scales(int group) {
  std::vector<double> scales;
  for (int i = 0; i < kDepth / group * kColumns * 2; ++i) scales.push_back((i % 13 - 6) / 4.0);
  return scales;
}

struct Sizes4 {
  Sizes x = {kRows, kDepth}, words, scales, y = {kRows, kColumns};
};
Sizes4 SizesOf(int inner, int group) {
  Sizes4 sizes;
  sizes.words = {kColumns / 8, kDepth / (16 * inner), 32, inner / 2};
  sizes.scales = {kDepth / group, kColumns, 2};
  return sizes;
}

GraphMaker Graph(int inner, int group, const Sizes4& sizes, v1::DType x_type = v1::DTYPE_BFLOAT16) {
  GraphMaker g;
  const auto sized = [](const Sizes& of, std::vector<double> data) {
    int64_t count = 1;
    for (const int64_t size : of) count *= size;
    data.resize(count);
    return data;
  };
  const int x = g.Input(sizes.x, sized(sizes.x, X()), x_type);
  const int words = g.Input(sizes.words, sized(sizes.words, Words(inner)), v1::DTYPE_INT32);
  const int scales = g.Input(sizes.scales, sized(sizes.scales, Scales(group)), v1::DTYPE_BFLOAT16);
  g.Output(g.Node("aten._weight_int4pack_mm.default",
                  {Value(x), Value(words), Int(group), Value(scales)}, sizes.y,
                  v1::DTYPE_BFLOAT16));
  return g;
}

TEST(PackedMatmul, UnpacksByEachNumberOfTilesAndGroup) {
  for (const int inner : {2, 4, 8}) {
    for (const int group : {32, 64, 128, 256}) {
      SCOPED_TRACE(testing::Message() << inner << " tiles, groups of " << group);
      const std::vector<double> x = X(), scales = Scales(group);
      std::vector<double> expected;
      for (int row = 0; row < kRows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
          double sum = 0;
          for (int k = 0; k < kDepth; ++k) {
            const int at = (k / group * kColumns + column) * 2;
            sum += x[row * kDepth + k] * ((NumberAt(column, k) - 8) * scales[at] + scales[at + 1]);
          }
          expected.push_back(sum);
        }
      }
      const GraphMaker g = Graph(inner, group, SizesOf(inner, group));
      EXPECT_THAT(RunOne(g), Pointwise(DoubleNear(1e-9), expected));
      ir::Module module;
      ASSERT_TRUE(g.Lower(module).ok());
      ASSERT_EQ(module.operations.size(), 2u);
      EXPECT_TRUE(ir::UnpacksWeights(module, std::get<ir::Kernel>(module.operations[0])));
    }
  }
}

TEST(PackedMatmul, OtherSizesAreErrorsThatSayWhich) {
  const auto error = [](int group, const Sizes4& sizes) {
    ir::Module module;
    const absl::Status status = Graph(4, group, sizes).Lower(module);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  const Sizes4 good = SizesOf(4, 64);
  EXPECT_THAT(error(48, good), HasSubstr("'qGroupSize' 48"));
  EXPECT_THAT(error(32, good), HasSubstr("the scales has sizes [4, 16, 2]"));
  Sizes4 sizes = good;
  sizes.words = {2, 4, 16, 2};
  EXPECT_THAT(error(64, sizes), HasSubstr("'mat2' has sizes [256, 16]"));
  sizes = good;
  sizes.words = {2, 4, 32, 3};
  EXPECT_THAT(error(64, sizes), HasSubstr("words of a lane"));
  sizes = good;
  sizes.x = {kRows, 192};
  EXPECT_THAT(error(64, sizes), HasSubstr("'mat2' has sizes [256, 32]"));
  sizes = good;
  sizes.words = {2, 3, 32, 2};
  sizes.x = {kRows, 192};
  EXPECT_THAT(error(128, sizes), HasSubstr("a depth of 192"));
  sizes = good;
  sizes.y = {kRows, 8};
  EXPECT_THAT(error(64, sizes), HasSubstr("the result"));
}

TEST(PackedMatmul, OfOtherTypesIsALibrarys) {
  const GraphMaker g = Graph(4, 64, SizesOf(4, 64), v1::DTYPE_FLOAT32);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module, /*library_steps=*/true).ok());
  EXPECT_TRUE(std::holds_alternative<ir::Library>(module.operations.at(0)));
}

}  // namespace
}  // namespace kiln::lowering
