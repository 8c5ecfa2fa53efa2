#include "tests/integration/server_test.h"

#include <iostream>

#include "absl/time/clock.h"

namespace kiln::integration {

ServerTest::ServerTest() = default;

ServerTest::~ServerTest() {
  if (!HasFailure() || server_ == nullptr) return;
  std::cerr << "---- kilnd's standard error ----\n" << server_->process().Errors();
}

bool ServerTest::StartServer(const std::vector<std::string>& flags) {
  if (server_ != nullptr) StopServer();
  server_.reset();
  auto server = ServerProcess::Start(data_dir(), flags);
  if (!server.ok()) {
    ADD_FAILURE() << server.status();
    return false;
  }
  server_ = *std::move(server);
  stub_ = server_->NewStub();
  return true;
}

int ServerTest::StopServer() {
  stub_.reset();
  return server_->Terminate();
}

bool Eventually(absl::Duration timeout, const std::function<bool()>& condition) {
  absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

}  // namespace kiln::integration
