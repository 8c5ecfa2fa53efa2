// Programs for GPUs, on a driver that is none (fake_cuda.h).
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/device.h"
#include "client/loader.h"
#include "client/runtime/cuda/capture.h"
#include "client/runtime/cuda/copy.h"
#include "client/runtime/cuda/driver.h"
#include "client/runtime/cuda/memory.h"
#include "client/runtime/executor.h"
#include "client/runtime/strided_copy.h"
#include "kiln/client.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/key.h"
#include "tests/unit/client/artifacts.h"
#include "tests/unit/client/cuda/fake_cuda.h"
#include "tests/unit/client/cuda/gpu_artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

FakeCuda& Fake() {
  static FakeCuda* fake = [] {
    void* handle = dlopen(KILN_FAKE_CUDA, RTLD_NOW);
    return reinterpret_cast<FakeCuda* (*)()>(dlsym(handle, "fake_cuda"))();
  }();
  return *fake;
}

float& At(uint64_t pointer, uint64_t i) {
  return reinterpret_cast<float*>(pointer)[i];
}

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("KILN_LIBCUDA", KILN_FAKE_CUDA, 1);
    FakeCuda fresh;
    fresh.drain = Fake().drain;
    fresh.end_graphs = Fake().end_graphs;
    fresh.used_bytes = Fake().used_bytes;
    Fake() = fresh;
    ASSERT_TRUE(cuda::Driver::Get().ok()) << cuda::Driver::Get().status();
    Fake().calls.clear();
    Fake().kernels["test_add"] = {6, [](const std::vector<uint64_t>& a) {
                                    for (uint64_t i = 0; i < a[3]; ++i)
                                      At(a[2], i) = At(a[0], i) + At(a[1], i);
                                    return 0;
                                  }};
    Fake().kernels["test_add_early"] = Fake().kernels["test_add"];
    Fake().kernels["test_double_through_scratch"] = {5, [](const std::vector<uint64_t>& a) {
                                                       if (a[3] % 256 != 0 || a[3] == 0) return 700;
                                                       for (uint64_t i = 0; i < a[2]; ++i)
                                                         At(a[3], i) = 2 * At(a[0], i);
                                                       std::memcpy(&At(a[1], 0), &At(a[3], 0),
                                                                   a[2] * 4);
                                                       return 0;
                                                     }};
    Fake().kernels["test_positive"] = {5, [](const std::vector<uint64_t>& a) {
                                         for (uint64_t i = 0; i < a[2]; ++i) {
                                           At(a[1], i) = At(a[0], i);
                                           if (At(a[0], i) < 0) *reinterpret_cast<int*>(a[4]) = 1;
                                         }
                                         return 0;
                                       }};
  }
  void TearDown() override {
    Fake().drain();
    Fake().end_graphs();
    cuda::EndReleased();
    EXPECT_EQ(Fake().misuse, "");
    EXPECT_EQ(Fake().modules, 0);
    EXPECT_EQ(Fake().allocations, 0) << "memory that nobody freed";
  }

  static std::shared_ptr<const Program> Load(const v1::Artifact& artifact) {
    auto program = Program::Load(ToArtifactFile(artifact.SerializeAsString()), 1);
    EXPECT_TRUE(program.ok()) << program.status();
    return program.ok() ? *program : nullptr;
  }
};

// A vector on a GPU.
struct OnDevice {
  explicit OnDevice(const std::vector<float>& values, int ordinal = 0)
      : size(static_cast<int64_t>(values.size())) {
    const cuda::Gpu& gpu = **cuda::Gpu::Get(ordinal);
    const cuda::ContextScope scope(gpu.driver, gpu.context);
    block = *cuda::DeviceBlock::Allocate(gpu, 4 * size);
    tensor = Vector(reinterpret_cast<float*>(block.data()), size);
    tensor.device_type = KILN_CUDA;
    tensor.device_index = ordinal;
    std::memcpy(block.data(), values.data(), values.size() * 4);
  }
  int64_t size;
  cuda::DeviceBlock block;
  kiln_tensor tensor;
};

