// When the work of several streams takes place, and how it shares the device: the rules of section
// Streams of proto/gcu/README.md. Times are picoseconds on the device's clock.
#pragma once

#include <cstdint>
#include <vector>

namespace kiln::gcu_simulator {

struct TimeRange {
  int64_t begin_ps = 0, end_ps = 0;
};

// When a piece of work that needs `time_ps` and begins at `begin_ps` ends, where it stands still in
// those ranges, which are in ascending order and do not meet.
int64_t EndBeside(int64_t begin_ps, int64_t time_ps, const std::vector<TimeRange>& taken);

class Timeline {
 public:
  // The host's: when it has seen what it waited for. Nothing is issued before.
  int64_t host_ps() const { return host_ps_; }
  void HostWaits(int64_t until_ps);

  // A copy between host and device, or of the device's own, issued at `issued_ps`, which has L3 for
  // `l3_ps` where nobody else takes part of it.
  TimeRange AddCopy(int64_t issued_ps, int64_t l3_ps);

  // When the program of a launch begins that is issued at `issued_ps`, behind its launch time.
  int64_t ProgramBegin(int64_t issued_ps, int64_t launch_ps) const;
  // When copies that were issued before have L3, from that time on.
  std::vector<TimeRange> CopiesFrom(int64_t begin_ps) const;
  void AddProgram(TimeRange program, int64_t l3_busy_ps);

 private:
  struct Program {
    TimeRange time;
    int64_t l3_busy_ps = 0;
  };

  int64_t host_ps_ = 0, cores_free_ps_ = 0, copies_free_ps_ = 0;
  // Those that may overlap with what comes, in the order of their times.
  std::vector<TimeRange> copies_;
  std::vector<Program> programs_;
};

}  // namespace kiln::gcu_simulator
