#include "client/loader.h"

#include <optional>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/archive.h"
#include "client/runtime/contract.h"
#include "client/runtime/cpu/executor.h"
#include "client/runtime/cpu/shared_object.h"
#include "client/runtime/cuda/device.h"
#include "client/runtime/cuda/driver.h"
#include "client/runtime/cuda/executor.h"
#include "client/runtime/gcu/accelerator.h"
#include "client/runtime/gcu/runtime.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/device_cpu.h"
#include "proto/base/digest.h"
#include "proto/base/error_detail.h"
#include "proto/base/program_stamp.h"
#include "proto/base/status_macros.h"
#include "proto/base/target_name.h"

namespace kiln::runtime {
namespace {

constexpr uint32_t kFormatVersion = 1;

absl::Status CheckHeader(const v1::ArtifactHeader& header) {
  if (header.format_version() != kFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the artifact has format version ", header.format_version(),
                     "; this client reads version ", kFormatVersion));
  }
  if (header.target() == v1::TARGET_CPP) {
    return CheckRunsOnHost(header.arch(), {header.features().begin(), header.features().end()});
  }
  if (header.target() == v1::TARGET_PTX) {
    KILN_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Get());
    return cuda::FindGpuFor(*driver, header.arch()).status();
  }
  if (header.target() == v1::TARGET_GCU) {
    KILN_ASSIGN_OR_RETURN(const gcu::Runtime* runtime, gcu::Runtime::Get());
    KILN_RETURN_IF_ERROR(gcu::CheckRunsOnGcu(*runtime, header.arch()));
    return header.features().empty() ? absl::OkStatus() : CheckRunsOnHost(header.features(0), {});
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the artifact is for target ", TargetName(header.target()),
                   "; this client runs programs for cpp, ptx and gcu"));
}

// That every launch names a binary that is there; the first one is looked for with its kernels.
absl::Status CheckBinaries(const v1::Artifact& artifact) {
  std::set<uint32_t> numbers = {0};
  for (const v1::Binary& binary : artifact.binaries()) {
    if (binary.number() == 0 || binary.kind() == v1::BINARY_KIND_UNSPECIFIED) {
      return absl::DataLossError("the artifact has a binary without a number or a kind");
    }
    numbers.insert(binary.number());
  }
  for (int i = 0; i < artifact.program().steps_size(); ++i) {
    const uint32_t binary = artifact.program().steps(i).launch().binary();
    if (!numbers.contains(binary)) {
      return absl::DataLossError(absl::StrCat("step ", i, " launches a kernel of binary ", binary,
                                              ", which is not there"));
    }
  }
  return absl::OkStatus();
}

// Nothing but calls of one shared object's kernels is run here.
absl::Status CheckForCpu(const v1::Artifact& artifact) {
  if (!artifact.binaries().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the artifact has code of the kind ", v1::BinaryKind_Name(artifact.binaries(0).kind()),
        "; this client runs one shared object"));
  }
  for (int i = 0; i < artifact.program().steps_size(); ++i) {
    if (!artifact.program().steps(i).launch().has_grid()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("step ", i,
                     " of the artifact is a launch over a grid; this client calls "
                     "kernels of a CPU"));
  }
  return absl::OkStatus();
}

// Whether the machine code was linked for this very program.
absl::Status CheckStamp(absl::string_view artifact, absl::string_view image) {
  if (image.empty()) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(CheckElfImage(image));
  const std::optional<absl::string_view> program = ProgramBytes(artifact);
  const std::optional<Digest> stamp = ReadProgramStamp(image);
  if (program && stamp && *stamp == Sha256(*program)) return absl::OkStatus();
  return absl::DataLossError("the artifact's machine code was linked for another program");
}

// The kernel of each launch step, in order.
absl::StatusOr<std::vector<Kernel>> FindKernels(const v1::Program& program,
                                                const SharedObject* object) {
  absl::flat_hash_map<absl::string_view, Kernel> known;
  std::vector<Kernel> kernels;
  for (const v1::Step& step : program.steps()) {
    if (!step.has_launch()) continue;
    if (object == nullptr) {
      return absl::DataLossError("the artifact launches kernels and has no machine code");
    }
    const std::string& name = step.launch().kernel();
    Kernel& kernel = known[name];
    if (kernel.entry == nullptr) {
      KILN_ASSIGN_OR_RETURN(void* address, object->Find(name));
      absl::StatusOr<absl::string_view> text =
          object->FindText(absl::StrCat(name, kInterfaceSuffix));
      if (!text.ok()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "kernel '", name, "' states no interface: the artifact is of an older server"));
      }
      KILN_ASSIGN_OR_RETURN(kernel.interface, ParseInterface(*text));
      kernel.entry = reinterpret_cast<KilnCpuKernel>(address);
    }
    kernels.push_back(kernel);
  }
  return kernels;
}