float First(const kiln_output& output) {
  Fake().drain();
  return *static_cast<const float*>(output.data);
}

TEST_F(Cuda, RunsAProgram) {
  const auto program = Load(OnGpu(AddAndDouble(4)));
  const OnDevice a({1, 2, 3, 4}), b({10, 20, 30, 40});
  auto outputs = program->Run({a.tensor, b.tensor});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  Fake().drain();
  EXPECT_EQ(static_cast<float*>((*outputs)[0].data)[3], 88);
  ASSERT_EQ(Fake().launches.size(), 2u);
  EXPECT_EQ(Fake().launches[0].blocks[0], 4u);
  EXPECT_EQ((*outputs)[0].storage, KILN_STORAGE_ALLOCATED);
}

TEST_F(Cuda, ARunWaitsForNothingAndAllocatesFromThePoolAlone) {
  const auto program = Load(OnGpu(AddAndDouble(4)));
  const OnDevice a({1, 2, 3, 4}), b({10, 20, 30, 40});
  ASSERT_TRUE(program->Run({a.tensor, b.tensor}).ok());
  Fake().calls.clear();
  Fake().capturing = true;  // forbids more
  Outputs outputs(1);
  const absl::Status status = program->Run({a.tensor, b.tensor}, outputs.span(), nullptr);
  ASSERT_TRUE(status.ok()) << status;
  Fake().capturing = false;
  const std::set<std::string> allowed = {
      "cuLaunchKernelEx",   "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
      "cuCtxGetCurrent",    "cuCtxPushCurrent",        "cuCtxPopCurrent",
      "cuUserObjectCreate", "cuGraphRetainUserObject", "cuStreamGetCaptureInfo"};
  for (const auto& [name, count] : Fake().calls) EXPECT_TRUE(allowed.count(name)) << name;
  EXPECT_EQ(Fake().calls["cuLaunchKernelEx"], 2);
  EXPECT_EQ(Fake().calls["cuMemAllocFromPoolAsync"], 2);  // the output; workspace with scratch
}

TEST_F(Cuda, KernelsFindTensorsAtMultiplesOf16Bytes) {
  const auto program = Load(OnGpu(AddAndDouble(4)));
  OnDevice a({9, 1, 2, 3, 4}), b({10, 20, 30, 40});
  a.size = 4;
  a.tensor = Vector(reinterpret_cast<float*>(a.block.data()) + 1, a.size);  // a view of part of it
  a.tensor.device_type = KILN_CUDA;
  bool aligned = true;
  const FakeKernel add = Fake().kernels["test_add"];
  Fake().kernels["test_add"].body = [&](const std::vector<uint64_t>& arguments) {
    for (size_t i = 0; i < 3; ++i) aligned &= arguments[i] % 16 == 0;
    return add.body(arguments);
  };
  auto outputs = program->Run({a.tensor, b.tensor});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  Fake().drain();
  EXPECT_TRUE(aligned);
  EXPECT_EQ(static_cast<float*>((*outputs)[0].data)[3], 88);
}

