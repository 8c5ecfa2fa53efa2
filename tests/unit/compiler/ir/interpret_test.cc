#include "compiler/ir/interpret.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/half.h"
#include "compiler/ir/verify.h"
#include "gmock/gmock.h"
#include "tests/unit/compiler/ir/module_texts.h"

namespace kiln::ir {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <typename T>
HostTensor Tensor(DType dtype, std::vector<int64_t> sizes, const std::vector<T>& values) {
  HostTensor t{.dtype = dtype, .sizes = std::move(sizes)};
  t.strides.assign(t.sizes.size(), 1);
  for (size_t i = t.sizes.size(); i-- > 1;) t.strides[i - 1] = t.strides[i] * t.sizes[i];
  t.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return t;
}
HostTensor Floats(std::vector<int64_t> sizes, const std::vector<float>& values) {
  return Tensor(DType::kF32, std::move(sizes), values);
}
HostTensor Longs(std::vector<int64_t> sizes, const std::vector<int64_t>& values) {
  return Tensor(DType::kI64, std::move(sizes), values);
}

absl::StatusOr<std::vector<ReferenceTensor>> TryExecute(
    absl::string_view text, const std::vector<HostTensor>& inputs,
    const std::vector<int64_t>& symbols = {}, const std::vector<std::string>& constants = {},
    const InterpretOptions& options = {}) {
  const Module module = ParseForTest(text);
  EXPECT_EQ(Verify(module), absl::OkStatus());
  return Interpret(module, inputs, symbols, constants, options);
}

std::vector<ReferenceTensor> Execute(absl::string_view text, const std::vector<HostTensor>& inputs,
                                     const std::vector<int64_t>& symbols = {},
                                     const std::vector<std::string>& constants = {}) {
  auto outputs = TryExecute(text, inputs, symbols, constants);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs.ok() ? *std::move(outputs) : std::vector<ReferenceTensor>(9);
}

// Runs `body`, instructions that end in value %r of type `dtype`, on one element.
ReferenceTensor Scalar(absl::string_view dtype, absl::string_view body) {
  return Execute(absl::StrCat("module { buffer @y ", dtype,
                              "[] strides[] output kernel @k () { "
                              "phase () { ",
                              body, " store ", dtype,
                              " @y[], %9 } } "
                              "output @y sizes[] strides[] offset 0 }"),
                 {})[0];
}
int64_t Int(absl::string_view dtype, absl::string_view body) {
  return Scalar(dtype, body).ints.at(0);
}
double Float(absl::string_view dtype, absl::string_view body) {
  return Scalar(dtype, body).floats.at(0);
}

TEST(InterpretTest, SoftmaxOverRowsLongerThanAVectorOfLanes) {
  constexpr int kRows = 3, kColumns = 700;
  std::mt19937 random(7);
  std::vector<float> x(kRows * kColumns);
  for (float& v : x) v = std::normal_distribution<float>(0, 3)(random);
  const auto y = Execute(R"(module {
    symbol s0 [1, 9] hint 3
    buffer @x f32[s0,700] strides[700,1] input(0)
    buffer @y f32[s0,700] strides[700,1] output
    kernel @softmax (d0: s0) {
      phase (r0: 700) { %0 = load f32 @x[d0, r0] %1 = reduce.max f32 %0 }
      phase (r0: 700) { %2 = load f32 @x[d0, r0] %3 = sub f32 %2, %1 %4 = exp f32 %3
                        %5 = reduce.sum f32 %4 }
      phase (r0: 7, r1: 100) { %6 = load f32 @x[d0, 100*r0 + r1] %7 = sub f32 %6, %1
                        %8 = exp f32 %7 %9 = div f32 %8, %5 store f32 @y[d0, 100*r0 + r1], %9 }
    }
    output @y sizes[s0,700] strides[700,1] offset 0
    output int 2*s0
    output none
  })",
                         {Floats({kRows, kColumns}, x)}, {kRows});
  ASSERT_EQ(y.size(), 3u);
  EXPECT_THAT(y[0].sizes, ElementsAre(kRows, kColumns));
  for (int r = 0; r < kRows; ++r) {
    double sum = 0;
    for (int c = 0; c < kColumns; ++c) sum += std::exp(double{x[r * kColumns + c]});
    for (int c = 0; c < kColumns; ++c) {
      const double expected = std::exp(double{x[r * kColumns + c]}) / sum;
      ASSERT_NEAR(y[0].floats[r * kColumns + c], expected, 1e-14) << r << ", " << c;
    }
  }
  EXPECT_EQ(y[1].dtype, DType::kI64);
  EXPECT_THAT(y[1].ints, ElementsAre(2 * kRows));
  EXPECT_EQ(y[2].dtype, DType::kU8);
  EXPECT_THAT(y[2].sizes, ElementsAre(0));
}

