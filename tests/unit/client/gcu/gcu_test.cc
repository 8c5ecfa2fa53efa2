// Programs with launches on a GCU and steps on its host: what lies where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/loader.h"
#include "client/runtime/executor.h"
#include "client/runtime/gcu/runtime.h"
#include "kiln/v1/device.pb.h"
#include "tests/unit/client/artifacts.h"
#include "tests/unit/client/gcu/gcu_artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

class Gcu : public ::testing::Test {
 protected:
  void SetUp() override { WatchGcu(); }
  void TearDown() override {
    const GcuWatch watch = ReadGcuWatch();
    EXPECT_EQ(watch.blocks, 0);
    EXPECT_EQ(watch.streams, 0);
    EXPECT_EQ(watch.events, 0);
    EXPECT_EQ(watch.modules, 0);
  }
};

TEST_F(Gcu, StepsOfDeviceAndHostTakeWhatTheOtherSideMade) {
  Made made(100, 2);
  const uint32_t sum = made.Workspace(0), more = made.Workspace(1);
  const uint32_t out = made.Buffer(v1::Buffer::KIND_OUTPUT);
  made.Launch("gcu_add", {0, 1, sum});
  made.Launch("test_add", {sum, sum, more});
  made.Launch("gcu_add", {more, sum, out});
  made.Output(out);
  const auto program = LoadGcu(made.OnGcu());
  for (int round = 0; round < 3; ++round) {
    ResetGcuWatch();
    Values a = Iota(100, 1.0f + static_cast<float>(round)), b(100, 0.5f);
    const auto result = RunOn(*program, {&a, &b});
    ASSERT_TRUE(result.ok()) << result.status();
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ((*result)[0][i], 3 * (a[i] + b[i]));
    // Once, and only what the other side lacks is copied: a, b and more; sum and out.
    EXPECT_EQ(ReadGcuWatch().copies_to_device, 3);
    EXPECT_EQ(ReadGcuWatch().bytes_to_device, 3 * 400);
    EXPECT_EQ(ReadGcuWatch().copies_to_host, 2);
    EXPECT_EQ(ReadGcuWatch().bytes_to_host, 2 * 400);
  }
  EXPECT_THAT(program->LastRun(), HasSubstr("gcu-16m, 2 launches, 2"));
}

TEST_F(Gcu, OneSideAloneIsEnough) {
  Values a = Iota(10, 0), b(10, 1);
  for (const char* kernel : {"test_add", "gcu_add"}) {
    Made made(10, 2);
    made.Launch(kernel, {0, 1, made.Buffer(v1::Buffer::KIND_OUTPUT)});
    made.Output(2);
    v1::Artifact artifact = made.OnGcu();
    if (absl::string_view(kernel) == "test_add") artifact.clear_binaries();
    if (absl::string_view(kernel) == "gcu_add") artifact.clear_binary();
    const auto result = RunOn(*LoadGcu(artifact), {&a, &b});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ((*result)[0], Iota(10, 1));
  }
}

TEST_F(Gcu, LibraryStepsTakeAndGiveWhatTheDeviceHas) {
  v1::Artifact artifact = AddLibraryResult(40);
  v1::Program& program = *artifact.mutable_program();
  program.mutable_steps(1)->mutable_launch()->set_kernel("gcu_add");
  // The library's argument is made on the device as well.
  const uint32_t made = AddBuffer(program, v1::Buffer::KIND_WORKSPACE, 0, Size(40), Size(160));
  *program.mutable_workspace_bytes() = Size(160);
  AddLaunch(program, "gcu_add", {0, 0, made}, Size(40));
  program.mutable_steps()->SwapElements(0, 2);
  program.mutable_steps()->SwapElements(1, 2);
  program.mutable_steps(1)->mutable_library()->mutable_args(0)->mutable_tensor()->set_buffer(made);
  const auto loaded = LoadGcu(OnGcu(artifact));
  Values given;  // what the library made: 10 times its argument
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  options.user = &given;
  options.library_step = [](void* user, int32_t, const kiln_tensor* tensors, size_t, const int64_t*,
                            size_t, kiln_tensor* results, size_t) -> kiln_status* {
    Values& given = *static_cast<Values*>(user);
    const auto* from = static_cast<const float*>(tensors[0].data);
    given.assign(from, from + 40);
    for (float& value : given) value *= 10;
    results[0].data = given.data();
    return nullptr;
  };
  Values a = Iota(40, 1);
  const auto result = RunOn(*loaded, {&a}, &options);
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t i = 0; i < 40; ++i) EXPECT_EQ((*result)[0][i], 21 * a[i]);
  const absl::Status without = RunOn(*loaded, {&a}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(without)) << without;
  EXPECT_THAT(without.message(), HasSubstr("aten.test.default (node 'lib')"));
}