// A kernel that reads an input early is launched so after another kernel of the same run, and not
// where it is the first, what it reads early is made by the program, or a copy comes before it.
TEST_F(Cuda, KernelsMayBeginBeforeTheOneBeforeHasEnded) {
  const OnDevice a({1, 2, 3, 4}), b({10, 20, 30, 40});
  // Of the program a + b, then the sum + what has number `early`, as test_add_early in `step`.
  const auto launched = [&](int step, uint32_t early, const kiln_tensor& second) {
    v1::Artifact artifact = AddAndDouble(4);
    v1::Program& program = *artifact.mutable_program();
    v1::LaunchStep& launch = *program.mutable_steps(1)->mutable_launch();
    launch.set_kernel("test_add");
    launch.clear_buffers();
    for (const uint32_t buffer : {0u, early, 3u}) launch.add_buffers(buffer);
    launch.clear_scratch_bytes();
    program.mutable_steps(step)->mutable_launch()->set_kernel("test_add_early");
    const auto loaded = Load(OnGpu(artifact));
    Fake().launches.clear();
    auto outputs = loaded->Run({a.tensor, second});
    EXPECT_TRUE(outputs.ok()) << outputs.status();
    Fake().drain();
    std::vector<bool> begin_early;
    for (const FakeLaunch& one : Fake().launches) begin_early.push_back(one.begins_early);
    return begin_early;
  };
  using Early = std::vector<bool>;
  constexpr uint32_t kInput = 1, kSum = 2;
  EXPECT_EQ(launched(1, kInput, b.tensor), (Early{false, true}));
  EXPECT_EQ(launched(0, kInput, b.tensor), (Early{false, false}));
  EXPECT_EQ(launched(1, kSum, b.tensor), (Early{false, false}));
  OnDevice wide({9, 10, 20, 30, 40});
  kiln_tensor part = Vector(reinterpret_cast<float*>(wide.block.data()) + 1, a.size);
  part.device_type = KILN_CUDA;
  EXPECT_EQ(launched(1, kInput, part), (Early{false, false}));
}

// Nothing of an earlier run, or of what its memory was before, is in what a kernel adds to; and it
// does not begin before that is so.
TEST_F(Cuda, WhatAKernelAddsToIsZeroBefore) {
  Fake().kernels["test_add_to"] = {5, [](const std::vector<uint64_t>& a) {
                                     for (uint64_t i = 0; i < a[2]; ++i) At(a[1], i) += At(a[0], i);
                                     return 0;
                                   }};
  v1::Artifact artifact = AddAndDouble(4);
  v1::LaunchStep& launch = *artifact.mutable_program()->mutable_steps(1)->mutable_launch();
  launch.set_kernel("test_add_to");
  launch.clear_scratch_bytes();
  launch.set_zeroed(1);
  const auto program = Load(OnGpu(artifact));
  const OnDevice a({1, 2, 3, 4}), b({10, 20, 30, 40});
  for (int run = 1; run <= 2; ++run) {
    auto outputs = program->Run({a.tensor, b.tensor});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    Fake().drain();
    const auto* found = static_cast<float*>((*outputs)[0].data);
    EXPECT_EQ(std::vector(found, found + 4), (std::vector<float>{11, 22, 33, 44}));
    EXPECT_EQ(Fake().calls["cuMemsetD8Async"], run);
    EXPECT_FALSE(Fake().launches.back().begins_early);
  }
}

TEST_F(Cuda, TheFirstRunMayBeCaptured) {
  const auto program = Load(OnGpu(AddAndDouble(4)));
  const OnDevice a({1, 2, 3, 4}), b({10, 20, 30, 40});
  Fake().capturing = true;
  Outputs outputs(1);
  const absl::Status status = program->Run({a.tensor, b.tensor}, outputs.span(), nullptr);
  Fake().capturing = false;
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(First(outputs[0]), 22);
}

TEST_F(Cuda, AlternativesAreTimedInTheFirstRunThatIsNotCaptured) {
  const auto program = Load(OnGpu(AddEitherWay(4)));
  const OnDevice a({1, 2, 3, 4}), b({10, 20, 30, 40});
  for (const bool captured : {true, false, false}) {
    Fake().capturing = captured;
    Fake().calls.clear();
    Outputs outputs(1);
    const absl::Status status = program->Run({a.tensor, b.tensor}, outputs.span(), nullptr);
    Fake().capturing = false;
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(First(outputs[0]), 12);
    const bool timed = !program->loaded().executor().choices().TakeDecided().empty();
    EXPECT_EQ(Fake().calls["cuEventRecord"] > 0, timed);
    EXPECT_EQ(timed, Fake().calls["cuLaunchKernelEx"] > 2);
    if (captured) EXPECT_FALSE(timed);
  }
  EXPECT_EQ(Fake().calls["cuEventRecord"], 0) << "the last run takes what was chosen";
}

