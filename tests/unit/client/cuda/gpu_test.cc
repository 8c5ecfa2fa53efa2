// Programs for GPUs on this machine's own; skipped where it has none.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "client/cli/gpu_tensors.h"
#include "client/device.h"
#include "client/loader.h"
#include "client/runtime/cuda/copy.h"
#include "client/runtime/cuda/driver.h"
#include "client/runtime/cuda/memory.h"
#include "client/runtime/executor.h"
#include "client/runtime/strided_copy.h"
#include "kiln/client.h"
#include "kiln/v1/device.pb.h"
#include "tests/unit/client/artifacts.h"
#include "tests/unit/client/cuda/gpu_artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<v1::Device> device = DescribeDevice("ptx", "native", 1);
    if (!device.ok()) GTEST_SKIP() << device.status();
    RecordProperty("device", device->ShortDebugString());
  }
  static std::shared_ptr<const Program> Load(const v1::Artifact& artifact) {
    auto program = Program::Load(ToArtifactFile(artifact.SerializeAsString()), 1);
    EXPECT_TRUE(program.ok()) << program.status();
    return program.ok() ? *program : nullptr;
  }
  static cli::RunInputs Inputs(std::vector<float>& a, std::vector<float>& b, const int64_t& n) {
    cli::RunInputs inputs;
    inputs.all = {Vector(a.data(), n), Vector(b.data(), n)};
    return inputs;
  }
};

TEST_F(Gpu, RunsAProgramAndTellsAnIndexOutOfRange) {
  for (const bool is_bad : {false, true}) {
    v1::Artifact artifact = OnGpu(AddAndDouble(1000));
    if (is_bad) {
      v1::LaunchStep& launch = *artifact.mutable_program()->mutable_steps(1)->mutable_launch();
      launch.set_kernel("test_positive");
      launch.clear_scratch_bytes();
    }
    const auto program = Load(artifact);
    std::vector<float> a(1000, 1), b(1000, is_bad ? -3 : 2);
    const int64_t n = 1000;
    auto gpu = cli::GpuTensors::Upload(*program, Inputs(a, b, n));
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    for (int i = 0; i < 3; ++i) {
      Outputs outputs(1);
      const absl::Status status = (*gpu)->Run(*program, outputs.span());
      if (is_bad) {
        EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
        continue;
      }
      ASSERT_TRUE(status.ok()) << status;
      std::vector<kiln_output> results = {outputs[0]};
      ASSERT_TRUE((*gpu)->Download(absl::MakeSpan(results)).ok());
      EXPECT_EQ(static_cast<float*>(results[0].data)[999], 6);
    }
    if (is_bad) continue;
    auto own = program->Run((*gpu)->inputs());  // outputs of the runtime's own pool
    ASSERT_TRUE(own.ok()) << own.status();
    auto prepared = Load(OnGpu(PrepareAndAdd(1000)));
    const auto weights = prepared->loaded().executor().PrepareWeights((*gpu)->inputs());
    EXPECT_TRUE(weights.ok()) << weights.status();
  }
}