// A program of random steps on both sides, and what it computes.
class RandomProgram {
 public:
  static constexpr int kInputs = 3, kPlaces = 4;

  RandomProgram(std::mt19937& random, int64_t n) : random_(random), n_(n), made_(n, kInputs) {
    for (int i = 0; i < kInputs; ++i) values_.push_back(Iota(n, static_cast<float>(50 * i - 7)));
    live_ = {0, 1, 2};
    places_.fill(-1);
    const int outputs = 1 + Draw(2);
    for (int i = 0; i < outputs; ++i) {
      const int out = Add(made_.Buffer(v1::Buffer::KIND_OUTPUT));
      AddStep(out);
      live_.push_back(out);
    }
    for (int steps = 5 + Draw(15); steps > 0; --steps) Step();
    for (int i = 0; i < outputs; ++i) {
      outputs_.push_back(kInputs + i);
      made_.Output(static_cast<uint32_t>(kInputs + i));
    }
  }

  void RunAndCompare() {
    const auto program = LoadGcu(made_.OnGcu());
    ASSERT_NE(program, nullptr);
    for (int round = 0; round < 2; ++round) {
      std::vector<Values> inputs;
      std::vector<Values*> pointers;
      for (int i = 0; i < kInputs; ++i) inputs.push_back(Iota(n_, static_cast<float>(50 * i - 7)));
      for (Values& input : inputs) pointers.push_back(&input);
      const auto results = RunOn(*program, pointers);
      ASSERT_TRUE(results.ok()) << results.status();
      for (size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(inputs[i], values_[i]) << "input " << i;
      for (size_t i = 0; i < outputs_.size(); ++i) {
        EXPECT_EQ((*results)[i], values_[static_cast<size_t>(outputs_[i])]) << "output " << i;
      }
    }
  }

 private:
  int Draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  int AnyLive() { return live_[static_cast<size_t>(Draw(static_cast<int>(live_.size())))]; }
  Values& ValueOf(int buffer) { return values_[static_cast<size_t>(buffer)]; }

  int Add(uint32_t buffer) {
    values_.emplace_back(static_cast<size_t>(n_));
    return static_cast<int>(buffer);
  }

  void AddStep(int out) {
    const int a = AnyLive(), b = AnyLive();
    const bool on_device = Draw(2) == 0;
    made_.Launch(on_device ? "gcu_add" : "test_add",
                 {static_cast<uint32_t>(a), static_cast<uint32_t>(b), static_cast<uint32_t>(out)});
    Values sum(static_cast<size_t>(n_));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = ValueOf(a)[i] + ValueOf(b)[i];
    ValueOf(out) = sum;
  }

  // A new buffer in the place of one that nothing reads later, but perhaps this very step.
  void AddInNewPlace() {
    const int place = Draw(kPlaces);
    const int out = Add(made_.Workspace(place));
    AddStep(out);
    int& before = places_[static_cast<size_t>(place)];
    live_.erase(std::remove(live_.begin(), live_.end(), before), live_.end());
    before = out;
    live_.push_back(out);
  }

  void Step() {
    const int kind = Draw(6);
    if (kind < 3) return AddInNewPlace();
    const int to = AnyLive();
    if (kind == 3) return AddStep(to);
    const int from = AnyLive();
    if (from == to) return;
    if (kind == 4) {
      made_.Launch("gcu_double_half", {static_cast<uint32_t>(from), static_cast<uint32_t>(to)});
      for (size_t i = 0; i < ValueOf(to).size() / 2; ++i) ValueOf(to)[i] = 2 * ValueOf(from)[i];
      return;
    }
    const auto first = static_cast<int64_t>(Draw(static_cast<int>(n_)));
    const int64_t count = 1 + Draw(static_cast<int>(n_ - first));
    made_.CopyPart(static_cast<uint32_t>(from), static_cast<uint32_t>(to), first, count);
    std::copy_n(ValueOf(from).begin() + first, count, ValueOf(to).begin() + first);
  }

  std::mt19937& random_;
  const int64_t n_;
  Made made_;
  std::vector<Values> values_;  // by buffer
  std::vector<int> live_;       // buffers that are written and may be read
  std::vector<int> outputs_;
  std::array<int, kPlaces> places_;  // the last buffer there; -1: none yet
};

TEST_F(Gcu, EveryBufferIsOnTheRightSideAtEveryStep) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int64_t n = 2 + static_cast<int64_t>(random() % 60);
    RandomProgram(random, n).RunAndCompare();
    if (HasFailure()) return;
  }
}

