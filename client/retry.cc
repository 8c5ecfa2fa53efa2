#include "client/retry.h"

#include <algorithm>
#include <random>

#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"

namespace kiln {
namespace {

constexpr double kMostTokens = 10;
constexpr double kTokensPerCall = 0.1;
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMostBackoff = absl::Seconds(2);

double Uniform() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

}  // namespace

absl::Duration RetryAfter(const absl::Status& status) {
  auto detail = GetDetail(status);
  return detail ? absl::Milliseconds(std::max<int64_t>(0, detail->retry_after_ms()))
                : absl::ZeroDuration();
}

Verdict Judge(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return Verdict::kElsewhere;
    case absl::StatusCode::kResourceExhausted:
      // Without a hint it is a limit, which will be the same next time.
      return RetryAfter(status) > absl::ZeroDuration() ? Verdict::kLater : Verdict::kAnswer;
    default:
      return Verdict::kAnswer;
  }
}

absl::Duration Backoff(int round) {
  absl::Duration most = kFirstBackoff;
  for (int i = 0; i < round && most < kMostBackoff; ++i) most *= 2;
  return std::min(most, kMostBackoff) * Uniform();
}

absl::Duration Jittered(absl::Duration hint) {
  return hint * (1 + Uniform() / 2);
}

void RetryBudget::CountCall() {
  absl::MutexLock lock(&mu_);
  tokens_ = std::min(kMostTokens, tokens_ + kTokensPerCall);
}

bool RetryBudget::TakeRetry() {
  absl::MutexLock lock(&mu_);
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

}  // namespace kiln
