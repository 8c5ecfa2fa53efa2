#include "client/loader.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "client/runtime/cpu/executor.h"
#include "client/runtime/cpu/shared_object.h"
#include "kiln/client.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

absl::Status Load(const v1::Artifact& artifact) {
  return runtime::LoadedProgram::Load(Sealed(artifact), nullptr, 1).status();
}

absl::Status LoadAsItIs(const v1::Artifact& artifact) {
  return runtime::LoadedProgram::Load(artifact.SerializeAsString(), nullptr, 1).status();
}

TEST(Loader, LoadsAProgramAndRunsIt) {
  auto program = Program::Load(ToArtifactFile(Sealed(AddAndDouble(100))), 2);
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<float> a(100, 1.5f), b(100, 2.0f);
  int64_t n = 100;
  auto outputs = (*program)->Run({Vector(a.data(), n), Vector(b.data(), n)});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(static_cast<float*>((*outputs)[0].data)[i], 7.0f);
}

TEST(Loader, RefusesEveryTruncationOfAFile) {
  std::string file = ToArtifactFile(Sealed(AddAndDouble(10)));
  for (size_t size = 0; size < file.size(); size += 1 + size / 7) {
    EXPECT_EQ(Program::Load(file.substr(0, size), 1).status().code(), absl::StatusCode::kDataLoss)
        << size;
  }
}

TEST(Loader, RefusesAFileWithAnyByteFlipped) {
  std::string file = ToArtifactFile(Sealed(AddAndDouble(10)));
  for (size_t at = 0; at < file.size(); at += 1 + at / 13) {
    std::string flipped = file;
    flipped[at] ^= 0x10;
    EXPECT_EQ(Program::Load(flipped, 1).status().code(), absl::StatusCode::kDataLoss) << at;
  }
}

TEST(Loader, RefusesOtherVersionsTargetsAndCpus) {
  v1::Artifact artifact = AddAndDouble(10);
  artifact.mutable_header()->set_format_version(2);
  EXPECT_THAT(Load(artifact).message(), HasSubstr("format version 2"));
  artifact = AddAndDouble(10);
  artifact.mutable_header()->set_target(v1::TARGET_NULL);
  EXPECT_THAT(Load(artifact).message(), HasSubstr("for target null"));
  artifact = AddAndDouble(10);
  artifact.mutable_header()->add_features("avx9000");
  EXPECT_THAT(Load(artifact).message(), HasSubstr("avx9000"));
  artifact = AddAndDouble(10);
  artifact.mutable_header()->set_arch("z80");
  EXPECT_THAT(Load(artifact).message(), HasSubstr("z80"));
  EXPECT_TRUE(absl::IsFailedPrecondition(Load(artifact)));
}

// What other targets' artifacts have, and this client cannot do.
TEST(Loader, RefusesLaunchesAndCodeThatAreNotACpus) {
  v1::Artifact artifact = AddAndDouble(10);
  v1::LaunchStep& launch = *artifact.mutable_program()->mutable_steps(1)->mutable_launch();
  *launch.mutable_grid()->add_blocks() = Size(4);
  *launch.mutable_grid()->add_threads() = Size(128);
  EXPECT_TRUE(absl::IsFailedPrecondition(Load(artifact)));
  EXPECT_THAT(Load(artifact).message(),
              HasSubstr("step 1 of the artifact is a launch over a grid"));

  artifact = AddAndDouble(10);
  v1::Binary& binary = *artifact.add_binaries();
  binary.set_number(1);
  binary.set_kind(v1::BINARY_KIND_PTX);
  EXPECT_TRUE(absl::IsFailedPrecondition(Load(artifact)));
  EXPECT_THAT(Load(artifact).message(), HasSubstr("code of the kind BINARY_KIND_PTX"));
  artifact.mutable_program()->mutable_steps(1)->mutable_launch()->set_binary(2);
  EXPECT_TRUE(absl::IsDataLoss(Load(artifact)));
  EXPECT_THAT(Load(artifact).message(), HasSubstr("step 1 launches a kernel of binary 2"));
  artifact.mutable_binaries(0)->clear_number();
  EXPECT_THAT(Load(artifact).message(), HasSubstr("without a number or a kind"));
}

