#include "tests/integration/server_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kiln::integration {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(60);
constexpr absl::Duration kEndLimit = absl::Seconds(60);

// What stands between `before` and the next comma.
std::string Part(absl::string_view line, absl::string_view before) {
  size_t at = line.find(before);
  if (at == absl::string_view::npos) return "";
  line.remove_prefix(at + before.size());
  return std::string(line.substr(0, line.find(',')));
}

bool SaysWhoMayCall(const std::vector<std::string>& flags) {
  return std::any_of(flags.begin(), flags.end(), [](absl::string_view flag) {
    return absl::StartsWith(flag, "--tls-") || absl::StartsWith(flag, "--access-file") ||
           absl::StartsWith(flag, "--anonymous-role");
  });
}

}  // namespace

std::string KilndPath() {
  return KILND;
}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(
    const std::string& data_dir, const std::vector<std::string>& flags, const std::string& program,
    const std::vector<std::string>& environment) {
  std::vector<std::string> command = {program,
                                      "--listen=127.0.0.1:0",
                                      "--metrics-listen=127.0.0.1:0",
                                      "--socket=none",
                                      absl::StrCat("--data-dir=", data_dir),
                                      "--workers=2"};
  if (!SaysWhoMayCall(flags)) command.emplace_back("--anonymous-role=admin");
  command.insert(command.end(), flags.begin(), flags.end());
  auto process = Process::Start(command, environment);
  if (!process.ok()) return process.status();
  auto server = std::make_unique<ServerProcess>();
  server->process_ = *std::move(process);
  auto line = server->process_->ReadLine(kStartLimit);
  if (!line) {
    return absl::InternalError(absl::StrCat("kilnd did not start: ", server->process_->Errors()));
  }
  server->ready_line_ = *line;
  server->grpc_address_ = Part(*line, "kilnd ready: grpc ");
  server->http_address_ = Part(*line, ", http ");
  return server;
}

std::shared_ptr<grpc::Channel> ServerProcess::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(INT_MAX);
  return grpc::CreateCustomChannel(grpc_address_, grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<v1::CompileService::Stub> ServerProcess::NewStub() const {
  return v1::CompileService::NewStub(Connect());
}

MetricText ServerProcess::Metrics() const {
  auto answer = HttpGet(http_address_, "/metrics");
  if (!answer.ok()) {
    ADD_FAILURE() << "no metrics: " << answer.status();
    return MetricText("");
  }
  EXPECT_EQ(answer->code, 200);
  return MetricText(answer->body);
}

std::vector<pid_t> ServerProcess::Workers() const {
  std::vector<pid_t> workers = Processes();
  workers.erase(
      std::remove_if(workers.begin(), workers.end(), [](pid_t pid) { return getpgid(pid) != pid; }),
      workers.end());
  return workers;
}

int ServerProcess::Terminate() {
  process_->Signal(SIGTERM);
  auto code = process_->Wait(kEndLimit);
  EXPECT_TRUE(code.has_value()) << "kilnd did not end after SIGTERM: " << process_->Errors();
  return code.value_or(-1);
}

void ServerProcess::Kill() {
  process_->Signal(SIGKILL);
  EXPECT_TRUE(process_->Wait(kEndLimit).has_value());
}

}  // namespace kiln::integration
