#include "client/cli/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kiln/v1/compile_service.pb.h"

namespace kiln::cli {
namespace {

using ::testing::HasSubstr;

template <typename T>
kiln_output Output(std::vector<T>& values, int dtype) {
  kiln_output out{};
  out.kind = KILN_TENSOR;
  out.dtype = dtype;
  out.ndim = 1;
  out.sizes[0] = static_cast<int64_t>(values.size());
  out.strides[0] = 1;
  out.data = values.data();
  return out;
}

template <typename T>
v1::TensorData Reference(const std::vector<T>& values, v1::DType dtype) {
  v1::TensorData out;
  out.mutable_type()->set_dtype(dtype);
  out.mutable_type()->add_sizes()->set_value(static_cast<int64_t>(values.size()));
  out.set_data(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  return out;
}

Comparison CompareFloats(std::vector<float> ours, const std::vector<double>& reference) {
  auto result = Compare(Output(ours, KILN_FLOAT32), Reference(reference, v1::DTYPE_FLOAT64));
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

TEST(Compare, AllowsRoundingAndNothingMore) {
  EXPECT_TRUE(CompareFloats({1, 2, 3}, {1.00001, 2, 2.99999}).same);
  EXPECT_FALSE(CompareFloats({1, 2, 3}, {1, 2, 3.01}).same);
  EXPECT_TRUE(CompareFloats({0, 0}, {1e-6, 0}).same);
  EXPECT_FALSE(CompareFloats({0, 0}, {1e-3, 0}).same);
}

TEST(Compare, SpecialValuesStandInTheSamePlaces) {
  const double inf = std::numeric_limits<double>::infinity();
  const float inf_f = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(CompareFloats({inf_f, -inf_f, NAN, 1}, {inf, -inf, NAN, 1}).same);
  EXPECT_FALSE(CompareFloats({inf_f}, {-inf}).same);
  EXPECT_FALSE(CompareFloats({NAN}, {1}).same);
  EXPECT_FALSE(CompareFloats({1}, {NAN}).same);
  EXPECT_THAT(CompareFloats({1, 5}, {1, inf}).why, HasSubstr("element 1 is 5"));
}

TEST(Compare, IntegersMustBeEqual) {
  std::vector<int64_t> ours = {(int64_t{1} << 60) + 1};
  auto off_by_one = Compare(Output(ours, KILN_INT64),
                            Reference(std::vector<int64_t>{int64_t{1} << 60}, v1::DTYPE_INT64));
  ASSERT_TRUE(off_by_one.ok());
  EXPECT_FALSE(off_by_one->same);
  EXPECT_TRUE(Compare(Output(ours, KILN_INT64), Reference(ours, v1::DTYPE_INT64))->same);
}

TEST(Compare, ReadsStridesAndHalfPrecision) {
  std::vector<uint16_t> bf16 = {0x3f80, 0xffff, 0x4000};  // 1, (between), 2
  kiln_output output = Output(bf16, KILN_BFLOAT16);
  output.sizes[0] = 2;
  output.strides[0] = 2;
  EXPECT_TRUE(Compare(output, Reference(std::vector<double>{1, 2}, v1::DTYPE_FLOAT64))->same);
}

TEST(Compare, ShapesMustAgree) {
  EXPECT_THAT(CompareFloats({1, 2}, {1, 2, 3}).why, HasSubstr("another shape"));
  std::vector<float> ours = {1};
  v1::TensorData reference = Reference(std::vector<double>{1}, v1::DTYPE_FLOAT64);
  reference.mutable_data()->pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(Compare(Output(ours, KILN_FLOAT32), reference).status()));
}

}  // namespace
}  // namespace kiln::cli
