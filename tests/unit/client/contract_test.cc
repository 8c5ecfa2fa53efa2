// Programs that are sound in themselves and not of the graph that was asked for.
#include "client/runtime/contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/loader.h"
#include "client/runtime/cpu/executor.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {
namespace {

using runtime::LoadedProgram;
using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<LoadedProgram>> Load(const v1::Graph& graph,
                                                    const v1::Artifact& artifact) {
  return LoadedProgram::Load(Sealed(artifact), &graph, 1);
}

// An artifact changed after its graph was made. Alone it is sound, unless `sound` is false.
struct Change {
  const char* name;
  std::function<v1::Artifact()> make;
  std::function<void(v1::Program&)> apply;
  const char* words;
  bool sound = true;
};

void PrintTo(const Change& change, std::ostream* out) {
  *out << change.name;
}

class ContractChange : public ::testing::TestWithParam<Change> {};

TEST_P(ContractChange, IsRefused) {
  v1::Artifact artifact = GetParam().make();
  const v1::Graph graph = GraphFor(artifact.program());
  ASSERT_TRUE(Load(graph, artifact).ok()) << Load(graph, artifact).status();
  GetParam().apply(*artifact.mutable_program());
  const absl::Status status = Load(graph, artifact).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(GetParam().words));
  EXPECT_EQ(LoadedProgram::Load(Sealed(artifact), nullptr, 1).ok(), GetParam().sound);
}

v1::Artifact Double() {
  return AddAndDouble(10);
}

v1::Artifact Library() {
  return AddLibraryResult(10);
}

v1::Artifact WithAView() {
  v1::Artifact artifact = AddAndDouble(10);
  AddOutput(*artifact.mutable_program(), 0, Size(10));
  return artifact;
}

// Two outputs of one type, each in a buffer of its own.
v1::Artifact TwoOutputs() {
  v1::Artifact artifact = AddAndDouble(10);
  v1::Program& program = *artifact.mutable_program();
  const uint32_t more = AddBuffer(program, v1::Buffer::KIND_OUTPUT, 0, Size(10), Size(40));
  AddLaunch(program, "test_add", {0, 1, more}, Size(10));
  AddOutput(program, more, Size(10));
  return artifact;
}

v1::BufferView& Output(v1::Program& program, int i) {
  return *program.mutable_outputs(i)->mutable_tensor();
}