TEST(Loader, RefusesALaunchThatSaysMoreThanItKnows) {
  v1::Artifact artifact = AddAndDouble(10);
  v1::LaunchStep& launch = *artifact.mutable_program()->mutable_steps(0)->mutable_launch();
  launch.GetReflection()->MutableUnknownFields(&launch)->AddVarint(1000, 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(Load(artifact)));
  EXPECT_THAT(Load(artifact).message(), HasSubstr("step 0 says more of its launch"));
}

TEST(Loader, RefusesAKernelThatTheObjectDoesNotDefine) {
  for (const char* name : {"no_such_kernel", "malloc", "system"}) {
    v1::Artifact artifact = AddAndDouble(10);
    artifact.mutable_program()->mutable_steps(0)->mutable_launch()->set_kernel(name);
    EXPECT_TRUE(absl::IsDataLoss(Load(artifact))) << name << " " << Load(artifact);
  }
  v1::Artifact artifact = AddAndDouble(10);
  artifact.clear_binary();
  EXPECT_THAT(Load(artifact).message(), HasSubstr("no machine code"));
}

TEST(Loader, RefusesAProgramThatTheMachineCodeWasNotLinkedFor) {
  v1::Artifact artifact;
  ASSERT_TRUE(artifact.ParseFromString(Sealed(AddAndDouble(10))));
  EXPECT_TRUE(LoadAsItIs(artifact).ok());
  v1::Artifact changed = artifact;
  changed.mutable_program()->mutable_steps(0)->mutable_launch()->set_buffers(1, 0);  // a + a
  EXPECT_THAT(LoadAsItIs(changed).message(), HasSubstr("linked for another program"));
  EXPECT_TRUE(absl::IsDataLoss(LoadAsItIs(changed)));
  // Of two programs in one message protobuf makes one, of both.
  const std::string twice = artifact.SerializeAsString() + [&] {
    v1::Artifact program;
    *program.mutable_program() = artifact.program();
    return program.SerializeAsString();
  }();
  EXPECT_TRUE(absl::IsDataLoss(runtime::LoadedProgram::Load(twice, nullptr, 1).status()));
}

TEST(Loader, RefusesDamagedMachineCode) {
  const std::string& whole = TestKernels();
  for (size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{300}, size_t{1000}}) {
    v1::Artifact artifact = AddAndDouble(10);
    artifact.set_binary(whole.substr(0, size));
    EXPECT_TRUE(absl::IsDataLoss(Load(artifact))) << size << " " << Load(artifact);
  }
  std::string other_machine = whole;
  other_machine[18] = 40;  // e_machine
  EXPECT_THAT(runtime::CheckElfImage(other_machine).message(),
              HasSubstr("another kind of machine"));
  EXPECT_TRUE(runtime::CheckElfImage(whole).ok());
}

// One change of a sound program each; every one must be refused.
struct Damage {
  const char* name;
  std::function<void(v1::Program&)> apply;
};

void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.name;
}

class LoaderDamage : public ::testing::TestWithParam<Damage> {};

TEST_P(LoaderDamage, IsRefused) {
  v1::Artifact artifact = AddAndDouble(10);
  ASSERT_TRUE(Load(artifact).ok());
  GetParam().apply(*artifact.mutable_program());
  absl::Status status = Load(artifact);
  EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) << status;
}

v1::SymInt DeepExpression(int depth) {
  v1::SymInt out = Size(1);
  v1::SymExpr* at = out.mutable_expr();
  for (int i = 0; i < depth; ++i) {
    at->set_kind(v1::SymExpr::KIND_ADD);
    at = at->add_operands();
  }
  at->set_kind(v1::SymExpr::KIND_CONSTANT);
  return out;
}

