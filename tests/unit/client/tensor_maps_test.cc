// Tensor maps and zeros of kernels' interfaces: what a launch needs of them, whatever an artifact
// says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/runtime/contract.h"
#include "client/runtime/kernel.h"
#include "client/runtime/plan.h"
#include "kiln/v1/artifact.pb.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

// A launch over an input of 136 rows of 200 elements of 16 bits.
v1::Program OneLaunch() {
  v1::Program program;
  v1::Input& input = *program.add_inputs();
  input.set_name("a");
  v1::TensorType& type = *input.mutable_type()->mutable_tensor();
  type.set_dtype(v1::DTYPE_BFLOAT16);
  for (const int64_t size : {136, 200}) *type.add_sizes() = Size(size);
  for (const int64_t stride : {200, 1}) *type.add_strides() = Size(stride);
  v1::Buffer& buffer = *program.add_buffers();
  buffer.set_kind(v1::Buffer::KIND_INPUT);
  buffer.set_dtype(v1::DTYPE_BFLOAT16);
  *buffer.mutable_size_bytes() = Size(2 * 136 * 200);
  *buffer.mutable_sizes() = type.sizes();
  *buffer.mutable_strides() = type.strides();
  v1::LaunchStep& launch = *program.add_steps()->mutable_launch();
  launch.set_kernel("k");
  launch.add_buffers(0);
  launch.set_tensor_maps(1);
  *launch.mutable_grid()->add_blocks() = Size(1);
  *launch.mutable_grid()->add_threads() = Size(1);
  return program;
}

v1::KernelInterface Interface() {
  v1::KernelInterface interface;
  v1::KernelInterface::Buffer& buffer = *interface.add_buffers();
  *buffer.mutable_bytes() = Size(2 * 136 * 200);
  buffer.set_dtype(v1::DTYPE_BFLOAT16);
  buffer.set_read(true);
  *interface.mutable_grid()->add_blocks() = Size(1);
  *interface.mutable_grid()->add_threads() = Size(1);
  v1::KernelInterface::TensorMap& map = *interface.add_tensor_maps();
  *map.mutable_offset() = Size(8);
  for (const int64_t size : {192, 136}) *map.add_sizes() = Size(size);
  *map.add_strides() = Size(200);
  for (const uint32_t elements : {64, 128}) map.add_box(elements);
  return interface;
}

absl::StatusOr<runtime::Plan> PlanOf(const v1::Program& program,
                                     const v1::KernelInterface& interface) {
  runtime::Kernel kernel;
  kernel.function = 0;
  kernel.interface = std::make_shared<const v1::KernelInterface>(interface);
  if (absl::Status status = runtime::CheckProgram(program); !status.ok()) return status;
  const auto may_write = [](int) { return false; };
  if (absl::Status status = runtime::CheckLaunches(program, {&kernel, 1}, may_write);
      !status.ok()) {
    return status;
  }
  return runtime::MakePlan(program, {&kernel, 1}, {});
}

TEST(TensorMaps, ArePlannedInBytes) {
  const absl::StatusOr<runtime::Plan> plan = PlanOf(OneLaunch(), Interface());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->launches[0].tensor_maps.size(), 1);
  const runtime::PlanTensorMap& map = plan->launches[0].tensor_maps[0];
  EXPECT_EQ(map.argument, 0);
  EXPECT_EQ(map.rank, 2);
  EXPECT_EQ(map.offset_bytes, 16);
  EXPECT_EQ(map.sizes[0], 192);
  EXPECT_EQ(map.sizes[1], 136);
  EXPECT_EQ(map.stride_bytes[0], 400);
  EXPECT_EQ(map.box[1], 128);
}

