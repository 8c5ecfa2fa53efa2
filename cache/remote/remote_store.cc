#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
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
    return entry.ok() || absl::IsNotFound(entry.status());
  }

  absl::StatusOr<Found> FoundOf(const Key& key, absl::StatusOr<EntryPtr> entry) {
    if (entry.ok()) return Found{*std::move(entry), kTier};
    if (absl::IsDataLoss(entry.status()) && bad_entries_.Due()) {
      Log(LogLevel::kWarning, "the shared tier holds a bad entry, which counts as a miss",
          {{"kind", std::string(EntryKindName(key.kind))},
           {"key", key.digest.ToHex()},
           {"why", std::string(entry.status().message())}});
    }
    return entry.status();
  }

  // Counts as one read.
  std::vector<absl::StatusOr<EntryPtr>> ReadBatch(absl::Span<const Key> keys) {
    const SteadyTime start = std::chrono::steady_clock::now();
    std::vector<std::string> names;
    std::vector<Command> commands;
    for (const Key& key : keys) names.push_back(RemoteKeyName(key));
    for (const std::string& name : names) commands.push_back({"GET", name});
    ReplyLimits limits = EntryReplyLimits(options_.max_entry_bytes);
    limits.time_per_reply = options_.read_timeout;
    std::vector<absl::StatusOr<Reply>> replies =
        client_.RunEach(commands, limits, DeadlineIn(options_.read_timeout));
    std::vector<absl::StatusOr<EntryPtr>> entries;
    entries.reserve(keys.size());
    bool ok = true;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (replies[i].ok()) {
        entries.push_back(EntryOfReply(*std::move(replies[i]), keys[i], options_.trusted_keys));
      } else if (absl::IsResourceExhausted(replies[i].status())) {
        // One that is too large hides those behind it.
        entries.push_back(Read(keys[i]));
      } else {
        entries.push_back(replies[i].status());
      }
      ok = ok && Answered(entries.back());
    }
    options_.observer.done("get", ok, absl::FromChrono(std::chrono::steady_clock::now() - start));
    return entries;
  }

  absl::StatusOr<EntryPtr> Read(const Key& key) {
    const std::string name = RemoteKeyName(key);
    KILN_ASSIGN_OR_RETURN(
        Reply reply, client_.Run(name, {"GET", name}, EntryReplyLimits(options_.max_entry_bytes),
                                 DeadlineIn(options_.read_timeout)));
    return EntryOfReply(std::move(reply), key, options_.trusted_keys);
  }

  RedisClient& client_;
  RemoteTierOptions options_;
  WriteQueue& queue_;
  LogLimit bad_entries_;
  LogLimit kept_entries_;
};

absl::Status SetEntry(RedisClient& client, const RemoteTierOptions& options, const Key& key,
                      const Entry& entry) {
  const std::string name = RemoteKeyName(key);
  const std::string value = EncodeRemoteEntry(key, entry, *options.signing_key);
  Command command = {"SET", name, value};
  std::string expiry_ms;
  if (options.expiry < absl::InfiniteDuration()) {
    expiry_ms = absl::StrCat(std::max<int64_t>(1, absl::ToInt64Milliseconds(options.expiry)));
    command.push_back("PX");
    command.push_back(expiry_ms);
  }
  KILN_ASSIGN_OR_RETURN(
      Reply reply, client.Run(name, command, ReplyLimits{}, DeadlineIn(options.write_timeout)));
  if (reply.type == Reply::Type::kStatus) return absl::OkStatus();
  // Out of memory, read-only, no permission: trying again soon would not help.
  return absl::FailedPreconditionError(
      absl::StrCat("the shared tier refuses an entry: ", reply.text.substr(0, 200)));
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
