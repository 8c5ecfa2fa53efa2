// What a GCU's runtime or program can do wrong, and what is told of what it does.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/include/gcu/gcu_runtime.h"
#include "client/loader.h"
#include "client/runtime/gcu/runtime.h"
#include "tests/temp_dir.h"
#include "tests/unit/client/artifacts.h"
#include "tests/unit/client/gcu/gcu_artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

class GcuErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    WatchGcu();
  }
  void TearDown() override { ExpectNothingIsHeld(); }

  static void ExpectNothingIsHeld() {
    const GcuWatch watch = ReadGcuWatch();
    EXPECT_EQ(watch.blocks, 0);
    EXPECT_EQ(watch.streams, 0);
    EXPECT_EQ(watch.events, 0);
    EXPECT_EQ(watch.modules, 0);
  }
};

absl::Status Refusal(const v1::Artifact& artifact) {
  return runtime::LoadedProgram::Load(Sealed(artifact), nullptr, 1).status();
}

v1::Artifact OneAdd() {
  Made made(10, 2);
  made.Launch("gcu_add", {0, 1, made.Buffer(v1::Buffer::KIND_OUTPUT)});
  made.Output(2);
  return made.OnGcu();
}

// OneAdd, whose kernel is another one.
v1::Artifact WithKernel(const std::function<void(GcuKernel&)>& change) {
  v1::Artifact artifact = OneAdd();
  std::vector<GcuKernel> kernels = {GcuKernels()[0]};
  change(kernels[0]);
  artifact.mutable_binaries(0)->set_data(GcuArchive(kernels));
  return artifact;
}

v1::Artifact WithText(const char* from, const char* to) {
  return WithKernel(
      [=](GcuKernel& kernel) { kernel.text = absl::StrReplaceAll(kernel.text, {{from, to}}); });
}

