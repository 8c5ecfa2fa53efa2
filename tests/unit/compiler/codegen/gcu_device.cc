#include "tests/unit/compiler/codegen/gcu_device.h"

#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/gcu_simulator/machine.h"
#include "client/gcu_simulator/program.h"
#include "compiler/toolchain/gcu/assembly.h"
#include "compiler/toolchain/gcu/binary.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen {

using gcu_simulator::Fault;
using gcu_simulator::Space;

struct GcuDevice::Impl {
  explicit Impl(const std::string& profile) : machine(*gcu_simulator::FindProfile(profile)) {}
  gcu_simulator::Machine machine;
};

GcuDevice::GcuDevice(const std::string& profile) : impl_(std::make_unique<Impl>(profile)) {}
GcuDevice::~GcuDevice() = default;

absl::StatusOr<GcuTimes> GcuDevice::Run(absl::string_view source,
                                        absl::Span<const HostBuffer> buffers,
                                        absl::Span<const int64_t> symbols) {
  KILN_ASSIGN_OR_RETURN(const kiln::gcu::Module module, kiln::gcu::Assemble(source));
  return RunModule(module, buffers, symbols);
}

absl::StatusOr<GcuTimes> GcuDevice::Run(const kiln::gcu::Kernel& kernel,
                                        absl::Span<const HostBuffer> buffers,
                                        absl::Span<const int64_t> symbols) {
  kiln::gcu::Module module;
  module.profile = impl_->machine.profile().name;
  module.kernels = {kernel};
  if (kernel.name.empty()) module.kernels[0].name = "launch";
  return RunModule(module, buffers, symbols);
}

absl::StatusOr<GcuTimes> GcuDevice::RunModule(const kiln::gcu::Module& module,
                                              absl::Span<const HostBuffer> buffers,
                                              absl::Span<const int64_t> symbols) {
  gcu_simulator::Machine& machine = impl_->machine;
  const auto check = [](std::optional<Fault> fault) {
    return fault ? absl::InternalError(fault->text) : absl::OkStatus();
  };
  KILN_ASSIGN_OR_RETURN(const std::string binary, kiln::gcu::Encode(module));
  gcu_simulator::Program program;
  KILN_RETURN_IF_ERROR(check(gcu_simulator::LoadProgram(binary.data(), binary.size(), program)));
  gcu_simulator::Launch launch;
  launch.kernel = &program.kernels[0];
  std::vector<std::pair<Space, uint64_t>> taken;
  const absl::Cleanup free = [&] {
    for (const auto& [space, address] : taken) machine.Free(space, address);
  };
  const auto allocate = [&](Space space, size_t bytes) {
    taken.emplace_back(space, machine.Allocate(space, bytes == 0 ? 1 : bytes));
    return taken.back().second;
  };
  for (const HostBuffer& buffer : buffers) {
    const uint64_t address = allocate(Space::kL3, buffer.bytes);
    if (address == 0) return absl::ResourceExhaustedError("no memory of the device is left");
    if (buffer.bytes > 0) {
      KILN_RETURN_IF_ERROR(check(machine.Write(Space::kL3, address, buffer.data, buffer.bytes)));
    }
    launch.arguments.push_back(address);
  }
  for (int64_t symbol : symbols) launch.arguments.push_back(static_cast<uint64_t>(symbol));
  if (module.kernels[0].l2_bytes > 0) {
    launch.l2_begin = allocate(Space::kL2, module.kernels[0].l2_bytes);
  }
  gcu_simulator::Report report;
  KILN_RETURN_IF_ERROR(check(machine.Run(launch, false, report)));
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].bytes == 0) continue;
    KILN_RETURN_IF_ERROR(
        check(machine.Read(Space::kL3, launch.arguments[i], buffers[i].data, buffers[i].bytes)));
  }
  std::vector<double> barriers;
  for (int64_t ps : report.barriers_ps) barriers.push_back(static_cast<double>(ps) * 1e-12);
  return GcuTimes{.seconds = static_cast<double>(report.time_ps) * 1e-12,
                  .l3_bytes = report.l3_read_bytes + report.l3_written_bytes,
                  .l2_bytes = report.l2_read_bytes + report.l2_written_bytes,
                  .macs = report.macs,
                  .barriers = std::move(barriers)};
}

}  // namespace kiln::codegen
