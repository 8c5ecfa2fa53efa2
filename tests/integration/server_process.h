// A kilnd of this build, on ports of its own choice.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "tests/integration/http_get.h"
#include "tests/integration/metric_text.h"
#include "tests/integration/process.h"

namespace kiln::integration {

// The server's path.
std::string KilndPath();

class ServerProcess {
 public:
  // Returns once the server said that it is ready. Whoever connects may do everything, unless
  // `flags` say otherwise; they are added to the ports, the folder and two workers, and win over
  // them; `environment` ("NAME=value") to this process's own. An error
  // holds what the server said.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(
      const std::string& data_dir, const std::vector<std::string>& flags = {},
      const std::string& program = KilndPath(), const std::vector<std::string>& environment = {});

  Process& process() { return *process_; }
  const std::string& ready_line() const { return ready_line_; }
  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& http_address() const { return http_address_; }

  // A connection of its own, whose calls share nothing with others'.
  std::shared_ptr<grpc::Channel> Connect() const;
  std::unique_ptr<v1::CompileService::Stub> NewStub() const;

  MetricText Metrics() const;
  // Each leads a process group, to which the processes that it makes for tasks belong.
  std::vector<pid_t> Workers() const;
  // They, and the processes for tasks, those included that wait for one.
  std::vector<pid_t> Processes() const { return ChildrenOf(process_->pid()); }

  // SIGTERM; the exit code. Fails the test where the server does not end within a minute.
  int Terminate();
  // SIGKILL, and waits until it is gone.
  void Kill();

 private:
  std::unique_ptr<Process> process_;
  std::string ready_line_;
  std::string grpc_address_;
  std::string http_address_;
};

}  // namespace kiln::integration