// Two columns of one matrix: what lies between an input's elements is the other input's.
TEST_F(Gcu, AnUpdatedInputLeavesWhatLiesBetweenItsElements) {
  v1::Artifact artifact = EmptyArtifact();
  artifact.set_binary(TestKernels());
  v1::Program& program = *artifact.mutable_program();
  for (uint32_t i = 0; i < 2; ++i) {
    AddInput(program, absl::StrCat("column", i), Size(20));
    v1::TensorType& type =
        *program.mutable_inputs(static_cast<int>(i))->mutable_type()->mutable_tensor();
    *type.mutable_strides(0) = Size(2);
    AddBuffer(program, v1::Buffer::KIND_INPUT, i, Size(20), Size(156));
    *program.mutable_buffers(static_cast<int>(i))->mutable_strides(0) = Size(2);
  }
  AddLaunch(program, "gcu_increment_column", {0}, Size(20));
  AddLaunch(program, "gcu_increment_column", {1}, Size(20));
  AddLaunch(program, "gcu_increment_column", {1}, Size(20));
  const auto loaded = LoadGcu(OnGcu(artifact));
  Values matrix = Iota(40, 0);
  const int64_t n = 20, two = 2;
  std::vector<kiln_tensor> inputs = {Vector(matrix.data(), n), Vector(matrix.data() + 1, n)};
  for (kiln_tensor& input : inputs) input.strides = &two;
  Outputs none;
  const absl::Status status = loaded->Run(inputs, none.span(), nullptr);
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(matrix[i], static_cast<float>(i) + (i % 2 == 0 ? 1 : 2)) << i;
  }
  // Elements in common: each of the device's copies would have half of the updates.
  const Values before = matrix;
  inputs[1].data = matrix.data();
  const absl::Status overlap = loaded->Run(inputs, none.span(), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(overlap)) << overlap;
  EXPECT_THAT(overlap.message(), HasSubstr("has elements in common with input 1"));
  EXPECT_EQ(matrix, before);
}

TEST_F(Gcu, ConstantsAreOnBothSidesAndOutputsOfThemAreCopies) {
  Made made(8, 1);
  v1::Constant& constant = *made.program().add_constants();
  const Values numbers = Iota(8, 7);
  constant.set_data(std::string(reinterpret_cast<const char*>(numbers.data()), 32));
  v1::TensorType& type = *constant.mutable_type();
  type.set_dtype(v1::DTYPE_FLOAT32);
  *type.add_sizes() = Size(8);
  *type.add_strides() = Size(1);
  const uint32_t table = made.Buffer(v1::Buffer::KIND_CONSTANT);
  const uint32_t sum = made.Workspace(0), out = made.Buffer(v1::Buffer::KIND_OUTPUT);
  made.Launch("gcu_add", {0, table, sum});
  made.Launch("test_add", {sum, table, out});
  made.Output(out);
  made.Output(table);
  const auto program = LoadGcu(made.OnGcu());
  for (int round = 0; round < 2; ++round) {
    Values a = Iota(8, 0);
    const auto result = RunOn(*program, {&a});
    ASSERT_TRUE(result.ok()) << result.status();
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ((*result)[0][i], a[i] + 2 * numbers[i]);
    EXPECT_EQ((*result)[1], numbers);
  }
}

TEST_F(Gcu, WhatIsPreparedIsKeptWhicheverSideMadeIt) {
  for (const char* prepares : {"gcu_add", "test_add"}) {
    for (const char* uses : {"gcu_add", "test_add"}) {
      SCOPED_TRACE(absl::StrCat(prepares, ", ", uses));
      v1::Artifact artifact = PrepareAndAdd(40);
      artifact.mutable_program()->mutable_steps(0)->mutable_launch()->set_kernel(prepares);
      artifact.mutable_program()->mutable_steps(1)->mutable_launch()->set_kernel(uses);
      const auto program = LoadGcu(OnGcu(artifact));
      Values a(40, 3), b(40, 1);
      const int64_t n = 40;
      const auto first = [&](const kiln_run_options* options) {
        const auto result = RunOn(*program, {&a, &b}, options);
        EXPECT_TRUE(result.ok()) << result.status();
        return result.ok() ? (*result)[0][0] : -1;
      };
      EXPECT_EQ(first(nullptr), 7);
      auto prepared =
          program->loaded().executor().PrepareWeights({Vector(a.data(), n), Vector(b.data(), n)});
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      kiln_run_options options = KILN_RUN_OPTIONS_INIT;
      options.prepared = prepared->get();
      a[0] = 5;  // nobody has prepared again
      b[0] = 2;
      EXPECT_EQ(first(&options), 8);
      EXPECT_EQ(first(nullptr), 12);
      EXPECT_EQ(first(&options), 8);
    }
  }
}

