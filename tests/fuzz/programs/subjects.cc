#include "tests/fuzz/programs/subjects.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kiln/client.h"
#include "proto/base/status_macros.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::fuzz {
namespace {

using testing::AddBuffer;
using testing::AddLaunch;
using testing::AddOutput;
using testing::Size;

std::string FileContent(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<Subject> Complete(std::string name, v1::Graph graph, v1::Artifact artifact) {
  Subject out;
  out.name = std::move(name);
  out.graph = std::move(graph);
  out.artifact = std::move(artifact);
  out.sizes = HintSymbols(out.graph);
  KILN_ASSIGN_OR_RETURN(out.inputs, RandomInputs(out.graph, 1));
  return out;
}

// Outputs in an input, in a constant, twice in one buffer, a number and nothing.
v1::Artifact Views() {
  v1::Artifact artifact = testing::AddAndDouble(24);
  v1::Program& program = *artifact.mutable_program();
  AddOutput(program, 0, Size(24));
  v1::Constant& constant = *program.add_constants();
  constant.set_data(std::string(32, 'c'));
  constant.mutable_type()->set_dtype(v1::DTYPE_FLOAT32);
  *constant.mutable_type()->add_sizes() = Size(8);
  *constant.mutable_type()->add_strides() = Size(1);
  program.add_outputs()->mutable_sym_int()->set_value(7);
  program.add_outputs()->mutable_none();
  const uint32_t second = AddBuffer(program, v1::Buffer::KIND_OUTPUT, 0, Size(24), Size(96));
  AddLaunch(program, "test_add", {1, 2, second}, Size(24));
  AddOutput(program, second, Size(24));
  return artifact;
}

// a += b
v1::Artifact InPlace() {
  v1::Artifact artifact = testing::AddAndDouble(24);
  AddLaunch(*artifact.mutable_program(), "test_add", {0, 1, 0}, Size(24));
  return artifact;
}

// Counts tasks in scratch blocks of threads, as i64.
v1::Artifact Count() {
  v1::Artifact artifact = testing::EmptyArtifact();
  artifact.set_binary(testing::TestKernels());
  v1::Program& program = *artifact.mutable_program();
  const uint32_t out = AddBuffer(program, v1::Buffer::KIND_OUTPUT, 0, Size(1), Size(8));
  program.mutable_buffers(0)->set_dtype(v1::DTYPE_INT64);
  AddLaunch(program, "test_count_tasks", {out}, Size(500));
  *program.mutable_steps(0)->mutable_launch()->mutable_thread_scratch_bytes() = Size(8);
  AddOutput(program, out, Size(1));
  program.mutable_outputs(0)->mutable_tensor()->set_dtype(v1::DTYPE_INT64);
  return artifact;
}

}  // namespace

std::vector<Subject> MadeSubjects() {
  std::vector<Subject> out;
  const std::string kernels = FileContent(KILN_FUZZ_KERNELS);
  const auto add = [&](std::string name, v1::Artifact artifact, int written = -1) {
    artifact.set_binary(kernels);
    v1::Graph graph = testing::GraphFor(artifact.program());
    if (written >= 0) graph.add_mutations()->set_input(static_cast<uint32_t>(written));
    auto subject = Complete(std::move(name), std::move(graph), artifact);
    if (subject.ok()) out.push_back(*std::move(subject));
  };
  add("add_and_double", testing::AddAndDouble(50));
  add("dynamic_add", testing::DynamicAdd());
  add("library", testing::AddLibraryResult(20));
  add("views", Views());
  add("in_place", InPlace(), 0);
  add("count", Count());
  return out;
}

absl::StatusOr<Subject> ReadSubject(const std::string& graph, const std::string& artifact) {
  const std::string file = FileContent(artifact);
  KILN_ASSIGN_OR_RETURN(absl::string_view bytes, FromArtifactFile(file));
  v1::Artifact parsed;
  if (!parsed.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError(absl::StrCat(artifact, " does not parse"));
  }
  KILN_ASSIGN_OR_RETURN(v1::Graph loaded, LoadGraph(graph));
  return Complete(graph, std::move(loaded), std::move(parsed));
}

}  // namespace kiln::fuzz
