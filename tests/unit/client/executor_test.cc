#include "client/runtime/cpu/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

#include "client/status_bridge.h"
#include "kiln/client.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<const Program> Load(const v1::Artifact& artifact, int threads = 2) {
  auto program = Program::Load(ToArtifactFile(Sealed(artifact)), threads);
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? *program : nullptr;
}

TEST(Executor, NamesTheInputThatDiffers) {
  auto program = Load(AddAndDouble(4));
  float data[8] = {};
  int64_t four = 4, five = 5, two = 2;
  kiln_tensor good = Vector(data, four);
  auto message = [&](kiln_tensor second) {
    absl::Status status = program->Run({good, second}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message(Vector(data, five)), AllOf(HasSubstr("'b'"), HasSubstr("[5]; expected [4]")));
  kiln_tensor strided = good;
  strided.strides = &two;
  EXPECT_THAT(message(strided), AllOf(HasSubstr("'b'"), HasSubstr("strides [2]; expected [1]")));
  kiln_tensor other_type = good;
  other_type.dtype = KILN_INT32;
  EXPECT_THAT(message(other_type), AllOf(HasSubstr("'b'"), HasSubstr("i32; expected f32")));
  kiln_tensor no_data = good;
  no_data.data = nullptr;
  EXPECT_THAT(message(no_data), HasSubstr("has no data"));
  kiln_tensor elsewhere = good;
  elsewhere.device_type = 2;
  EXPECT_THAT(message(elsewhere), HasSubstr("expected the CPU"));
  kiln_tensor scalar = good;
  scalar.ndim = 0;
  EXPECT_THAT(message(scalar), HasSubstr("0 dimensions; expected 1"));
  EXPECT_THAT(program->Run({good}).status().message(), HasSubstr("got 1 inputs; expected 2"));
}

TEST(Executor, StridesOfSizeOneDoNotMatter) {
  auto program = Load(AddAndDouble(1));
  float a = 1, b = 2;
  int64_t one = 1, stride = 77;
  kiln_tensor odd = Vector(&a, one);
  odd.strides = &stride;
  auto outputs = program->Run({odd, Vector(&b, one)});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(*static_cast<float*>((*outputs)[0].data), 6);
}

TEST(Executor, BindsSymbolsFromSizesAndChecksThem) {
  auto program = Load(DynamicAdd());
  for (int64_t n : {int64_t{2}, int64_t{17}, int64_t{1000}, int64_t{17}}) {
    std::vector<float> a(n, 1), b(n, static_cast<float>(n));
    auto outputs = program->Run({Vector(a.data(), n), Vector(b.data(), n)});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    EXPECT_EQ((*outputs)[0].sizes[0], n);
    EXPECT_EQ(static_cast<float*>((*outputs)[0].data)[n - 1], static_cast<float>(n + 1));
    EXPECT_EQ((*outputs)[1].kind, KILN_INT);
    EXPECT_EQ((*outputs)[1].value, 10 * n);
  }
  std::vector<float> data(2000);
  int64_t one = 1, many = 1001, three = 3, four = 4;
  auto error = [&](const int64_t& n, const int64_t& m) {
    return std::string(
        program->Run({Vector(data.data(), n), Vector(data.data(), m)}).status().message());
  };
  EXPECT_THAT(error(one, one), HasSubstr("'s0' is 1; the program was compiled for 2 to 1000"));
  EXPECT_THAT(error(many, many), HasSubstr("'s0' is 1001"));
  EXPECT_THAT(error(three, four), AllOf(HasSubstr("'b'"), HasSubstr("[4]; expected [3]")));
}

TEST(Executor, TakesSymbolsFromScalarInputs) {
  v1::Artifact artifact = DynamicAdd();
  v1::Input& size = *artifact.mutable_program()->add_inputs();
  size.set_name("n");
  size.set_role(v1::Input::ROLE_SYMBOL);
  *size.mutable_type()->mutable_sym_int() = Symbol(0);
  auto program = Load(artifact);
  std::vector<float> data(5, 1);
  int64_t five = 5, six = 6;
  kiln_tensor scalar{};
  scalar.dtype = KILN_INT64;
  scalar.device_type = KILN_CPU;
  scalar.data = &five;
  kiln_tensor vector = Vector(data.data(), five);
  EXPECT_TRUE(program->Run({vector, vector, scalar}).ok());
  scalar.data = &six;
  EXPECT_THAT(program->Run({vector, vector, scalar}).status().message(),
              HasSubstr("[5]; expected [6]"));
  scalar.dtype = KILN_FLOAT32;
  EXPECT_THAT(program->Run({vector, vector, scalar}).status().message(), HasSubstr("'n'"));
}

TEST(Executor, ReportsAnIndexOutOfRange) {
  v1::Artifact artifact = AddAndDouble(4);
  artifact.mutable_program()->mutable_steps(1)->mutable_launch()->set_kernel("test_bad_index");
  float data[4] = {};
  int64_t n = 4;
  absl::Status status = Load(artifact)->Run({Vector(data, n), Vector(data, n)}).status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("test_bad_index"));
}