// Whatever call fails, it is an error that says which, nothing is held, the inputs are what they
// were, and the next run is right.
TEST_F(GcuErrors, EveryCallMayFail) {
  Made made(30, 3);
  const uint32_t sum = made.Workspace(0), more = made.Workspace(1);
  made.Launch("gcu_add", {0, 1, sum});
  made.Launch("test_add", {sum, 0, more});
  made.Launch("gcu_add", {more, 1, made.Buffer(v1::Buffer::KIND_OUTPUT)});
  made.Launch("gcu_add", {more, sum, 2});  // updates an input
  made.Output(5);
  const std::string file = ToArtifactFile(Sealed(made.OnGcu()));
  const struct {
    int code;
    absl::StatusCode expected;
  } kCodes[] = {
      {GCU_INVALID_ARGUMENT, absl::StatusCode::kInternal},
      {GCU_OUT_OF_MEMORY, absl::StatusCode::kResourceExhausted},
      {GCU_BAD_BINARY, absl::StatusCode::kDataLoss},
      {GCU_WRONG_PROFILE, absl::StatusCode::kFailedPrecondition},
      {GCU_NOT_FOUND, absl::StatusCode::kDataLoss},
      {GCU_POISON, absl::StatusCode::kInternal},
      {GCU_INDEX, absl::StatusCode::kOutOfRange},
      {1234, absl::StatusCode::kInternal},
  };
  const Values a = Iota(30, 1), b = Iota(30, 2), c = Iota(30, 3);
  const auto run = [&](const Program& program) {
    Values x = a, y = b, z = c;
    const auto result = RunOn(program, {&x, &y, &z});
    EXPECT_EQ(x, a);
    EXPECT_EQ(y, b);
    if (!result.ok()) {
      EXPECT_EQ(z, c);
      return result.status();
    }
    for (size_t i = 0; i < 30; ++i) {
      EXPECT_EQ((*result)[0][i], 2 * a[i] + 2 * b[i]);
      EXPECT_EQ(z[i], 3 * a[i] + 2 * b[i]);
    }
    return absl::OkStatus();
  };
  ASSERT_TRUE(gcu::Runtime::Get().ok()) << gcu::Runtime::Get().status();
  int failed_loads = 0, failed_runs = 0;
  for (const auto& [code, expected] : kCodes) {
    bool all = false;
    for (int at = 0; !all; ++at) {
      SCOPED_TRACE(absl::StrCat("call ", at, " gives ", code));
      ASSERT_LT(at, 1000);
      ResetGcuWatch(at, code);
      absl::Status status;
      {
        const auto program = Program::Load(file, 2);
        status = program.ok() ? run(**program) : program.status();
        all = ReadGcuWatch().calls <= at;
        (program.ok() ? failed_runs : failed_loads) += status.ok() ? 0 : 1;
        ResetGcuWatch();
        if (program.ok()) EXPECT_TRUE(run(**program).ok());
      }
      ExpectNothingIsHeld();
      if (all) {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_EQ(status.code(), expected) << status;
      EXPECT_THAT(status.message(), HasSubstr(": the test wants it"));
      EXPECT_THAT(status.message(),
                  ::testing::ContainsRegex("kernel gcu_|tensor|stream|event|allocate [0-9]+ "
                                           "bytes|what a launch did|what runs on the GCU"));
    }
  }
  EXPECT_GT(failed_loads, 8 * 8);
  EXPECT_GT(failed_runs, 8 * 15);
}

TEST_F(GcuErrors, MemoryThatTheDeviceDoesNotHaveIsAnError) {
  const auto program = LoadGcu(OneAdd());
  Values a(10, 1), b(10, 1);
  const gcu::Runtime& runtime = **gcu::Runtime::Get();
  gcu_address_t most = 0;  // another's, so that there is room for two of three tensors
  ASSERT_EQ(
      runtime.malloc(runtime.context, runtime.properties.l3_bytes - 1024, GCU_MEMORY_L3, &most),
      GCU_OK);
  for (int round = 0; round < 2; ++round) {
    const absl::Status status = RunOn(*program, {&a, &b}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("cannot allocate 40 bytes on the GCU: GCU_OUT_OF_MEMOR"
                                            "Y: 40 bytes do not fit beside the 34359738368 that"));
    EXPECT_EQ(ReadGcuWatch().blocks, 1);
  }
  ASSERT_EQ(runtime.free(runtime.context, most, GCU_MEMORY_L3), GCU_OK);
  EXPECT_EQ((*RunOn(*program, {&a, &b}))[0], Values(10, 2));
}

TEST_F(GcuErrors, AnIndexOutsideOfItsDimensionIsAnIndexErrorOfItsKernel) {
  Made made(16, 2);
  made.Launch("gcu_pick", {0, 1, made.Buffer(v1::Buffer::KIND_OUTPUT)});
  made.Output(2);
  const auto program = LoadGcu(made.OnGcu());
  Values table = Iota(16, 100), index = Iota(16, 0);
  std::reverse(index.begin(), index.end());
  EXPECT_EQ((*RunOn(*program, {&table, &index}))[0][0], 115);
  for (const float wrong : {16.0f, -1.0f}) {
    index[3] = wrong;
    const absl::Status status = RunOn(*program, {&table, &index}).status();
    EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("kernel gcu_pick: "));
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("index ", wrong, " at 3")));
  }
  index[3] = 12;
  EXPECT_EQ((*RunOn(*program, {&table, &index}))[0][3], 112);
  // The host's kernels say it their way.
  Made host(4, 1);
  const uint32_t out = host.Workspace(0), last = host.Buffer(v1::Buffer::KIND_OUTPUT);
  host.Launch("gcu_add", {0, 0, out});
  host.Launch("test_bad_index", {out, last});
  *host.program().mutable_steps(1)->mutable_launch()->mutable_scratch_bytes() = Size(16);
  host.Output(last);
  Values x(4, 1);
  const absl::Status status = RunOn(*LoadGcu(host.OnGcu()), {&x}).status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("kernel test_bad_index: an index is outside"));
}

