// One simulated device: its memories, and the execution of launches, in function and in time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/gcu_simulator/fault.h"
#include "client/gcu_simulator/footprint.h"
#include "client/gcu_simulator/program.h"
#include "client/gcu_simulator/timeline.h"

namespace kiln::gcu_simulator {

struct Profile {
  const char* name;
  int64_t l3_bytes, l3_bytes_per_s, l2_bytes, l2_bytes_per_s, l1_bytes;
  int cores;
  int64_t clock_hz;
  int f32_macs, f16_macs, i8_macs;  // of a core in a cycle
  int64_t launch_ns;
};
const Profile* FindProfile(const std::string& name);  // null: there is none

struct Launch {
  const Kernel* kernel = nullptr;
  uint32_t grid[3] = {1, 1, 1};
  std::vector<uint64_t> arguments;  // as many as the kernel has
  uint64_t l2_begin = 0;            // the launch's own L2 memory, an allocation
  uint64_t l2_bytes = 0;
  // When copies of the host's have L3, in ascending order, from the launch's begin on.
  std::vector<TimeRange> l3_taken;
};

// What one copy or instruction did, for a trace.
struct Span {
  int core = 0;
  const char* engine = "";  // "dma", "vector", "matrix"
  const char* name = "";
  int64_t begin_ps = 0, end_ps = 0;
  int64_t bytes = 0;  // that a copy moved
};

struct Report {
  std::string kernel;
  int64_t time_ps = 0;  // the launch's overhead included
  int64_t l3_read_bytes = 0, l3_written_bytes = 0, l2_read_bytes = 0, l2_written_bytes = 0;
  int64_t l3_busy_ps = 0, l2_busy_ps = 0;
  int64_t dma_ps = 0, vector_ps = 0, matrix_ps = 0, scalar_ps = 0, waiting_ps = 0;  // of all cores
  int64_t macs = 0;
  int64_t instructions = 0;
  std::vector<int64_t> barriers_ps;  // when cores went on from each barrier
  std::vector<Span> spans;           // where asked for
  Footprint footprint;               // of L3 and L2, the launch's own memory left out
};

enum class Space : uint8_t { kL3 = 0, kL2 = 1, kL1 = 2 };

class Machine {
 public:
  explicit Machine(const Profile& profile);
  ~Machine();

  const Profile& profile() const { return profile_; }

  // L3 and L2 have different addresses.
  static Space SpaceOf(uint64_t address);
  // Memory of L3 or L2, in 512-byte units, contents undefined. 0: none is left.
  uint64_t Allocate(Space space, uint64_t bytes);
  // False where nothing was allocated at that address.
  bool Free(Space space, uint64_t address);
  // Host copies. kBounds where the bytes are not in one allocation; reading what is undefined gives
  // zeros.
  std::optional<Fault> Write(Space space, uint64_t address, const void* data, uint64_t bytes);
  std::optional<Fault> Read(Space space, uint64_t address, void* data, uint64_t bytes) const;
  // Copies of the device's own memory.
  std::optional<Fault> Move(Space to, uint64_t to_address, Space from, uint64_t from_address,
                            uint64_t bytes);
  uint64_t Used(Space space) const;
  uint64_t Peak(Space space) const;  // since the last call of ResetPeak
  void ResetPeak();

  // Runs a kernel to its end. A fault names kernel, core and instruction. What it has written by
  // then stays written.
  std::optional<Fault> Run(const Launch& launch, bool with_spans, Report& report);

 private:
  struct Impl;
  const Profile& profile_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kiln::gcu_simulator
