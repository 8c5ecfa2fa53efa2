#include "cache/remote/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <cstring>
#include <string>
#include <system_error>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace kiln::cache {
namespace {

constexpr absl::Duration kGoodFor = absl::Seconds(30);

using Addresses = std::vector<SocketAddress>;

struct HostState {
  bool looking_up = false;
  int64_t answers = 0;
  absl::Status last = absl::UnavailableError("not looked up yet");
  Addresses addresses;  // of the last answer that had any; without a port
  SteadyTime fresh_until;
};

void SetPort(SocketAddress& address, int port) {
  const uint16_t in_network_order = htons(static_cast<uint16_t>(port));
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = in_network_order;
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = in_network_order;
  }
}

absl::StatusOr<Addresses> LookUp(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve '", host, "': ", gai_strerror(error)));
  }
  Addresses addresses;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.size_bytes = at->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  return addresses;
}

}  // namespace

struct Resolver::State {
  absl::Mutex mu;
  absl::flat_hash_map<std::string, HostState> hosts ABSL_GUARDED_BY(mu);

  static void Run(const std::shared_ptr<State>& state, const std::string& host) {
    absl::StatusOr<Addresses> found = LookUp(host, AI_ADDRCONFIG);
    absl::MutexLock lock(&state->mu);
    HostState& known = state->hosts[host];
    known.looking_up = false;
    ++known.answers;
    known.last = found.status();
    if (found.ok() && !found->empty()) {
      known.addresses = *std::move(found);
      known.fresh_until = DeadlineIn(kGoodFor);
    }
  }

  static void Start(const std::shared_ptr<State>& state, const std::string& host)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state->mu) {
    HostState& known = state->hosts[host];
    if (known.looking_up) return;
    try {
      std::thread([state, host] { Run(state, host); }).detach();
      known.looking_up = true;
    } catch (const std::system_error&) {
      known.last = absl::UnavailableError("no thread for a look-up of a host's name");
      ++known.answers;
    }
  }
};

Resolver::Resolver() : state_(std::make_shared<State>()) {}

absl::StatusOr<Addresses> Resolver::Resolve(const Endpoint& endpoint, SteadyTime deadline) {
  absl::StatusOr<Addresses> numeric = LookUp(endpoint.host, AI_NUMERICHOST);
  Addresses addresses;
  if (numeric.ok()) {
    addresses = *std::move(numeric);
  } else {
    State& state = *state_;
    absl::MutexLock lock(&state.mu);
    HostState& first = state.hosts[endpoint.host];
    if (TimeLeft(first.fresh_until) <= absl::ZeroDuration()) {
      const int64_t before = first.answers;
      State::Start(state_, endpoint.host);
      auto answered = [&] {
        state.mu.AssertReaderHeld();
        return state.hosts.at(endpoint.host).answers != before;
      };
      if (state.hosts[endpoint.host].addresses.empty()) {
        state.mu.AwaitWithTimeout(absl::Condition(&answered), TimeLeft(deadline));
      }
      const HostState& known = state.hosts[endpoint.host];
      if (known.addresses.empty() && known.answers == before) {
        return absl::DeadlineExceededError(
            absl::StrCat("the name service does not answer for '", endpoint.host, "'"));
      }
      if (known.addresses.empty()) return known.last;
    }
    addresses = state.hosts[endpoint.host].addresses;
  }
  for (SocketAddress& address : addresses) SetPort(address, endpoint.port);
  return addresses;
}

}  // namespace kiln::cache