INSTANTIATE_TEST_SUITE_P(
    All, LoaderDamage,
    ::testing::Values(
        Damage{"InputNumber", [](auto& p) { p.mutable_buffers(0)->set_index(2); }},
        Damage{"BufferKind", [](auto& p) { p.mutable_buffers(0)->clear_kind(); }},
        Damage{"BufferType",
               [](auto& p) { p.mutable_buffers(1)->set_dtype(static_cast<v1::DType>(77)); }},
        Damage{"BufferLargerThanInput",
               [](auto& p) { *p.mutable_buffers(0)->mutable_size_bytes() = Size(44); }},
        Damage{"NegativeSize", [](auto& p) { *p.mutable_buffers(2)->mutable_sizes(0) = Size(-1); }},
        Damage{"NegativeStride",
               [](auto& p) { *p.mutable_buffers(2)->mutable_strides(0) = Size(-1); }},
        Damage{"StridesMissing", [](auto& p) { p.mutable_buffers(2)->clear_strides(); }},
        Damage{"HugeSize",
               [](auto& p) {
                 *p.mutable_buffers(3)->mutable_sizes(0) = Size(INT64_MAX);
                 *p.mutable_buffers(3)->mutable_strides(0) = Size(INT64_MAX);
               }},
        Damage{"WorkspaceOffsetOutside",
               [](auto& p) { *p.mutable_buffers(2)->mutable_workspace_offset() = Size(128); }},
        Damage{"WorkspaceOffsetNegative",
               [](auto& p) { *p.mutable_buffers(2)->mutable_workspace_offset() = Size(-64); }},
        Damage{"WorkspaceOffsetUnaligned",
               [](auto& p) { *p.mutable_buffers(2)->mutable_workspace_offset() = Size(4); }},
        Damage{"WorkspaceNegative", [](auto& p) { *p.mutable_workspace_bytes() = Size(-1); }},
        Damage{"WorkspaceHuge", [](auto& p) { *p.mutable_workspace_bytes() = Size(INT64_MAX); }},
        Damage{"LaunchBuffer",
               [](auto& p) { p.mutable_steps(0)->mutable_launch()->set_buffers(1, 99); }},
        Damage{"ScratchNegative",
               [](auto& p) {
                 *p.mutable_steps(0)->mutable_launch()->mutable_scratch_bytes() = Size(-5);
               }},
        Damage{"Binary", [](auto& p) { p.mutable_steps(0)->mutable_launch()->set_binary(1); }},
        Damage{"GridWithoutThreads",
               [](auto& p) {
                 *p.mutable_steps(0)->mutable_launch()->mutable_grid()->add_blocks() = Size(1);
               }},
        Damage{"GridOfFourSizes",
               [](auto& p) {
                 v1::Grid& grid = *p.mutable_steps(0)->mutable_launch()->mutable_grid();
                 for (int i = 0; i < 4; ++i) *grid.add_blocks() = Size(1);
                 *grid.add_threads() = Size(1);
               }},
        Damage{"GridSymbol",
               [](auto& p) {
                 v1::Grid& grid = *p.mutable_steps(0)->mutable_launch()->mutable_grid();
                 *grid.add_blocks() = Symbol(3);
                 *grid.add_threads() = Size(1);
               }},
        Damage{"StepKind", [](auto& p) { p.add_steps(); }},
        Damage{"OutputKind", [](auto& p) { p.add_outputs(); }},
        Damage{"OutputBuffer",
               [](auto& p) { p.mutable_outputs(0)->mutable_tensor()->set_buffer(4); }},
        Damage{"OutputInWorkspace",
               [](auto& p) { p.mutable_outputs(0)->mutable_tensor()->set_buffer(2); }},
        Damage{
            "OutputOffset",
            [](auto& p) { *p.mutable_outputs(0)->mutable_tensor()->mutable_offset() = Size(1); }},
        Damage{
            "OutputOffsetNegative",
            [](auto& p) { *p.mutable_outputs(0)->mutable_tensor()->mutable_offset() = Size(-1); }},
        Damage{
            "OutputType",
            [](auto& p) { p.mutable_outputs(0)->mutable_tensor()->set_dtype(v1::DTYPE_FLOAT64); }},
        Damage{"SymbolNumber", [](auto& p) { *p.mutable_workspace_bytes() = Symbol(0); }},
        Damage{"SymbolWithoutSource",
               [](auto& p) {
                 p.add_symbols()->set_max(10);
                 *p.mutable_steps(0)->mutable_launch()->mutable_symbols(0) = Symbol(0);
               }},
        Damage{"SymbolEmptyRange", [](auto& p) { p.add_symbols()->set_min(5); }},
        Damage{"ExpressionTooDeep",
               [](auto& p) { *p.mutable_workspace_bytes() = DeepExpression(90); }},
        Damage{"ExpressionWithoutOperands",
               [](auto& p) {
                 p.mutable_workspace_bytes()->mutable_expr()->set_kind(v1::SymExpr::KIND_MAX);
               }},
        Damage{"DivisionByZero",
               [](auto& p) {
                 v1::SymExpr& e = *p.mutable_workspace_bytes()->mutable_expr();
                 e.set_kind(v1::SymExpr::KIND_FLOOR_DIV);
                 e.add_operands()->set_kind(v1::SymExpr::KIND_CONSTANT);
                 e.add_operands()->set_kind(v1::SymExpr::KIND_CONSTANT);
               }},
        Damage{"Constant",
               [](auto& p) { p.mutable_buffers(0)->set_kind(v1::Buffer::KIND_CONSTANT); }},
        Damage{"ConstantTooShort",
               [](auto& p) {
                 p.add_constants()->set_data("abc");
                 p.mutable_buffers(0)->set_kind(v1::Buffer::KIND_CONSTANT);
               }},
        Damage{"LibraryBufferNeverMade",
               [](auto& p) { p.mutable_buffers(2)->set_kind(v1::Buffer::KIND_LIBRARY); }},
        Damage{"PositionsOfNoResults",
               [](auto& p) { p.add_steps()->mutable_library()->add_positions(0); }},
        Damage{"CopyOfOtherSizes",
               [](auto& p) {
                 v1::CopyStep& copy = *p.add_steps()->mutable_copy();
                 *copy.mutable_from() = p.outputs(0).tensor();
                 *copy.mutable_to() = p.outputs(0).tensor();
                 *copy.mutable_to()->mutable_sizes(0) = Size(3);
               }}),
    [](const auto& info) { return std::string(info.param.name); });

