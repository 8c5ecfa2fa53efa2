#include "client/runtime/launch_choices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/log.h"

namespace kiln::runtime {
namespace {

// After a first turn, which warms up: so many, or fewer where they take long.
constexpr int kTurns = 7, kFewestTurns = 1;
constexpr absl::Duration kMostOfLaunch = absl::Milliseconds(100);
constexpr int64_t kMostMicroseconds = 3'000'000;  // of a program
// What another than the compiler's choice has to be faster by, or it may be chance.
constexpr double kFaster = 0.98;

double Median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

LaunchChoices::LaunchChoices(const v1::Program& program) {
  for (const v1::Step& step : program.steps()) {
    if (step.launch().alternatives() > 0) ++count_;
  }
  launches_ = std::make_unique<Launch[]>(count_);
  size_t number = 0;
  for (int i = 0; i < program.steps_size(); ++i) {
    const v1::LaunchStep& step = program.steps(i).launch();
    if (step.alternatives() == 0) continue;
    Launch& launch = launches_[number++];
    launch.step = i;
    launch.candidates = static_cast<int>(step.alternatives()) + 1;
    launch.key = step.choice();
    launch.kernel = step.kernel();
  }
}

int LaunchChoices::Choose(int step, bool repeats, bool may_time, TimeFn time) {
  Launch* const end = launches_.get() + count_;
  Launch& launch = *std::lower_bound(launches_.get(), end, step,
                                     [](const Launch& one, int at) { return one.step < at; });
  if (launch.state.load(std::memory_order_acquire) != State::kOpen) return launch.chosen.load();
  if (repeats && (!may_time || spent_us_.load() > kMostMicroseconds)) return 0;
  State open = State::kOpen;
  if (!launch.state.compare_exchange_strong(open, State::kTiming)) return launch.chosen.load();
  if (repeats) launch.chosen = Fastest(launch, time);
  launch.state.store(State::kDecided, std::memory_order_release);
  ++untaken_;
  return launch.chosen.load();
}

int LaunchChoices::Fastest(const Launch& launch, TimeFn time) {
  const absl::Time start = absl::Now();
  const auto count = static_cast<size_t>(launch.candidates);
  std::vector<std::vector<double>> times(count);
  std::vector<bool> fails(count, false);
  for (int turn = 0; turn <= kTurns; ++turn) {
    if (turn > kFewestTurns && absl::Now() - start > kMostOfLaunch) break;
    for (size_t i = 0; i < count; ++i) {
      if (fails[i]) continue;
      const absl::StatusOr<double> took = time(static_cast<int>(i));
      if (!took.ok()) {
        fails[i] = true;
        Log(LogLevel::kWarning, "a kernel's schedule is left out",
            {{"kernel", launch.kernel},
             {"candidate", absl::StrCat(i)},
             {"why", std::string(took.status().message())}});
      } else if (turn > 0) {
        times[i].push_back(*took);
      }
    }
  }
  size_t best = 0;
  double least = 0;
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    if (fails[i]) {
      absl::StrAppend(&text, text.empty() ? "" : " ", "fails");
      continue;
    }
    const double median = Median(times[i]);
    absl::StrAppend(&text, text.empty() ? "" : " ", median);
    if (least > 0 && median >= least * (best == 0 ? kFaster : 1)) continue;
    best = i;
    least = median;
  }
  ++timed_;
  spent_us_ += absl::ToInt64Microseconds(absl::Now() - start);
  Log(LogLevel::kInfo, "timed a kernel's schedules",
      {{"kernel", launch.kernel}, {"us", text}, {"chosen", absl::StrCat(best)}});
  return static_cast<int>(best);
}

std::vector<LaunchChoices::Decided> LaunchChoices::TakeDecided() {
  std::vector<Decided> out;
  if (untaken_.load(std::memory_order_relaxed) == 0) return out;
  for (size_t i = 0; i < count_; ++i) {
    State decided = State::kDecided;
    if (!launches_[i].state.compare_exchange_strong(decided, State::kTaken)) continue;
    --untaken_;
    out.push_back({launches_[i].key, static_cast<uint32_t>(launches_[i].chosen.load())});
  }
  return out;
}

}  // namespace kiln::runtime
