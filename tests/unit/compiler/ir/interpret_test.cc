#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "tests/unit/compiler/ir/interpret_for_test.h"

namespace kiln::ir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

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
    kernel @k () {
      phase (r0: 4) { %0 = load i64 @i[r0] %1 = index i64 r0 store i64 @y[[%0]], %1 }
    }
    output @y sizes[3] strides[1] offset 0
  })",
                         {Longs({4}, {0, 2, 1, 0})});
  EXPECT_THAT(y[0].ints, ElementsAre(3, 2, 1));
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

}  // namespace
}  // namespace kiln::ir
