// `kiln cache`: looks at the server's cache, and looks after it.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/bundle.h"
#include "client/cli/command.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/signing.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

constexpr size_t kRecordBytes = 1 << 20;

Outcome ListEntries(Client& client, const Args& args) {
  absl::StatusOr<int64_t> limit = args.GetInt("--limit", 0, 1, 1000000);
  if (!limit.ok()) return Usage(limit.status());
  auto entries = client.ListCache(args.Get("--kind", ""), static_cast<int>(*limit));
  if (!entries.ok()) return Failed(entries.status());
  if (args.Has("--json")) {
    PrintJson(*entries);
    return Ok();
  }
  for (const v1::CacheEntry& entry : entries->entries()) {
    absl::Time used = absl::FromUnixMillis(entry.last_used_unix_ms());
    std::printf("%-11s %s %10lld bytes  %s%s\n", entry.kind().c_str(), entry.key().c_str(),
                static_cast<long long>(entry.size_bytes()),
                absl::FormatTime("%Y-%m-%d %H:%M:%S", used, absl::LocalTimeZone()).c_str(),
                entry.pinned() ? "  pinned" : "");
  }
  return Ok();
}

Outcome Verify(Client& client, const Args& args) {
  auto result = client.VerifyCache();
  if (!result.ok()) return Failed(result.status());
  if (args.Has("--json")) {
    PrintJson(*result);
  } else {
    std::printf("checked %lld entries, %lld corrupt\n", static_cast<long long>(result->checked()),
                static_cast<long long>(result->corrupt()));
  }
  if (result->corrupt() == 0) return Ok();
  return Failed(absl::DataLossError(
      absl::StrCat(result->corrupt(), " entries are corrupt; they will be compiled again")));
}

Outcome Clear(Client& client, const Args& args) {
  auto removed = client.ClearCache(args.Get("--kind", ""));
  if (!removed.ok()) return Failed(removed.status());
  std::printf(args.Has("--json") ? "{\"removed\": %lld}\n" : "removed %lld entries\n",
              static_cast<long long>(*removed));
  return Ok();
}

Outcome Stat(Client& client, const Args& args) {
  auto info = client.GetServerInfo();
  if (!info.ok()) return Failed(info.status());
  if (args.Has("--json")) {
    v1::ServerInfo caches;
    *caches.mutable_caches() = info->caches();
    PrintJson(caches);
  } else {
    PrintCaches(*info);
  }
  return Ok();
}

// What follows the action's name.
std::vector<std::string> Rest(const Args& args) {
  return {args.positional().begin() + 1, args.positional().end()};
}

void PrintCount(const Args& args, const char* name, int64_t count, const char* sentence) {
  if (args.Has("--json")) {
    std::printf("{\"%s\": %lld}\n", name, static_cast<long long>(count));
  } else {
    std::printf("%s %lld entries\n", sentence, static_cast<long long>(count));
  }
}

Outcome SetPinned(Client& client, const Args& args, bool pinned) {
  auto changed = client.PinCache(Rest(args).front(), pinned);
  if (!changed.ok()) return Failed(changed.status());
  PrintCount(args, "changed", *changed, pinned ? "pinned" : "unpinned");
  return Ok();
}

Outcome Pin(Client& client, const Args& args) {
  return SetPinned(client, args, true);
}

Outcome Unpin(Client& client, const Args& args) {
  return SetPinned(client, args, false);
}

Outcome Remove(Client& client, const Args& args) {
  auto removed = client.RemoveCache(Rest(args).front());
  if (!removed.ok()) return Failed(removed.status());
  PrintCount(args, "removed", *removed, "removed");
  return Ok();
}

Outcome Export(Client& client, const Args& args) {
  std::vector<std::string> rest = Rest(args);
  v1::ExportCacheRequest request;
  request.set_kind(args.Get("--kind", ""));
  for (size_t i = 1; i < rest.size(); ++i) request.add_keys(rest[i]);
  auto bundle = BundleWriter::Create(rest.front());
  if (!bundle.ok()) return Failed(bundle.status());
  BundleWriter& writer = **bundle;
  absl::Status exported = client.ExportCache(
      request, [&writer](const v1::CacheRecord& record) { return writer.Add(record); });
  if (!exported.ok()) return Failed(exported);
  if (writer.entries() == 0 && request.keys_size() > 0) {
    return Failed(absl::NotFoundError("no entry's key begins so; nothing was written"));
  }
  if (absl::Status finished = writer.Finish(); !finished.ok()) return Failed(finished);
  std::printf(args.Has("--json") ? "{\"exported\": %lld, \"size_bytes\": %lld}\n"
                                 : "exported %lld entries in %lld bytes\n",
              static_cast<long long>(writer.entries()),
              static_cast<long long>(writer.size_bytes()));
  return Ok();
}

// Cuts the entries of a bundle into the records of a call.
class RecordSource {
 public:
  RecordSource(BundleReader& reader, std::string kind, std::vector<std::string> keys)
      : reader_(reader), kind_(std::move(kind)), keys_(std::move(keys)) {}

