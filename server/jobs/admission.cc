#include "server/jobs/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"
#include "server/jobs/busy.h"

namespace kiln::server {
namespace {

// Calls come and go within this; requests wait for a compile or two.
constexpr absl::Duration kRetryCall = absl::Milliseconds(250);
constexpr absl::Duration kRetryBytes = absl::Seconds(1);

absl::Status Draining() {
  v1::ErrorDetail detail;
  detail.set_reason(v1::ErrorDetail::REASON_DRAINING);
  return WithDetail(absl::UnavailableError("the server is about to stop"), detail);
}

}  // namespace

Admission::Place& Admission::Place::operator=(Place&& other) noexcept {
  if (this == &other) return *this;
  Leave();
  owner_ = std::exchange(other.owner_, nullptr);
  kind_ = other.kind_;
  bytes_ = other.bytes_;
  interpreting_tenant_ = std::move(other.interpreting_tenant_);
  return *this;
}

void Admission::Place::Leave() {
  Admission* owner = std::exchange(owner_, nullptr);
  if (owner == nullptr) return;
  absl::MutexLock lock(&owner->mu_);
  if (bytes_ > 0) {
    owner->bytes_ -= bytes_;
    return;
  }
  --owner->calls_[static_cast<size_t>(kind_)];
  if (kind_ != CallKind::kInterpret) return;
  auto it = owner->interprets_.find(interpreting_tenant_);
  if (--it->second == 0) owner->interprets_.erase(it);
}

absl::StatusOr<Admission::Place> Admission::Enter(CallKind kind, absl::string_view tenant) {
  Place place;
  place.kind_ = kind;
  absl::MutexLock lock(&mu_);
  if (closed_) last_sent_away_ = absl::Now();
  if (closed_ || (draining_ && kind == CallKind::kInterpret)) return Draining();
  int others = kind == CallKind::kFetch ? Fetching() : Working();
  if (others >= options_.max_calls) {
    metrics_.TenantRefused(tenant, "calls");
    return BusyError(absl::StrCat("the server is busy: ", others, " calls are under way"),
                     kRetryCall);
  }
  if (kind == CallKind::kInterpret) {
    place.interpreting_tenant_ = std::string(tenant);
    int& count = interprets_[place.interpreting_tenant_];
    if (count >= options_.tenant_max_interprets) {
      metrics_.TenantRefused(tenant, "interprets");
      return BusyError(
          absl::StrCat("the tenant '", tenant, "' has ", count, " graphs interpreted already"),
          kRetryBytes);
    }
    ++count;
  }
  ++calls_[static_cast<size_t>(kind)];
  place.owner_ = this;
  return place;
}

absl::StatusOr<Admission::Place> Admission::Hold(int64_t bytes, absl::string_view tenant) {
  Place place;
  if (bytes <= 0) return place;
  absl::MutexLock lock(&mu_);
  // One request is let in however large it is: gRPC bounds it.
  if (bytes_ > 0 && bytes_ + bytes > options_.max_request_bytes) {
    metrics_.TenantRefused(tenant, "bytes");
    return BusyError(absl::StrCat("the server is busy: requests of ", bytes_, " bytes wait"),
                     kRetryBytes);
  }
  bytes_ += bytes;
  place.bytes_ = bytes;
  place.owner_ = this;
  return place;
}

void Admission::StartDrain() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
}

void Admission::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  last_sent_away_ = absl::Now();
}

bool Admission::WaitUntilQuiet(absl::Duration quiet, absl::Duration timeout) {
  absl::Time deadline = absl::Now() + timeout;
  absl::MutexLock lock(&mu_);
  while (absl::Now() - last_sent_away_ < quiet) {
    if (absl::Now() > deadline) return false;
    const absl::Time before = last_sent_away_;
    auto moved = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return last_sent_away_ != before; };
    mu_.AwaitWithDeadline(absl::Condition(&moved), std::min(before + quiet, deadline));
  }
  return true;
}

bool Admission::WaitUntilWorkDone(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(this, &Admission::IsWorkDone), timeout);
}

bool Admission::WaitUntilEmpty(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(this, &Admission::IsEmpty), timeout);
}

}  // namespace kiln::server
