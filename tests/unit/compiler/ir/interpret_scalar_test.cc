// The interpreter's scalar operations, and the narrow floating types.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "compiler/ir/half.h"
#include "gmock/gmock.h"
#include "tests/unit/compiler/ir/interpret_for_test.h"

namespace kiln::ir {
namespace {

using ::testing::DoubleNear;
using ::testing::IsNan;

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

TEST(InterpretScalarTest, FloatsAreNotRoundedToTheirType) {
  EXPECT_EQ(Float("bf16", "%0 = const f64 0.1 %1 = cast f32 %0 %9 = cast bf16 %1"), 0.1);
}

TEST(InterpretScalarTest, IntegersWrapInTheirWidth) {
  EXPECT_EQ(Int("i8", "%0 = const i8 100 %9 = add i8 %0, %0"), -56);
  EXPECT_EQ(Int("u8", "%0 = const u8 3 %1 = const u8 5 %9 = sub u8 %0, %1"), 254);
  EXPECT_EQ(Int("i64", "%0 = const i64 9223372036854775807 %9 = add i64 %0, %0"), -2);
  EXPECT_EQ(Int("i32", "%0 = const i32 -2147483648 %9 = abs i32 %0"), INT32_MIN);
  EXPECT_EQ(Int("i64",
                "%0 = const i64 -9223372036854775808 %1 = const i64 -1 "
                "%9 = truncdiv i64 %0, %1"),
            INT64_MIN);
}

TEST(InterpretScalarTest, IntegerDivisionRounds) {
  const char* operands = "%0 = const i32 -7 %1 = const i32 2 %2 = const i32 0 %9 = ";
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "floordiv i32 %0, %1")), -4);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "truncdiv i32 %0, %1")), -3);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "mod i32 %0, %1")), 1);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "fmod i32 %0, %1")), -1);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "floordiv i32 %0, %2")), 0);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "mod i32 %0, %2")), 0);
}

TEST(InterpretScalarTest, ADivisorOfZeroEndsTheRun) {
  EXPECT_EQ(Int("i8", "%0 = const i8 -3 %9 = nonzero i8 %0"), -3);
  const auto outputs = TryExecute(
      "module { buffer @y i8[] strides[] output kernel @k () { phase () { %0 = const i8 0 "
      "%1 = nonzero i8 %0 store i8 @y[], %1 } } output @y sizes[] strides[] offset 0 }",
      {});
  EXPECT_EQ(outputs.status().code(), absl::StatusCode::kOutOfRange);
}

TEST(InterpretScalarTest, ShiftsAndBits) {
  const char* operands = "%0 = const i32 -8 %1 = const i32 1 %2 = const i32 40 %9 = ";
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "shl i32 %0, %1")), -16);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "shr i32 %0, %1")), -4);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "shl i32 %0, %2")), 0);
  EXPECT_EQ(Int("i32", absl::StrCat(operands, "shr i32 %0, %2")), -1);
  EXPECT_EQ(Int("u8", "%0 = const u8 1 %9 = not u8 %0"), 254);
  EXPECT_EQ(Int("bool", "%0 = const bool true %9 = not bool %0"), 0);
}

// The authors' vectors, of which words 0 and 1 are taken.
TEST(InterpretScalarTest, PhiloxIsTheAuthors) {
  EXPECT_EQ(Int("i64",
                "%0 = const i64 0 %1 = const i64 0 %2 = const i64 0 "
                "%9 = philox i64 %0, %1, %2"),
            -2204013331526194987);
  EXPECT_EQ(Int("i64",
                "%0 = const i64 -1 %1 = const i64 -1 %2 = const i64 -1 "
                "%9 = philox i64 %0, %1, %2"),
            4740103540206151533);
  EXPECT_EQ(Int("i64",
                "%0 = const i64 2999170649027065890 %1 = const i64 247824715720788526 %2 = const "
                "i64 -8817193942522041720 "
                "%9 = philox i64 %0, %1, %2"),
            -7710781673785459191);
}

TEST(InterpretScalarTest, Casts) {
  EXPECT_EQ(Int("i32", "%0 = const f32 -2.9 %9 = cast i32 %0"), -2);
  EXPECT_EQ(Int("u8", "%0 = const f32 300 %9 = cast u8 %0"), 44);
  EXPECT_EQ(Int("i64", "%0 = const f32 nan %9 = cast i64 %0"), INT64_MIN);
  EXPECT_EQ(Int("bool", "%0 = const f32 0.1 %9 = cast bool %0"), 1);
  EXPECT_EQ(Int("bool", "%0 = const i32 256 %9 = cast bool %0"), 1);
  EXPECT_EQ(Int("i32", "%0 = const f32 1 %9 = bitcast i32 %0"), 0x3f800000);
  EXPECT_EQ(Float("f32", "%0 = const i32 -1082130432 %9 = bitcast f32 %0"), -1);
  EXPECT_EQ(Int("i16", "%0 = const f16 1 %9 = bitcast i16 %0"), 0x3c00);
}

TEST(InterpretScalarTest, NanSpreadsThroughMinAndMax) {
  for (const char* op : {"min", "max"}) {
    EXPECT_THAT(
        Float("f32", absl::StrCat("%0 = const f32 nan %1 = const f32 1 %9 = ", op, " f32 %0, %1")),
        IsNan());
    EXPECT_THAT(
        Float("f32", absl::StrCat("%0 = const f32 nan %1 = const f32 1 %9 = ", op, " f32 %1, %0")),
        IsNan());
  }
}

TEST(InterpretScalarTest, ElementaryFunctions) {
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
