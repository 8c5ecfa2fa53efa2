#include "server/web/describe_compile.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/page.pb.h"
#include "proto/base/gpu_resources.h"
#include "proto/base/target_name.h"

namespace kiln::server {
namespace {

constexpr int kMaxDepth = 32;  // of lists in lists
// Operators and decisions shown: a browser does not get on with more.
constexpr int kMaxRows = 20000;

// Who makes each value: a node's index, or an input's (inputs and constants come first).
struct Maker {
  int node = -1;
  int input = -1;
};

std::string SizeText(const v1::SymInt& size) {
  return size.has_expr() ? "s" : absl::StrCat(size.value());
}

// "float32[1, 128, 768]".
std::string TypeText(const v1::ValueType& type) {
  if (!type.has_tensor()) return "size";
  std::string name = v1::DType_Name(type.tensor().dtype());
  std::vector<std::string> sizes;
  for (const v1::SymInt& size : type.tensor().sizes()) sizes.push_back(SizeText(size));
  return absl::StrCat(absl::AsciiStrToLower(absl::StripPrefix(name, "DTYPE_")), "[",
                      absl::StrJoin(sizes, ", "), "]");
}

class GraphDescriber {
 public:
  GraphDescriber(const v1::Graph& graph, v1::CompileDetail& out) : graph_(graph), out_(out) {}

  void Describe() {
    for (int i = 0; i < graph_.inputs_size(); ++i) makers_.push_back({.input = i});
    for (int i = 0; i < graph_.constants_size(); ++i) makers_.push_back({});
    for (int i = 0; i < graph_.nodes_size(); ++i) AddNode(i);
    for (const v1::Output& output : graph_.outputs()) {
      if (!output.has_value() || output.value() >= makers_.size()) continue;
      int node = makers_[output.value()].node;
      if (node >= 0) out_.add_outputs(graph_.nodes(node).name());
    }
  }

 private:
  void AddNode(int index) {
    const v1::Node& from = graph_.nodes(index);
    for (int i = 0; i < from.results_size(); ++i) makers_.push_back({.node = index});
    if (index >= kMaxRows) return;
    v1::CompileDetail::Node& to = *out_.add_nodes();
    to.set_name(from.name());
    to.set_op(from.op());
    to.set_location(from.location());
    std::vector<std::string> types;
    for (const v1::ValueType& type : from.results()) types.push_back(TypeText(type));
    to.set_type(absl::StrJoin(types, ", "));
    for (const v1::Argument& arg : from.args()) AddUses(arg, 0, to);
    for (const v1::NamedArgument& arg : from.kwargs()) AddUses(arg.value(), 0, to);
  }

  void AddUses(const v1::Argument& arg, int depth, v1::CompileDetail::Node& to) {
    if (arg.has_list() && depth < kMaxDepth) {
      for (const v1::Argument& item : arg.list().items()) AddUses(item, depth + 1, to);
    }
    if (!arg.has_value() || arg.value() >= makers_.size()) return;
    const Maker& maker = makers_[arg.value()];
    if (maker.node >= 0 && maker.node < out_.nodes_size() - 1 &&
        std::find(to.inputs().begin(), to.inputs().end(), maker.node) == to.inputs().end()) {
      to.add_inputs(maker.node);
    }
    if (maker.input >= 0) to.add_graph_inputs(graph_.inputs(maker.input).name());
  }

  const v1::Graph& graph_;
  v1::CompileDetail& out_;
  std::vector<Maker> makers_;  // by value
};

void DescribeSteps(const v1::Program& program, v1::CompileDetail& out) {
  for (const v1::Step& from : program.steps()) {
    v1::CompileDetail::Step& to = *out.add_steps();
    to.set_prepares(static_cast<uint32_t>(out.steps_size()) <= program.prepare_steps());
    if (from.has_launch()) {
      to.set_kind("launch");
      to.set_kernel(from.launch().kernel());
    } else if (from.has_library()) {
      to.set_kind("library");
      to.set_op(from.library().op());
      to.set_node(from.library().node());
    } else {
      to.set_kind("copy");
    }
  }
}

void DescribeKernel(const v1::Debug::KernelSource& from, const v1::KernelInfo* info,
                    const std::string& resources, v1::CompileDetail& out) {
  v1::CompileDetail::Kernel& to = *out.add_kernels();
  to.set_symbol(from.symbol());
  to.set_source_bytes(static_cast<int>(from.source().size()));
  to.set_assembly_bytes(static_cast<int>(from.assembly().size()));
  to.set_machine_code_bytes(static_cast<int>(from.machine_code().size()));
  to.set_resources(resources);
  *to.mutable_ops() = from.ops();
  *to.mutable_schedule() = from.schedule();
  *to.mutable_plans() = from.plans();
  if (info == nullptr) return;
  to.set_key(info->key());
  to.set_cached(info->cached());
  to.set_compile_ms(static_cast<double>(info->compile_ns()) * 1e-6);
}

// Kernels, then the routines that they call.
void DescribeKernels(const v1::Artifact& artifact, v1::CompileDetail& out) {
  std::map<std::string, std::string> resources = DescribeResources(artifact);
  const auto describe = [&](const auto& sources, const auto& infos) {
    for (int i = 0; i < sources.size(); ++i) {
      DescribeKernel(sources[i], i < infos.size() ? &infos[i] : nullptr,
                     resources[sources[i].symbol()], out);
    }
  };
  describe(artifact.debug().kernels(), artifact.header().kernels());
  describe(artifact.debug().routines(), artifact.header().routines());
}

}  // namespace

void DescribeCompile(const v1::Graph& graph, const v1::Artifact& artifact, v1::CompileDetail& out) {
  const v1::ArtifactHeader& header = artifact.header();
  out.set_graph(graph.name());
  out.set_target(std::string(TargetName(header.target())));
  out.set_arch(header.arch());
  out.set_compiler_build(header.compiler_build());
  size_t binary_bytes = artifact.binary().size();
  for (const v1::Binary& binary : artifact.binaries()) binary_bytes += binary.data().size();
  out.set_binary_bytes(static_cast<int>(binary_bytes));
  if (artifact.program().workspace_bytes().has_value()) {
    out.set_workspace_bytes(static_cast<double>(artifact.program().workspace_bytes().value()));
  }
  GraphDescriber(graph, out).Describe();
  DescribeSteps(artifact.program(), out);
  DescribeKernels(artifact, out);
  for (const v1::Debug::StageIr& from : artifact.debug().ir()) {
    v1::CompileDetail::Ir& to = *out.add_ir();
    to.set_stage(from.stage());
    to.set_size_bytes(static_cast<int>(from.text().size()));
  }
  for (const v1::FusionDecision& decision : artifact.debug().decisions()) {
    if (out.decisions_size() < kMaxRows) *out.add_decisions() = decision;
  }
  for (const v1::StageTime& from : header.stages()) {
    v1::CompileDetail::Stage& to = *out.add_stages();
    to.set_stage(from.stage());
    to.set_duration_ms(static_cast<double>(from.duration_ns()) * 1e-6);
  }
}

}  // namespace kiln::server