TEST(TensorMaps, ThatReachElsewhereAreRefused) {
  using Map = v1::KernelInterface::TensorMap;
  const struct {
    std::function<void(Map&)> damage;
    std::string expected;
  } cases[] = {
      {[](Map& m) { *m.mutable_offset() = Size(16); }, "reaches element 27207 of 27200"},
      {[](Map& m) { *m.mutable_sizes(1) = Size(137); }, "reaches element"},
      {[](Map& m) { *m.mutable_strides(0) = Size(208); }, "reaches element"},
      {[](Map& m) { *m.mutable_offset() = Size(-8); }, "-8 elements; expected 0 to"},
      {[](Map& m) { *m.mutable_offset() = Size(4); }, "a multiple of 8"},
      {[](Map& m) { *m.mutable_strides(0) = Size(100); }, "a multiple of 8"},
      {[](Map& m) { *m.mutable_strides(0) = Size(0); }, "expected 8 to"},
      {[](Map& m) { *m.mutable_sizes(0) = Size(0); }, "expected 1 to"},
      {[](Map& m) { *m.mutable_sizes(1) = Size(int64_t{1} << 40); }, "elements; expected 1 to"},
      {[](Map& m) { m.set_buffer(1); }, "of a buffer that it does not have"},
      {[](Map& m) { m.set_box(0, 32); }, "32 elements of a box in dimension 0"},
      {[](Map& m) { m.set_box(1, 257); }, "257 elements of a box in dimension 1"},
      {[](Map& m) { m.set_box(1, 0); }, "0 elements of a box in dimension 1"},
      {[](Map& m) { m.clear_strides(); }, "of 2 sizes, 0 strides and 2 sizes of a box"},
      {[](Map& m) { m.clear_box(); }, "of 2 sizes, 1 strides and 0 sizes of a box"},
  };
  for (const auto& [damage, expected] : cases) {
    v1::KernelInterface interface = Interface();
    damage(*interface.mutable_tensor_maps(0));
    const absl::Status status = PlanOf(OneLaunch(), interface).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(expected));
  }
}

TEST(TensorMaps, AreAsManyAsTheKernelTakes) {
  v1::Program program = OneLaunch();
  program.mutable_steps(0)->mutable_launch()->set_tensor_maps(0);
  const absl::Status none = PlanOf(program, Interface()).status();
  EXPECT_TRUE(absl::IsDataLoss(none)) << none;
  EXPECT_THAT(none.message(), HasSubstr("gives its kernel 0 tensor maps; expected 1"));
}

TEST(TensorMaps, OfInt8HaveLinesOfTwiceAsMany) {
  v1::Program program = OneLaunch();
  v1::KernelInterface interface = Interface();
  program.mutable_inputs(0)->mutable_type()->mutable_tensor()->set_dtype(v1::DTYPE_INT8);
  *program.mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_sizes(1) = Size(400);
  *program.mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_strides(0) = Size(400);
  program.mutable_buffers(0)->set_dtype(v1::DTYPE_INT8);
  *program.mutable_buffers(0)->mutable_sizes(1) = Size(400);
  *program.mutable_buffers(0)->mutable_strides(0) = Size(400);
  interface.mutable_buffers(0)->set_dtype(v1::DTYPE_INT8);
  v1::KernelInterface::TensorMap& map = *interface.mutable_tensor_maps(0);
  *map.mutable_strides(0) = Size(400);
  *map.mutable_offset() = Size(16);
  EXPECT_THAT(PlanOf(program, interface).status().message(),
              HasSubstr("64 elements of a box in dimension 0"));
  map.set_box(0, 128);
  const absl::StatusOr<runtime::Plan> plan = PlanOf(program, interface);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->launches[0].tensor_maps[0].offset_bytes, 16);
  EXPECT_EQ(plan->launches[0].tensor_maps[0].stride_bytes[0], 400);
  *map.mutable_offset() = Size(8);
  EXPECT_THAT(PlanOf(program, interface).status().message(), HasSubstr("a multiple of 16"));
}

TEST(TensorMaps, OfInt32HaveLinesOfHalfAsMany) {
  v1::Program program = OneLaunch();
  v1::KernelInterface interface = Interface();
  v1::TensorType& type = *program.mutable_inputs(0)->mutable_type()->mutable_tensor();
  type.set_dtype(v1::DTYPE_INT32);
  *type.mutable_sizes(1) = *type.mutable_strides(0) = Size(100);
  v1::Buffer& buffer = *program.mutable_buffers(0);
  buffer.set_dtype(v1::DTYPE_INT32);
  *buffer.mutable_sizes(1) = *buffer.mutable_strides(0) = Size(100);
  interface.mutable_buffers(0)->set_dtype(v1::DTYPE_INT32);
  v1::KernelInterface::TensorMap& map = *interface.mutable_tensor_maps(0);
  *map.mutable_sizes(0) = Size(92);
  *map.mutable_strides(0) = Size(100);
  EXPECT_THAT(PlanOf(program, interface).status().message(),
              HasSubstr("64 elements of a box in dimension 0"));
  map.set_box(0, 32);
  const absl::StatusOr<runtime::Plan> plan = PlanOf(program, interface);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->launches[0].tensor_maps[0].offset_bytes, 32);
  EXPECT_EQ(plan->launches[0].tensor_maps[0].stride_bytes[0], 400);
  *map.mutable_offset() = Size(2);
  EXPECT_THAT(PlanOf(program, interface).status().message(), HasSubstr("a multiple of 4"));
}

