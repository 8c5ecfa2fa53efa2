#include "client/health.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "proto/base/digest.h"
#include "proto/base/scramble.h"

namespace kiln {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kMostPause = absl::Seconds(30);

absl::Duration Pause(int failures) {
  return std::min(kMostPause, kFirstPause * (1 << std::min(failures - 1, 10)));
}

}  // namespace

Health::Health(const std::vector<std::string>& servers) {
  absl::MutexLock lock(&mu_);
  for (const std::string& name : servers) {
    Server& server = servers_.emplace_back();
    std::memcpy(&server.hash, Sha256(name).view().data(), sizeof(server.hash));
  }
}

Health::Admission Health::Begin(absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (gave_up_ == 0) return Admission::kUsual;
  if (now < closed_until_ || probing_) return Admission::kRefused;
  probing_ = true;
  return Admission::kProbe;
}

void Health::GaveUp(absl::Time now, const absl::Status& error) {
  absl::MutexLock lock(&mu_);
  // Calls that began together and fail together count as one.
  if (gave_up_ == 0 || probing_) ++gave_up_;
  probing_ = false;
  closed_until_ = now + Pause(gave_up_);
  last_error_ = error;
}

void Health::Withdrew() {
  absl::MutexLock lock(&mu_);
  probing_ = false;
}

absl::Status Health::last_error() const {
  absl::MutexLock lock(&mu_);
  return last_error_;
}

std::vector<size_t> Health::Order(std::optional<uint64_t> affinity, absl::Time now,
                                  const std::function<bool(size_t)>& connected) {
  std::vector<Server> servers;
  {
    absl::MutexLock lock(&mu_);
    servers = servers_;
  }
  std::vector<std::tuple<bool, uint64_t, size_t>> order;
  for (size_t i = 0; i < servers.size(); ++i) {
    const bool left_out =
        servers[i].failures > 0 && (now < servers[i].left_out_until || !connected(i));
    order.emplace_back(left_out, affinity ? Scramble(*affinity ^ servers[i].hash) : i, i);
  }
  std::sort(order.begin(), order.end());
  std::vector<size_t> out;
  for (const auto& [left_out, rank, server] : order) out.push_back(server);
  return out;
}

void Health::Failed(size_t server, absl::Time now) {
  absl::MutexLock lock(&mu_);
  Server& s = servers_[server];
  // Several calls that one failure ends count once.
  if (now >= s.left_out_until) ++s.failures;
  s.left_out_until = now + Pause(s.failures);
}

void Health::Answered(size_t server) {
  absl::MutexLock lock(&mu_);
  servers_[server].failures = 0;
  servers_[server].left_out_until = absl::InfinitePast();
  gave_up_ = 0;
  probing_ = false;
}

}  // namespace kiln
