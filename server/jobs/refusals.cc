#include "server/jobs/refusals.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"

namespace kiln::server {
namespace {

constexpr int kMaxDeaths = 2;
constexpr size_t kMaxRecords = 4096;

}  // namespace

absl::Status Refusals::Check(const Digest& key) {
  absl::MutexLock lock(&mu_);
  auto it = records_.find(key);
  if (it == records_.end()) return absl::OkStatus();
  absl::Duration left = it->second.until - absl::Now();
  if (left <= absl::ZeroDuration()) {
    records_.erase(it);
    return absl::OkStatus();
  }
  if (!it->second.refused) return absl::OkStatus();
  v1::ErrorDetail detail;
  detail.set_reason(v1::ErrorDetail::REASON_WORKER_CRASHED);
  detail.set_retry_after_ms(absl::ToInt64Milliseconds(left));
  return WithDetail(absl::FailedPreconditionError(absl::StrCat(
                        "this graph ended ", it->second.deaths,
                        it->second.deaths == 1 ? " compile process" : " compile processes",
                        "; it is refused for ",
                        absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))), " more")),
                    detail);
}

void Refusals::RecordDeaths(const Digest& key, int deaths) {
  if (deaths > 0) Add(key, deaths, /*refuse=*/false);
}

void Refusals::Refuse(const Digest& key, int deaths) {
  Add(key, deaths, /*refuse=*/true);
}

void Refusals::Add(const Digest& key, int deaths, bool refuse) {
  absl::Time now = absl::Now();
  absl::MutexLock lock(&mu_);
  if (records_.size() >= kMaxRecords) {
    absl::erase_if(records_, [now](const auto& item) { return item.second.until < now; });
  }
  if (records_.size() >= kMaxRecords && !records_.contains(key)) return;
  Record& record = records_[key];
  if (record.until < now) record = {};
  record.deaths += deaths;
  record.refused |= refuse || record.deaths >= kMaxDeaths;
  record.until = now + period_;
}

void Refusals::Forget(const Digest& key) {
  absl::MutexLock lock(&mu_);
  records_.erase(key);
}

int64_t Refusals::Clear() {
  absl::Time now = absl::Now();
  absl::MutexLock lock(&mu_);
  int64_t refused = 0;
  for (const auto& [key, record] : records_) {
    refused += record.refused && record.until > now;
  }
  records_.clear();
  return refused;
}

}  // namespace kiln::server