absl::StatusOr<std::unique_ptr<Executor>> LoadForCpu(v1::Artifact& artifact,
                                                     std::unique_ptr<const Contract> contract,
                                                     std::unique_ptr<SharedObject>& object,
                                                     int threads) {
  KILN_RETURN_IF_ERROR(CheckForCpu(artifact));
  if (!artifact.binary().empty()) {
    KILN_ASSIGN_OR_RETURN(object, SharedObject::Load(artifact.binary()));
    artifact.mutable_binary()->clear();
    artifact.mutable_binary()->shrink_to_fit();
  }
  KILN_ASSIGN_OR_RETURN(std::vector<Kernel> kernels, FindKernels(artifact.program(), object.get()));
  return CpuExecutor::Create(artifact.program(), std::move(kernels), std::move(contract),
                             threads > 0 ? threads : PhysicalProcessors());
}

// Launches of binary 1 are the device's, others calls of the shared object, if there is one.
absl::StatusOr<std::unique_ptr<Executor>> LoadForGcu(v1::Artifact& artifact,
                                                     std::unique_ptr<const Contract> contract,
                                                     std::unique_ptr<SharedObject>& object,
                                                     int threads) {
  KILN_ASSIGN_OR_RETURN(const gcu::Runtime* runtime, gcu::Runtime::Get());
  // Each buffer has a place of its own on the device.
  std::set<uint32_t> inputs;
  for (const v1::Buffer& buffer : artifact.program().buffers()) {
    if (buffer.kind() == v1::Buffer::KIND_INPUT && !inputs.insert(buffer.index()).second) {
      return absl::DataLossError(
          absl::StrCat("two buffers of the artifact are of input ", buffer.index()));
    }
  }
  v1::Program of_host, of_device;
  for (int i = 0; i < artifact.program().steps_size(); ++i) {
    const v1::Step& step = artifact.program().steps(i);
    if (!step.has_launch()) continue;
    if (step.launch().has_grid() || step.launch().binary() > 1) {
      return absl::DataLossError(
          absl::StrCat("step ", i, " of the artifact launches no kernel of a GCU or its host"));
    }
    *(step.launch().binary() == 0 ? of_host : of_device).add_steps() = step;
  }
  if (!artifact.binary().empty()) {
    KILN_ASSIGN_OR_RETURN(object, SharedObject::Load(artifact.binary()));
    artifact.mutable_binary()->clear();
    artifact.mutable_binary()->shrink_to_fit();
  }
  KILN_ASSIGN_OR_RETURN(std::vector<Kernel> host_kernels, FindKernels(of_host, object.get()));
  std::vector<Kernel> device_kernels;
  std::unique_ptr<const Accelerator> accelerator;
  for (v1::Binary& binary : *artifact.mutable_binaries()) {
    if (binary.number() != 1 || binary.kind() != v1::BINARY_KIND_GCU || accelerator != nullptr) {
      return absl::DataLossError("the artifact has code that nothing uses");
    }
    KILN_ASSIGN_OR_RETURN(const std::unique_ptr<const Archive> archive,
                          Archive::Parse(std::move(*binary.mutable_data())));
    binary.clear_data();
    KILN_ASSIGN_OR_RETURN(device_kernels, FindKernels(of_device, *archive));
    KILN_ASSIGN_OR_RETURN(accelerator, gcu::MakeAccelerator(*runtime, *archive));
  }
  std::vector<Kernel> kernels;
  size_t next_host = 0, next_device = 0;
  for (const v1::Step& step : artifact.program().steps()) {
    if (!step.has_launch()) continue;
    kernels.push_back(step.launch().binary() == 0 ? host_kernels[next_host++]
                                                  : device_kernels[next_device++]);
  }
  return CpuExecutor::Create(artifact.program(), std::move(kernels), std::move(contract),
                             threads > 0 ? threads : PhysicalProcessors(), std::move(accelerator));
}

