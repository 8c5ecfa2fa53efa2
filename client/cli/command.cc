#include "client/cli/command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>

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
namespace {

// These return 0 or an errno.
int WriteAndClose(std::FILE* file, absl::string_view data) {
  if (file == nullptr) return errno;
  int error = std::fwrite(data.data(), 1, data.size(), file) == data.size() ? 0 : errno;
  const int closed = file == stdout ? std::fflush(file) : std::fclose(file);
  if (error == 0 && closed != 0) error = errno;
  return error;
}

int WriteNamed(const std::string& path, absl::string_view data) {
  struct stat found = {};
  const bool exists = stat(path.c_str(), &found) == 0;
  if (exists && !S_ISREG(found.st_mode)) return WriteAndClose(std::fopen(path.c_str(), "wb"), data);
  std::error_code unresolved;  // as where there is no such file yet
  std::string name = std::filesystem::canonical(path, unresolved).string();
  if (unresolved) name = path;
  const std::string draft = absl::StrCat(name, ".part-", std::random_device{}());
  std::FILE* file = std::fopen(draft.c_str(), "wbx");
  const bool made = file != nullptr;
  int error = WriteAndClose(file, data);
  if (error == 0 && exists) (void)chmod(draft.c_str(), found.st_mode & 07777);  // else as a new one
  if (error == 0 && std::rename(draft.c_str(), name.c_str()) != 0) error = errno;
  if (error != 0 && made) unlink(draft.c_str());
  // A file that may be written to, in a folder that takes no other one, or mounted by itself.
  const bool alone = error == EACCES || error == EPERM || error == EROFS || error == EBUSY;
  return exists && alone ? WriteAndClose(std::fopen(path.c_str(), "wb"), data) : error;
}

}  // namespace

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
  const int error = path == "-" ? WriteAndClose(stdout, data) : WriteNamed(path, data);
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write '", path, "': ", std::strerror(error)));
}

}  // namespace kiln::cli