INSTANTIATE_TEST_SUITE_P(
    All, ContractChange,
    ::testing::Values(
        Change{"OutputGone", Double, [](auto& p) { p.clear_outputs(); }, "0 outputs; expected 1"},
        Change{"OutputTwice", Double, [](auto& p) { *p.add_outputs() = p.outputs(0); },
               "2 outputs; expected 1"},
        Change{"OutputNone", Double, [](auto& p) { p.mutable_outputs(0)->mutable_none(); },
               "output 0 is nothing; expected a tensor"},
        Change{"OutputNumber", Double,
               [](auto& p) { p.mutable_outputs(0)->mutable_sym_int()->set_value(3); },
               "output 0 is a number; expected a tensor"},
        Change{"OtherNumber", DynamicAdd,
               [](auto& p) { *p.mutable_outputs(1)->mutable_sym_int() = Scaled(0, 11); },
               "output 1 is 88; expected 80"},
        Change{"OutputIsAnInput", Double, [](auto& p) { Output(p, 0).set_buffer(1); },
               "output 0 lies in input 1"},
        Change{"InputIsAnOutput", WithAView, [](auto& p) { Output(p, 1).set_buffer(3); },
               "output 1 is not input 0"},
        Change{"OtherInput", WithAView, [](auto& p) { Output(p, 1).set_buffer(1); },
               "output 1 lies in input 1"},
        Change{"OutputsInOneBuffer", TwoOutputs, [](auto& p) { Output(p, 1).set_buffer(3); },
               "another output's memory"},
        Change{"OutputShorter", Double, [](auto& p) { *Output(p, 0).mutable_sizes(0) = Size(5); },
               "other sizes"},
        Change{"OutputStrides", Double, [](auto& p) { *Output(p, 0).mutable_strides(0) = Size(0); },
               "other strides"},
        Change{"OutputRank", Double,
               [](auto& p) {
                 Output(p, 0).clear_sizes();
                 Output(p, 0).clear_strides();
               },
               "another number of dimensions"},
        Change{"InputType", Double,
               [](auto& p) {
                 *p.mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_sizes(0) =
                     Size(11);
               },
               "input 0 ('a') is of another type"},
        Change{"InputMore", Double, [](auto& p) { *p.add_inputs() = p.inputs(0); },
               "3 inputs; expected 2"},
        Change{"Role", Double,
               [](auto& p) { p.mutable_inputs(0)->set_role(v1::Input::ROLE_PARAMETER); },
               "input 0 ('a') is of another type"},
        Change{"RangeWider", DynamicAdd, [](auto& p) { p.mutable_symbols(0)->set_max(1001); },
               "input 0 ('a') is of another type"},
        Change{"ConstantMore", Double, [](auto& p) { p.add_constants()->set_data("1234"); },
               "other constants"},
        Change{"StepOp", Library,
               [](auto& p) { p.mutable_steps(0)->mutable_library()->set_op("aten.other.default"); },
               "aten.other.default (node 'lib') is no call of it"},
        Change{"StepNumber", Library,
               [](auto& p) {
                 *p.mutable_steps(0)
                      ->mutable_library()
                      ->mutable_args(1)
                      ->mutable_scalar()
                      ->mutable_sym_int() = Size(8);
               },
               "is no call of it"},
        Change{"StepArgument", Library,
               [](auto& p) {
                 *p.mutable_steps(0)
                      ->mutable_library()
                      ->mutable_args(0)
                      ->mutable_tensor()
                      ->mutable_sizes(0) = Size(9);
               },
               "is no call of it"},
        Change{"StepPadding", Library,
               [](auto& p) {
                 p.mutable_steps(0)
                     ->mutable_library()
                     ->mutable_args(0)
                     ->mutable_tensor()
                     ->set_row_padding(1);
               },
               "is no call of it"},
        Change{"StepName", Library,
               [](auto& p) {
                 v1::LibraryStep& step = *p.mutable_steps(0)->mutable_library();
                 step.add_kwargs()->set_name("out");
                 step.mutable_kwargs(0)->mutable_value()->mutable_scalar()->mutable_none();
               },
               "is no call of it"},
        Change{"StepPosition", Library,
               [](auto& p) { p.mutable_steps(0)->mutable_library()->add_positions(1); },
               "is no call of it"},
        Change{"WritesAnInput", Double,
               [](auto& p) { p.mutable_steps(0)->mutable_launch()->set_buffers(2, 0); },
               "writes to buffer 0, which is not its own", false}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Contract, ASizeThatIsRightAtTheHintOnlyIsRefusedAtTheNext) {
  v1::Artifact artifact = DynamicAdd();
  const v1::Graph graph = GraphFor(artifact.program());
  Output(*artifact.mutable_program(), 0).mutable_sizes(0)->set_value(8);  // s0's hint
  auto program = Load(graph, artifact);
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<float> data(20, 1);
  kiln_output outputs[2];
  const auto run = [&](const int64_t& n) {
    const kiln_tensor x = Vector(data.data(), n);
    const absl::Status status = (*program)->executor().Run({x, x}, outputs, nullptr);
    if (status.ok()) kiln_outputs_release(outputs, 2);
    return status;
  };
  const int64_t eight = 8, nine = 9;
  EXPECT_TRUE(run(eight).ok());
  EXPECT_TRUE(absl::IsDataLoss(run(nine))) << run(nine);
}

// Keys are blind to the numbers and names of symbols, to names of inputs and to unused symbols.
TEST(Contract, SymbolsMayHaveOtherNumbers) {
  const v1::Artifact artifact = DynamicAdd();
  v1::Graph graph = GraphFor(artifact.program());
  v1::Symbol used = graph.symbols(0);
  used.set_name("length");
  graph.mutable_symbols(0)->set_max(3);
  *graph.add_symbols() = used;
  const auto renumber = [](v1::TensorType& type) {
    type.mutable_sizes(0)->mutable_expr()->set_symbol(1);
  };
  for (v1::Input& input : *graph.mutable_inputs()) {
    input.set_name(input.name() + "_");
    renumber(*input.mutable_type()->mutable_tensor());
  }
  renumber(*graph.mutable_nodes(0)->mutable_results(0)->mutable_tensor());
  graph.mutable_outputs(1)->mutable_sym_int()->mutable_expr()->mutable_operands(0)->set_symbol(1);
  EXPECT_TRUE(Load(graph, artifact).ok()) << Load(graph, artifact).status();
}

TEST(Contract, AnInputIsWrittenWhereTheGraphDoes) {
  v1::Artifact artifact = AddAndDouble(4);
  v1::Program& program = *artifact.mutable_program();
  v1::Graph graph = GraphFor(program);
  AddLaunch(program, "test_add", {0, 1, 0}, Size(4));
  EXPECT_THAT(Load(graph, artifact).status().message(), HasSubstr("writes to buffer 0"));
  graph.add_mutations()->set_input(1);
  EXPECT_THAT(Load(graph, artifact).status().message(), HasSubstr("writes to buffer 0"));
  graph.mutable_mutations(0)->set_input(0);
  EXPECT_TRUE(Load(graph, artifact).ok()) << Load(graph, artifact).status();
}

// Rows that a library step reads may be longer in the workspace, up to where the buffer's own end.
TEST(Contract, RowsInTheWorkspaceMayHavePadding) {
  v1::Artifact artifact = AddLibraryResult(16);
  v1::Program& program = *artifact.mutable_program();
  v1::Graph graph = GraphFor(program);
  // The step's argument is no input but what a kernel makes: 2 x 5.
  v1::Node& made = *graph.add_nodes();
  made.set_op("aten.made.default");
  v1::TensorType& type = *made.add_results()->mutable_tensor();
  type.set_dtype(v1::DTYPE_FLOAT32);
  const uint32_t rows = AddBuffer(program, v1::Buffer::KIND_WORKSPACE, 0, Size(2), Size(64));
  *program.mutable_workspace_bytes() = Size(128);
  v1::Buffer& buffer = *program.mutable_buffers(static_cast<int>(rows));
  *buffer.mutable_workspace_offset() = Size(0);
  v1::BufferView& view =
      *program.mutable_steps(0)->mutable_library()->mutable_args(0)->mutable_tensor();
  view.set_buffer(rows);
  const auto set = [](auto& tensor, int64_t row, int64_t pitch) {
    tensor.clear_sizes();
    tensor.clear_strides();
    for (const int64_t size : {int64_t{2}, row}) *tensor.add_sizes() = Size(size);
    for (const int64_t stride : {pitch, int64_t{1}}) *tensor.add_strides() = Size(stride);
  };
  set(type, 5, 5);
  AddLaunch(program, "test_add", {0, 0, rows}, Size(16));
  for (const int at : {0, 1}) {  // the last of three comes first
    program.mutable_steps()->SwapElements(at, 2);
    graph.mutable_nodes()->SwapElements(at, 2);
  }
  for (v1::Output& output : *graph.mutable_outputs()) output.set_value(output.value() + 1);
  graph.mutable_nodes(1)->mutable_args(0)->set_value(1);

  set(buffer, 8, 8);
  set(view, 8, 8);
  EXPECT_THAT(Load(graph, artifact).status().message(), HasSubstr("is no call of it"));
  view.set_row_padding(3);
  EXPECT_TRUE(Load(graph, artifact).ok()) << Load(graph, artifact).status();
  view.set_row_padding(2);
  EXPECT_THAT(Load(graph, artifact).status().message(), HasSubstr("is no call of it"));
  view.set_row_padding(8);
  EXPECT_THAT(Load(graph, artifact).status().message(), HasSubstr("is no call of it"));
  view.set_row_padding(3);
  set(view, 5, 8);
  EXPECT_THAT(Load(graph, artifact).status().message(), HasSubstr("is no call of it"));
  set(view, 8, 8);
  *view.mutable_offset() = Size(1);  // past the buffer's end
  EXPECT_THAT(Load(graph, artifact).status().message(), HasSubstr("unsound"));
}

// A node whose argument is strided may be called with a contiguous one, and need not be.
TEST(Contract, StepsOfOneOperatorComeInAnyOrder) {
  v1::Artifact artifact = AddLibraryResult(4);
  v1::Program& program = *artifact.mutable_program();
  AddInput(program, "every second", Size(4));
  *program.mutable_inputs(1)->mutable_type()->mutable_tensor()->mutable_strides(0) = Size(2);
  const uint32_t strided = AddBuffer(program, v1::Buffer::KIND_INPUT, 1, Size(4), Size(28));
  *program.mutable_buffers(static_cast<int>(strided))->mutable_strides(0) = Size(2);
  const uint32_t made = AddBuffer(program, v1::Buffer::KIND_LIBRARY, 0, Size(4), Size(16));
  *program.add_steps() = program.steps(0);
  v1::LibraryStep& second = *program.mutable_steps(2)->mutable_library();
  second.set_results(0, made);
  second.mutable_args(0)->mutable_tensor()->set_buffer(strided);
  *second.mutable_args(0)->mutable_tensor()->mutable_strides(0) = Size(2);
  v1::Graph graph = GraphFor(program);
  EXPECT_TRUE(Load(graph, artifact).ok()) << Load(graph, artifact).status();
  graph.mutable_nodes(0)->mutable_args(0)->set_value(1);
  graph.mutable_nodes(1)->mutable_args(0)->set_value(0);
  EXPECT_TRUE(Load(graph, artifact).ok()) << Load(graph, artifact).status();
  graph.mutable_nodes(0)->mutable_args(0)->set_value(0);
  EXPECT_THAT(Load(graph, artifact).status().message(), HasSubstr("is no call of it"));
}

// A library step may fail, and the graph then runs elsewhere, from its inputs.
TEST(Contract, NoInputIsWrittenBeforeALibraryStep) {
  v1::Artifact artifact = AddLibraryResult(4);
  v1::Program& program = *artifact.mutable_program();
  v1::Graph graph = GraphFor(program);
  graph.add_mutations()->set_input(0);
  AddLaunch(program, "test_add", {0, 0, 0}, Size(4));
  EXPECT_TRUE(Load(graph, artifact).ok()) << Load(graph, artifact).status();
  program.mutable_steps()->SwapElements(1, 2);
  EXPECT_TRUE(Load(graph, artifact).ok()) << Load(graph, artifact).status();
  program.mutable_steps()->SwapElements(0, 1);
  EXPECT_THAT(Load(graph, artifact).status().message(),
              HasSubstr("is a library step after an input is written"));
}

TEST(Contract, AGraphThatMakesNoSenseIsNamed) {
  const v1::Artifact artifact = AddAndDouble(4);
  v1::Graph graph = GraphFor(artifact.program());
  graph.mutable_outputs(0)->set_value(99);
  EXPECT_TRUE(absl::IsInvalidArgument(Load(graph, artifact).status()));
  graph = GraphFor(artifact.program());
  graph.add_mutations()->set_input(7);
  EXPECT_TRUE(absl::IsInvalidArgument(Load(graph, artifact).status()));
}

// ---- Launches against the interfaces of their kernels; no graph is needed.

struct Launch {
  const char* name;
  std::function<void(v1::Program&)> apply;
  const char* words;
};

void PrintTo(const Launch& launch, std::ostream* out) {
  *out << launch.name;
}

class LaunchChange : public ::testing::TestWithParam<Launch> {};

TEST_P(LaunchChange, IsRefused) {
  v1::Artifact artifact = AddAndDouble(10);
  GetParam().apply(*artifact.mutable_program());
  const absl::Status status = LoadedProgram::Load(Sealed(artifact), nullptr, 1).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(GetParam().words));
}