// The archives of binary 1 that this client can load, taken out of the artifact.
absl::StatusOr<std::vector<std::unique_ptr<const Archive>>> TakeArchives(v1::Artifact& artifact) {
  std::vector<std::unique_ptr<const Archive>> archives;
  for (v1::Binary& binary : *artifact.mutable_binaries()) {
    if (binary.number() != 1) return absl::DataLossError("the artifact has code that nothing uses");
    if (binary.kind() != v1::BINARY_KIND_PTX && binary.kind() != v1::BINARY_KIND_CUBIN) continue;
    KILN_ASSIGN_OR_RETURN(archives.emplace_back(),
                          Archive::Parse(std::move(*binary.mutable_data())));
    binary.clear_data();
    KILN_RETURN_IF_ERROR(CheckAlike(*archives.front(), *archives.back()));
  }
  if (!archives.empty()) return archives;
  return absl::FailedPreconditionError("the artifact has neither PTX nor a cubin");
}

absl::StatusOr<std::unique_ptr<Executor>> LoadForGpu(v1::Artifact& artifact,
                                                     std::unique_ptr<const Contract> contract) {
  if (!artifact.binary().empty()) {
    return absl::DataLossError("the artifact is for a GPU and has code for a CPU");
  }
  bool launches = false;
  for (int i = 0; i < artifact.program().steps_size(); ++i) {
    const v1::Step& step = artifact.program().steps(i);
    if (!step.has_launch()) continue;
    launches = true;
    if (step.launch().has_grid() && step.launch().binary() == 1) continue;
    return absl::DataLossError(absl::StrCat("step ", i, " launches no kernel of a GPU"));
  }
  std::vector<std::unique_ptr<const Archive>> archives;
  std::vector<Kernel> kernels;
  if (launches) {
    KILN_ASSIGN_OR_RETURN(archives, TakeArchives(artifact));
    KILN_ASSIGN_OR_RETURN(kernels, FindKernels(artifact.program(), *archives.front()));
  }
  KILN_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Get());
  return cuda::CudaExecutor::Create(artifact.program(), std::move(kernels), std::move(archives),
                                    artifact.header().arch(), std::move(contract), *driver);
}

}  // namespace

// Destroyed from the last to the first: the executor before the code that it calls.
struct LoadedProgram::Parts {
  v1::Artifact artifact;
  std::unique_ptr<SharedObject> object;
  std::unique_ptr<Executor> executor;
};

LoadedProgram::LoadedProgram(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
LoadedProgram::~LoadedProgram() = default;

const v1::Artifact& LoadedProgram::artifact() const {
  return parts_->artifact;
}
const Executor& LoadedProgram::executor() const {
  return *parts_->executor;
}

namespace {

absl::Status Parse(absl::string_view bytes, v1::Artifact& artifact) {
  if (bytes.size() <= INT32_MAX &&
      artifact.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return absl::DataLossError("the artifact does not parse");
}

}  // namespace

absl::Status CheckOfGraph(absl::string_view bytes, const v1::Graph& graph) {
  v1::Artifact artifact;
  KILN_RETURN_IF_ERROR(Parse(bytes, artifact));
  KILN_RETURN_IF_ERROR(CheckProgram(artifact.program()));
  KILN_RETURN_IF_ERROR(CheckBinaries(artifact));
  return Contract::Compare(graph, artifact.program()).status();
}

absl::StatusOr<std::unique_ptr<LoadedProgram>> LoadedProgram::Load(absl::string_view bytes,
                                                                   const v1::Graph* graph,
                                                                   int threads) {
  auto parts = std::make_unique<Parts>();
  v1::Artifact& artifact = parts->artifact;
  KILN_RETURN_IF_ERROR(Parse(bytes, artifact));
  KILN_RETURN_IF_ERROR(CheckHeader(artifact.header()));
  KILN_RETURN_IF_ERROR(CheckStamp(bytes, artifact.binary()));
  // Before the machine code is touched.
  KILN_RETURN_IF_ERROR(CheckProgram(artifact.program()));
  KILN_RETURN_IF_ERROR(CheckBinaries(artifact));
  std::unique_ptr<const Contract> contract;
  if (graph != nullptr) {
    KILN_ASSIGN_OR_RETURN(contract, Contract::Compare(*graph, artifact.program()));
  }
  if (artifact.header().target() == v1::TARGET_PTX) {
    KILN_ASSIGN_OR_RETURN(parts->executor, LoadForGpu(artifact, std::move(contract)));
  } else if (artifact.header().target() == v1::TARGET_GCU) {
    KILN_ASSIGN_OR_RETURN(parts->executor,
                          LoadForGcu(artifact, std::move(contract), parts->object, threads));
  } else {
    KILN_ASSIGN_OR_RETURN(parts->executor,
                          LoadForCpu(artifact, std::move(contract), parts->object, threads));
  }
  return std::unique_ptr<LoadedProgram>(new LoadedProgram(std::move(parts)));
}

}  // namespace kiln::runtime
