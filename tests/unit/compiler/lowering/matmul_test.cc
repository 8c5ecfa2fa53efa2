#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::ElementsAre;

std::vector<double> Range(int n) {
  std::vector<double> data;
  for (int i = 0; i < n; ++i) data.push_back(i % 7 - 3);
  return data;
}

// a[m,k] @ b[k,n] in plain loops.
std::vector<double> Product(const std::vector<double>& a, const std::vector<double>& b, int m,
                            int k, int n) {
  std::vector<double> c(m * n, 0);
  for (int i = 0; i < m; ++i) {
    for (int p = 0; p < k; ++p) {
      for (int j = 0; j < n; ++j) c[i * n + j] += a[i * k + p] * b[p * n + j];
    }
  }
  return c;
}

const ir::Kernel& KernelAt(const ir::Module& module, size_t i) {
  return std::get<ir::Kernel>(module.operations.at(i));
}

TEST(Matmul, IsAContraction) {
  GraphMaker g;
  const int a = g.Input({6, 5}, Range(30));
  const int b = g.Input({5, 8}, Range(40));
  g.Output(g.Node("aten.mm.default", {Value(a), Value(b)}, {6, 8}));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  ASSERT_EQ(module.operations.size(), 1u);
  EXPECT_EQ(KernelAt(module, 0).schedule, ir::Schedule::kContraction);
  EXPECT_EQ(RunOne(g), Product(Range(30), Range(40), 6, 5, 8));
}

TEST(Matmul, OfFewRowsOrIntegersIsAPlainReduction) {
  for (const v1::DType dtype : {v1::DTYPE_FLOAT32, v1::DTYPE_INT64}) {
    GraphMaker g;
    const int rows = dtype == v1::DTYPE_INT64 ? 6 : 1;
    const int a = g.Input({rows, 5}, Range(rows * 5), dtype);
    const int b = g.Input({5, 8}, Range(40), dtype);
    g.Output(g.Node("aten.mm.default", {Value(a), Value(b)}, {rows, 8}, dtype));
    ir::Module module;
    ASSERT_TRUE(g.Lower(module).ok());
    EXPECT_EQ(KernelAt(module, 0).schedule, ir::Schedule::kLoops);
    EXPECT_EQ(RunOne(g), Product(Range(rows * 5), Range(40), rows, 5, 8));
  }
}

TEST(Matmul, OfThreeRowsIsAContractionWithAParameterAlone) {
  for (const int rows : {2, 3}) {
    for (const bool parameter : {false, true}) {
      GraphMaker g;
      const int a = g.Input({rows, 5}, Range(rows * 5));
      const int b = g.Input({5, 8}, Range(40));
      if (parameter) g.proto().mutable_inputs(1)->set_role(v1::Input::ROLE_PARAMETER);
      g.Output(g.Node("aten.mm.default", {Value(a), Value(b)}, {rows, 8}));
      ir::Module module;
      ASSERT_TRUE(g.Lower(module).ok());
      EXPECT_EQ(KernelAt(module, 0).schedule,
                rows == 3 && parameter ? ir::Schedule::kContraction : ir::Schedule::kLoops);
      EXPECT_EQ(RunOne(g), Product(Range(rows * 5), Range(40), rows, 5, 8));
    }
  }
}

TEST(Matmul, AddmmLeavesItsBiasToAnEpilogue) {
  GraphMaker g;
  const int bias = g.Input({8}, {1, 2, 3, 4, 5, 6, 7, 8});
  const int a = g.Input({6, 5}, Range(30));
  const int b = g.Input({5, 8}, Range(40));
  const int y = g.Node("aten.addmm.default", {Value(bias), Value(a), Value(b)}, {6, 8});
  g.Keyword("beta", Int(2));
  g.Keyword("alpha", Float(0.5));
  g.Output(y);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  ASSERT_EQ(module.operations.size(), 2u);
  EXPECT_EQ(KernelAt(module, 0).schedule, ir::Schedule::kContraction);
  std::vector<double> expected = Product(Range(30), Range(40), 6, 5, 8);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = 0.5 * expected[i] + 2.0 * (i % 8 + 1);
  EXPECT_EQ(RunOne(g), expected);
}

TEST(Matmul, ShapesThatDoNotFitAreRefused) {
  GraphMaker g;
  const int a = g.Input({6, 5}, Range(30));
  const int b = g.Input({4, 8}, Range(32));
  g.Output(g.Node("aten.mm.default", {Value(a), Value(b)}, {6, 8}));
  EXPECT_EQ(g.Run().status().code(), absl::StatusCode::kInvalidArgument);
}

struct Shape {
  int channels, size, out_channels, kernel, stride, padding, groups;
};

