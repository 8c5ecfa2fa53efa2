#include "compiler/schedule/gcu/machine.h"

#include "proto/gcu/instructions.inc.h"

namespace kiln::schedule::gcu {
namespace {

const std::vector<Machine>& Machines() {
  static const auto* machines = new std::vector<Machine>{
#define KILN_GCU_MACHINE(name, l3, l3_rate, l2, l2_rate, l1, cores, clock, f32, f16, i8, launch) \
  Machine{name, l3, l3_rate, l2, l2_rate, l1, cores, clock, f32, f16, i8, launch},
      KILN_GCU_PROFILES(KILN_GCU_MACHINE)
#undef KILN_GCU_MACHINE
  };
  return *machines;
}

}  // namespace

int Machine::Macs(DType dtype) const {
  switch (dtype) {
    case DType::kF32:
      return f32_macs;
    case DType::kF16:
    case DType::kBF16:
      return f16_macs;
    case DType::kI8:
      return i8_macs;
    default:
      return 0;
  }
}

double Machine::EngineRate() const {
  constexpr int64_t kBytesOfCycle = 128;
  return static_cast<double>(kBytesOfCycle * clock_hz);
}

std::optional<Machine> FindMachine(absl::string_view profile) {
  for (const Machine& machine : Machines()) {
    if (machine.profile == profile) return machine;
  }
  return std::nullopt;
}

std::vector<absl::string_view> KnownProfiles() {
  std::vector<absl::string_view> names;
  for (const Machine& machine : Machines()) names.push_back(machine.profile);
  return names;
}

}  // namespace kiln::schedule::gcu
