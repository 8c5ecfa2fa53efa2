#include "cache/remote/breaker.h"

#include <algorithm>

namespace kiln::cache {

bool Breaker::Admit(SteadyTime now) {
  absl::MutexLock lock(&mu_);
  if (state_ == BreakerState::kClosed) return true;
  if (state_ == BreakerState::kHalfOpen || now < probe_at_) return false;
  state_ = BreakerState::kHalfOpen;
  return true;
}

bool Breaker::Done(bool ok, SteadyTime now) {
  absl::MutexLock lock(&mu_);
  switch (state_) {
    case BreakerState::kClosed:
      failures_ = ok ? 0 : failures_ + 1;
      if (failures_ < options_.failures_to_open) return false;
      open_for_ = options_.min_open;
      Open(now);
      return true;
    case BreakerState::kHalfOpen:
      if (!ok) {
        open_for_ = std::min(open_for_ * 2, options_.max_open);
        Open(now);
        return false;
      }
      state_ = BreakerState::kClosed;
      failures_ = 0;
      return true;
    case BreakerState::kOpen:
      return false;  // a request from before it opened
  }
  return false;
}

BreakerState Breaker::state() const {
  absl::MutexLock lock(&mu_);
  return state_;
}

void Breaker::Open(SteadyTime now) {
  state_ = BreakerState::kOpen;
  probe_at_ = now + absl::ToChronoNanoseconds(open_for_ * absl::Uniform(random_, 0.8, 1.0));
}

}  // namespace kiln::cache