TEST(InterpretTest, LoopVariablesWrapWithinAndAcrossVectors) {
  const auto y = Execute(R"(module {
    buffer @y i64[7,11,13] strides[143,13,1] output
    kernel @k (d0: 7, d1: 11, d2: 13) {
      phase () { %0 = index i64 10000*d0 + 100*d1 + d2 store i64 @y[d0, d1, d2], %0 }
    }
    output @y sizes[7,11,13] strides[143,13,1] offset 0
  })",
                         {});
  for (int64_t i = 0; i < 7 * 11 * 13; ++i) {
    ASSERT_EQ(y[0].ints[i], 10000 * (i / 143) + 100 * (i / 13 % 11) + i % 13);
  }
}

TEST(InterpretTest, InputsAndOutputsMayHaveAnyStrides) {
  HostTensor x = Floats({2, 3}, {1, 2, 3, 4, 5, 6});
  x.strides = {1, 2};  // column-major: rows are 1 3 5 and 2 4 6
  const auto y = Execute(R"(module {
    buffer @x f32[2,3] strides[3,1] input(0)
    buffer @y f32[2,3] strides[1,4] output
    kernel @k (d0: 2, d1: 3) {
      phase () { %0 = load f32 @x[d0, d1] %1 = neg f32 %0 store f32 @y[d0, d1], %1 }
    }
    output @y sizes[2,3] strides[1,4] offset 0
    output @y sizes[2] strides[4] offset 5
    output @x sizes[3,2] strides[1,3] offset 0
  })",
                         {x});
  EXPECT_THAT(y[0].floats, ElementsAre(-1, -3, -5, -2, -4, -6));
  EXPECT_THAT(y[1].floats, ElementsAre(-4, -6));
  EXPECT_THAT(y[2].floats, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(InterpretTest, EveryTypeOfInputIsRead) {
  const struct {
    const char* dtype;
    HostTensor tensor;
    double expected;
  } cases[] = {
      {"bool", Tensor<uint8_t>(DType::kBool, {1}, {2}), 1},
      {"u8", Tensor<uint8_t>(DType::kU8, {1}, {200}), 200},
      {"i8", Tensor<int8_t>(DType::kI8, {1}, {-100}), -100},
      {"i16", Tensor<int16_t>(DType::kI16, {1}, {-30000}), -30000},
      {"i32", Tensor<int32_t>(DType::kI32, {1}, {-2000000000}), -2000000000},
      {"i64", Longs({1}, {int64_t{1} << 40}), 1099511627776.0},
      {"f16", Tensor<uint16_t>(DType::kF16, {1}, {0x3555}), 0.333251953125},
      {"bf16", Tensor<uint16_t>(DType::kBF16, {1}, {0xC049}), -3.140625},
      {"f32", Floats({1}, {0.1f}), double{0.1f}},
      {"f64", Tensor<double>(DType::kF64, {1}, {0.1}), 0.1},
  };
  for (const auto& c : cases) {
    const auto y = Execute(absl::StrReplaceAll(R"(module {
      buffer @x TYPE[1] strides[1] input(0)
      buffer @y f64[1] strides[1] output
      kernel @k (d0: 1) { phase () {
        %0 = load TYPE @x[d0] %1 = cast f64 %0 store f64 @y[d0], %1 } }
      output @y sizes[1] strides[1] offset 0
    })",
                                               {{"TYPE", c.dtype}}),
                           {c.tensor});
    EXPECT_EQ(y[0].floats.at(0), c.expected) << c.dtype;
  }
}

TEST(InterpretTest, FloatsAreNotRoundedToTheirType) {
  EXPECT_EQ(Float("bf16", "%0 = const f64 0.1 %1 = cast f32 %0 %9 = cast bf16 %1"), 0.1);
}