  bool Next(v1::CacheRecord& record) {
    record.Clear();
    if (!entry_) {
      do {
        entry_ = reader_.Next();
        if (!entry_) return false;
      } while ((!kind_.empty() && entry_->kind != kind_) || !IsTrusted());
      offset_ = 0;
      record.set_kind(entry_->kind);
      record.set_key(entry_->key);
      record.set_digest(std::string(entry_->digest.view()));
      record.set_total_bytes(static_cast<int64_t>(entry_->bytes.size()));
    }
    record.set_data(entry_->bytes.substr(offset_, kRecordBytes));
    offset_ += record.data().size();
    if (offset_ == entry_->bytes.size()) entry_.reset();
    return true;
  }

  int refused() const { return refused_; }

 private:
  bool IsTrusted() {
    const absl::Status signer = CheckSigner(*entry_, keys_);
    if (signer.ok()) return true;
    // The first says it; there may be thousands.
    if (refused_++ == 0) {
      std::fprintf(stderr, "kiln: %s\n", std::string(signer.message()).c_str());
    }
    return false;
  }

  BundleReader& reader_;
  const std::string kind_;               // of the entries to send; empty: all
  const std::vector<std::string> keys_;  // whose entries are sent
  int refused_ = 0;
  std::optional<BundleEntry> entry_;
  size_t offset_ = 0;
};

// The server's own, and those of --signed-by.
absl::StatusOr<std::vector<std::string>> TrustedKeys(Client& client, const Args& args) {
  KILN_ASSIGN_OR_RETURN(v1::ServerInfo info, client.GetServerInfo());
  std::vector<std::string> keys = {info.public_key()};
  for (absl::string_view text :
       absl::StrSplit(args.Get("--signed-by", ""), ',', absl::SkipWhitespace())) {
    KILN_ASSIGN_OR_RETURN(std::string key, ParsePublicKey(absl::StripAsciiWhitespace(text)));
    keys.push_back(std::move(key));
  }
  return keys;
}

Outcome Import(Client& client, const Args& args) {
  const std::string path = Rest(args).front();
  int damaged = 0;
  auto reader = BundleReader::Open(path, [&](const std::string& sentence) {
    ++damaged;
    std::fprintf(stderr, "kiln: %s: %s\n", path.c_str(), sentence.c_str());
  });
  if (!reader.ok()) return Failed(reader.status());
  auto keys = TrustedKeys(client, args);
  if (!keys.ok()) return Failed(keys.status());
  RecordSource source(**reader, args.Get("--kind", ""), *std::move(keys));
  auto imported =
      client.ImportCache([&source](v1::CacheRecord& record) { return source.Next(record); });
  if (!imported.ok()) return Failed(imported.status());
  if (args.Has("--json")) {
    PrintJson(*imported);
  } else {
    std::printf("imported %lld entries, %lld were there already\n",
                static_cast<long long>(imported->imported()),
                static_cast<long long>(imported->present()));
  }
  if (source.refused() > 0) {
    return Failed(absl::UnauthenticatedError(absl::StrCat(
        source.refused(), " entries of '", path, "' are signed by nobody that is trusted")));
  }
  if (damaged == 0) return Ok();
  return Failed(absl::DataLossError(absl::StrCat("'", path, "' is damaged in ", damaged,
                                                 damaged == 1 ? " place" : " places",
                                                 ", named above; the rest was imported")));
}

struct Action {
  absl::string_view name;
  absl::string_view arguments;
  size_t least_arguments;
  size_t most_arguments;
  Outcome (*run)(Client& client, const Args& args);
};

constexpr size_t kMany = 10000;
constexpr Action kActions[] = {
    {"ls", "", 0, 0, ListEntries},    {"stat", "", 0, 0, Stat},
    {"verify", "", 0, 0, Verify},     {"clear", "", 0, 0, Clear},
    {"pin", "KEY", 1, 1, Pin},        {"unpin", "KEY", 1, 1, Unpin},
    {"rm", "KEY", 1, 1, Remove},      {"export", "FILE [KEY...]", 1, kMany, Export},
    {"import", "FILE", 1, 1, Import},
};

std::string ActionNames() {
  return absl::StrJoin(kActions, ", ", [](std::string* out, const Action& action) {
    absl::StrAppend(out, action.name);
  });
}

}  // namespace

Outcome RunCache(const Args& args) {
  if (args.positional().empty()) {
    return Usage(absl::StrCat("kiln cache takes one of ", ActionNames()));
  }
  auto kind = args.GetChoice("--kind", "", {"", "artifact", "kernel", "description", "choice"});
  if (!kind.ok()) return Usage(kind.status());
  const std::string& name = args.positional().front();
  const Action* action = std::find_if(std::begin(kActions), std::end(kActions),
                                      [&](const Action& a) { return a.name == name; });
  if (action == std::end(kActions)) {
    return Usage(absl::StrCat("kiln cache has no '", name, "'; it has ", ActionNames()));
  }
  size_t arguments = args.positional().size() - 1;
  if (arguments < action->least_arguments || arguments > action->most_arguments) {
    return Usage(absl::StrCat("kiln cache ", name, " takes ",
                              action->arguments.empty() ? "no arguments" : action->arguments));
  }
  auto client = MakeClient(args, false);
  if (!client.ok()) return Usage(client.status());
  return action->run(**client, args);
}

}  // namespace kiln::cli