std::vector<double> Convolve(const Shape& s, const std::vector<double>& x,
                             const std::vector<double>& w, const std::vector<double>& bias,
                             int out) {
  const int in_group = s.channels / s.groups, out_group = s.out_channels / s.groups;
  std::vector<double> y;
  for (int oc = 0; oc < s.out_channels; ++oc) {
    for (int oh = 0; oh < out; ++oh) {
      for (int ow = 0; ow < out; ++ow) {
        double sum = bias[oc];
        for (int ic = 0; ic < in_group; ++ic) {
          for (int kh = 0; kh < s.kernel; ++kh) {
            for (int kw = 0; kw < s.kernel; ++kw) {
              const int ih = oh * s.stride + kh - s.padding, iw = ow * s.stride + kw - s.padding;
              if (ih < 0 || iw < 0 || ih >= s.size || iw >= s.size) continue;
              const int c = oc / out_group * in_group + ic;
              sum += x[(c * s.size + ih) * s.size + iw] *
                     w[((oc * in_group + ic) * s.kernel + kh) * s.kernel + kw];
            }
          }
        }
        y.push_back(sum);
      }
    }
  }
  return y;
}

TEST(Convolution, AgreesWithSevenLoops) {
  const Shape shapes[] = {
      {3, 7, 4, 3, 2, 1, 1}, {4, 6, 6, 3, 1, 0, 2}, {4, 5, 4, 3, 1, 1, 4}, {3, 5, 2, 1, 1, 0, 1}};
  for (const Shape& s : shapes) {
    const int out = (s.size + 2 * s.padding - s.kernel) / s.stride + 1;
    const auto x = Range(s.channels * s.size * s.size);
    const auto w = Range(s.out_channels * s.channels / s.groups * s.kernel * s.kernel);
    const auto bias = Range(s.out_channels);
    GraphMaker g;
    const int xi = g.Input({1, s.channels, s.size, s.size}, x);
    const int wi = g.Input({s.out_channels, s.channels / s.groups, s.kernel, s.kernel}, w);
    const int bi = g.Input({s.out_channels}, bias);
    g.Output(g.Node("aten.convolution.default",
                    {Value(xi), Value(wi), Value(bi), IntList({s.stride, s.stride}),
                     IntList({s.padding, s.padding}), IntList({1, 1}), Bool(false), IntList({0, 0}),
                     Int(s.groups)},
                    {1, s.out_channels, out, out}));
    EXPECT_EQ(RunOne(g), Convolve(s, x, w, bias, out));
  }
}

TEST(Convolution, MasksOnlyWherePaddingIs) {
  for (const int padding : {0, 1}) {
    GraphMaker g;
    const int x = g.Input({1, 2, 6, 6}, Range(72));
    const int w = g.Input({8, 2, 3, 3}, Range(144));
    const int out = 4 + 2 * padding;
    g.Output(g.Node("aten.convolution.default",
                    {Value(x), Value(w), NoArg(), IntList({1, 1}), IntList({padding, padding}),
                     IntList({1, 1}), Bool(false), IntList({0, 0}), Int(1)},
                    {1, 8, out, out}));
    ir::Module module;
    ASSERT_TRUE(g.Lower(module).ok());
    const ir::Kernel& kernel = KernelAt(module, 0);
    EXPECT_EQ(kernel.schedule, ir::Schedule::kContraction);
    bool is_masked = false;
    for (const ir::Inst& inst : kernel.phases[0].body) is_masked |= inst.has_mask;
    EXPECT_EQ(is_masked, padding == 1);
  }
}

TEST(Convolution, DepthwiseIsAPlainReduction) {
  GraphMaker g;
  const int x = g.Input({1, 4, 6, 6}, Range(144));
  const int w = g.Input({4, 1, 3, 3}, Range(36));
  g.Output(g.Node("aten.convolution.default",
                  {Value(x), Value(w), NoArg(), IntList({1, 1}), IntList({0, 0}), IntList({1, 1}),
                   Bool(false), IntList({0, 0}), Int(4)},
                  {1, 4, 4, 4}));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(KernelAt(module, 0).schedule, ir::Schedule::kLoops);
}

TEST(Attention, CausalScoresLookBackOnly) {
  GraphMaker g;
  const int q = g.Input({1, 1, 2, 1}, {0, 0});
  const int k = g.Input({1, 1, 2, 1}, {1, 2});
  const int v = g.Input({1, 1, 2, 1}, {10, 30});
  g.Output(g.Node("aten._scaled_dot_product_flash_attention_for_cpu.default",
                  {Value(q), Value(k), Value(v), Float(0), Bool(true)}, {1, 1, 2, 1}));
  g.MoreResult({1, 1, 2});
  EXPECT_THAT(RunOne(g), ElementsAre(10, 20));
}

}  // namespace
}  // namespace kiln::lowering