TEST(InterpretTest, IntegersWrapInTheirWidth) {
  EXPECT_EQ(Int("i8", "%0 = const i8 100 %9 = add i8 %0, %0"), -56);
  EXPECT_EQ(Int("u8", "%0 = const u8 3 %1 = const u8 5 %9 = sub u8 %0, %1"), 254);
  EXPECT_EQ(Int("i64", "%0 = const i64 9223372036854775807 %9 = add i64 %0, %0"), -2);
  EXPECT_EQ(Int("i32", "%0 = const i32 -2147483648 %9 = abs i32 %0"), INT32_MIN);
  EXPECT_EQ(Int("i64",
                "%0 = const i64 -9223372036854775808 %1 = const i64 -1 "
                "%9 = truncdiv i64 %0, %1"),
            INT64_MIN);
}

TEST(InterpretTest, IntegerDivisionRounds) {
  const char* operands = "%0 = const i32 -7 %1 = const i32 2 %2 = const i32 0 %9 = ";
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "floordiv i32 %0, %1")), -4);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "truncdiv i32 %0, %1")), -3);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "mod i32 %0, %1")), 1);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "fmod i32 %0, %1")), -1);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "floordiv i32 %0, %2")), 0);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "mod i32 %0, %2")), 0);
}

TEST(InterpretTest, ShiftsAndBits) {
  const char* operands = "%0 = const i32 -8 %1 = const i32 1 %2 = const i32 40 %9 = ";
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "shl i32 %0, %1")), -16);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "shr i32 %0, %1")), -4);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "shl i32 %0, %2")), 0);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "shr i32 %0, %2")), -1);
  EXPECT_EQ(Int("u8", "%0 = const u8 1 %9 = not u8 %0"), 254);
  EXPECT_EQ(Int("bool", "%0 = const bool true %9 = not bool %0"), 0);
}

TEST(InterpretTest, Casts) {
  EXPECT_EQ(Int("i32", "%0 = const f32 -2.9 %9 = cast i32 %0"), -2);
  EXPECT_EQ(Int("u8", "%0 = const f32 300 %9 = cast u8 %0"), 44);
  EXPECT_EQ(Int("i64", "%0 = const f32 nan %9 = cast i64 %0"), INT64_MIN);
  EXPECT_EQ(Int("bool", "%0 = const f32 0.1 %9 = cast bool %0"), 1);
  EXPECT_EQ(Int("bool", "%0 = const i32 256 %9 = cast bool %0"), 1);
  EXPECT_EQ(Int("i32", "%0 = const f32 1 %9 = bitcast i32 %0"), 0x3f800000);
  EXPECT_EQ(Float("f32", "%0 = const i32 -1082130432 %9 = bitcast f32 %0"), -1);
  EXPECT_EQ(Int("i16", "%0 = const f16 1 %9 = bitcast i16 %0"), 0x3c00);
}

TEST(InterpretTest, NanSpreadsThroughMinAndMax) {
  for (const char* op : {"min", "max"}) {
    EXPECT_THAT(
        Float("f32", absl::StrCat("%0 = const f32 nan %1 = const f32 1 %9 = ", op, " f32 %0, %1")),
        IsNan());
    EXPECT_THAT(
        Float("f32", absl::StrCat("%0 = const f32 nan %1 = const f32 1 %9 = ", op, " f32 %1, %0")),
        IsNan());
  }
}

TEST(InterpretTest, ElementaryFunctions) {
  const auto at = [](absl::string_view op, double x) {
    return Float("f64", absl::StrCat("%0 = const f64 ", x, " %9 = ", op, " f64 %0"));
  };
  EXPECT_EQ(at("round", 2.5), 2);
  EXPECT_EQ(at("round", -3.5), -4);
  EXPECT_EQ(at("rsqrt", 4), 0.5);
  EXPECT_EQ(at("sigmoid", 0), 0.5);
  EXPECT_EQ(at("sign", -3), -1);
  EXPECT_THAT(at("erf", 0.5), DoubleNear(0.5204998778130465, 1e-15));
  EXPECT_THAT(at("log1p", 1), DoubleNear(0.6931471805599453, 1e-15));
  EXPECT_EQ(at("trunc", -1.5), -1);
  EXPECT_EQ(Float("f64", "%0 = const f64 -7 %1 = const f64 3 %9 = mod f64 %0, %1"), 2);
  EXPECT_EQ(Float("f64", "%0 = const f64 -7 %1 = const f64 3 %9 = fmod f64 %0, %1"), -1);
  EXPECT_EQ(Float("f64", "%0 = const f64 -7 %1 = const f64 2 %9 = floordiv f64 %0, %1"), -4);
}

