#include "client/cli/command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/device.h"
#include "client/program_info.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/error.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {

Outcome Usage(const absl::Status& status) {
  return {status, true};
}

Outcome Usage(absl::string_view sentence) {
  return Usage(absl::InvalidArgumentError(sentence));
}

int ExitCode(const Outcome& outcome) {
  if (outcome.status.ok()) return kExitOk;
  if (outcome.usage) return kExitUsage;
  if (absl::IsUnavailable(outcome.status)) return kExitUnreachable;
  if (IsCacheMiss(outcome.status)) return kExitMiss;
  if (auto detail = GetDetail(outcome.status)) {
    if (detail->reason() == v1::ErrorDetail::REASON_BAD_GRAPH ||
        detail->reason() == v1::ErrorDetail::REASON_UNSUPPORTED) {
      return kExitRefused;
    }
  }
  bool refused = absl::IsInvalidArgument(outcome.status) || absl::IsUnimplemented(outcome.status);
  return refused ? kExitRefused : kExitFailed;
}

void TakeSecurityFlags(const Args& args, ClientOptions& options) {
  options.tls_ca = args.Get("--tls-ca", "");
  options.tls_cert = args.Get("--tls-cert", "");
  options.tls_key = args.Get("--tls-key", "");
  options.token_file = args.Get("--token-file", "");
  options.public_key = args.Get("--public-key", "");
  options.known_servers = args.Get("--known-servers", "");
}

absl::StatusOr<ClientOptions> TakeClientFlags(const Args& args,
                                              const v1::SavedGraph::Asked& asked) {
  ClientOptions options;
  KILN_ASSIGN_OR_RETURN(options.target, args.GetChoice("--target", "cpp", KnownTargets()));
  options.server = args.Get("--server", "");
  options.arch = args.Get("--arch", "native");
  options.libraries = absl::StrSplit(args.Get("--libraries", absl::StrJoin(asked.libraries(), ",")),
                                     ',', absl::SkipEmpty());
  options.prepare_memory = asked.prepare_memory();
  options.fail_on_miss = args.Has("--fail-on-miss");
  TakeSecurityFlags(args, options);
  KILN_ASSIGN_OR_RETURN(int64_t threads, args.GetInt("--threads", 0, 1, 1024));
  KILN_ASSIGN_OR_RETURN(int64_t seconds, args.GetInt("--timeout", 600, 1, 86400));
  options.threads = static_cast<int>(threads);
  options.timeout = absl::Seconds(seconds);
  return options;
}

absl::StatusOr<std::unique_ptr<Client>> MakeClient(const Args& args, bool debug,
                                                   const v1::SavedGraph::Asked& asked) {
  KILN_ASSIGN_OR_RETURN(ClientOptions options, TakeClientFlags(args, asked));
  options.debug = debug;
  return Client::Create(options);
}

absl::StatusOr<v1::Graph> LoadSavedGraph(const std::string& path, v1::SavedGraph::Asked* asked) {
  KILN_ASSIGN_OR_RETURN(v1::Graph graph, LoadGraph(path));
  v1::SavedGraph saved;
  if (asked != nullptr && saved.ParseFromString(graph.SerializeAsString())) *asked = saved.asked();
  graph.DiscardUnknownFields();  // no part of what is sent
  return graph;
}

absl::StatusOr<v1::Graph> GraphArgument(const Args& args, v1::SavedGraph::Asked* asked) {
  return LoadSavedGraph(args.positional().front(), asked);
}

ProgressLine::ProgressLine() : start_(absl::Now()), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

ProgressCallback ProgressLine::callback() {
  return [this](const CompileProgress& progress) {
    const bool late = absl::Now() - start_ > absl::Milliseconds(500);
    if (terminal_ && late && !progress.stage.empty()) Show(progress);
    return true;
  };
}

void ProgressLine::Show(const CompileProgress& progress) {
  shown_ = true;
  std::string text = progress.stage;
  if (progress.kernels_total > 0) {
    absl::StrAppend(&text, " ", progress.kernels_done, "/", progress.kernels_total, " kernels, ",
                    progress.kernels_cached, " from the cache");
  }
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

void ReportRun(Client& client, const std::string& key, const v1::DeviceTimes& times) {
  if (times.launches().empty()) return;
  const absl::Status reported = client.ReportRun(key, times);
  // The server has forgotten the compile, is an older one, or lets this caller read alone.
  if (reported.ok() || absl::IsNotFound(reported) || absl::IsUnimplemented(reported) ||
      absl::IsPermissionDenied(reported)) {
    return;
  }
  std::fprintf(stderr, "note: the server was not told the run's times: %s\n",
               std::string(reported.message()).c_str());
}

void PrintJson(const google::protobuf::Message& message) {
  std::printf("%s\n", MessageJson(message).value_or("{}").c_str());
}

absl::Status WriteFile(const std::string& path, absl::string_view data) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return absl::InternalError(absl::StrCat("cannot write '", path, "': ", std::strerror(errno)));
  }
  bool written = std::fwrite(data.data(), 1, data.size(), file) == data.size();
  written = (path == "-" ? std::fflush(file) : std::fclose(file)) == 0 && written;
  if (written) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write '", path, "': ", std::strerror(errno)));
}

}  // namespace kiln::cli
