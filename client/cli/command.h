// What the commands share: flags, the client, exit codes, progress.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/args.h"
#include "kiln/client.h"
#include "kiln/v1/saved_graph.pb.h"

namespace google::protobuf {
class Message;
}

namespace kiln::cli {

// Exit codes; scripts rely on them.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnreachable = 3;
inline constexpr int kExitRefused = 4;
inline constexpr int kExitMiss = 5;  // --fail-on-miss, and no cache had it

// How a command ended: an error, and whether it was the caller's way of asking.
struct Outcome {
  absl::Status status;
  bool usage = false;
};
inline Outcome Ok() {
  return {};
}
Outcome Usage(const absl::Status& status);
Outcome Usage(absl::string_view sentence);
inline Outcome Failed(absl::Status status) {
  return {std::move(status)};
}
int ExitCode(const Outcome& outcome);

Outcome RunStart(const Args& args);
Outcome RunStop(const Args& args);
Outcome RunStatus(const Args& args);
Outcome RunDoctor(const Args& args);
Outcome RunCompile(const Args& args);
Outcome RunRun(const Args& args);
Outcome RunExplain(const Args& args);
Outcome RunExplainMiss(const Args& args);
Outcome RunCache(const Args& args);
Outcome RunTop(const Args& args);

// A line for each cache of the server.
void PrintCaches(const v1::ServerInfo& info);
Outcome RunLoad(const Args& args);

// There is no flag for a token itself: other users see command lines.
void TakeSecurityFlags(const Args& args, ClientOptions& options);

// --server, --timeout, --threads, --arch, --libraries, --target, --fail-on-miss and the flags
// above; what no flag says is as `asked`.
absl::StatusOr<ClientOptions> TakeClientFlags(const Args& args,
                                              const v1::SavedGraph::Asked& asked = {});
// A client with them.
absl::StatusOr<std::unique_ptr<Client>> MakeClient(const Args& args, bool debug,
                                                   const v1::SavedGraph::Asked& asked = {});

// `asked`, where it is not null, becomes what the file says of those who ask for its graph.
absl::StatusOr<v1::Graph> LoadSavedGraph(const std::string& path, v1::SavedGraph::Asked* asked);
// GRAPH, the one positional argument, which must be a saved graph.
absl::StatusOr<v1::Graph> GraphArgument(const Args& args, v1::SavedGraph::Asked* asked = nullptr);

// Shows what a compile does on standard error, where that is a terminal and it takes over half a
// second.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();  // clears the line
  ProgressCallback callback();

 private:
  void Show(const CompileProgress& progress);
  absl::Time start_;
  bool terminal_;
  bool shown_ = false;
};

// Tells the server what a run of the artifact with that key took on its device, where that tells.
// Nothing depends on it: a failure that people might do something about is a line on stderr.
void ReportRun(Client& client, const std::string& key, const v1::DeviceTimes& times);

void PrintJson(const google::protobuf::Message& message);
// To a file, or to standard output where `path` is "-". A file is written beside and then given its
// name, so that no half one has it.
absl::Status WriteFile(const std::string& path, absl::string_view data);

}  // namespace kiln::cli
