#include "tests/unit/client/artifacts.h"

#include <fstream>
#include <map>
#include <sstream>

#include "proto/base/device_cpu.h"
#include "proto/base/program_stamp.h"

namespace kiln::testing {

const std::string& TestKernels() {
  static const auto* image = [] {
    std::ifstream in(KILN_TEST_KERNELS, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return new std::string(text.str());
  }();
  return *image;
}

v1::Artifact EmptyArtifact() {
  v1::Artifact artifact;
  v1::ArtifactHeader& header = *artifact.mutable_header();
  header.set_format_version(1);
  header.set_target(v1::TARGET_CPP);
  header.set_key(std::string(64, 'a'));
  header.set_arch(HostCpuName());
  return artifact;
}

std::string Sealed(v1::Artifact artifact) {
  StampProgram(artifact.program().SerializeAsString(), *artifact.mutable_binary());
  return artifact.SerializeAsString();
}

v1::SymInt Size(int64_t value) {
  v1::SymInt out;
  out.set_value(value);
  return out;
}

v1::SymInt Symbol(uint32_t symbol) {
  v1::SymInt out;
  out.mutable_expr()->set_kind(v1::SymExpr::KIND_SYMBOL);
  out.mutable_expr()->set_symbol(symbol);
  return out;
}

v1::SymInt Scaled(uint32_t symbol, int64_t factor) {
  v1::SymInt out;
  out.mutable_expr()->set_kind(v1::SymExpr::KIND_MUL);
  *out.mutable_expr()->add_operands() = Symbol(symbol).expr();
  v1::SymExpr& constant = *out.mutable_expr()->add_operands();
  constant.set_kind(v1::SymExpr::KIND_CONSTANT);
  constant.set_constant(factor);
  return out;
}

void AddInput(v1::Program& program, const std::string& name, const v1::SymInt& size) {
  v1::Input& input = *program.add_inputs();
  input.set_name(name);
  input.set_role(v1::Input::ROLE_USER);
  v1::TensorType& type = *input.mutable_type()->mutable_tensor();
  type.set_dtype(v1::DTYPE_FLOAT32);
  *type.add_sizes() = size;
  *type.add_strides() = Size(1);
}

uint32_t AddBuffer(v1::Program& program, v1::Buffer::Kind kind, uint32_t index,
                   const v1::SymInt& size, const v1::SymInt& size_bytes) {
  v1::Buffer& buffer = *program.add_buffers();
  buffer.set_kind(kind);
  buffer.set_index(index);
  buffer.set_dtype(v1::DTYPE_FLOAT32);
  *buffer.add_sizes() = size;
  *buffer.add_strides() = Size(1);
  *buffer.mutable_size_bytes() = size_bytes;
  return static_cast<uint32_t>(program.buffers_size() - 1);
}

void AddOutput(v1::Program& program, uint32_t buffer, const v1::SymInt& size) {
  v1::BufferView& view = *program.add_outputs()->mutable_tensor();
  view.set_buffer(buffer);
  view.set_dtype(v1::DTYPE_FLOAT32);
  *view.add_sizes() = size;
  *view.add_strides() = Size(1);
}

void AddLaunch(v1::Program& program, const std::string& kernel, std::vector<uint32_t> buffers,
               const v1::SymInt& symbol) {
  v1::LaunchStep& launch = *program.add_steps()->mutable_launch();
  launch.set_kernel(kernel);
  for (uint32_t buffer : buffers) launch.add_buffers(buffer);
  *launch.add_symbols() = symbol;
}

v1::Artifact AddAndDouble(int64_t n) {
  v1::Artifact artifact = EmptyArtifact();
  artifact.set_binary(TestKernels());
  v1::Program& program = *artifact.mutable_program();
  AddInput(program, "a", Size(n));
  AddInput(program, "b", Size(n));
  uint32_t a = AddBuffer(program, v1::Buffer::KIND_INPUT, 0, Size(n), Size(4 * n));
  uint32_t b = AddBuffer(program, v1::Buffer::KIND_INPUT, 1, Size(n), Size(4 * n));
  uint32_t sum = AddBuffer(program, v1::Buffer::KIND_WORKSPACE, 0, Size(n), Size(4 * n));
  uint32_t out = AddBuffer(program, v1::Buffer::KIND_OUTPUT, 0, Size(n), Size(4 * n));
  *program.mutable_workspace_bytes() = Size(4 * n + 64);
  *program.mutable_buffers(static_cast<int>(sum))->mutable_workspace_offset() = Size(64);
  AddLaunch(program, "test_add", {a, b, sum}, Size(n));
  AddLaunch(program, "test_double_through_scratch", {sum, out}, Size(n));
  *program.mutable_steps(1)->mutable_launch()->mutable_scratch_bytes() = Size(4 * n);
  AddOutput(program, out, Size(n));
  return artifact;
}

v1::Artifact DynamicAdd() {
  v1::Artifact artifact = EmptyArtifact();
  artifact.set_binary(TestKernels());
  v1::Program& program = *artifact.mutable_program();
  v1::Symbol& symbol = *program.add_symbols();
  symbol.set_name("s0");
  symbol.set_min(2);
  symbol.set_max(1000);
  symbol.set_hint(8);
  AddInput(program, "a", Symbol(0));
  AddInput(program, "b", Symbol(0));
  uint32_t a = AddBuffer(program, v1::Buffer::KIND_INPUT, 0, Symbol(0), Scaled(0, 4));
  uint32_t b = AddBuffer(program, v1::Buffer::KIND_INPUT, 1, Symbol(0), Scaled(0, 4));
  uint32_t out = AddBuffer(program, v1::Buffer::KIND_OUTPUT, 0, Symbol(0), Scaled(0, 4));
  AddLaunch(program, "test_add", {a, b, out}, Symbol(0));
  AddOutput(program, out, Symbol(0));
  *program.add_outputs()->mutable_sym_int() = Scaled(0, 10);
  return artifact;
}

v1::Artifact PrepareAndAdd(int64_t n) {
  v1::Artifact artifact = EmptyArtifact();
  artifact.set_binary(TestKernels());
  v1::Program& program = *artifact.mutable_program();
  AddInput(program, "a", Size(n));
  AddInput(program, "b", Size(n));
  program.mutable_inputs(0)->set_role(v1::Input::ROLE_PARAMETER);
  uint32_t a = AddBuffer(program, v1::Buffer::KIND_INPUT, 0, Size(n), Size(4 * n));
  uint32_t twice = AddBuffer(program, v1::Buffer::KIND_PREPARED, 0, Size(n), Size(4 * n));
  uint32_t b = AddBuffer(program, v1::Buffer::KIND_INPUT, 1, Size(n), Size(4 * n));
  uint32_t out = AddBuffer(program, v1::Buffer::KIND_OUTPUT, 0, Size(n), Size(4 * n));
  *program.mutable_buffers(static_cast<int>(twice))->mutable_workspace_offset() = Size(64);
  program.set_prepare_steps(1);
  program.set_prepared_bytes(4 * n + 64);
  AddLaunch(program, "test_add", {a, a, twice}, Size(n));
  AddLaunch(program, "test_add", {twice, b, out}, Size(n));
  AddOutput(program, out, Size(n));
  return artifact;
}

v1::Artifact AddEitherWay(int64_t n) {
  v1::Artifact artifact = PrepareAndAdd(n);
  v1::Program& program = *artifact.mutable_program();
  *program.add_steps() = program.steps(1);
  program.mutable_steps(2)->mutable_launch()->mutable_buffers()->SwapElements(0, 1);
  v1::LaunchStep& launch = *program.mutable_steps(1)->mutable_launch();
  launch.set_alternatives(1);
  launch.set_choice(std::string(32, 'c'));
  return artifact;
}

v1::Artifact AddLibraryResult(int64_t n) {
  v1::Artifact artifact = EmptyArtifact();
  artifact.set_binary(TestKernels());
  v1::Program& program = *artifact.mutable_program();
  AddInput(program, "a", Size(n));
  uint32_t a = AddBuffer(program, v1::Buffer::KIND_INPUT, 0, Size(n), Size(4 * n));
  uint32_t made = AddBuffer(program, v1::Buffer::KIND_LIBRARY, 0, Size(n), Size(4 * n));
  uint32_t out = AddBuffer(program, v1::Buffer::KIND_OUTPUT, 0, Size(n), Size(4 * n));
  v1::LibraryStep& step = *program.add_steps()->mutable_library();
  step.set_op("aten.test.default");
  step.set_node("lib");
  v1::BufferView& view = *step.add_args()->mutable_tensor();
  view.set_buffer(a);
  view.set_dtype(v1::DTYPE_FLOAT32);
  *view.add_sizes() = Size(n);
  *view.add_strides() = Size(1);
  *step.add_args()->mutable_scalar()->mutable_sym_int() = Size(7);
  step.add_results(made);
  AddLaunch(program, "test_add", {a, made, out}, Size(n));
  AddOutput(program, out, Size(n));
  AddOutput(program, made, Size(n));
  return artifact;
}

namespace {

// The value of each buffer that holds one.
using ValueOfBuffer = std::map<uint32_t, uint32_t>;

void AddLibraryNode(const v1::Program& program, const v1::LibraryStep& step, v1::Graph& graph,
                    uint32_t& next_value, ValueOfBuffer& values) {
  v1::Node& node = *graph.add_nodes();
  node.set_name(step.node());
  node.set_op(step.op());
  for (const v1::LibraryStep::Arg& arg : step.args()) {
    if (arg.has_tensor()) {
      node.add_args()->set_value(values.at(arg.tensor().buffer()));
    } else {
      *node.add_args() = arg.scalar();
    }
  }
  for (uint32_t result : step.results()) {
    const v1::Buffer& buffer = program.buffers(static_cast<int>(result));
    v1::TensorType& type = *node.add_results()->mutable_tensor();
    type.set_dtype(buffer.dtype());
    *type.mutable_sizes() = buffer.sizes();
    *type.mutable_strides() = buffer.strides();
    values[result] = next_value++;
  }
}

}  // namespace

v1::Graph GraphFor(const v1::Program& program) {
  v1::Graph graph;
  graph.set_format_version(1);
  graph.set_name("test graph");
  *graph.mutable_symbols() = program.symbols();
  *graph.mutable_inputs() = program.inputs();
  *graph.mutable_constants() = program.constants();
  auto next_value = static_cast<uint32_t>(graph.inputs_size() + graph.constants_size());
  ValueOfBuffer values;
  for (int b = 0; b < program.buffers_size(); ++b) {
    const v1::Buffer& buffer = program.buffers(b);
    if (buffer.kind() == v1::Buffer::KIND_INPUT) values[static_cast<uint32_t>(b)] = buffer.index();
  }
  for (const v1::Step& step : program.steps()) {
    if (step.has_library()) {
      AddLibraryNode(program, step.library(), graph, next_value, values);
    }
  }
  for (const v1::ProgramOutput& output : program.outputs()) {
    v1::Output& out = *graph.add_outputs();
    if (output.has_sym_int()) *out.mutable_sym_int() = output.sym_int();
    if (output.has_none()) out.mutable_none();
    if (!output.has_tensor()) continue;
    const auto known = values.find(output.tensor().buffer());
    if (known != values.end()) {
      out.set_value(known->second);
      continue;
    }
    v1::Node& node = *graph.add_nodes();
    node.set_op("aten.made.default");
    v1::TensorType& type = *node.add_results()->mutable_tensor();
    type.set_dtype(output.tensor().dtype());
    *type.mutable_sizes() = output.tensor().sizes();
    *type.mutable_strides() = output.tensor().strides();
    out.set_value(next_value++);
  }
  return graph;
}

kiln_tensor Vector(float* data, const int64_t& size) {
  static const int64_t kOne = 1;
  kiln_tensor tensor{};
  tensor.data = data;
  tensor.sizes = &size;
  tensor.strides = &kOne;
  tensor.ndim = 1;
  tensor.dtype = KILN_FLOAT32;
  tensor.device_type = KILN_CPU;
  return tensor;
}

}  // namespace kiln::testing
