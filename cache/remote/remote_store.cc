#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cache/remote/entry_format.h"
#include "cache/remote/log_limit.h"
#include "cache/remote/remote_tier.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

constexpr absl::string_view kTier = "remote";
// That are asked for at once: bounds what their answers take before they are checked.
constexpr size_t kBatch = 64;
constexpr int64_t kPiecesReadAtOnce = 16;
constexpr size_t kMostStrangers = 16;        // that the log tells of
constexpr int64_t kPiecesWrittenAtOnce = 4;  // within the time of one write

bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

class RemoteStore final : public Store {
 public:
  RemoteStore(RedisClient* client, const RemoteTierOptions& options, WriteQueue* queue)
      : client_(*client), options_(options), queue_(*queue) {
    options_.trusted_keys.push_back(options_.signing_key->public_key());
  }

  absl::StatusOr<Found> Get(const Key& key) override {
    const SteadyTime start = std::chrono::steady_clock::now();
    absl::StatusOr<EntryPtr> entry = Read(key);
    options_.observer.done("get", Answered(entry),
                           absl::FromChrono(std::chrono::steady_clock::now() - start));
    return FoundOf(key, std::move(entry));
  }

  std::vector<absl::StatusOr<Found>> GetMany(absl::Span<const Key> keys) override {
    std::vector<absl::StatusOr<Found>> found;
    found.reserve(keys.size());
    while (found.size() < keys.size()) {
      const absl::Span<const Key> batch = keys.subspan(found.size(), kBatch);
      bool away = true;  // of all that were asked
      for (absl::StatusOr<EntryPtr>& entry : ReadBatch(batch)) {
        away = away && IsAway(entry.status());
        found.push_back(FoundOf(keys[found.size()], std::move(entry)));
      }
      // A tier that stalls costs its time once.
      if (away) found.resize(keys.size(), absl::UnavailableError("the shared tier is away"));
    }
    return found;
  }

  absl::Status Put(const Key& key, const EntryPtr& entry) override {
    if (static_cast<int64_t>(entry->bytes.size()) > options_.max_entry_bytes) {
      options_.observer.written(WriteResult::kTooLarge);
      return absl::ResourceExhaustedError(absl::StrCat("a value of ", entry->bytes.size(),
                                                       " bytes is over the shared tier's limit of ",
                                                       options_.max_entry_bytes, " bytes"));
    }
    return queue_.Add(key, entry);
  }

  absl::Status Remove(const Key& key) override {
    queue_.Forget(key);
    const SteadyTime start = std::chrono::steady_clock::now();
    const std::string name = RemoteKeyName(key);
    absl::StatusOr<Reply> reply =
        client_.Run(name, {"DEL", name}, ReplyLimits{}, DeadlineIn(options_.read_timeout));
    const bool ok = reply.ok() && reply->type == Reply::Type::kInteger;
    options_.observer.done("remove", ok,
                           absl::FromChrono(std::chrono::steady_clock::now() - start));
    if (!ok && kept_entries_.Due()) {
      Log(LogLevel::kWarning, "the shared tier may still hold a removed entry",
          {{"key", key.digest.ToHex()},
           {"why",
            reply.ok() ? reply->text.substr(0, 200) : std::string(reply.status().message())}});
    }
    return absl::OkStatus();
  }

  void ForEach(const std::function<void(const EntryInfo&)>&) override {}
  std::vector<Usage> Usages() override { return {}; }

 private:
  // In time and in sense.
  static bool Answered(const absl::StatusOr<EntryPtr>& entry) {
    return entry.ok() || absl::IsNotFound(entry.status()) ||
           absl::IsPermissionDenied(entry.status());
  }

  absl::StatusOr<Found> FoundOf(const Key& key, absl::StatusOr<EntryPtr> entry) {
    if (entry.ok()) return Found{*std::move(entry), kTier};
    if (absl::IsPermissionDenied(entry.status())) {
      TellOfStranger(std::string(entry.status().message()));
      return entry.status();
    }
    if (absl::IsDataLoss(entry.status()) && bad_entries_.Due()) {
      Log(LogLevel::kWarning, "the shared tier holds a bad entry, which counts as a miss",
          {{"kind", std::string(EntryKindName(key.kind))},
           {"key", key.digest.ToHex()},
           {"why", std::string(entry.status().message())}});
    }
    return entry.status();
  }

  // Once for each key: what is wrong is how servers are set up, and no entry.
  void TellOfStranger(const std::string& signer) {
    {
      absl::MutexLock lock(&mu_);
      if (strangers_.size() >= kMostStrangers || !strangers_.insert(signer).second) return;
    }
    Log(LogLevel::kWarning,
        "entries of the shared tier that another server signed count as misses: give both servers "
        "the same --signing-key, or this one that server's key in --remote-trusted-keys",
        {{"signed_by", signer}, {"own_key", FormatPublicKey(options_.signing_key->public_key())}});
  }

  // Counts as one read.
  std::vector<absl::StatusOr<EntryPtr>> ReadBatch(absl::Span<const Key> keys) {
    const SteadyTime start = std::chrono::steady_clock::now();
    std::vector<std::string> names;
    std::vector<Command> commands;
    for (const Key& key : keys) names.push_back(RemoteKeyName(key));
    for (const std::string& name : names) commands.push_back({"GET", name});
    std::vector<absl::StatusOr<Reply>> replies = RunReads(commands);
    std::vector<absl::StatusOr<EntryPtr>> entries;
    entries.reserve(keys.size());
    bool ok = true;
    for (size_t i = 0; i < keys.size(); ++i) {
      // One that is too large hides those behind it.
      const bool hidden = absl::IsResourceExhausted(replies[i].status());
      entries.push_back(hidden ? Read(keys[i]) : EntryOf(keys[i], std::move(replies[i])));
      ok = ok && Answered(entries.back());
    }
    options_.observer.done("get", ok, absl::FromChrono(std::chrono::steady_clock::now() - start));
    return entries;
  }

