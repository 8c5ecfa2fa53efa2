// Runs programs of target gcu on the simulator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/toolchain/gcu/isa.h"

namespace kiln::codegen {

struct HostBuffer {
  char* data = nullptr;
  size_t bytes = 0;
};

// What a launch took, as simulated.
struct GcuTimes {
  double seconds = 0;
  int64_t l3_bytes = 0, l2_bytes = 0, macs = 0;
  std::vector<double> barriers;  // seconds from the launch's begin until each one
};

class GcuDevice {
 public:
  explicit GcuDevice(const std::string& profile);
  ~GcuDevice();

  // `source` is the text of one kernel. Its buffers are copied to the device before and from it
  // after. INTERNAL with the simulator's fault.
  absl::StatusOr<GcuTimes> Run(absl::string_view source, absl::Span<const HostBuffer> buffers,
                               absl::Span<const int64_t> symbols);
  // The same of a kernel of the device's profile.
  absl::StatusOr<GcuTimes> Run(const kiln::gcu::Kernel& kernel,
                               absl::Span<const HostBuffer> buffers,
                               absl::Span<const int64_t> symbols);

 private:
  absl::StatusOr<GcuTimes> RunModule(const kiln::gcu::Module& module,
                                     absl::Span<const HostBuffer> buffers,
                                     absl::Span<const int64_t> symbols);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kiln::codegen
