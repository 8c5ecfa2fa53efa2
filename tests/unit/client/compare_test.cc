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

template <typename T>
HostTensor Expected(const std::vector<T>& values, DType dtype) {
  HostTensor out;
  out.dtype = dtype;
  out.sizes = {static_cast<int64_t>(values.size())};
  out.strides = {1};
  out.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return out;
}

Comparison Elements(std::vector<float> ours, const std::vector<float>& expected) {
  return CompareElements(Output(ours, KILN_FLOAT32), Expected(expected, DType::kF32));
}

TEST(CompareElements, OneElementThatIsOffIsFoundAmongMany) {
  std::vector<float> expected(100000, 1.0f), ours = expected;
  EXPECT_TRUE(Elements(ours, expected).same);
  ours[77777] = 1.0001f;
  EXPECT_TRUE(Elements(ours, expected).same);
  ours[77777] = 1.001f;
  EXPECT_THAT(Elements(ours, expected).why, HasSubstr("element 77777 is 1.001; expected 1"));
}

TEST(CompareElements, SpecialValuesStandInTheSamePlaces) {
  EXPECT_TRUE(Elements({INFINITY, NAN}, {INFINITY, NAN}).same);
  EXPECT_FALSE(Elements({INFINITY}, {-INFINITY}).same);
  EXPECT_FALSE(Elements({1}, {NAN}).same);
  EXPECT_FALSE(Elements({INFINITY}, {1}).same);
}

TEST(CompareElements, TypeAndSizesMustBeThoseExpected) {
  std::vector<int64_t> ours = {(int64_t{1} << 60) + 1};
  kiln_output output = Output(ours, KILN_INT64);
  EXPECT_TRUE(CompareElements(output, Expected(ours, DType::kI64)).same);
  EXPECT_FALSE(CompareElements(output, Expected<int64_t>({int64_t{1} << 60}, DType::kI64)).same);
  EXPECT_THAT(CompareElements(output, Expected<double>({1}, DType::kF64)).why,
              HasSubstr("its type is i64; expected f64"));
  EXPECT_THAT(CompareElements(output, Expected<int64_t>({1, 2}, DType::kI64)).why,
              HasSubstr("its sizes are [1]; expected [2]"));
}

TEST(CompareElements, ReadsBothPartsOfComplexAndAnyOrder) {
  std::vector<float> ours = {1, 2, 3, 4};
  kiln_output output = Output(ours, KILN_COMPLEX64);
  output.sizes[0] = 2;
  HostTensor expected = Expected<float>({3, 4, 1, 2}, DType::kC64);
  expected.sizes = {2};
  EXPECT_FALSE(CompareElements(output, expected).same);
  output.ndim = 2;
  output.sizes[0] = 2;
  output.sizes[1] = 1;
  expected = Expected<float>({1, 2, 3, 4}, DType::kC64);
  expected.sizes = {2, 1};
  expected.strides = {1, 2};
  EXPECT_TRUE(CompareElements(output, expected).same);
  ours[3] = 5;
  EXPECT_THAT(CompareElements(output, expected).why, HasSubstr("element 1 is 5; expected 4"));
}

}  // namespace
}  // namespace kiln::cli