  std::vector<absl::StatusOr<Reply>> RunReads(const std::vector<Command>& commands) {
    ReplyLimits limits = EntryReplyLimits();
    limits.time_per_reply = options_.read_timeout;
    return client_.RunEach(commands, limits, DeadlineIn(options_.read_timeout));
  }

  absl::StatusOr<EntryPtr> Read(const Key& key) {
    const std::string name = RemoteKeyName(key);
    return EntryOf(key, client_.Run(name, {"GET", name}, EntryReplyLimits(),
                                    DeadlineIn(options_.read_timeout)));
  }

  // `reply`: to GET of the key.
  absl::StatusOr<EntryPtr> EntryOf(const Key& key, absl::StatusOr<Reply> reply) {
    KILN_RETURN_IF_ERROR(reply.status());
    KILN_ASSIGN_OR_RETURN(RemoteValue value,
                          ValueOfReply(*std::move(reply), key, options_.trusted_keys));
    if (value.size_bytes > options_.max_entry_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("an entry of ", value.size_bytes, " bytes is over the limit"));
    }
    if (value.entry != nullptr) return value.entry;
    return ReadPieces(key, value);
  }

  absl::StatusOr<EntryPtr> ReadPieces(const Key& key, const RemoteValue& value) {
    std::string bytes;
    const int64_t count = PieceCount(value.size_bytes);
    for (int64_t first = 0; first < count; first += kPiecesReadAtOnce) {
      std::vector<std::string> names;
      for (int64_t i = first; i < std::min(count, first + kPiecesReadAtOnce); ++i) {
        names.push_back(PieceName(value.digest, i));
      }
      std::vector<Command> commands;
      for (const std::string& name : names) commands.push_back({"GET", name});
      for (const absl::StatusOr<Reply>& reply : RunReads(commands)) {
        KILN_RETURN_IF_ERROR(reply.status());
        KILN_RETURN_IF_ERROR(AddPiece(*reply, key, value, bytes));
      }
    }
    return EntryOfPieces(key, value, std::move(bytes));
  }

  RedisClient& client_;
  RemoteTierOptions options_;
  WriteQueue& queue_;
  absl::Mutex mu_;
  absl::flat_hash_set<std::string> strangers_ ABSL_GUARDED_BY(mu_);  // that the log has told of
  LogLimit bad_entries_;
  LogLimit kept_entries_;
};

struct Value {
  std::string name;
  absl::string_view bytes;
};

absl::Status SetValues(RedisClient& client, const RemoteTierOptions& options,
                       const std::vector<Value>& values) {
  std::string expiry_ms;
  if (options.expiry < absl::InfiniteDuration()) {
    expiry_ms = absl::StrCat(std::max<int64_t>(1, absl::ToInt64Milliseconds(options.expiry)));
  }
  std::vector<Command> commands;
  for (const Value& value : values) {
    Command& command = commands.emplace_back(Command{"SET", value.name, value.bytes});
    if (!expiry_ms.empty()) command.insert(command.end(), {"PX", expiry_ms});
  }
  ReplyLimits limits;
  limits.time_per_reply = options.write_timeout;
  for (const absl::StatusOr<Reply>& reply :
       client.RunEach(commands, limits, DeadlineIn(options.write_timeout))) {
    KILN_RETURN_IF_ERROR(reply.status());
    if (reply->type == Reply::Type::kStatus) continue;
    // Out of memory, read-only, no permission: trying again soon would not help.
    return absl::FailedPreconditionError(
        absl::StrCat("the shared tier refuses an entry: ", reply->text.substr(0, 200)));
  }
  return absl::OkStatus();
}

// The pieces first: whoever finds the key's value finds them too.
absl::Status SetEntry(RedisClient& client, const RemoteTierOptions& options, const Key& key,
                      const Entry& entry) {
  const absl::string_view bytes = entry.bytes;
  const int64_t count = PieceCount(static_cast<int64_t>(bytes.size()));
  for (int64_t first = 0; first < count; first += kPiecesWrittenAtOnce) {
    std::vector<Value> pieces;
    for (int64_t i = first; i < std::min(count, first + kPiecesWrittenAtOnce); ++i) {
      pieces.push_back({PieceName(entry.digest, i),
                        bytes.substr(static_cast<size_t>(i * kPieceBytes), kPieceBytes)});
    }
    KILN_RETURN_IF_ERROR(SetValues(client, options, pieces));
  }
  const std::string value = EncodeRemoteEntry(key, entry, *options.signing_key);
  return SetValues(client, options, {{RemoteKeyName(key), value}});
}

}  // namespace

absl::Status WriteRemoteEntry(RedisClient& client, const RemoteTierOptions& options, const Key& key,
                              const Entry& entry) {
  const SteadyTime start = std::chrono::steady_clock::now();
  absl::Status status = SetEntry(client, options, key, entry);
  options.observer.done("put", status.ok(),
                        absl::FromChrono(std::chrono::steady_clock::now() - start));
  static LogLimit refusals;
  if (absl::IsFailedPrecondition(status) && refusals.Due()) {
    Log(LogLevel::kWarning, "an entry is not shared",
        {{"key", key.digest.ToHex()}, {"why", std::string(status.message())}});
  }
  return status;
}

std::unique_ptr<Store> MakeRemoteStore(RedisClient* client, const RemoteTierOptions& options,
                                       WriteQueue* queue) {
  return std::make_unique<RemoteStore>(client, options, queue);
}

}  // namespace kiln::cache
