#include "server/rpc/request_watch.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/log.h"

namespace kiln::server {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
// Of a call that is over: its headers, frames and padding, which no message has.
constexpr int64_t kOverheadBytes = 1024;
constexpr int64_t kManyCalls = 256;
// What still arrives of requests that were given up is not held against the next.
constexpr absl::Duration kSettle = absl::Seconds(1);
constexpr int64_t kLargeBytes = int64_t{1} << 20;
constexpr absl::Duration kTrimEvery = absl::Seconds(2);
constexpr absl::Duration kLogEvery = absl::Seconds(10);
constexpr absl::Duration kTrimFor = absl::Seconds(20);
constexpr absl::Duration kCheckEvery = absl::Seconds(1);

// "ipv4:10.0.0.1:41234" without the port.
absl::string_view AddressOf(absl::string_view peer) {
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace

struct RequestWatch::Connection {
  absl::flat_hash_set<Read*> reads;
  int64_t base = 0;         // of received bytes: what came before is done with
  int64_t whole_bytes = 0;  // of messages since then
  int64_t calls = 0;        // since then
  int64_t held_bytes = 0;   // at the last look
  absl::Time checked = absl::InfinitePast();
  absl::Time settles = absl::InfinitePast();
  bool gone = false;

  // A request that takes longer than a moment.
  bool HasSlow(absl::Time now) const {
    return std::any_of(reads.begin(), reads.end(),
                       [&](const Read* read) { return now - read->since >= kLookEvery; });
  }
};

RequestWatch::RequestWatch(RequestLimits limits) : limits_(std::move(limits)) {
  thread_ = std::thread([this] { Run(); });
}

RequestWatch::~RequestWatch() {
  stop_.Notify();
  thread_.join();
}

void RequestWatch::Begin(Read& read, RequestReader* reader, absl::string_view peer, bool another) {
  read.reader = reader;
  read.limit = another ? limits_.pause : limits_.time;
  read.since = absl::Now();
  read.refused = false;
  absl::MutexLock lock(&mu_);
  std::unique_ptr<Connection>& connection = connections_[peer];
  if (connection == nullptr) connection = std::make_unique<Connection>();
  read.connection = connection.get();
  connection->reads.insert(&read);
  ++counts_.incomplete;
}

bool RequestWatch::End(Read& read, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (read.refused) return false;
  Connection& connection = *read.connection;
  connection.reads.erase(&read);
  --counts_.incomplete;
  ++connection.calls;
  if (bytes < 0) {
    Unfinished(connection, absl::Now());
    return true;
  }
  connection.whole_bytes += bytes;
  if (bytes >= kLargeBytes) trim_until_ = absl::Now() + kTrimFor;
  return true;
}

void RequestWatch::Unfinished(Connection& connection, absl::Time now) {
  connection.settles = now + kSettle;
  if (connection.held_bytes >= kLargeBytes) trim_until_ = now + kTrimFor;
}

RequestCounts RequestWatch::Counts() {
  absl::MutexLock lock(&mu_);
  return counts_;
}

void RequestWatch::Run() {
  while (!stop_.WaitForNotificationWithTimeout(kLookEvery)) {
    const absl::Time now = absl::Now();
    Look(now);
    LogRefusals(now, Counts());
    GiveBackMemory(now);
  }
}

void RequestWatch::Look(absl::Time now) {
  Refusals refusals;
  {
    absl::MutexLock lock(&mu_);
    int64_t held_bytes = 0;
    for (auto& [peer, connection] : connections_) {
      LookAt(peer, *connection, now);
      RefuseSlow(*connection, now, refusals);
      if (connection->held_bytes > limits_.connection_bytes) {
        RefuseAll(*connection, now, refusals);
      }
      held_bytes += connection->held_bytes;
    }
    counts_.incomplete_bytes = RefuseMost(held_bytes, now, refusals);
    absl::erase_if(connections_, [](const auto& entry) { return entry.second->gone; });
  }
  for (const auto& [reader, why] : refusals) reader->Refuse(why);
}

void RequestWatch::LookAt(absl::string_view peer, Connection& connection, absl::Time now) {
  connection.held_bytes = 0;
  const bool quiet = connection.reads.empty();
  if (quiet && now - connection.checked < kCheckEvery && connection.calls < kManyCalls &&
      now > connection.settles) {
    return;
  }
  if (!quiet && !connection.HasSlow(now)) return;
  const std::optional<int64_t> received =
      limits_.received_bytes ? limits_.received_bytes(peer) : std::nullopt;
  connection.gone = quiet && !received;
  if (!received) return;
  if (quiet) {
    connection.checked = now;
    connection.base = *received;
    connection.whole_bytes = 0;
    connection.calls = 0;
    return;
  }
  const int64_t done = connection.base + connection.whole_bytes + connection.calls * kOverheadBytes;
  connection.held_bytes = std::max<int64_t>(0, *received - done);
}

void RequestWatch::RefuseSlow(Connection& connection, absl::Time now, Refusals& out) {
  for (auto it = connection.reads.begin(); it != connection.reads.end();) {
    Read& read = **it;
    if (now - read.since < read.limit) {
      ++it;
      continue;
    }
    connection.reads.erase(it++);
    Refuse(read,
           absl::StrCat("the request did not come whole within ", absl::FormatDuration(read.limit)),
           out);
    ++counts_.refused_time;
    Unfinished(connection, now);
  }
}

// Those that take longer than a moment: nothing is known of the others yet.
void RequestWatch::RefuseAll(Connection& connection, absl::Time now, Refusals& out) {
  for (auto it = connection.reads.begin(); it != connection.reads.end();) {
    Read& read = **it;
    if (now - read.since < kLookEvery) {
      ++it;
      continue;
    }
    connection.reads.erase(it++);
    Refuse(read,
           absl::StrCat("requests that have not come whole hold too many bytes, ",
                        connection.held_bytes, " of this connection"),
           out);
    ++counts_.refused_bytes;
  }
  Unfinished(connection, now);
  connection.held_bytes = 0;
}

int64_t RequestWatch::RefuseMost(int64_t held_bytes, absl::Time now, Refusals& out) {
  if (held_bytes <= limits_.bytes) return held_bytes;
  absl::flat_hash_map<absl::string_view, int64_t> of_address;
  for (const auto& [peer, connection] : connections_) {
    of_address[AddressOf(peer)] += connection->held_bytes;
  }
  while (held_bytes > limits_.bytes) {
    Connection* most = nullptr;
    int64_t* address_bytes = nullptr;
    for (const auto& [peer, connection] : connections_) {
      if (connection->held_bytes == 0) continue;
      int64_t& bytes = of_address[AddressOf(peer)];
      if (most == nullptr ||
          std::pair(bytes, connection->held_bytes) > std::pair(*address_bytes, most->held_bytes)) {
        most = connection.get();
        address_bytes = &bytes;
      }
    }
    if (most == nullptr) break;
    held_bytes -= most->held_bytes;
    *address_bytes -= most->held_bytes;
    RefuseAll(*most, now, out);
  }
  return held_bytes;
}

void RequestWatch::Refuse(Read& read, std::string why, Refusals& out) {
  read.refused = true;
  --counts_.incomplete;
  read.reader->AwaitRefusal();
  out.emplace_back(read.reader, std::move(why));
}

void RequestWatch::LogRefusals(absl::Time now, const RequestCounts& counts) {
  const int64_t refused = counts.refused_bytes + counts.refused_time;
  if (refused == logged_refusals_ || now - logged_ < kLogEvery) return;
  Log(LogLevel::kWarning, "requests that did not come whole were refused",
      {{"count", refused - logged_refusals_},
       {"for_bytes", counts.refused_bytes},
       {"for_time", counts.refused_time}});
  logged_refusals_ = refused;
  logged_ = now;
}

// What large messages leave behind stays with the allocator otherwise. Not while they come.
void RequestWatch::GiveBackMemory(absl::Time now) {
  {
    absl::MutexLock lock(&mu_);
    if (now > trim_until_ || now - trimmed_ < kTrimEvery) return;
  }
  malloc_trim(0);
  trimmed_ = absl::Now();
}

}  // namespace kiln::server