// Whatever a program's bytes are, loading ends with an error or a program that passed every check.
TEST(Loader, SurvivesRandomDamageOfPrograms) {
  const unsigned seed = 20240611;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  google::protobuf::LogSilencer quiet;  // it prints each name that is no UTF-8
  int refused = 0;
  for (const v1::Artifact& sound : {AddAndDouble(10), DynamicAdd(), AddLibraryResult(10)}) {
    const std::string bytes = sound.program().SerializeAsString();
    for (int i = 0; i < 300; ++i) {
      std::string damaged = bytes;
      for (int flips = 1 + i % 3; flips > 0; --flips) {
        damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 7);
      }
      v1::Artifact artifact = sound;
      artifact.clear_program();
      if (!artifact.mutable_program()->ParseFromString(damaged)) continue;
      refused += Load(artifact).ok() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Loader, RefusesALibraryResultUsedBeforeItIsMade) {
  v1::Artifact artifact = AddLibraryResult(10);
  artifact.mutable_program()->mutable_steps()->SwapElements(0, 1);
  EXPECT_THAT(Load(artifact).message(), HasSubstr("before it is made"));
}

TEST(Loader, RefusesPositionsOutOfOrder) {
  v1::Artifact artifact = AddLibraryResult(10);
  v1::Program& program = *artifact.mutable_program();
  *program.add_buffers() = program.buffers(1);
  v1::LibraryStep& step = *program.mutable_steps(0)->mutable_library();
  step.add_results(static_cast<uint32_t>(program.buffers_size()) - 1);
  step.add_positions(1);
  step.add_positions(4);
  EXPECT_TRUE(Load(artifact).ok()) << Load(artifact);
  step.set_positions(1, 1);
  EXPECT_THAT(Load(artifact).message(), HasSubstr("in no order"));
}

TEST(Loader, RefusesALibraryResultMadeTwice) {
  v1::Artifact artifact = AddLibraryResult(10);
  v1::Step again = artifact.program().steps(0);
  *artifact.mutable_program()->add_steps() = again;
  EXPECT_TRUE(absl::IsDataLoss(Load(artifact)));
}

}  // namespace
}  // namespace kiln::testing