v1::LaunchStep& Step(v1::Program& program, int i) {
  return *program.mutable_steps(i)->mutable_launch();
}

// More elements than a machine has, all in one place.
void CopyOntoItself(v1::Program& program) {
  v1::BufferView view = program.outputs(0).tensor();
  *view.mutable_sizes(0) = Size(int64_t{1} << 50);
  *view.mutable_strides(0) = Size(0);
  v1::CopyStep& copy = *program.add_steps()->mutable_copy();
  *copy.mutable_from() = view;
  *copy.mutable_to() = view;
}

INSTANTIATE_TEST_SUITE_P(
    All, LaunchChange,
    ::testing::Values(
        Launch{"FewerBuffers", [](auto& p) { Step(p, 0).mutable_buffers()->RemoveLast(); },
               "2 buffers and 1 sizes; expected 3 and 1"},
        Launch{"MoreBuffers", [](auto& p) { Step(p, 0).add_buffers(0); }, "4 buffers"},
        Launch{"NoSize", [](auto& p) { Step(p, 0).clear_symbols(); }, "3 buffers and 0 sizes"},
        Launch{"LargerSize", [](auto& p) { *Step(p, 0).mutable_symbols(0) = Size(11); },
               "gives its kernel 40 bytes as buffer 0; expected 44"},
        Launch{"SmallerSize", [](auto& p) { *Step(p, 0).mutable_symbols(0) = Size(9); },
               "expected 36"},
        Launch{"NegativeSize", [](auto& p) { *Step(p, 0).mutable_symbols(0) = Size(-1); },
               "gives its kernel size -1; expected 0"},
        Launch{"UncountableSize", [](auto& p) { *Step(p, 0).mutable_symbols(0) = Size(INT64_MAX); },
               "expected more than can be told"},
        Launch{"SmallerOutput",
               [](auto& p) {
                 *p.mutable_buffers(3)->mutable_sizes(0) = Size(5);
                 p.mutable_buffers(3)->clear_size_bytes();
                 *p.mutable_outputs(0)->mutable_tensor()->mutable_sizes(0) = Size(5);
               },
               "gives its kernel 20 bytes as buffer 3; expected 40"},
        Launch{"SmallerScratch", [](auto& p) { *Step(p, 1).mutable_scratch_bytes() = Size(36); },
               "36 bytes as its scratch; expected 40"},
        Launch{"NoScratch", [](auto& p) { Step(p, 1).clear_scratch_bytes(); },
               "0 bytes as its scratch"},
        Launch{"OtherType", [](auto& p) { p.mutable_buffers(2)->set_dtype(v1::DTYPE_INT32); },
               "buffer 2 of another dtype"},
        Launch{"ReadBeforeWritten", [](auto& p) { p.mutable_steps()->SwapElements(0, 1); },
               "reads buffer 2 before it is written"},
        Launch{"OutputNeverWritten", [](auto& p) { p.mutable_steps()->RemoveLast(); },
               "output 0 reads buffer 3 before it is written"},
        Launch{"WritesAConstant",
               [](auto& p) {
                 p.add_constants()->set_data(std::string(40, 'c'));
                 p.mutable_buffers(2)->set_kind(v1::Buffer::KIND_CONSTANT);
               },
               "writes to buffer 2, which is not its own"},
        Launch{"OtherKernel", [](auto& p) { Step(p, 1).set_kernel("test_count_tasks"); },
               "2 buffers and 1 sizes; expected 1 and 1"},
        Launch{"CopyOntoItself", CopyOntoItself, "copies more than there is room for"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Launches, AKernelThatStatesNoInterfaceIsRefused) {
  v1::Artifact artifact = AddAndDouble(10);
  artifact.mutable_program()->mutable_steps(0)->mutable_launch()->set_kernel("test_stateless");
  const absl::Status status = LoadedProgram::Load(Sealed(artifact), nullptr, 1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("'test_stateless' states no interface"));
}

}  // namespace
}  // namespace kiln::testing