TEST_F(GcuErrors, AFailedRunHasNotWrittenToItsInputs) {
  v1::Artifact artifact = EmptyArtifact();
  artifact.set_binary(TestKernels());
  v1::Program& program = *artifact.mutable_program();
  AddInput(program, "column", Size(4));
  *program.mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_strides(0) = Size(2);
  AddBuffer(program, v1::Buffer::KIND_INPUT, 0, Size(4), Size(28));
  *program.mutable_buffers(0)->mutable_strides(0) = Size(2);
  for (uint32_t i = 1; i < 3; ++i) {
    AddInput(program, absl::StrCat("x", i), Size(4));
    AddBuffer(program, v1::Buffer::KIND_INPUT, i, Size(4), Size(16));
  }
  const uint32_t out = AddBuffer(program, v1::Buffer::KIND_OUTPUT, 0, Size(4), Size(16));
  AddLaunch(program, "gcu_increment_column", {0}, Size(4));
  AddLaunch(program, "gcu_pick", {1, 2, out}, Size(4));
  AddOutput(program, out, Size(4));
  const auto loaded = LoadGcu(OnGcu(artifact));
  Values column(7, 1), table(4, 1), index(4, 9);
  const int64_t n = 4, two = 2;
  std::vector<kiln_tensor> inputs = {Vector(column.data(), n), Vector(table.data(), n),
                                     Vector(index.data(), n)};
  inputs[0].strides = &two;
  Outputs outputs(1);
  EXPECT_TRUE(absl::IsOutOfRange(loaded->Run(inputs, outputs.span(), nullptr)));
  EXPECT_EQ(column, Values(7, 1));
  index.assign(4, 0);
  ASSERT_TRUE(loaded->Run(inputs, outputs.span(), nullptr).ok());
  EXPECT_THAT(column, ElementsAre(2, 1, 2, 1, 2, 1, 2));
}

// Of a step of the host's that stored to an input, and of one that wanted to read what the device
// had.
TEST_F(GcuErrors, AFailedRunHasNotWrittenToItsInputsWhicheverSideStoredToThem) {
  for (const bool on_host : {true, false}) {
    SCOPED_TRACE(on_host);
    Made made(16, 3);
    const uint32_t seen = made.Workspace(0), out = made.Buffer(v1::Buffer::KIND_OUTPUT);
    made.Launch(on_host ? "test_add" : "gcu_add", {0, 2, 2});
    made.Launch(on_host ? "gcu_add" : "test_add", {2, 0, seen});
    made.Launch("gcu_pick", {seen, 1, out});
    made.Output(out);
    made.Output(2);
    const auto program = LoadGcu(made.OnGcu());
    Values a = Iota(16, 1), index(16, 99), updated = Iota(16, 5);
    EXPECT_TRUE(absl::IsOutOfRange(RunOn(*program, {&a, &index, &updated}).status()));
    EXPECT_EQ(updated, Iota(16, 5));
    index.assign(16, 3);
    const auto result = RunOn(*program, {&a, &index, &updated});
    ASSERT_TRUE(result.ok()) << result.status();
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(updated[i], a[i] + static_cast<float>(5 + i));
    EXPECT_EQ((*result)[0], Values(16, updated[3] + a[3]));
    EXPECT_EQ((*result)[1], updated) << "an output that is the input";
  }
}

TEST_F(GcuErrors, AFaultNamesKernelAndInstruction) {
  const auto program = LoadGcu(WithText("end:\n", "  trap 7\nend:\n"));
  Values a(10, 1), b(10, 1);
  for (int round = 0; round < 2; ++round) {
    const absl::Status status = RunOn(*program, {&a, &b}).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("kernel gcu_add: GCU_TRAP: kernel 'gcu_add', core 0"));
    EXPECT_THAT(status.message(), HasSubstr("(trap): trap 7"));
  }
}

TEST_F(GcuErrors, WrongSizesAreNamed) {
  const auto program = LoadGcu(OneAdd());
  Values ten(10, 1), nine(9, 1);
  absl::Status status = RunOn(*program, {&ten, &nine}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("input 1 ('x1') has sizes [9]; expected [10]"));
  status = RunOn(*program, {&ten}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  // More than the kernel is for.
  Made large(513, 1);
  large.Launch("gcu_add", {0, 0, large.Buffer(v1::Buffer::KIND_OUTPUT)});
  large.Output(1);
  status = Refusal(large.OnGcu());
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("gives its kernel size 513; expected 1 to 512"));
}

