// Time limits on the steady clock: a clock that is set back must not prolong a wait.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace kiln::cache {

using SteadyTime = std::chrono::steady_clock::time_point;

inline SteadyTime DeadlineIn(absl::Duration duration) {
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
}

inline absl::Duration TimeLeft(SteadyTime deadline) {
  return absl::FromChrono(deadline - std::chrono::steady_clock::now());
}

// For poll(2): rounded up, so that a wait never ends early and spins; 0 once it has passed.
inline int PollTimeoutMs(SteadyTime deadline) {
  const absl::Duration left = TimeLeft(deadline);
  if (left <= absl::ZeroDuration()) return 0;
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
}

}  // namespace kiln::cache