// `kind` over `x`, in a kernel with one outer point.
ReferenceTensor Reduced(absl::string_view kind, absl::string_view result,
                        const std::vector<float>& x) {
  return Execute(
      absl::StrReplaceAll(R"(module {
    buffer @x f32[N] strides[1] input(0)
    buffer @y RESULT[] strides[] output
    kernel @k () {
      phase (r0: N) { %0 = load f32 @x[r0] %1 = reduce.KIND RESULT %0 }
      phase () { store RESULT @y[], %1 }
    }
    output @y sizes[] strides[] offset 0
  })",
                          {{"KIND", kind}, {"RESULT", result}, {"N", absl::StrCat(x.size())}}),
      {Floats({static_cast<int64_t>(x.size())}, x)})[0];
}

TEST(InterpretTest, Reductions) {
  const auto nan = static_cast<float>(kNan);
  EXPECT_EQ(Reduced("sum", "f32", {1, 2, 4}).floats[0], 7);
  EXPECT_EQ(Reduced("prod", "f32", {3, -2}).floats[0], -6);
  EXPECT_EQ(Reduced("max", "f32", {3, 9, -2}).floats[0], 9);
  EXPECT_THAT(Reduced("max", "f32", {3, nan, -2}).floats[0], IsNan());
  EXPECT_THAT(Reduced("min", "f32", {nan, 1, -2}).floats[0], IsNan());
  EXPECT_EQ(Reduced("max", "f32", {}).floats[0], -INFINITY);
  EXPECT_EQ(Reduced("prod", "f32", {}).floats[0], 1);
  EXPECT_EQ(Reduced("argmax", "i64", {1, 9, 9, 3}).ints[0], 1);
  EXPECT_EQ(Reduced("argmin", "i64", {1, -9, nan, nan, 3}).ints[0], 2);
  std::vector<float> ramp(1000);
  for (int i = 0; i < 1000; ++i) ramp[i] = static_cast<float>(i % 600);
  EXPECT_EQ(Reduced("argmax", "i64", ramp).ints[0], 599);
}

TEST(InterpretTest, IntegerReductionsStartFromTheirIdentity) {
  const auto reduce = [](absl::string_view type, absl::string_view kind) {
    return Execute(absl::StrReplaceAll(R"(module {
      buffer @x T[0] strides[1] input(0)
      buffer @y T[] strides[] output
      kernel @k () { phase (r0: 0) { %0 = load T @x[r0] %1 = reduce.KIND T %0 }
                     phase () { store T @y[], %1 } }
      output @y sizes[] strides[] offset 0
    })",
                                       {{"KIND", kind}, {"T", type}}),
                   {{.dtype = *DTypeFromName(type), .sizes = {0}, .strides = {1}}})[0]
        .ints[0];
  };
  EXPECT_EQ(reduce("u8", "max"), 0);
  EXPECT_EQ(reduce("u8", "min"), 255);
  EXPECT_EQ(reduce("i16", "max"), INT16_MIN);
  EXPECT_EQ(reduce("i64", "min"), INT64_MAX);
  EXPECT_EQ(reduce("bool", "all"), 1);
  EXPECT_EQ(reduce("bool", "any"), 0);
}

TEST(InterpretTest, ValuesOfAPhaseWithoutLoopsReachLaterPhases) {
  const auto y = Execute(R"(module {
    buffer @y i64[3,300] strides[300,1] output
    kernel @k (d0: 3) {
      phase (r0: 4) { %0 = index i64 r0 + d0 %1 = reduce.sum i64 %0 }
      phase () { %2 = index i64 1000*d0 %3 = add i64 %1, %2 }
      phase (r0: 300) { %4 = index i64 r0 %5 = add i64 %4, %3 %6 = add i64 %5, %2
                        store i64 @y[d0, r0], %6 }
    }
    output @y sizes[3,300] strides[300,1] offset 0
  })",
                         {});
  for (int64_t d = 0; d < 3; ++d) {
    for (int64_t r = 0; r < 300; ++r) {
      ASSERT_EQ(y[0].ints[d * 300 + r], r + 2000 * d + 6 + 4 * d);
    }
  }
}