TEST_F(GcuErrors, WhatThisMachineCannotRunIsRefused) {
  v1::Artifact artifact = OneAdd();
  EXPECT_TRUE(Refusal(artifact).ok()) << Refusal(artifact);
  artifact.mutable_header()->set_arch("gcu-s60");
  EXPECT_TRUE(absl::IsFailedPrecondition(Refusal(artifact)));
  EXPECT_THAT(Refusal(artifact).message(),
              HasSubstr("the program is for a gcu-s60; the device here is a gcu-16m"));
  artifact = OneAdd();
  artifact.mutable_header()->set_features(0, "pdp-11");
  EXPECT_TRUE(absl::IsFailedPrecondition(Refusal(artifact))) << Refusal(artifact);
  artifact = WithText("gcu-16m", "gcu-s60");
  EXPECT_TRUE(absl::IsFailedPrecondition(Refusal(artifact))) << Refusal(artifact);
  EXPECT_THAT(Refusal(artifact).message(),
              HasSubstr("cannot load kernel gcu_add: GCU_WRONG_PROFILE"));
}

TEST_F(GcuErrors, WhatIsDamagedIsRefusedWithThePlace) {
  const auto expect = [](const v1::Artifact& artifact, const std::string& text) {
    EXPECT_TRUE(absl::IsDataLoss(Refusal(artifact))) << Refusal(artifact) << " for " << text;
    EXPECT_THAT(std::string(Refusal(artifact).message()), HasSubstr(text));
  };
  v1::Artifact artifact = OneAdd();
  std::string& archive = *artifact.mutable_binaries(0)->mutable_data();
  archive[archive.find("KGCU") + 100] ^= 1;
  expect(artifact, "cannot load kernel gcu_add: GCU_BAD_BINARY");
  artifact = OneAdd();
  artifact.mutable_binaries(0)->mutable_data()->resize(700);
  expect(artifact, "archive of kernels is malformed");
  artifact = OneAdd();
  artifact.mutable_binaries(0)->set_data(GcuArchive({GcuKernels()[1]}));
  expect(artifact, "'gcu_add'");
  artifact = OneAdd();
  artifact.clear_binaries();
  expect(artifact, "binary 1, which is not there");
  artifact = OneAdd();
  artifact.mutable_binaries(0)->set_kind(v1::BINARY_KIND_PTX);
  expect(artifact, "code that nothing uses");
  artifact = OneAdd();
  artifact.mutable_program()->mutable_buffers(1)->set_index(0);
  expect(artifact, "two buffers of the artifact are of input 0");
  expect(WithText(".kernel gcu_add", ".kernel gcu_sub"), "the module has no kernel 'gcu_add'");
  expect(WithText("l3 read\n", "l3 readwrite\n"), "writes to buffer 0, which its interface");
  expect(WithText(".arg n int", ".arg n bits"), "has argument 3 of another kind");
  expect(WithText(".arg b l3 read", ".arg b l2 read"), "has argument 1 of another kind");
  expect(WithText(".arg n int\n", ".arg n int\n.arg m int\n"),
         "has 5 arguments; its interface states 4");
  EXPECT_TRUE(Refusal(WithKernel([](GcuKernel&) {})).ok());
}

[[noreturn]] void SayRuntime(const char* library, const char* profile = nullptr) {
  setenv("KILN_LIBGCU", library, 1);
  if (profile != nullptr) setenv("GCU_PROFILE", profile, 1);
  const absl::Status status = gcu::Runtime::Get().status();
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  // A program is refused with that, and the process goes on.
  std::exit(Refusal(OneAdd()) == status ? 0 : 1);
}