TEST(Executor, ReportsADivisionByZeroWithItsReason) {
  v1::Artifact artifact = AddAndDouble(4);
  artifact.mutable_program()->mutable_steps(1)->mutable_launch()->set_kernel("test_zero_divisor");
  float data[4] = {};
  int64_t n = 4;
  absl::Status status = Load(artifact)->Run({Vector(data, n), Vector(data, n)}).status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("test_zero_divisor: an integer is divided by zero"));
  kiln_status* of_c = ToCStatus(status);
  EXPECT_STREQ(kiln_status_reason(of_c), "REASON_DIVISION_BY_ZERO");
  kiln_status_destroy(of_c);
}

TEST(Executor, GivesEachThreadItsScratch) {
  v1::Artifact artifact = EmptyArtifact();
  artifact.set_binary(TestKernels());
  v1::Program& program = *artifact.mutable_program();
  uint32_t out = AddBuffer(program, v1::Buffer::KIND_OUTPUT, 0, Size(1), Size(8));
  program.mutable_buffers(0)->set_dtype(v1::DTYPE_INT64);
  AddLaunch(program, "test_count_tasks", {out}, Size(5000));
  *program.mutable_steps(0)->mutable_launch()->mutable_thread_scratch_bytes() = Size(8);
  AddOutput(program, out, Size(1));
  program.mutable_outputs(0)->mutable_tensor()->set_dtype(v1::DTYPE_INT64);
  auto loaded = Load(artifact, 4);
  for (int i = 0; i < 20; ++i) {
    auto outputs = loaded->Run({});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    EXPECT_EQ(*static_cast<int64_t*>((*outputs)[0].data), 5000);
  }
}

