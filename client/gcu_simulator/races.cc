#include "client/gcu_simulator/races.h"

#include <algorithm>
#include <map>
#include <utility>

namespace kiln::gcu_simulator {

void AccessLog::Add(const Tile& tile, int core, uint32_t instruction, bool writes) {
  ForEachRun(tile, [&](const Run& run) {
    if (!runs_.empty()) {
      AccessedRun& last = runs_.back();
      if (last.end == run.begin && last.core == core && last.writes == writes &&
          last.instruction == instruction) {
        last.end += run.bytes;
        return;
      }
    }
    if (runs_.size() >= limit_) Shorten();
    runs_.push_back({run.begin, run.begin + run.bytes, core, instruction, writes});
  });
}

void AccessLog::Clear() {
  runs_.clear();
  conflict_.reset();
  limit_ = kFewRuns;
}

void AccessLog::Shorten() {
  conflict_ = FindConflict();
  // Reads and writes of one core lie beside each other in the order of their places: each kind of
  // each core has a last run of its own.
  std::vector<AccessedRun> kept;
  std::map<std::pair<int, bool>, size_t> last;  // into `kept`
  for (const AccessedRun& run : runs_) {
    const auto [at, is_first] = last.try_emplace({run.core, run.writes}, kept.size());
    if (!is_first && kept[at->second].end >= run.begin) {
      AccessedRun& before = kept[at->second];
      before.end = std::max(before.end, run.end);
      continue;
    }
    at->second = kept.size();
    kept.push_back(run);
  }
  if (conflict_ || kept.size() > kMostRuns) kept.clear();
  runs_ = std::move(kept);
  limit_ = std::max(kFewRuns, 2 * runs_.size());
}

std::optional<Conflict> AccessLog::FindConflict() {
  if (conflict_) return conflict_;
  std::sort(runs_.begin(), runs_.end(),
            [](const AccessedRun& a, const AccessedRun& b) { return a.begin < b.begin; });
  // Of those that began earlier, what reaches furthest: by any core, and by any other than that
  // one.
  struct Furthest {
    const AccessedRun *first = nullptr, *of_another = nullptr;
    void Take(const AccessedRun& run) {
      if (first == nullptr || run.core == first->core) {
        if (first == nullptr || run.end > first->end) first = &run;
        return;
      }
      if (run.end > first->end) {
        of_another = first;
        first = &run;
      } else if (of_another == nullptr || run.end > of_another->end) {
        of_another = &run;
      }
    }
    const AccessedRun* OtherThan(int core) const {
      return first != nullptr && first->core != core ? first : of_another;
    }
  };
  Furthest written, any;
  for (const AccessedRun& run : runs_) {
    const AccessedRun* other = (run.writes ? any : written).OtherThan(run.core);
    if (other != nullptr && other->end > run.begin) return Conflict{*other, run};
    if (run.writes) written.Take(run);
    any.Take(run);
  }
  return std::nullopt;
}

}  // namespace kiln::gcu_simulator
