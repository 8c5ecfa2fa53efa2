#include "client/program_info.h"

#include <google/protobuf/util/json_util.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_join.h"
#include "client/runtime/executor.h"
#include "client/runtime/program_run.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {
namespace {

template <typename Sizes>
std::vector<int64_t> StaticSizes(const Sizes& sizes) {
  std::vector<int64_t> out;
  for (const v1::SymInt& size : sizes) {
    out.push_back(size.has_expr() ? KILN_DYNAMIC : size.value());
  }
  return out;
}

void CountScalar(const v1::Argument& arg, kiln_library_info& info) {
  if (arg.has_sym_int()) ++info.num_ints;
  for (const v1::Argument& item : arg.list().items()) CountScalar(item, info);
}

void CountArg(const v1::LibraryStep::Arg& arg, kiln_library_info& info) {
  if (arg.has_tensor()) ++info.num_tensors;
  if (arg.has_scalar()) CountScalar(arg.scalar(), info);
  for (const v1::LibraryStep::Arg& item : arg.list().items()) CountArg(item, info);
}

}  // namespace

absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  return text;
}

ProgramInfo::ProgramInfo(const runtime::LoadedProgram& program) {
  AddInputs(program);
  AddOutputs(program);
  AddLibrarySteps(program);
  AddSteps(program);
  AddStats(program);
}

const char* ProgramInfo::Keep(std::string text) {
  return texts_.emplace_back(std::move(text)).c_str();
}

void ProgramInfo::AddInputs(const runtime::LoadedProgram& program) {
  for (const v1::Input& input : program.artifact().program().inputs()) {
    const v1::TensorType& type = input.type().tensor();
    kiln_value_info info{};
    info.name = Keep(input.name());
    info.role = input.role();
    info.kind = input.type().has_tensor() ? KILN_TENSOR : KILN_INT;
    info.dtype = input.type().has_tensor() ? static_cast<int>(type.dtype()) : KILN_INT64;
    info.ndim = type.sizes_size();
    info.sizes = numbers_.emplace_back(StaticSizes(type.sizes())).data();
    info.strides = numbers_.emplace_back(StaticSizes(type.strides())).data();
    inputs_.push_back(info);
  }
}

void ProgramInfo::AddOutputs(const runtime::LoadedProgram& program) {
  const runtime::Plan& plan = program.executor().typical_plan();
  for (const v1::ProgramOutput& output : program.artifact().program().outputs()) {
    kiln_value_info info{};
    info.name = "";
    info.dtype = KILN_INT64;
    info.kind = output.has_tensor() ? KILN_TENSOR : output.has_sym_int() ? KILN_INT : KILN_NONE;
    if (output.has_tensor()) {
      const v1::BufferView& view = output.tensor();
      const runtime::PlanBuffer& buffer = plan.buffers[view.buffer()];
      info.dtype = view.dtype();
      info.ndim = view.sizes_size();
      info.sizes = numbers_.emplace_back(StaticSizes(view.sizes())).data();
      info.strides = numbers_.emplace_back(StaticSizes(view.strides())).data();
      info.offset = view.offset().has_expr() ? KILN_DYNAMIC : view.offset().value();
      info.storage_index = buffer.index;
      switch (buffer.kind) {
        case runtime::BufferKind::kInput:
          info.storage = KILN_STORAGE_INPUT;
          break;
        case runtime::BufferKind::kLibrary:
          info.storage = KILN_STORAGE_LIBRARY;
          break;
        default:
          info.storage = KILN_STORAGE_ALLOCATED;
          info.storage_index = runtime::AllocationNumber(plan, buffer);
          break;
      }
    }
    outputs_.push_back(info);
  }
}

void ProgramInfo::AddLibrarySteps(const runtime::LoadedProgram& program) {
  int first_result = 0;
  for (const v1::Step& step : program.artifact().program().steps()) {
    if (!step.has_library()) continue;
    const v1::LibraryStep& library = step.library();
    kiln_library_info info{};
    info.op = Keep(library.op());
    info.node = Keep(library.node());
    for (const auto& arg : library.args()) CountArg(arg, info);
    for (const auto& arg : library.kwargs()) CountArg(arg.value(), info);
    info.num_results = static_cast<size_t>(library.results_size());
    info.first_result = first_result;
    first_result += library.results_size();
    info.proto = Keep(library.SerializeAsString());
    info.proto_size = texts_.back().size();
    info.json = Keep(MessageJson(library).value_or(""));
    library_steps_.push_back(info);
  }
}

void ProgramInfo::AddSteps(const runtime::LoadedProgram& program) {
  const v1::Program& steps = program.artifact().program();
  absl::flat_hash_map<absl::string_view, const char*> nodes;
  for (const v1::Debug::KernelSource& kernel : program.artifact().debug().kernels()) {
    nodes[kernel.symbol()] = Keep(absl::StrJoin(kernel.ops(), ","));
  }
  for (const v1::Step& step : steps.steps()) {
    kiln_step_info info{KILN_STEP_COPY, 0, "copy", ""};
    if (step.has_launch()) {
      info.kind = KILN_STEP_KERNEL;
      info.name = Keep(step.launch().kernel());
      const auto known = nodes.find(step.launch().kernel());
      if (known != nodes.end()) info.nodes = known->second;
    } else if (step.has_library()) {
      info.kind = KILN_STEP_LIBRARY;
      info.name = Keep(step.library().op());
      info.nodes = Keep(step.library().node());
    }
    info.prepares = steps_.size() < steps.prepare_steps() ? 1 : 0;
    steps_.push_back(info);
  }
}

void ProgramInfo::AddStats(const runtime::LoadedProgram& program) {
  const v1::ArtifactHeader& header = program.artifact().header();
  for (const v1::Step& step : program.artifact().program().steps()) {
    ++(step.has_library() ? stats_.library_steps : stats_.native_steps);
  }
  stats_.kernels = header.kernels_size();
  for (const v1::KernelInfo& kernel : header.kernels()) {
    ++(kernel.cached() ? stats_.kernels_cached : stats_.kernels_compiled);
  }
  stats_.threads = program.executor().threads();
  stats_.dynamic = program.executor().dynamic() ? 1 : 0;
  stats_.workspace_bytes = program.executor().typical_plan().workspace_bytes;
  stats_.prepared_bytes = program.executor().prepared_bytes();
}

}  // namespace kiln
