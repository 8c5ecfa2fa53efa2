#include "client/channels.h"

#include <grpcpp/grpcpp.h>
#include <openssl/crypto.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/credentials.h"
#include "client/remote.h"
#include "proto/base/status_macros.h"

namespace kiln {

void LetGoOfChannels();

namespace {

constexpr int kConnectMs = 3000;
constexpr int kKeepaliveMs = 10000;  // kilnd takes a ping every 5 s
constexpr int kKeepaliveTimeoutMs = 5000;
// Artifacts take more than HTTP/2's 64 KiB: room for most of them before the first acknowledgement,
// and few frames.
constexpr int kWindowBytes = 4 << 20;
constexpr int kFrameBytes = 1 << 20;
constexpr absl::Duration kMostExitWait = absl::Seconds(1);

struct Channels {
  absl::Mutex mu;
  std::map<std::string, std::weak_ptr<grpc::Channel>> by_key ABSL_GUARDED_BY(mu);
};

struct Holders {
  absl::Mutex mu;
  std::set<ChannelHolder*> all ABSL_GUARDED_BY(mu);
};

Channels& AllChannels() {
  static auto* channels = new Channels();  // never destroyed: threads may call at exit
  return *channels;
}

Holders& AllHolders() {
  static auto* holders = new Holders();  // never destroyed, likewise
  return *holders;
}

// That exit() runs.
std::atomic<bool> ending{false};

// That has gRPC's threads; 0: none yet.
std::atomic<pid_t> first_process{0};

// Counts the arguments of channels with TLS, of which each of gRPC's objects keeps a copy: nothing
// else says when the last of them is gone.
struct Live {
  absl::Mutex mu;
  int objects ABSL_GUARDED_BY(mu) = 0;
};

Live& AllLive() {
  static auto* live = new Live();  // never destroyed, likewise
  return *live;
}

void AddLive(int count) {
  absl::MutexLock lock(&AllLive().mu);
  AllLive().objects += count;
}

void* CopyLive(void* live) {
  AddLive(1);
  return live;
}

void DestroyLive(void*) {
  AddLive(-1);
}

int CompareLive(void* a, void* b) {
  return a < b ? -1 : static_cast<int>(a > b);
}

constexpr grpc_arg_pointer_vtable kLiveTable = {CopyLive, DestroyLive, CompareLive};

void EndChannels() {
  if (first_process.load() != getpid()) return;  // gRPC's threads are the parent's
  LetGoOfChannels();
  Live& live = AllLive();
  absl::MutexLock lock(&live.mu);
  const auto none = [&live]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(live.mu) { return live.objects == 0; };
  live.mu.AwaitWithTimeout(absl::Condition(&none), kMostExitWait);
}

// exit() calls first what was registered last: OpenSSL registers its own when it is first used.
void EndChannelsAtExit() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    OPENSSL_init_crypto(0, nullptr);
    std::atexit(EndChannels);
  });
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server,
                                           const Credentials& credentials, bool shared) {
  pid_t none = 0;
  first_process.compare_exchange_strong(none, getpid());
  EndChannelsAtExit();
  grpc::ChannelArguments arguments;
  if (credentials.UsesTls(server)) {
    arguments.SetPointerWithVtable("kiln.live", &AllLive(), &kLiveTable);
  }
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, shared ? 0 : 1);
  // First use counts: no look-ups of proxies, service configurations or balancers.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // retry.h does them
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);  // the limit of one attempt
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
  arguments.SetMaxReceiveMessageSize(16 << 20);
  arguments.SetMaxSendMessageSize(-1);
  // The name that a certificate must have is the one that the user gave, not what it resolves to.
  const std::string address = SplitScheme(server).address;
  if (credentials.UsesTls(server) && !absl::StartsWith(address, "unix:") &&
      !absl::StartsWith(address, "dns:")) {
    arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, address);
  }
  return grpc::CreateCustomChannel(GrpcTarget(server).value_or(address),
                                   credentials.ForServer(server), arguments);
}

}  // namespace

std::shared_ptr<grpc::Channel> SharedChannel(const std::string& server,
                                             const Credentials& credentials) {
  const std::string key =
      absl::StrCat(SplitScheme(server).address, "\n", credentials.UsesTls(server), "\n",
                   credentials.connection_key());
  Channels& channels = AllChannels();
  absl::MutexLock lock(&channels.mu);
  std::weak_ptr<grpc::Channel>& slot = channels.by_key[key];
  std::shared_ptr<grpc::Channel> channel = slot.lock();
  if (channel == nullptr) {
    channel = MakeChannel(server, credentials, /*shared=*/true);
    slot = channel;
  }
  return channel;
}

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& server,
                                          const Credentials& credentials) {
  return MakeChannel(server, credentials, /*shared=*/false);
}

absl::Status AwaitReconnection(grpc::Channel& channel, absl::Duration limit,
                               const Patience& patience) {
  const absl::Time end = absl::Now() + limit;
  for (absl::Time now = absl::Now(); now < end; now = absl::Now()) {
    const grpc_connectivity_state before = channel.GetState(/*try_to_connect=*/false);
    channel.WaitForStateChange(before, absl::ToChronoTime(std::min(end, now + kPatience)));
    const bool failed = before == GRPC_CHANNEL_TRANSIENT_FAILURE;
    if (failed && channel.GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) break;
    if (patience != nullptr && absl::Now() < end) KILN_RETURN_IF_ERROR(patience());
  }
  return absl::OkStatus();
}

void LetGoOfChannels() {
  ending = true;
  Holders& holders = AllHolders();
  absl::MutexLock lock(&holders.mu);
  for (ChannelHolder* holder : holders.all) holder->let_go_();
}

int LiveChannelObjects() {
  absl::MutexLock lock(&AllLive().mu);
  return AllLive().objects;
}

ChannelHolder::ChannelHolder(std::function<void()> let_go) : let_go_(std::move(let_go)) {
  Holders& holders = AllHolders();
  absl::MutexLock lock(&holders.mu);
  holders.all.insert(this);
}

ChannelHolder::~ChannelHolder() {
  Holders& holders = AllHolders();
  absl::MutexLock lock(&holders.mu);
  holders.all.erase(this);
}

absl::Status CheckChannelsHere() {
  if (ending) return absl::FailedPreconditionError("this process is ending");
  const pid_t process = first_process.load();
  if (process == 0 || process == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked from one that had called the server, and gRPC cannot go on in it; "
      "compile before the fork, or start workers by \"spawn\" or \"forkserver\"");
}

}  // namespace kiln