TEST_F(Cuda, AProgramMayEndDuringACapture) {
  const OnDevice a({1, 2, 3, 4});
  auto program = Load(OnGpu(PrepareAndAdd(4)));
  auto prepared = program->loaded().executor().PrepareWeights({a.tensor, a.tensor});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  auto outputs = program->Run({a.tensor, a.tensor});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  Fake().capturing = true;
  prepared->reset();
  *outputs = Outputs();
  program.reset();
  Fake().capturing = false;
}

// A graph that was captured goes on with the code and what was prepared when the program has gone;
// both end when the last of its graphs has.
TEST_F(Cuda, GraphsKeepWhatTheyHaveCaptured) {
  const OnDevice a({1, 2, 3, 4});
  const int of_a = Fake().allocations;
  for (const bool captured : {false, true}) {
    auto program = Load(OnGpu(PrepareAndAdd(4)));
    auto prepared = program->loaded().executor().PrepareWeights({a.tensor, a.tensor});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    kiln_run_options options = KILN_RUN_OPTIONS_INIT;
    options.prepared = prepared->get();
    {
      Outputs outputs(1);
      Fake().capturing = captured;
      const absl::Status status = program->Run({a.tensor, a.tensor}, outputs.span(), &options);
      Fake().capturing = false;
      ASSERT_TRUE(status.ok()) << status;
      Fake().drain();
    }
    prepared->reset();
    program.reset();
    EXPECT_EQ(Fake().modules > 0, captured);
    EXPECT_EQ(Fake().allocations > of_a, captured);
  }
  Fake().end_graphs();
  EXPECT_GT(Fake().modules, 0) << "the driver allows no unload there";
  Fake().capturing = true;
  Load(OnGpu(AddAndDouble(4))).reset();
  Fake().capturing = false;
  EXPECT_EQ(Fake().modules, 0);
  EXPECT_EQ(Fake().allocations, of_a);
}

TEST_F(Cuda, TakesTheCallersMemoryAndStream) {
  const auto program = Load(OnGpu(AddAndDouble(4)));
  const OnDevice a({1, 2, 3, 4}), b({10, 20, 30, 40}), out({0, 0, 0, 0}),
      scratch(std::vector<float>(512));
  struct Memory {
    const OnDevice &out, &scratch;
    int64_t scratch_bytes = 0;
  } memory{out, scratch};
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  options.user = &memory;
  options.stream = &memory;
  options.allocate_output = [](void* user, int32_t, int32_t, int32_t, const int64_t*,
                               const int64_t*, void** data) -> kiln_status* {
    *data = static_cast<Memory*>(user)->out.block.data();
    return nullptr;
  };
  options.allocate_scratch = [](void* user, int64_t bytes, void** data) -> kiln_status* {
    static_cast<Memory*>(user)->scratch_bytes = bytes;
    *data = static_cast<Memory*>(user)->scratch.block.data();
    return nullptr;
  };
  ASSERT_TRUE(program->Run({a.tensor, b.tensor}, Outputs(1).span(), &options).ok());
  Fake().calls.clear();
  Outputs outputs(1);
  ASSERT_TRUE(program->Run({a.tensor, b.tensor}, outputs.span(), &options).ok());
  EXPECT_EQ(Fake().calls["cuMemAllocFromPoolAsync"], 0);
  EXPECT_EQ(Fake().launches.back().stream, &memory);
  EXPECT_EQ(memory.scratch_bytes, 512);  // 80 bytes of workspace and 16 of scratch, rounded up
  EXPECT_EQ(outputs[0].data, out.block.data());
  EXPECT_EQ(First(outputs[0]), 22);
  options.allocate_scratch = [](void*, int64_t, void** data) -> kiln_status* {
    *data = reinterpret_cast<void*>(uintptr_t{64});
    return nullptr;
  };
  const absl::Status status = program->Run({a.tensor, b.tensor}, outputs.span(), &options);
  EXPECT_THAT(status.message(), HasSubstr("aligned to 256"));
}

