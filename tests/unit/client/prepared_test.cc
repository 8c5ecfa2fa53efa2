// Programs that compute something of their parameters once for many runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>

#include "client/loader.h"
#include "client/runtime/executor.h"
#include "kiln/client.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Program> Load(const v1::Artifact& artifact) {
  auto program = Program::Load(ToArtifactFile(Sealed(artifact)), 2);
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? *program : nullptr;
}

float FirstOf(const Program& program, const std::vector<kiln_tensor>& inputs,
              const kiln_prepared* prepared) {
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  options.prepared = prepared;
  Outputs outputs(1);
  const absl::Status status = program.Run(inputs, outputs.span(), &options);
  EXPECT_TRUE(status.ok()) << status;
  return status.ok() ? *static_cast<const float*>(outputs[0].data) : -1;
}

TEST(Prepared, ARunThatIsGivenItComputesTheRestAlone) {
  auto program = Load(PrepareAndAdd(40));
  const runtime::Executor& executor = program->loaded().executor();
  EXPECT_TRUE(executor.PreparesInput(0));
  EXPECT_FALSE(executor.PreparesInput(1));
  std::vector<float> a(40, 3), b(40, 1);
  const int64_t n = 40;
  const std::vector<kiln_tensor> inputs = {Vector(a.data(), n), Vector(b.data(), n)};
  EXPECT_EQ(FirstOf(*program, inputs, nullptr), 7);
  auto prepared = executor.PrepareWeights(inputs);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(FirstOf(*program, inputs, prepared->get()), 7);
  a[0] = 5;  // nobody has prepared again
  b[0] = 2;
  EXPECT_EQ(FirstOf(*program, inputs, prepared->get()), 8);
  EXPECT_EQ(FirstOf(*program, inputs, nullptr), 12);
  auto again = executor.PrepareWeights(inputs);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(FirstOf(*program, inputs, again->get()), 12);
}

TEST(Prepared, ItsMemoryMayBeTakenBefore) {
  constexpr int64_t n = 3 << 20;
  auto program = Load(PrepareAndAdd(n));
  const runtime::Executor& executor = program->loaded().executor();
  std::vector<float> a(n, 3), b(n, 1);
  const std::vector<kiln_tensor> inputs = {Vector(a.data(), n), Vector(b.data(), n)};
  for (int i = 0; i < 3; ++i) {
    for (int twice = 0; twice < i; ++twice) executor.ExpectPrepare();
    auto prepared = executor.PrepareWeights(inputs);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(FirstOf(*program, inputs, prepared->get()), 7);
    executor.ExpectPrepare();
    EXPECT_EQ(FirstOf(*program, inputs, nullptr), 7);  // takes that itself
    executor.ExpectPrepare();                          // for nothing
  }
}

int64_t ResidentBytes() {
  int64_t all = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(Prepared, OneProgramAtATimeHasMemoryTakenBefore) {
  constexpr int64_t n = 16 << 20, kBytes = n * 4;
  auto first = Load(PrepareAndAdd(n)), second = Load(PrepareAndAdd(n));
  std::vector<float> a(n, 3), b(n, 1);
  const std::vector<kiln_tensor> inputs = {Vector(a.data(), n), Vector(b.data(), n)};
  const int64_t before = ResidentBytes();
  // A thread that takes pages has its block until it has done so with the part at hand.
  const auto grown_by_less_than = [before](int64_t bytes) {
    for (int i = 0; ResidentBytes() - before >= bytes && i < 10000; ++i) usleep(1000);
    return ResidentBytes() - before < bytes;
  };
  for (int i = 0; i < 40; ++i) {
    first->loaded().executor().ExpectPrepare();
    second->loaded().executor().ExpectPrepare();
  }
  EXPECT_TRUE(grown_by_less_than(4 * kBytes));
  auto prepared = second->loaded().executor().PrepareWeights(inputs);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(FirstOf(*second, inputs, prepared->get()), 7);
  prepared = first->loaded().executor().PrepareWeights(inputs);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(FirstOf(*first, inputs, prepared->get()), 7);
  *prepared = nullptr;
  for (int i = 0; i < 40; ++i) {
    auto other = Load(PrepareAndAdd(n));
    other->loaded().executor().ExpectPrepare();
  }
  EXPECT_TRUE(grown_by_less_than(4 * kBytes));
}

TEST(Prepared, AnotherProgramsIsRefused) {
  auto program = Load(PrepareAndAdd(4)), other = Load(PrepareAndAdd(4));
  std::vector<float> a(4, 3), b(4, 1);
  const int64_t n = 4;
  const std::vector<kiln_tensor> inputs = {Vector(a.data(), n), Vector(b.data(), n)};
  auto prepared = other->loaded().executor().PrepareWeights(inputs);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  options.prepared = prepared->get();
  Outputs outputs(1);
  const absl::Status status = program->Run(inputs, outputs.span(), &options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("of another program"));
}

TEST(Prepared, WrongInputsAreNamed) {
  auto program = Load(PrepareAndAdd(4));
  std::vector<float> data(8);
  const int64_t four = 4, five = 5;
  const auto status = program->loaded()
                          .executor()
                          .PrepareWeights({Vector(data.data(), five), Vector(data.data(), four)})
                          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("'a'"));
}

TEST(Prepared, UnsoundProgramsAreRefused) {
  const auto error = [](const std::function<void(v1::Program&)>& damage) {
    v1::Artifact artifact = PrepareAndAdd(4);
    damage(*artifact.mutable_program());
    const absl::Status status = Program::Load(ToArtifactFile(Sealed(artifact)), 2).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error([](v1::Program& p) { p.set_prepare_steps(3); }), HasSubstr("more steps"));
  // What is prepared of other inputs is of the wrong call; what each run writes, of several.
  EXPECT_THAT(error([](v1::Program& p) { p.mutable_inputs(0)->set_role(v1::Input::ROLE_USER); }),
              HasSubstr("buffer 0, which is no parameter"));
  EXPECT_THAT(error([](v1::Program& p) { p.set_prepare_steps(2); }),
              HasSubstr("buffer 2, which is no parameter"));
  EXPECT_THAT(error([](v1::Program& p) { p.set_prepare_steps(0); }),
              HasSubstr("writes to buffer 1"));
  EXPECT_THAT(error([](v1::Program& p) { p.mutable_outputs(0)->mutable_tensor()->set_buffer(1); }),
              HasSubstr("memory that the program keeps"));
  EXPECT_THAT(error([](v1::Program& p) { p.set_prepared_bytes(64); }), HasSubstr("buffer 1"));
  EXPECT_THAT(error([](v1::Program& p) { p.set_prepared_bytes(-1); }), HasSubstr("-1 bytes"));
  EXPECT_THAT(error([](v1::Program& p) {
                v1::Symbol& symbol = *p.add_symbols();
                symbol.set_max(100);
                *p.mutable_inputs(1)->mutable_type()->mutable_tensor()->mutable_sizes(0) =
                    Symbol(0);
                *p.mutable_buffers(1)->mutable_sizes(0) = Symbol(0);
              }),
              HasSubstr("buffer 1 is prepared and depends on a symbol"));
}

}  // namespace
}  // namespace kiln::testing
