// What went wrong, for the runtime's error codes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace kiln::gcu_simulator {

enum class FaultCode : uint8_t {
  kInvalidArgument = 1,  // of a call of the runtime
  kOutOfMemory = 2,
  kBadBinary = 3,
  kWrongProfile = 4,
  kNotFound = 5,
  kTrap = 6,      // a kernel's own guard
  kBounds = 7,    // an access outside of an allocation
  kPoison = 8,    // a read of what was never written
  kRace = 9,      // an access that an unfinished copy or another core's access does not allow
  kProgram = 10,  // an instruction whose operands do not fit, a division by 0, a deadlock
  kIndex = 11,    // an index of a gather or scatter outside of the rows
};

struct Fault {
  FaultCode code = FaultCode::kProgram;
  std::string text;
};

// An instruction whose operands do not fit.
inline Fault Misfit(std::string text) {
  return {FaultCode::kProgram, std::move(text)};
}

}  // namespace kiln::gcu_simulator