TEST_F(Cuda, NamesTheInputThatIsElsewhere) {
  const auto program = Load(OnGpu(AddAndDouble(4)));
  const OnDevice a({1, 2, 3, 4}), b({1, 2, 3, 4}, 1);
  float host[4] = {};
  const int64_t n = 4;
  const auto message = [&](const kiln_tensor& second) {
    const absl::Status status = program->Run({a.tensor, second}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message(Vector(host, n)),
              AllOf(HasSubstr("'b'"), HasSubstr("on the CPU; expected an NVIDIA GPU")));
  EXPECT_THAT(message(b.tensor), AllOf(HasSubstr("'b'"), HasSubstr("on GPU 1; expected GPU 0")));
  kiln_tensor nowhere = a.tensor;
  nowhere.device_index = 7;
  EXPECT_THAT(program->Run({nowhere, nowhere}).status().message(), HasSubstr("there is no GPU 7"));
}

TEST_F(Cuda, RunsOnEveryGpuWithCodeOfItsOwn) {
  const auto program = Load(OnGpu(DynamicAdd()));
  for (int round = 0; round < 2; ++round) {
    for (int gpu : {0, 1}) {
      const OnDevice a({1, 2}, gpu), b({3, 4}, gpu);
      auto outputs = program->Run({a.tensor, b.tensor});
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      EXPECT_EQ(First((*outputs)[0]), 4);
      EXPECT_EQ((*outputs)[1].value, 20);
      EXPECT_EQ(Fake().launches.back().device, gpu);
    }
  }
  EXPECT_EQ(Fake().calls["cuModuleLoadDataEx"], 2 * 6);  // the archive's kernels, on each
}

TEST_F(Cuda, RunsInSeveralThreadsAtOnce) {
  const auto program = Load(OnGpu(AddAndDouble(100)));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const OnDevice a(std::vector<float>(100, static_cast<float>(t)), t % 2);
      for (int i = 0; i < 50; ++i) {
        auto outputs = program->Run({a.tensor, a.tensor});
        ASSERT_TRUE(outputs.ok()) << outputs.status();
        Fake().drain();
        EXPECT_EQ(static_cast<float*>((*outputs)[0].data)[99], static_cast<float>(4 * t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Cuda, PreparesWeightsOnceForManyRuns) {
  const auto program = Load(OnGpu(PrepareAndAdd(4)));
  const OnDevice a({3, 3, 3, 3}), b({1, 1, 1, 1});
  auto outputs = program->Run({a.tensor, b.tensor});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(First((*outputs)[0]), 7);
  auto prepared = program->loaded().executor().PrepareWeights({a.tensor, b.tensor});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  At(reinterpret_cast<uint64_t>(a.block.data()), 0) = 100;
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  options.prepared = prepared->get();
  Fake().launches.clear();
  Outputs rest(1);
  ASSERT_TRUE(program->Run({a.tensor, b.tensor}, rest.span(), &options).ok());
  EXPECT_EQ(First(rest[0]), 7);
  EXPECT_EQ(Fake().launches.size(), 1u);
  const OnDevice c({3, 3, 3, 3}, 1);
  const absl::Status status = program->Run({c.tensor, c.tensor}, Outputs(1).span(), &options);
  EXPECT_THAT(status.message(), HasSubstr("prepared is on GPU 0, the inputs are on GPU 1"));
}

TEST_F(Cuda, AnIndexOutOfRangeIsToldByTheNextRunOrWhenAsked) {
  v1::Artifact artifact = OnGpu(AddAndDouble(4));
  v1::LaunchStep& launch = *artifact.mutable_program()->mutable_steps(1)->mutable_launch();
  launch.set_kernel("test_positive");
  launch.clear_scratch_bytes();
  const auto program = Load(artifact);
  const OnDevice good({1, 1, 1, 1}), bad({-1, 1, 1, 1});
  const runtime::Executor& executor = program->loaded().executor();
  for (const bool asks : {false, true}) {
    ASSERT_TRUE(program->Run({bad.tensor, bad.tensor}).ok());
    Fake().drain();
    const absl::Status status =
        asks ? executor.TakeError() : program->Run({good.tensor, good.tensor}).status();
    EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("test_positive"));
    EXPECT_TRUE(program->Run({good.tensor, good.tensor}).ok());
    Fake().drain();
    EXPECT_TRUE(executor.TakeError().ok());
  }
}

TEST_F(Cuda, CheckedLaunchesNameTheKernel) {
  v1::Artifact artifact = OnGpu(AddAndDouble(4));
  v1::LaunchStep& launch = *artifact.mutable_program()->mutable_steps(1)->mutable_launch();
  launch.set_kernel("test_positive");
  launch.clear_scratch_bytes();
  setenv("KILN_CHECK_LAUNCHES", "1", 1);
  const auto program = Load(artifact);
  unsetenv("KILN_CHECK_LAUNCHES");
  const OnDevice bad({-1, 1, 1, 1});
  const absl::Status status = program->Run({bad.tensor, bad.tensor}).status();
  EXPECT_EQ(status,
            absl::OutOfRangeError("kernel test_positive: an index is outside of its dimension"));
}

TEST_F(Cuda, CallsLibraryStepsWithTensorsOfTheGpu) {
  const auto program = Load(OnGpu(AddLibraryResult(4)));
  const OnDevice a({1, 2, 3, 4}, 1), made({5, 5, 5, 5}, 1);
  struct Library {
    const OnDevice& made;
    int device = -1;
    int answer_type = KILN_CUDA;
  } library{made};
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  options.user = &library;
  options.library_step = [](void* user, int32_t, const kiln_tensor* tensors, size_t, const int64_t*,
                            size_t, kiln_tensor* results, size_t) -> kiln_status* {
    auto& self = *static_cast<Library*>(user);
    self.device = tensors[0].device_type == KILN_CUDA ? tensors[0].device_index : -1;
    results[0].data = self.made.block.data();
    results[0].device_type = self.answer_type;
    // As a library that uses another GPU.
    const cuda::Driver& driver = **cuda::Driver::Get();
    driver.set_context((*cuda::Gpu::Get(0))->context);
    return nullptr;
  };
  Outputs outputs(2);
  const absl::Status status = program->Run({a.tensor}, outputs.span(), &options);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(library.device, 1);
  EXPECT_EQ(First(outputs[0]), 6);
  EXPECT_EQ(outputs[1].data, made.block.data());
  library.answer_type = KILN_CPU;
  EXPECT_THAT(program->Run({a.tensor}, outputs.span(), &options).message(),
              AllOf(HasSubstr("aten.test.default"), HasSubstr("another device")));
}

TEST_F(Cuda, OutOfMemoryIsAnErrorAndNotTheEnd) {
  const auto program = Load(OnGpu(AddAndDouble(1000)));
  const OnDevice a(std::vector<float>(1000, 1));
  ASSERT_TRUE(program->Run({a.tensor, a.tensor}).ok());
  Fake().drain();
  Fake().memory_bytes = Fake().used_bytes + 9000;  // the scratch, not the output
  const absl::Status status = program->Run({a.tensor, a.tensor}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("4000 bytes on GPU 0"), HasSubstr("out of memory")));
  Fake().drain();
  Fake().memory_bytes = int64_t{1} << 30;
  EXPECT_TRUE(program->Run({a.tensor, a.tensor}).ok());
}

TEST_F(Cuda, AConstantIsUploadedOnceAndItsOutputIsACopy) {
  v1::Artifact artifact = OnGpu(DynamicAdd());
  v1::Program& program = *artifact.mutable_program();
  const float values[2] = {4, 5};
  v1::Constant& constant = *program.add_constants();
  constant.set_data(values, sizeof(values));
  constant.mutable_type()->set_dtype(v1::DTYPE_FLOAT32);
  *constant.mutable_type()->add_sizes() = Size(2);
  *constant.mutable_type()->add_strides() = Size(1);
  AddOutput(program, AddBuffer(program, v1::Buffer::KIND_CONSTANT, 0, Size(2), Size(8)), Size(2));
  const auto loaded = Load(artifact);
  const OnDevice a({1, 2});
  for (int i = 0; i < 2; ++i) {
    auto outputs = loaded->Run({a.tensor, a.tensor});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    EXPECT_EQ(First((*outputs)[2]), 4);
    *static_cast<float*>((*outputs)[2].data) = 9;
  }
  EXPECT_EQ(Fake().calls["cuMemcpyHtoDAsync"], 1);
}

// The same kernels as modules that begin as cubins do.
v1::Binary AsCubins(v1::Binary binary) {
  binary.set_kind(v1::BINARY_KIND_CUBIN);
  const size_t list = binary.data().find("\n\n") + 2;
  for (size_t at = list; (at = binary.data().find("// ", at)) != std::string::npos; ++at) {
    binary.mutable_data()->replace(at, 3, "ELF");
  }
  return binary;
}

// Whatever a driver has against a cubin, it may still compile the PTX.
TEST_F(Cuda, ACubinThatTheDriverRefusesLeavesThePtx) {
  v1::Artifact artifact = OnGpu(AddAndDouble(4));
  const v1::Binary ptx = artifact.binaries(0);
  *artifact.mutable_binaries(0) = AsCubins(ptx);
  *artifact.add_binaries() = ptx;
  Fake().refuses_cubins = true;
  const OnDevice a({1, 2, 3, 4});
  auto outputs = Load(artifact)->Run({a.tensor, a.tensor});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(First((*outputs)[0]), 4);
  Fake().refuses_ptx = true;
  const absl::Status none = Load(artifact)->Run({a.tensor, a.tensor}).status();
  EXPECT_THAT(none.message(), HasSubstr("; ")) << "the driver's words for both";
}

TEST_F(Cuda, TheFirstBinaryThatTheDriverLoadsIsTaken) {
  v1::Artifact artifact = OnGpu(AddAndDouble(4));
  *artifact.add_binaries() = AsCubins(artifact.binaries(0));
  Fake().refuses_ptx = true;
  const OnDevice a({1, 2, 3, 4});
  const auto program = Load(artifact);
  auto outputs = program->Run({a.tensor, a.tensor});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(First((*outputs)[0]), 4);
  const absl::Status none = Load(OnGpu(AddAndDouble(4)))->Run({a.tensor, a.tensor}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;
  EXPECT_THAT(none.message(), HasSubstr("does not load kernel test_add"));
}

TEST_F(Cuda, ArtifactsThatDoNotFitAreRefusedBeforeAnyCodeIsLoaded) {
  const auto refusal = [](const v1::Artifact& artifact) {
    const auto status = runtime::LoadedProgram::Load(Sealed(artifact), nullptr, 1).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  v1::Artifact artifact = OnGpu(AddAndDouble(4));
  artifact.mutable_header()->set_arch("sm_100");
  EXPECT_THAT(refusal(artifact), HasSubstr("is for sm_100; GPU 0 (Fake H100) has compute capab"));
  artifact = OnGpu(AddAndDouble(4));
  artifact.set_binary(TestKernels());
  EXPECT_THAT(refusal(artifact), HasSubstr("code for a CPU"));
  artifact = OnGpu(AddAndDouble(4));
  artifact.mutable_program()->mutable_steps(1)->mutable_launch()->clear_grid();
  EXPECT_THAT(refusal(artifact), HasSubstr("step 1 launches no kernel of a GPU"));
  artifact = OnGpu(AddAndDouble(4));
  *artifact.mutable_program()->mutable_steps(1)->mutable_launch()->mutable_grid()->mutable_blocks(
      0) = Size(3);
  EXPECT_THAT(refusal(artifact), HasSubstr("launches 3 blocks; its kernel expects 4"));
  artifact = OnGpu(AddAndDouble(4));
  artifact.mutable_program()->mutable_steps(1)->mutable_launch()->set_kernel("absent");
  EXPECT_THAT(refusal(artifact), HasSubstr("lacks 'absent'"));
  artifact = OnGpu(AddAndDouble(4));
  artifact.mutable_binaries(0)->set_data("no archive");
  EXPECT_THAT(refusal(artifact), HasSubstr("archive of kernels is malformed"));
  EXPECT_EQ(Fake().calls["cuModuleLoadDataEx"], 0);
}

TEST_F(Cuda, DriversThatCannotServeSaySoInASentence) {
  EXPECT_THAT(cuda::Driver::Load("libno-such-driver.so").status().message(),
              HasSubstr("there is no driver for NVIDIA GPUs here"));
  EXPECT_THAT(cuda::Driver::Load("libm.so.6").status().message(), HasSubstr("is no driver"));
  Fake().version = 11080;
  EXPECT_THAT(cuda::Driver::Load(KILN_FAKE_CUDA).status().message(),
              HasSubstr("is for CUDA 11.8; expected CUDA 12.0 or newer"));
  Fake().version = 12000;
  Fake().devices = 0;
  EXPECT_THAT(cuda::Driver::Load(KILN_FAKE_CUDA).status().message(), HasSubstr("no device"));
  EXPECT_THAT(DescribeDevice("ptx", "native", 1).status().message(), HasSubstr("no NVIDIA GPU"));
  EXPECT_TRUE(DescribeDevice("ptx", "sm_90a", 1).ok());
}

TEST_F(Cuda, EqualGpusHaveEqualKeys) {
  const auto native = DescribeDevice("ptx", "native", 1);
  ASSERT_TRUE(native.ok()) << native.status();
  EXPECT_EQ(native->arch(), "sm_90a");
  EXPECT_EQ(native->model_name(), "Fake H100");
  EXPECT_EQ(DeviceFingerprint(*native), DeviceFingerprint(*DescribeDevice("ptx", "sm_90a", 8)));
  const std::map<std::pair<int, int>, std::string> archs = {
      {{8, 0}, "sm_80"},  {{8, 6}, "sm_86"},  {{8, 7}, "sm_86"}, {{8, 9}, "sm_89"},
      {{9, 0}, "sm_90a"}, {{10, 0}, "sm_90"}, {{12, 1}, "sm_90"}};
  for (const auto& [capability, arch] : archs) {
    std::tie(Fake().major, Fake().minor) = capability;
    EXPECT_EQ(DescribeDevice("ptx", "", 1)->arch(), arch);
  }
  Fake().major = 7;
  EXPECT_THAT(DescribeDevice("ptx", "", 1).status().message(), HasSubstr("expected 8.0 or newer"));
}

TEST_F(Cuda, CopiesAnyTwoWindows) {
  const cuda::Gpu& gpu = **cuda::Gpu::Get(0);
  const cuda::ContextScope scope(gpu.driver, gpu.context);
  const std::vector<std::vector<int64_t>> cases[] = {
      // sizes, strides of the target, strides of the source
      {{}, {}, {}},
      {{6}, {1}, {1}},
      {{6}, {1}, {3}},
      {{6}, {2}, {0}},
      {{4, 5}, {5, 1}, {8, 1}},
      {{4, 5}, {1, 4}, {5, 1}},
      {{4, 5}, {5, 1}, {0, 1}},
      {{2, 3, 4}, {12, 4, 1}, {1, 8, 2}},
      {{2, 3, 4, 2}, {24, 8, 2, 1}, {2, 16, 4, 1}},
      {{3, 1, 4}, {4, 77, 1}, {4, 5, 1}},
  };
  for (const auto& c : cases) {
    std::vector<float> from(100), expected(100, -1);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
    const OnDevice source(from), target(std::vector<float>(100, -1));
    runtime::CopyStrided(reinterpret_cast<char*>(expected.data()), c[1],
                         reinterpret_cast<const char*>(from.data()), c[2], c[0], 4);
    const absl::Status status =
        cuda::CopyOnGpu(gpu.driver, reinterpret_cast<uintptr_t>(target.block.data()), c[1],
                        reinterpret_cast<uintptr_t>(source.block.data()), c[2], c[0], 4, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    Fake().drain();
    EXPECT_EQ(std::memcmp(target.block.data(), expected.data(), 400), 0)
        << ::testing::PrintToString(c);
  }
  EXPECT_LT(Fake().calls["cuMemcpy2DAsync"], 20);
}

}  // namespace
}  // namespace kiln::testing
