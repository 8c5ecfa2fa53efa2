// The machine that GCU programs are planned for: a row of the specification's table of profiles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/base/dtype.h"

namespace kiln::schedule::gcu {

struct Machine {
  std::string profile;
  int64_t l3_bytes = 0, l3_rate = 0;  // bytes, bytes a second
  int64_t l2_bytes = 0, l2_rate = 0;
  int64_t l1_bytes = 0;
  int cores = 0;
  int64_t clock_hz = 0;
  int f32_macs = 0, f16_macs = 0, i8_macs = 0;  // of one core in a cycle
  int64_t launch_ns = 0;

  // Of one core's matrix unit in a cycle; 0 for types that it does not take.
  int Macs(DType dtype) const;
  // Bytes a second that one core's copies move at most.
  double EngineRate() const;
  // Of L1, what a tile is planned for at first; the rest is for the next one's loads.
  int64_t TileBytes() const { return l1_bytes * 3 / 4; }
};

// Nothing where there is no such profile.
std::optional<Machine> FindMachine(absl::string_view profile);
std::vector<absl::string_view> KnownProfiles();

}  // namespace kiln::schedule::gcu
