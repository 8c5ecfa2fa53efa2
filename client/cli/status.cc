// `kiln status` and `kiln cache`: questions to the server.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "kiln/v1/compile_service.pb.h"

namespace kiln::cli {
namespace {

std::string TargetNames(const v1::ServerInfo& info) {
  std::vector<std::string> names;
  for (int target : info.targets())
    names.push_back(v1::Target_Name(static_cast<v1::Target>(target)));
  return absl::StrJoin(names, ", ");
}

void PrintCaches(const v1::ServerInfo& info) {
  for (const v1::CacheInfo& cache : info.caches()) {
    std::printf("cache      %-9s %-7s %8lld entries %12lld bytes\n", cache.kind().c_str(),
                cache.tier().c_str(), static_cast<long long>(cache.entries()),
                static_cast<long long>(cache.size_bytes()));
  }
}

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
    std::printf("%-9s %s %10lld bytes  %s\n", entry.kind().c_str(), entry.key().c_str(),
                static_cast<long long>(entry.size_bytes()),
                absl::FormatTime("%Y-%m-%d %H:%M:%S", used, absl::LocalTimeZone()).c_str());
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

}  // namespace

Outcome RunStatus(const Args& args) {
  if (!args.positional().empty()) return Usage("kiln status takes no arguments");
  auto client = MakeClient(args, false);
  if (!client.ok()) return Usage(client.status());
  auto info = (*client)->GetServerInfo();
  if (!info.ok()) return Failed(info.status());
  if (args.Has("--json")) {
    PrintJson(*info);
    return Ok();
  }
  std::printf("server     %s, %s\n", (*client)->server().c_str(),
              info->draining() ? "draining" : "serving");
  std::printf("version    %s, compiler %s\n", info->version().c_str(),
              info->compiler_build().c_str());
  std::printf("toolchain  %s\n", info->toolchain().c_str());
  std::printf("targets    %s\n", TargetNames(*info).c_str());
  std::printf("workers    %d; jobs: %d running, %d queued\n", info->workers(), info->jobs_running(),
              info->jobs_queued());
  PrintCaches(*info);
  return Ok();
}

Outcome RunCache(const Args& args) {
  if (args.positional().size() != 1)
    return Usage("kiln cache takes one of ls, stat, verify, clear");
  auto kind = args.GetChoice("--kind", "", {"", "artifact", "kernel"});
  if (!kind.ok()) return Usage(kind.status());
  const std::string& what = args.positional().front();
  Outcome (*action)(Client&, const Args&) = what == "ls"       ? ListEntries
                                            : what == "stat"   ? Stat
                                            : what == "verify" ? Verify
                                            : what == "clear"  ? Clear
                                                               : nullptr;
  if (action == nullptr) {
    return Usage(absl::StrCat("kiln cache has no '", what, "'; it has ls, stat, verify, clear"));
  }
  auto client = MakeClient(args, false);
  if (!client.ok()) return Usage(client.status());
  return action(**client, args);
}

}  // namespace kiln::cli