TEST(TensorMaps, AreOfFewTypes) {
  v1::Program program = OneLaunch();
  v1::KernelInterface interface = Interface();
  program.mutable_inputs(0)->mutable_type()->mutable_tensor()->set_dtype(v1::DTYPE_INT16);
  program.mutable_buffers(0)->set_dtype(v1::DTYPE_INT16);
  interface.mutable_buffers(0)->set_dtype(v1::DTYPE_INT16);
  const absl::Status status = PlanOf(program, interface).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(),
              HasSubstr("other elements than bfloat16, float16, float32, int8 or int32"));
}

// The same launch over rows of 100 elements of float32.
TEST(TensorMaps, OfFloat32HaveLinesOfHalfAsMany) {
  v1::Program program = OneLaunch();
  v1::KernelInterface interface = Interface();
  program.mutable_inputs(0)->mutable_type()->mutable_tensor()->set_dtype(v1::DTYPE_FLOAT32);
  program.mutable_buffers(0)->set_dtype(v1::DTYPE_FLOAT32);
  *program.mutable_buffers(0)->mutable_size_bytes() = Size(4 * 136 * 200);
  interface.mutable_buffers(0)->set_dtype(v1::DTYPE_FLOAT32);
  *interface.mutable_buffers(0)->mutable_bytes() = Size(4 * 136 * 200);
  v1::KernelInterface::TensorMap& map = *interface.mutable_tensor_maps(0);
  *map.mutable_offset() = Size(4);
  EXPECT_THAT(PlanOf(program, interface).status().message(),
              HasSubstr("64 elements of a box in dimension 0"));
  map.set_box(0, 32);
  const absl::StatusOr<runtime::Plan> plan = PlanOf(program, interface);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->launches[0].tensor_maps[0].dtype, DType::kF32);
  EXPECT_EQ(plan->launches[0].tensor_maps[0].offset_bytes, 16);
  EXPECT_EQ(plan->launches[0].tensor_maps[0].stride_bytes[0], 800);
  *map.mutable_offset() = Size(2);
  EXPECT_THAT(PlanOf(program, interface).status().message(), HasSubstr("a multiple of 4"));
}

// What a kernel adds to is its own, and an older client that would not make it zero refuses the
// program.
TEST(Zeros, AreOfBuffersThatTheKernelWrites) {
  v1::Program program = OneLaunch();
  program.mutable_buffers(0)->set_kind(v1::Buffer::KIND_OUTPUT);
  v1::KernelInterface interface = Interface();
  interface.mutable_buffers(0)->set_read(false);
  interface.mutable_buffers(0)->set_written(true);
  interface.add_zeroed(0);
  EXPECT_THAT(PlanOf(program, interface).status().message(),
              HasSubstr("makes 0 buffers of its kernel zero; expected 1"));
  program.mutable_steps(0)->mutable_launch()->set_zeroed(1);
  const absl::StatusOr<runtime::Plan> plan = PlanOf(program, interface);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->launches[0].zeroed, std::vector<int>{0});
  const auto refuses = [&](const v1::KernelInterface& of) {
    const absl::Status status = PlanOf(program, of).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("wants zeros where it cannot have them"));
  };
  v1::KernelInterface other = interface;
  other.set_zeroed(0, 1);
  refuses(other);
  other = interface;
  other.mutable_buffers(0)->set_read(true);
  refuses(other);
  other.mutable_buffers(0)->set_written(false);
  refuses(other);
}

}  // namespace
}  // namespace kiln::testing
