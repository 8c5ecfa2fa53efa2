// Bytes as an artifact, as the client loads it. Machine code is left out: handing it to the dynamic
// linker is to run it, which is what digests and signatures are checked for before.
#include "client/loader.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/plan.h"
#include "kiln/client.h"
#include "kiln/v1/artifact.pb.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/proto_input.h"

namespace {

using kiln::fuzz::Require;
using kiln::runtime::Plan;
using kiln::runtime::PlanView;

void CheckView(const Plan& plan, const PlanView& view) {
  Require(view.buffer >= 0 && view.buffer < static_cast<int>(plan.buffers.size()),
          "a view is of a buffer");
  int64_t start_bytes = view.offset * static_cast<int64_t>(kiln::DTypeSize(view.type.dtype));
  const auto& buffer = plan.buffers[static_cast<size_t>(view.buffer)];
  Require(start_bytes >= 0 && start_bytes + view.type.reach_bytes <= buffer.type.reach_bytes,
          "a view lies in its buffer");
}

// What plan.h promises whatever the bytes were: nothing reaches outside its memory.
void CheckPlan(const Plan& plan) {
  for (const auto& buffer : plan.buffers) {
    if (buffer.kind != kiln::runtime::BufferKind::kWorkspace) continue;
    Require(buffer.workspace_offset >= 0 &&
                buffer.workspace_offset + buffer.type.reach_bytes <= plan.workspace_bytes,
            "a buffer lies in the workspace");
  }
  for (const auto& copy : plan.copies) {
    CheckView(plan, copy.from);
    CheckView(plan, copy.to);
  }
  for (const auto& library : plan.libraries) {
    for (const PlanView& view : library.tensors) CheckView(plan, view);
  }
  for (const auto& output : plan.outputs) {
    if (output.kind == KILN_TENSOR) CheckView(plan, output.view);
  }
}

// Never called. It expects the very buffers that the launch gives where those have constant sizes.
kiln::runtime::Kernel KernelFor(const kiln::v1::Program& program,
                                const kiln::v1::LaunchStep& launch) {
  auto interface = std::make_shared<kiln::v1::KernelInterface>();
  for (const uint32_t number : launch.buffers()) {
    const kiln::v1::Buffer& given = program.buffers(static_cast<int>(number));
    kiln::v1::KernelInterface::Buffer& buffer = *interface->add_buffers();
    buffer.mutable_bytes()->set_value(given.size_bytes().value());
    buffer.set_dtype(given.dtype());
  }
  for (int i = 0; i < launch.symbols_size(); ++i) {
    interface->add_sizes()->set_max(std::numeric_limits<int64_t>::max());
  }
  interface->mutable_scratch_bytes()->set_value(launch.scratch_bytes().value());
  interface->mutable_thread_scratch_bytes()->set_value(launch.thread_scratch_bytes().value());
  return {.interface = std::move(interface)};
}

void MakeThePlan(const kiln::v1::Program& program) {
  if (!kiln::runtime::CheckProgram(program).ok()) return;
  std::vector<kiln::runtime::Kernel> kernels;
  for (const auto& step : program.steps()) {
    if (step.has_launch()) kernels.push_back(KernelFor(program, step.launch()));
  }
  std::vector<int64_t> hints;
  for (const auto& symbol : program.symbols()) hints.push_back(symbol.hint());
  auto plan = kiln::runtime::MakePlan(program, kernels, hints);
  if (plan.ok()) CheckPlan(*plan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kiln::runtime::LoadedProgram;
  auto content = kiln::FromArtifactFile(kiln::fuzz::AsText(data, size));
  if (content.ok()) Require(content->size() < size, "a file is more than its content");
  kiln::v1::Artifact artifact;
  if (!kiln::fuzz::ParseQuietly(data, size, artifact)) {
    auto loaded = LoadedProgram::Load(kiln::fuzz::AsText(data, size), nullptr, 1);
    kiln::fuzz::Require(absl::IsDataLoss(loaded.status()), "what does not parse is DATA_LOSS");
    return -1;
  }
  artifact.clear_binary();
  // Past the header, which otherwise refuses nearly everything.
  artifact.mutable_header()->set_format_version(1);
  artifact.mutable_header()->set_target(kiln::v1::TARGET_CPP);
  artifact.mutable_header()->set_arch("x86-64");
  artifact.mutable_header()->clear_features();
  std::string bytes = artifact.SerializeAsString();
  auto loaded = LoadedProgram::Load(bytes, nullptr, 1);
  MakeThePlan(artifact.program());
  if (loaded.ok()) {
    kiln::fuzz::Require(
        (*loaded)->artifact().program().steps_size() == artifact.program().steps_size(),
        "a program is loaded whole");
  }
  return 0;
}
