#include <string>
#include <vector>

#include "compiler/ir/print.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Random, EachNodeHasAStreamOfItsOwn) {
  GraphMaker g;
  const int x = g.Input({4, 5}, std::vector<double>(20, 0.5));
  const int seed = g.Input({1}, {7}, v1::DTYPE_INT64);
  g.Output(g.Node("aten.rand.default", {IntList({4, 5})}, {4, 5}));
  g.Keyword("kiln_seed", Value(seed));
  g.Output(g.Node("aten.rand_like.default", {Value(x)}, {4, 5}));
  g.Keyword("kiln_seed", Value(seed));
  g.Output(g.Node("aten.bernoulli.default", {Value(x)}, {4, 5}));
  g.Keyword("kiln_seed", Value(seed));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_NE((*outputs)[0].floats, (*outputs)[1].floats);
  for (const double u : (*outputs)[0].floats) EXPECT_TRUE(u >= 0 && u < 1) << u;
  for (const double b : (*outputs)[2].floats) EXPECT_TRUE(b == 0 || b == 1) << b;
  // The same again.
  EXPECT_EQ((*g.Run())[0].floats, (*outputs)[0].floats);
}

TEST(Random, WithoutASeedTheNumbersAreTheClients) {
  GraphMaker g;
  g.Output(g.Node("aten.rand.default", {IntList({4, 5})}, {4, 5}));
  ir::Module module;
  EXPECT_EQ(g.Lower(module).code(), absl::StatusCode::kUnimplemented);
}

TEST(Random, ASeedIsOneInteger) {
  GraphMaker g;
  const int seed = g.Input({2}, {7, 8}, v1::DTYPE_INT64);
  g.Output(g.Node("aten.rand.default", {IntList({4, 5})}, {4, 5}));
  g.Keyword("kiln_seed", Value(seed));
  ir::Module module;
  EXPECT_EQ(g.Lower(module).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Random, WhatADropoutKeepsIsTheSameWhereverItIsComputed) {
  GraphMaker g;
  const int x = g.Input({8, 8}, std::vector<double>(64, 0.5));
  const int seed = g.Input({1}, {7}, v1::DTYPE_INT64);
  for (const int64_t stream : {0, 0, 1}) {
    g.Output(g.Node("kiln.keep.default", {Value(x), Value(seed), Int(stream), Float(0.5)}, {8, 8},
                    v1::DTYPE_BOOL));
  }
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ((*outputs)[0].ints, (*outputs)[1].ints);
  EXPECT_NE((*outputs)[0].ints, (*outputs)[2].ints);

  GraphMaker wrong;
  const int y = wrong.Input({8, 8}, std::vector<double>(64, 0.5));
  wrong.Output(wrong.Node("kiln.keep.default", {Value(y), Value(y), Int(0), Float(0.5)}, {8, 8},
                          v1::DTYPE_BOOL));
  ir::Module module;
  EXPECT_EQ(wrong.Lower(module).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Random, DropoutThatDoesNotTrainDrawsNothingFromItsStream) {
  GraphMaker g;
  const int x = g.Input({3}, {1, 2, 3});
  g.Output(g.Node("aten.native_dropout.default", {Value(x), Float(0.5), Bool(false)}, {3}));
  g.Output(g.MoreResult({3}, v1::DTYPE_BOOL));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(Count(ir::Print(module), "philox"), 0U);
}

}  // namespace
}  // namespace kiln::lowering