TEST(Executor, RunsFromSeveralThreadsAtOnce) {
  auto program = Load(AddAndDouble(300), 3);
  auto work = [&](float value) {
    std::vector<float> a(300, value), b(300, 1);
    int64_t n = 300;
    for (int i = 0; i < 200; ++i) {
      auto outputs = program->Run({Vector(a.data(), n), Vector(b.data(), n)});
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      for (int j = 0; j < 300; ++j) {
        ASSERT_EQ(static_cast<float*>((*outputs)[0].data)[j], 2 * (value + 1));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work, static_cast<float>(t));
  for (std::thread& thread : threads) thread.join();
}

TEST(Executor, AnOutputMayViewAnInputOrAConstant) {
  v1::Artifact artifact = AddAndDouble(4);
  v1::Program& program = *artifact.mutable_program();
  AddOutput(program, 0, Size(2));
  *program.mutable_outputs(1)->mutable_tensor()->mutable_offset() = Size(1);
  float values[2] = {5, 6};
  program.add_constants()->set_data(std::string(reinterpret_cast<char*>(values), 8));
  uint32_t constant = AddBuffer(program, v1::Buffer::KIND_CONSTANT, 0, Size(2), Size(8));
  AddOutput(program, constant, Size(2));
  program.add_outputs()->mutable_none();
  auto loaded = Load(artifact);
  float data[4] = {1, 2, 3, 4};
  int64_t n = 4;
  for (int run = 0; run < 2; ++run) {
    auto outputs = loaded->Run({Vector(data, n), Vector(data, n)});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    EXPECT_EQ((*outputs)[1].storage, KILN_STORAGE_INPUT);
    EXPECT_EQ((*outputs)[1].data, data + 1);
    EXPECT_EQ((*outputs)[2].storage, KILN_STORAGE_ALLOCATED);
    float* copy = static_cast<float*>((*outputs)[2].data);
    EXPECT_EQ(copy[1], 6);
    copy[1] = 0;  // callers may write to what they got
    EXPECT_EQ((*outputs)[3].kind, KILN_NONE);
  }
}

// ---- Callbacks

struct Callbacks {
  std::vector<float> library_data;
  int64_t library_size = 0;
  int64_t library_stride = 1;
  int32_t library_dtype = KILN_FLOAT32;
  std::vector<std::unique_ptr<float[]>> allocations;
  std::vector<int> numbers;

  kiln_run_options options() {
    kiln_run_options out = KILN_RUN_OPTIONS_INIT;
    out.user = this;
    out.allocate_output = [](void* user, int32_t number, int32_t dtype, int32_t ndim,
                             const int64_t* sizes, const int64_t*, void** data) -> kiln_status* {
      auto* self = static_cast<Callbacks*>(user);
      EXPECT_EQ(dtype, KILN_FLOAT32);
      EXPECT_EQ(ndim, 1);
      self->numbers.push_back(number);
      self->allocations.push_back(std::make_unique<float[]>(sizes[0]));
      *data = self->allocations.back().get();
      return nullptr;
    };
    out.library_step = [](void* user, int32_t step, const kiln_tensor* tensors, size_t num_tensors,
                          const int64_t* ints, size_t num_ints, kiln_tensor* results,
                          size_t num_results) -> kiln_status* {
      auto* self = static_cast<Callbacks*>(user);
      EXPECT_EQ(step, 0);
      EXPECT_EQ(num_tensors, 1u);
      EXPECT_EQ(num_ints, 1u);
      EXPECT_EQ(ints[0], 7);
      EXPECT_EQ(num_results, 1u);
      const float* in = static_cast<const float*>(tensors[0].data);
      if (in[0] < 0) return kiln_status_create(KILN_INVALID_ARGUMENT, "negative");
      self->library_data.assign(self->library_size * self->library_stride, -1);
      for (int64_t i = 0; i < self->library_size; ++i) {
        self->library_data[i * self->library_stride] = 10 * in[i];
      }
      results[0].data = self->library_data.data();
      results[0].dtype = self->library_dtype;
      results[0].ndim = 1;
      results[0].sizes = &self->library_size;
      results[0].strides = &self->library_stride;
      return nullptr;
    };
    return out;
  }
};

absl::Status RunLibrary(Callbacks& callbacks, std::vector<float> a,
                        absl::Span<kiln_output> outputs) {
  auto program = Load(AddLibraryResult(4));
  int64_t n = 4;
  kiln_run_options options = callbacks.options();
  return program->Run({Vector(a.data(), n)}, outputs, &options);
}

TEST(Executor, CallsLibraryStepsAndTheCallersAllocator) {
  Callbacks callbacks{.library_size = 4};
  kiln_output outputs[2];
  ASSERT_TRUE(RunLibrary(callbacks, {1, 2, 3, 4}, outputs).ok());
  EXPECT_EQ(callbacks.numbers, std::vector<int>{0});
  EXPECT_EQ(outputs[0].data, callbacks.allocations[0].get());
  EXPECT_EQ(outputs[0].owner, nullptr);
  EXPECT_EQ(static_cast<float*>(outputs[0].data)[3], 44);
  EXPECT_EQ(outputs[1].storage, KILN_STORAGE_LIBRARY);
  EXPECT_EQ(outputs[1].data, callbacks.library_data.data());
}

TEST(Executor, CopiesALibraryResultWithOtherStrides) {
  Callbacks callbacks{.library_size = 4, .library_stride = 3};
  kiln_output outputs[2];
  ASSERT_TRUE(RunLibrary(callbacks, {1, 2, 3, 4}, outputs).ok());
  EXPECT_EQ(static_cast<float*>(outputs[0].data)[3], 44);
  EXPECT_EQ(outputs[1].storage, KILN_STORAGE_ALLOCATED);
  EXPECT_EQ(outputs[1].strides[0], 1);
  EXPECT_EQ(static_cast<float*>(outputs[1].data)[2], 30);
}

TEST(Executor, RefusesALibraryResultOfAnotherSizeOrType) {
  kiln_output outputs[2];
  Callbacks small{.library_size = 3};
  EXPECT_THAT(RunLibrary(small, {1, 2, 3, 4}, outputs).message(), HasSubstr("another size"));
  Callbacks typed{.library_size = 4, .library_dtype = KILN_INT32};
  EXPECT_THAT(RunLibrary(typed, {1, 2, 3, 4}, outputs).message(), HasSubstr("another dtype"));
}

TEST(Executor, ALibraryStepThatFailsOrIsMissingNamesOpAndNode) {
  kiln_output outputs[2];
  Callbacks callbacks{.library_size = 4};
  absl::Status status = RunLibrary(callbacks, {-1, 2, 3, 4}, outputs);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("aten.test.default"), HasSubstr("'lib'"), HasSubstr("negative")));
  float data[4] = {};
  int64_t n = 4;
  status = Load(AddLibraryResult(4))->Run({Vector(data, n)}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("aten.test.default"), HasSubstr("'lib'")));
}

TEST(Executor, TellsWhereEachStepBeginsAndEnds) {
  struct Told : Callbacks {
    std::vector<std::pair<int, int>> steps;
  } told;
  told.library_size = 4;
  kiln_run_options options = told.options();
  options.step = [](void* user, int32_t step, int32_t begins) {
    static_cast<Told*>(static_cast<Callbacks*>(user))->steps.emplace_back(step, begins);
  };
  auto program = Load(AddLibraryResult(4));
  std::vector<float> a = {1, 2, 3, 4};
  int64_t n = 4;
  kiln_output outputs[2];
  ASSERT_TRUE(program->Run({Vector(a.data(), n)}, outputs, &options).ok());
  const std::vector<std::pair<int, int>> expected = {{0, 1}, {0, 0}, {1, 1}, {1, 0}};
  EXPECT_EQ(told.steps, expected);
  kiln_outputs_release(outputs, 2);
  a[0] = -1;  // the library step fails
  told.steps.clear();
  EXPECT_FALSE(program->Run({Vector(a.data(), n)}, outputs, &options).ok());
  EXPECT_EQ(told.steps, (std::vector<std::pair<int, int>>{{0, 1}}));
}

}  // namespace
}  // namespace kiln::testing