TEST_F(GcuErrors, WhatIsNoRuntimeIsSaidInASentence) {
  EXPECT_EXIT(SayRuntime("libno_such_runtime.so"), ExitedWithCode(0),
              "FAILED_PRECONDITION: there is no runtime of a GCU here: libno_such_runtime.so.*"
              "KILN_LIBGCU names one elsewhere");
  EXPECT_EXIT(SayRuntime("libm.so.6"), ExitedWithCode(0),
              "FAILED_PRECONDITION: libm.so.6 has no function gcu_error_name");
  EXPECT_EXIT(SayRuntime(KILN_WATCHED_GCU, "gcu-0"), ExitedWithCode(0),
              "FAILED_PRECONDITION: .*GCU_PROFILE names no profile: gcu-0");
  EXPECT_EXIT((setenv("KILN_GCU_TRACE", "/proc/none/trace", 1), SayRuntime(KILN_WATCHED_GCU)),
              ExitedWithCode(0), "INVALID_ARGUMENT: KILN_GCU_TRACE: cannot write /proc/none/trace");
}

google::protobuf::Value ParsedJson(const std::string& text) {
  google::protobuf::Value value;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &value);
  EXPECT_TRUE(status.ok()) << status << " in " << text;
  return value;
}

TEST_F(GcuErrors, EachLaunchIsALineOfTheReport) {
  const TempDir folder;
  const std::string path = folder.path() + "/report";
  const auto program = LoadGcu(OneAdd());
  Values a(10, 1), b(10, 2);
  setenv("KILN_GCU_REPORT", path.c_str(), 1);
  for (int round = 0; round < 3; ++round) EXPECT_EQ((*RunOn(*program, {&a, &b}))[0][0], 3);
  setenv("KILN_GCU_REPORT", "/proc/none/report", 1);
  const absl::Status status = RunOn(*program, {&a, &b}).status();
  unsetenv("KILN_GCU_REPORT");
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("KILN_GCU_REPORT: cannot write /proc/none/report"));
  std::ifstream lines(path);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto launch = ParsedJson(line).struct_value().fields();
    EXPECT_EQ(launch.at("kernel").string_value(), "gcu_add");
    EXPECT_GT(launch.at("time_ps").number_value(), 10'000'000);
    EXPECT_EQ(launch.at("l3_read_bytes").number_value(), 2 * 64);
    EXPECT_EQ(launch.at("l3_written_bytes").number_value(), 64);
    EXPECT_EQ(launch.at("macs").number_value(), 0);
  }
  EXPECT_EQ(count, 3);
}

[[noreturn]] void RunTwice() {
  const auto program = LoadGcu(OneAdd());
  Values a(10, 1), b(10, 2);
  bool is_right = true;
  for (int round = 0; round < 2; ++round) {
    is_right = is_right && (*RunOn(*program, {&a, &b}))[0] == Values(10, 3);
  }
  std::exit(is_right ? 0 : 1);
}

TEST_F(GcuErrors, TheTraceIsOfTheLastRun) {
  constexpr char kPath[] = "KILN_GCU_TRACE";
  std::optional<TempDir> folder;
  // The process that ends begins this test anew, and has the path from its environment.
  if (getenv(kPath) == nullptr) setenv(kPath, (folder.emplace().path() + "/trace").c_str(), 1);
  const std::string path = getenv(kPath);
  EXPECT_EXIT(RunTwice(), ExitedWithCode(0), "");
  unsetenv(kPath);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const google::protobuf::Value trace = ParsedJson(text.str());
  const auto& events = trace.struct_value().fields().at("traceEvents").list_value();
  int copies = 0, additions = 0;
  for (const auto& value : events.values()) {
    const auto& event = value.struct_value().fields();
    copies += event.at("name").string_value() == "dma" ? 1 : 0;
    additions += event.at("name").string_value() == "v.add" ? 1 : 0;
    EXPECT_EQ(event.at("ph").string_value(), "X");
    EXPECT_GT(event.at("dur").number_value(), 0);
  }
  EXPECT_EQ(copies, 3);
  EXPECT_EQ(additions, 1);
}

}  // namespace
}  // namespace kiln::testing