constexpr absl::string_view kGather = R"(module {
  buffer @i i64[3] strides[1] input(0)
  buffer @w f32[4,2] strides[2,1] input(1)
  buffer @y f32[3,2] strides[2,1] output
  kernel @k (d0: 3, d1: 2) {
    phase () {
      %0 = load i64 @i[d0]
      %1 = const i64 0
      %2 = ge bool %0, %1
      %3 = load f32 @w[[%0], d1] if %2 else -1
      store f32 @y[d0, d1], %3
    }
  }
  output @y sizes[3,2] strides[2,1] offset 0
})";

TEST(InterpretTest, IndirectAndMaskedLoads) {
  const HostTensor w = Floats({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(Execute(kGather, {Longs({3}, {3, -5, 0}), w})[0].floats,
              ElementsAre(6, 7, -1, -1, 0, 1));
  const auto outside = TryExecute(kGather, {Longs({3}, {3, 4, 0}), w});
  EXPECT_EQ(outside.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(outside.status().message()),
              HasSubstr("index 4 is out of bounds for a dimension of size 4"));
}

TEST(InterpretTest, ScatteredStoresKeepTheLastValue) {
  const auto y = Execute(R"(module {
    buffer @i i64[4] strides[1] input(0)
    buffer @y i64[3] strides[1] output
    kernel @k (d0: 4) {
      phase () { %0 = load i64 @i[d0] %1 = index i64 d0 store i64 @y[[%0]], %1 }
    }
    output @y sizes[3] strides[1] offset 0
  })",
                         {Longs({4}, {0, 2, 1, 0})});
  EXPECT_THAT(y[0].ints, ElementsAre(3, 2, 1));
}

// The general loops are the reference for the blocked product.
void ExpectSameAsLoops(const std::string& contraction, const std::vector<HostTensor>& inputs) {
  const auto fast = Execute(contraction, inputs);
  const auto slow = Execute(absl::StrReplaceAll(contraction, {{" contraction ", " "}}), inputs);
  ASSERT_EQ(fast[0].sizes, slow[0].sizes);
  double magnitude = 0;
  for (size_t i = 0; i < slow[0].floats.size(); ++i) {
    ASSERT_NEAR(fast[0].floats[i], slow[0].floats[i], 1e-11) << i;
    magnitude += std::fabs(slow[0].floats[i]);
  }
  EXPECT_GT(magnitude, 1);
}

HostTensor RandomFloats(std::vector<int64_t> sizes, unsigned seed) {
  std::mt19937 random(seed);
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  std::vector<float> values(n);
  for (float& v : values) v = std::normal_distribution<float>()(random);
  return Floats(std::move(sizes), values);
}

TEST(InterpretTest, BatchedMatrixProductWithEpilogue) {
  ExpectSameAsLoops(
      R"(module {
    buffer @a f32[3,13,37] strides[481,37,1] input(0)
    buffer @b f32[3,11,37] strides[407,37,1] input(1)
    buffer @c f32[11] strides[1] input(2)
    buffer @y f32[3,13,11] strides[143,11,1] output
    kernel @mm contraction (d0: 3, d1: 13, d2: 11) {
      phase (r0: 37) {
        %0 = load f32 @a[d0, d1, r0]
        %1 = load f32 @b[d0, d2, r0]
        %2 = tanh f32 %1
        %3 = mul f32 %0, %2
        %4 = reduce.sum f32 %3
      }
      phase () { %5 = load f32 @c[d2] %6 = add f32 %4, %5 store f32 @y[d0, d1, d2], %6 }
    }
    output @y sizes[3,13,11] strides[143,11,1] offset 0
  })",
      {RandomFloats({3, 13, 37}, 1), RandomFloats({3, 11, 37}, 2), RandomFloats({11}, 3)});
}

