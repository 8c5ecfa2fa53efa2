#include "client/endpoints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/credentials.h"
#include "client/own_server.h"
#include "client/trust.h"
#include "kiln/v1/activity.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr int kRounds = 8;
constexpr int kRoundsOfStrangers = 2;

}  // namespace

Endpoints::Endpoints(std::vector<std::string> servers)
    : servers_(std::move(servers)), health_(servers_) {}

absl::StatusOr<std::unique_ptr<Endpoints>> Endpoints::Create(
    const std::string& servers, const std::shared_ptr<const Credentials>& credentials,
    const std::shared_ptr<Trust>& trust, const CallHeaders& headers) {
  if (servers.empty()) return CreateOwn(credentials, trust, headers);
  std::vector<std::string> names;
  for (absl::string_view part : absl::StrSplit(servers, ',')) {
    names.emplace_back(absl::StripAsciiWhitespace(part));
    KILN_RETURN_IF_ERROR(GrpcTarget(names.back()).status());
    KILN_RETURN_IF_ERROR(credentials->CheckServer(names.back()));
    if (std::count(names.begin(), names.end(), names.back()) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("server lists '", names.back(), "' more than once"));
    }
  }
  KILN_RETURN_IF_ERROR(CheckHeaders(headers));
  std::unique_ptr<Endpoints> out(new Endpoints(std::move(names)));
  for (const std::string& name : out->servers_) {
    out->endpoints_.push_back(std::make_shared<Endpoint>(name, credentials, trust, headers));
  }
  return out;
}

absl::StatusOr<std::unique_ptr<Endpoints>> Endpoints::CreateOwn(
    const std::shared_ptr<const Credentials>& credentials, const std::shared_ptr<Trust>& trust,
    const CallHeaders& headers) {
  KILN_RETURN_IF_ERROR(CheckHeaders(headers));
  auto own = std::make_shared<const OwnServer>(OwnServer::Locate());
  std::unique_ptr<Endpoints> out(new Endpoints({own->address()}));
  out->endpoints_.push_back(
      std::make_shared<Endpoint>(own->address(), credentials, trust, headers, own));
  return out;
}

int Endpoints::Rounds() const {
  const bool reached = std::any_of(endpoints_.begin(), endpoints_.end(),
                                   [](const auto& endpoint) { return endpoint->reached.load(); });
  return reached ? kRounds : kRoundsOfStrangers;
}

bool Endpoints::Settle(size_t server, absl::Time deadline, const absl::Status& status) {
  if (absl::IsCancelled(status)) {
    health_.Withdrew();
    return true;
  }
  const bool silent = Judge(status) == Verdict::kElsewhere;
  // The caller's time is up while a server that is there works for it: nobody's fault.
  const bool slow = absl::IsDeadlineExceeded(status) && absl::Now() >= deadline &&
                    endpoints_[server]->remote.Connected();
  if (silent && !slow) {
    health_.Failed(server, absl::Now());
    return false;
  }
  health_.Answered(server);
  endpoints_[server]->reached = true;
  return slow || Judge(status) == Verdict::kAnswer;
}

absl::Status Endpoints::Call(std::optional<uint64_t> affinity, absl::Time deadline,
                             const Attempt& attempt, int* retries, const Patience& patience) {
  const Health::Admission admission = health_.Begin(absl::Now());
  if (admission == Health::Admission::kRefused) {
    return health_.last_error();  // word for word, so that who warns once warns once
  }
  budget_.CountCall();
  absl::Status status;
  bool first = true;
  for (int round = 0;; ++round) {
    const std::vector<size_t> order = health_.Order(
        affinity, absl::Now(), [this](size_t i) { return endpoints_[i]->remote.Connected(); });
    for (size_t server : order) {
      if (!first && (absl::Now() >= deadline || !budget_.TakeRetry())) {
        health_.GaveUp(absl::Now(), status);
        return status;
      }
      if (!first && retries != nullptr) ++*retries;
      first = false;
      status = attempt(*endpoints_[server]);
      if (Settle(server, deadline, status)) return status;
      Log(LogLevel::kInfo, "a call goes on",
          {{"server", servers_[server]}, {"why", std::string(status.message())}});
      // The same server, and as often as it asks for that: the hint is its own budget.
      while (Judge(status) == Verdict::kLater) {
        const absl::Duration wait = Jittered(RetryAfter(status));
        if (absl::Now() + wait >= deadline) return status;
        if (absl::Status ended = SleepFor(wait, patience); !ended.ok()) {
          health_.Withdrew();
          return ended;
        }
        if (retries != nullptr) ++*retries;
        status = attempt(*endpoints_[server]);
        if (Settle(server, deadline, status)) return status;
      }
    }
    const absl::Duration pause = Backoff(round);
    const int rounds = admission == Health::Admission::kProbe ? 1 : Rounds();
    if (round + 1 >= rounds || absl::Now() + pause >= deadline) break;
    Remote& first_asked = endpoints_[order.front()]->remote;
    if (absl::Status ended = first_asked.AwaitReconnection(pause, patience); !ended.ok()) {
      health_.Withdrew();
      return ended;
    }
  }
  health_.GaveUp(absl::Now(), status);
  return status;
}

}  // namespace kiln
