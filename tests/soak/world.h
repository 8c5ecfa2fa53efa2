// What is soaked: two servers that share a redis-server, one with TLS and tokens on a small disk,
// one that anybody on this machine may call.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "tests/integration/redis_process.h"
#include "tests/integration/server_process.h"
#include "tests/soak/ledger.h"
#include "tests/temp_dir.h"
#include "tests/unit/server/certificates.h"

namespace kiln::soak {

inline constexpr int kWorkers = 2;  // of each server
inline constexpr int kStandby = 4;  // likewise
inline constexpr int64_t kDiskBytes = int64_t{72} << 20;
inline constexpr int64_t kCacheBytes = int64_t{48} << 20;

class World {
 public:
  // REQUIRES: no thread was started yet, for the disk is mounted where nobody else sees it.
  static absl::StatusOr<std::unique_ptr<World>> Start();
  ~World();

  struct Server {
    const char* name;
    std::unique_ptr<integration::ServerProcess> process;
    std::string data_dir;
  };
  // Index 0: TLS and tokens; 1: open.
  std::vector<Server>& servers() { return servers_; }
  integration::ServerProcess& secure() { return *servers_[0].process; }
  integration::ServerProcess& open() { return *servers_[1].process; }
  // Null where redis-server is not installed.
  integration::RedisProcess* redis() { return redis_.get(); }
  // Of the secure server's data; "" where this user may not mount one.
  const std::string& small_disk() const { return small_disk_; }
  const testing::Authority& authority() const { return authority_; }

  // A folder for files of acts; one path for each name.
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }
  // Replaces the file in one step.
  void WriteFile(const std::string& name, const std::string& text) const;
  void ShowCertificate(const testing::Pair& pair) const;

  // NAME=VALUE of a client: `servers` as KILN_SERVER takes them.
  std::vector<std::string> ClientEnvironment(const std::string& servers) const;
  std::string secure_url() const { return "https://" + servers_[0].process->grpc_address(); }
  std::string open_url() const { return "http://" + servers_[1].process->grpc_address(); }

  // Of the secure server, on a connection of its own.
  std::unique_ptr<v1::CompileService::Stub> StubWithoutToken();

  // Whether acts are to come to an end.
  bool ending() const { return ending_; }
  void set_ending(bool ending) { ending_ = ending; }
  // Waits, but not when acts are to end.
  void Rest(absl::Duration time) const;

  Ledger ledger;

 private:
  World();
  absl::Status StartServer(const char* name, const std::string& data_dir,
                           std::vector<std::string> flags);

  TempDir dir_;
  testing::Authority authority_{"the soak's authority"};
  std::string small_disk_;
  std::unique_ptr<integration::RedisProcess> redis_;
  std::vector<Server> servers_;
  std::atomic<bool> ending_ = false;
};

}  // namespace kiln::soak
