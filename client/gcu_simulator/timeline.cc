#include "client/gcu_simulator/timeline.h"

#include <algorithm>

namespace kiln::gcu_simulator {
namespace {

constexpr int64_t kCopyOverheadPs = 1'000'000;

}  // namespace

int64_t EndBeside(int64_t begin_ps, int64_t time_ps, const std::vector<TimeRange>& taken) {
  int64_t end = begin_ps + time_ps;
  if (time_ps == 0) return end;
  for (const TimeRange& range : taken) {
    if (range.begin_ps >= end) break;
    end += std::max<int64_t>(range.end_ps - std::max(range.begin_ps, begin_ps), 0);
  }
  return end;
}

void Timeline::HostWaits(int64_t until_ps) {
  host_ps_ = std::max(host_ps_, until_ps);
  std::erase_if(copies_, [&](const TimeRange& copy) { return copy.end_ps <= host_ps_; });
  std::erase_if(programs_, [&](const Program& program) { return program.time.end_ps <= host_ps_; });
}

TimeRange Timeline::AddCopy(int64_t issued_ps, int64_t l3_ps) {
  const int64_t begin = std::max({issued_ps, host_ps_, copies_free_ps_});
  int64_t now = begin + kCopyOverheadPs;
  const int64_t l3_begin = now;
  int64_t left = l3_ps;
  for (const Program& program : programs_) {
    if (program.time.end_ps <= now) continue;
    const int64_t before = std::max<int64_t>(program.time.begin_ps - now, 0);
    if (left <= before) break;
    left -= before;
    now += before;
    // Of each picosecond beside the program the copy has what that leaves of L3 on the average.
    const int64_t all = program.time.end_ps - program.time.begin_ps;
    const int64_t free = all - std::min(program.l3_busy_ps, all);
    const int64_t beside = program.time.end_ps - now;
    const auto done = static_cast<int64_t>(static_cast<__int128>(beside) * free / all);
    if (done >= left) {
      now += static_cast<int64_t>((static_cast<__int128>(left) * all + free - 1) / free);
      left = 0;
      break;
    }
    left -= done;
    now = program.time.end_ps;
  }
  copies_free_ps_ = now + left;
  if (copies_free_ps_ > l3_begin) copies_.push_back({l3_begin, copies_free_ps_});
  return {begin, copies_free_ps_};
}

int64_t Timeline::ProgramBegin(int64_t issued_ps, int64_t launch_ps) const {
  return std::max(std::max(issued_ps, host_ps_) + launch_ps, cores_free_ps_);
}

std::vector<TimeRange> Timeline::CopiesFrom(int64_t begin_ps) const {
  std::vector<TimeRange> copies;
  for (const TimeRange& copy : copies_) {
    if (copy.end_ps > begin_ps) copies.push_back({std::max(copy.begin_ps, begin_ps), copy.end_ps});
  }
  return copies;
}

void Timeline::AddProgram(TimeRange program, int64_t l3_busy_ps) {
  cores_free_ps_ = program.end_ps;
  if (program.end_ps > program.begin_ps) programs_.push_back({program, l3_busy_ps});
}

}  // namespace kiln::gcu_simulator
