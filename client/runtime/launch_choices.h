// Which of several kernels that do the same a launch takes: timed here, on the device, in the first
// runs of a program.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace kiln {
namespace v1 {
class Program;
}

namespace runtime {

// One program's, for all its runs. Thread-safe: a launch is timed in one run; others meanwhile take
// the compiler's choice.
class LaunchChoices {
 public:
  // REQUIRES: CheckProgram(program) passed.
  explicit LaunchChoices(const v1::Program& program);

  // Whether some launch has alternatives.
  bool any() const { return count_ > 0; }

  // Runs number `candidate`, 0 being the launch itself, and returns the microseconds that it took.
  using TimeFn = absl::FunctionRef<absl::StatusOr<double>(int candidate)>;
  // Of the launch at `step`, which has alternatives: the number of the candidate to run. `repeats`:
  // whether it can run again and again with the same effect; one that cannot stays as the compiler
  // has chosen. Times the candidates in turns where nobody has, `may_time` and the program has not
  // used up its three seconds for that. A candidate that fails is left out, with a line of the log.
  int Choose(int step, bool repeats, bool may_time, TimeFn time);

  // How many launches' candidates were timed.
  int timed() const { return timed_.load(std::memory_order_relaxed); }

  struct Decided {
    std::string key;  // LaunchStep.choice
    uint32_t chosen = 0;
  };
  // What was decided since the last call.
  std::vector<Decided> TakeDecided();

 private:
  enum class State : uint8_t { kOpen, kTiming, kDecided, kTaken };
  struct Launch {
    int step = 0;
    int candidates = 0;
    std::string key, kernel;
    std::atomic<int> chosen{0};
    std::atomic<State> state{State::kOpen};
  };

  int Fastest(const Launch& launch, TimeFn time);

  size_t count_ = 0;
  std::unique_ptr<Launch[]> launches_;  // in order of their steps
  std::atomic<int64_t> spent_us_{0};
  std::atomic<int> untaken_{0};  // decided and not taken
  std::atomic<int> timed_{0};
};

}  // namespace runtime
}  // namespace kiln
