// `kiln status`.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/target_name.h"

namespace kiln::cli {
namespace {

std::string TargetList(const v1::ServerInfo& info) {
  std::vector<std::string> names;
  for (int target : info.targets()) names.emplace_back(TargetName(target));
  return absl::StrJoin(names, ", ");
}

}  // namespace

void PrintCaches(const v1::ServerInfo& info) {
  for (const v1::CacheInfo& cache : info.caches()) {
    std::printf("cache      %-9s %-7s %8lld entries %12lld bytes\n", cache.kind().c_str(),
                cache.tier().c_str(), static_cast<long long>(cache.entries()),
                static_cast<long long>(cache.size_bytes()));
  }
}

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
  std::printf("targets    %s\n", TargetList(*info).c_str());
  std::printf("workers    %d; jobs: %d running, %d queued\n", info->workers(), info->jobs_running(),
              info->jobs_queued());
  PrintCaches(*info);
  return Ok();
}

}  // namespace kiln::cli