// Also as the first run of a program, which then loads its code meanwhile.
TEST_F(Gpu, ARunMayBeCapturedAndReplayed) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  const auto find = [&](auto*& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    ASSERT_NE(function, nullptr) << name;
  };
  int (*begin)(cuda::Stream, int mode);
  int (*end)(cuda::Stream, void** graph);
  int (*instantiate)(void** made, void* graph, unsigned long long flags);
  int (*launch)(void* made, cuda::Stream);
  int (*destroy_made)(void*);
  int (*destroy)(void*);
  find(begin, "cuStreamBeginCapture_v2");
  find(end, "cuStreamEndCapture");
  find(instantiate, "cuGraphInstantiateWithFlags");
  find(launch, "cuGraphLaunch");
  find(destroy_made, "cuGraphExecDestroy");
  find(destroy, "cuGraphDestroy");
  const auto program = Load(OnGpu(AddAndDouble(1000)));
  std::vector<float> a(1000, 1), b(1000, 2);
  const int64_t n = 1000;
  auto gpu = cli::GpuTensors::Upload(*program, Inputs(a, b, n));
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const cuda::Gpu& on = **cuda::Gpu::Get((*gpu)->inputs()[0].device_index);
  const cuda::ContextScope scope(on.driver, on.context);
  auto out = cuda::DeviceBlock::Allocate(on, 4000);
  ASSERT_TRUE(out.ok()) << out.status();
  auto stream = cuda::OwnStream::Make(on.driver);
  ASSERT_TRUE(stream.ok()) << stream.status();
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  options.stream = (*stream)->get();
  options.user = out->data();
  options.allocate_output = [](void* user, int32_t, int32_t, int32_t, const int64_t*,
                               const int64_t*, void** data) -> kiln_status* {
    *data = user;
    return nullptr;
  };
  Outputs outputs(1);
  ASSERT_EQ(begin((*stream)->get(), 0), 0);  // 0: all threads' calls are watched
  const absl::Status status = program->Run((*gpu)->inputs(), outputs.span(), &options);
  void *graph = nullptr, *made = nullptr;
  ASSERT_EQ(end((*stream)->get(), &graph), 0) << status;
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(instantiate(&made, graph, 0), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(launch(made, (*stream)->get()), 0);
  ASSERT_TRUE((*stream)->Synchronize().ok());
  std::vector<kiln_output> results = {outputs[0]};
  ASSERT_TRUE((*gpu)->Download(absl::MakeSpan(results)).ok());
  EXPECT_EQ(static_cast<float*>(results[0].data)[999], 6);
  EXPECT_EQ(destroy_made(made), 0);
  EXPECT_EQ(destroy(graph), 0);
}

TEST_F(Gpu, CopiesWindows) {
  const cuda::Gpu& gpu = **cuda::Gpu::Get(0);
  const cuda::ContextScope scope(gpu.driver, gpu.context);
  auto stream = cuda::OwnStream::Make(gpu.driver);
  ASSERT_TRUE(stream.ok()) << stream.status();
  const std::vector<int64_t> sizes = {2, 3, 4}, to = {12, 4, 1}, strides = {1, 8, 2};
  std::vector<float> from(100), expected(100, -1), got(100, -1);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  runtime::CopyStrided(reinterpret_cast<char*>(expected.data()), to,
                       reinterpret_cast<const char*>(from.data()), strides, sizes, 4);
  auto source = cuda::DeviceBlock::Allocate(gpu, 400),
       target = cuda::DeviceBlock::Allocate(gpu, 400);
  ASSERT_TRUE(source.ok() && target.ok());
  const auto at = [](const auto& block) { return reinterpret_cast<uintptr_t>(block->data()); };
  const cuda::Driver& driver = gpu.driver;
  const cuda::Stream in = (*stream)->get();
  ASSERT_EQ(driver.copy_to_device(at(source), from.data(), 400, in), 0);
  ASSERT_EQ(driver.copy_to_device(at(target), got.data(), 400, in), 0);
  const absl::Status status =
      cuda::CopyOnGpu(driver, at(target), to, at(source), strides, sizes, 4, in);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(driver.copy_to_host(got.data(), at(target), 400, in), 0);
  ASSERT_TRUE((*stream)->Synchronize().ok());
  EXPECT_EQ(got, expected);
}

TEST_F(Gpu, CodeThatDoesNotAssembleIsAnErrorWithTheDriversWords) {
  v1::Artifact artifact = OnGpu(AddAndDouble(4));
  std::string& data = *artifact.mutable_binaries(0)->mutable_data();
  data.replace(data.find("add.f32"), 7, "odd.f32");
  const auto program = Load(artifact);
  std::vector<float> a(4);
  const int64_t n = 4;
  auto gpu = cli::GpuTensors::Upload(*program, Inputs(a, a, n));
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const absl::Status status = program->Run((*gpu)->inputs()).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("does not load kernel test_add"));
  RecordProperty("message", std::string(status.message()));
}

TEST_F(Gpu, WhatDoesNotFitIsOutOfMemory) {
  const cuda::Gpu& gpu = **cuda::Gpu::Get(0);
  const cuda::ContextScope scope(gpu.driver, gpu.context);
  const absl::Status status = cuda::DeviceBlock::Allocate(gpu, int64_t{1} << 45).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::IsResourceExhausted(gpu.Allocate(int64_t{1} << 45, nullptr).status()));
}

}  // namespace
}  // namespace kiln::testing
