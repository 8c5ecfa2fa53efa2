// Fixture: one data directory, and a server that can be stopped and started on it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/integration/calls.h"
#include "tests/integration/server_process.h"
#include "tests/temp_dir.h"

namespace kiln::integration {

class ServerTest : public ::testing::Test {
 protected:
  ServerTest();
  // What the server logged, where the test failed.
  ~ServerTest() override;

  // Stops the one before, if there is one. Use as ASSERT_TRUE(StartServer()).
  bool StartServer(const std::vector<std::string>& flags = {});
  // SIGTERM, after the fixture's own connection is closed; the exit code.
  int StopServer();
  ServerProcess& server() { return *server_; }
  v1::CompileService::Stub& stub() { return *stub_; }
  // The cache's RocksDB folder.
  std::string cache_path() const { return data_dir() + "/cache"; }
  std::string data_dir() const { return dir_.path() + "/data"; }

  MetricText Metrics() { return server_->Metrics(); }

 private:
  TempDir dir_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<v1::CompileService::Stub> stub_;
};

// Asks until it is true; false after `timeout`.
bool Eventually(absl::Duration timeout, const std::function<bool()>& condition);

}  // namespace kiln::integration