// x0 + x1 + a constant; x1 is a parameter.
TEST_F(Gcu, WeightsAndConstantsAreCopiedOnceForEachStateOfTheParameters) {
  Made made(30, 2);
  made.program().mutable_inputs(1)->set_role(v1::Input::ROLE_PARAMETER);
  const Values numbers = Iota(30, 7);
  v1::Constant& constant = *made.program().add_constants();
  constant.set_data(std::string(reinterpret_cast<const char*>(numbers.data()), 120));
  v1::TensorType& type = *constant.mutable_type();
  type.set_dtype(v1::DTYPE_FLOAT32);
  *type.add_sizes() = Size(30);
  *type.add_strides() = Size(1);
  const uint32_t table = made.Buffer(v1::Buffer::KIND_CONSTANT), sum = made.Workspace(0);
  made.Launch("gcu_add", {0, 1, sum});
  made.Launch("gcu_add", {sum, table, made.Buffer(v1::Buffer::KIND_OUTPUT)});
  made.Output(4);
  const auto program = LoadGcu(made.OnGcu());
  const runtime::Executor& executor = program->loaded().executor();
  EXPECT_FALSE(executor.PreparesInput(0));
  EXPECT_TRUE(executor.PreparesInput(1));
  EXPECT_EQ(executor.prepared_bytes(), 120);
  Values x = Iota(30, 1), w = Iota(30, 2);
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  const auto copies = [&] {
    ResetGcuWatch();
    const auto result = RunOn(*program, {&x, &w}, &options);
    EXPECT_TRUE(result.ok()) << result.status();
    for (size_t i = 0; result.ok() && i < 30; ++i) {
      EXPECT_EQ((*result)[0][i], x[i] + w[i] + numbers[i]);
    }
    return ReadGcuWatch().copies_to_device;
  };
  EXPECT_EQ(copies(), 3);
  EXPECT_EQ(copies(), 2) << "the constant is there";
  for (int round = 0; round < 2; ++round) {
    const auto prepared = executor.PrepareWeights({Vector(x.data(), 30), Vector(w.data(), 30)});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    options.prepared = prepared->get();
    EXPECT_EQ(copies(), 2);
    x[0] = 100;
    EXPECT_EQ(copies(), 1) << "the parameter is there";
    options.prepared = nullptr;
    for (float& value : w) value += 3;  // and then it is prepared again
    EXPECT_EQ(copies(), 2);
  }
}

TEST_F(Gcu, SizesThatInputsGive) {
  v1::Artifact artifact = DynamicAdd();
  artifact.mutable_program()->mutable_steps(0)->mutable_launch()->set_kernel("gcu_add");
  artifact.mutable_program()->mutable_symbols(0)->set_max(512);
  const auto program = LoadGcu(OnGcu(artifact));
  for (const int64_t n : {5, 300, 5, 512, 2}) {
    Values a = Iota(n, 1), b = Iota(n, 2);
    const auto result = RunOn(*program, {&a, &b});
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ((*result)[0].size(), static_cast<size_t>(n));
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ((*result)[0][i], a[i] + b[i]);
  }
}

TEST_F(Gcu, RunsOverlap) {
  Made made(200, 2);
  const uint32_t sum = made.Workspace(0), more = made.Workspace(1);
  made.Launch("gcu_add", {0, 1, sum});
  made.Launch("test_add", {sum, sum, more});
  made.Launch("gcu_add", {more, 1, made.Buffer(v1::Buffer::KIND_OUTPUT)});
  made.Output(4);
  const auto program = LoadGcu(made.OnGcu());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Each loads and unloads a program of its own, too.
      const auto own = LoadGcu(made.OnGcu());
      Values a = Iota(200, static_cast<float>(1000 * t)), b(200, static_cast<float>(t));
      for (int round = 0; round < 25; ++round) {
        const auto result = RunOn(round % 2 == 0 ? *program : *own, {&a, &b});
        ASSERT_TRUE(result.ok()) << result.status();
        for (size_t i = 0; i < 200; ++i) ASSERT_EQ((*result)[0][i], 2 * a[i] + 3 * b[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Gcu, ADeviceIsItsProfile) {
  const auto device = gcu::DescribeGcuOrNative("", 2);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->arch(), "gcu-16m");
  EXPECT_EQ(device->vector_bits(), 4096);
  ASSERT_EQ(device->features_size(), 1);
  EXPECT_THAT(device->features(0), HasSubstr("x86-64-v"));
  EXPECT_EQ(gcu::DescribeGcuOrNative("gcu-s60", 2)->arch(), "gcu-s60");
  EXPECT_TRUE(absl::IsInvalidArgument(gcu::DescribeGcuOrNative("gcu-1", 2).status()));
}

}  // namespace
}  // namespace kiln::testing