TEST(InterpretTest, ConvolutionWithPaddingAndColumnsOutermost) {
  ExpectSameAsLoops(R"(module {
    buffer @x f32[2,3,9,9] strides[243,81,9,1] input(0)
    buffer @w f32[6,3,3,3] strides[27,9,3,1] input(1)
    buffer @y f32[2,6,9,9] strides[486,81,9,1] output
    kernel @conv contraction (d0: 2, d1: 6, d2: 9, d3: 9) {
      phase (r0: 3, r1: 3, r2: 3) {
        %0 = index i64 d2 + r1 - 1
        %1 = index i64 d3 + r2 - 1
        %2 = const i64 0
        %3 = const i64 9
        %4 = ge bool %0, %2
        %5 = lt bool %0, %3
        %6 = ge bool %1, %2
        %7 = lt bool %1, %3
        %8 = and bool %4, %5
        %9 = and bool %6, %7
        %10 = and bool %8, %9
        %11 = load f32 @x[d0, r0, d2 + r1 - 1, d3 + r2 - 1] if %10 else 0
        %12 = load f32 @w[d1, r0, r1, r2]
        %13 = mul f32 %11, %12
        %14 = reduce.sum f32 %13
      }
      phase () { store f32 @y[d0, d1, d2, d3], %14 }
    }
    output @y sizes[2,6,9,9] strides[486,81,9,1] offset 0
  })",
                    {RandomFloats({2, 3, 9, 9}, 4), RandomFloats({6, 3, 3, 3}, 5)});
}

TEST(InterpretTest, ConstantsAndLifetimes) {
  const float constant[] = {10, 20};
  const auto y = Execute(R"(module {
    buffer @c f32[2] strides[1] constant(0)
    buffer @t f32[2] strides[1] temp
    buffer @y f32[2] strides[1] output
    kernel @a (d0: 2) { phase () { %0 = load f32 @c[d0] %1 = neg f32 %0 store f32 @t[d0], %1 } }
    kernel @b (d0: 2) { phase () { %0 = load f32 @t[1 - d0] store f32 @y[d0], %0 } }
    output @y sizes[2] strides[1] offset 0
  })",
                         {}, {}, {std::string(reinterpret_cast<const char*>(constant), 8)});
  EXPECT_THAT(y[0].floats, ElementsAre(-20, -10));
}

TEST(InterpretTest, BadInputsAreRefused) {
  const HostTensor w = Floats({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  const HostTensor i = Longs({3}, {0, 1, 2});
  HostTensor short_data = w;
  short_data.data.resize(28);
  HostTensor wrong_sizes = w;
  wrong_sizes.sizes = {2, 4};
  HostTensor negative = w;
  negative.strides = {-2, 1};
  for (const auto& inputs : std::vector<std::vector<HostTensor>>{
           {i}, {w, i}, {i, short_data}, {i, wrong_sizes}, {i, negative}}) {
    EXPECT_EQ(TryExecute(kGather, inputs).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(TryExecute(kGather, {i, w}, {7}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(InterpretTest, MemoryIsBounded) {
  const auto result = TryExecute(R"(module {
    buffer @y f32[1000000000000] strides[1] output
    kernel @k (d0: 1) { phase () { %0 = const f32 1 store f32 @y[d0], %0 } }
    output @y sizes[1] strides[1] offset 0
  })",
                                 {});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(InterpretTest, ProgressCanEndTheRun) {
  InterpretOptions options;
  options.progress = [](int done, int total) {
    EXPECT_EQ(done, 0);
    EXPECT_EQ(total, 1);
    return absl::CancelledError("enough");
  };
  const auto result = TryExecute(
      kGather, {Longs({3}, {0, 1, 2}), Floats({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7})}, {}, {}, options);
  EXPECT_EQ(result.status(), absl::CancelledError("enough"));
}

TEST(InterpretTest, LibraryStepsAreNamedInTheError) {
  const auto result =
      TryExecute("module { library \"aten.sort.default\" from \"sort_3\" () -> () }", {});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("'sort_3' (aten.sort.default)"));
}

TEST(HalfTest, EveryHalfRoundTrips) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double value = DoubleFromHalf(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(HalfFromDouble(value), bits);
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  EXPECT_EQ(HalfFromDouble(1 + 0x1p-11), 0x3c00);
  EXPECT_EQ(HalfFromDouble(1 + 3 * 0x1p-11), 0x3c02);
  EXPECT_EQ(HalfFromDouble(65519.9), 0x7bff);
  EXPECT_EQ(HalfFromDouble(65520), 0x7c00);
  EXPECT_EQ(HalfFromDouble(0x1p-25), 0);
  EXPECT_EQ(HalfFromDouble(0x1.8p-25), 1);
  EXPECT_EQ(BFloat16FromDouble(-3.1415926), 0xC049);
  EXPECT_EQ(BFloat16FromDouble(1e39), 0x7f80);
}

}  // namespace
}  // namespace kiln::ir
