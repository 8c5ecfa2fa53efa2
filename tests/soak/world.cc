#include "tests/soak/world.h"

#include <grpcpp/grpcpp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/digest.h"
#include "proto/base/signing.h"
#include "proto/base/status_macros.h"

namespace kiln::soak {
namespace {

constexpr char kToken[] = "the-soak-s-token";

// A disk in memory that this process and those that it starts see, and that ends with them.
bool MountSmallDisk(const std::string& path) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", path.c_str(), "tmpfs", 0, absl::StrCat("size=", kDiskBytes).c_str()) == 0;
}

}  // namespace

World::World() = default;

World::~World() {
  servers_.clear();
  if (!small_disk_.empty()) umount2(small_disk_.c_str(), MNT_DETACH);
}

absl::StatusOr<std::unique_ptr<World>> World::Start() {
  auto world = std::unique_ptr<World>(new World());
  const std::string disk = world->Path("disk");
  mkdir(disk.c_str(), 0700);
  if (MountSmallDisk(disk)) world->small_disk_ = disk;
  KILN_RETURN_IF_ERROR(SigningKey::LoadOrCreate(world->Path("signing.key")).status());
  world->ShowCertificate(world->authority_.Issue(testing::ServerSubject("first")));
  world->WriteFile("ca.pem", world->authority_.certificate());
  world->WriteFile("access", absl::StrCat("soak compile ", Sha256(kToken).ToHex(), "\n"));
  if (!integration::RedisServerProgram().empty()) {
    KILN_ASSIGN_OR_RETURN(world->redis_, integration::RedisProcess::Start());
  }
  KILN_RETURN_IF_ERROR(world->StartServer(
      "secure", disk + "/data",
      {"--tls-cert=" + world->Path("cert.pem"), "--tls-key=" + world->Path("key.pem"),
       "--access-file=" + world->Path("access")}));
  KILN_RETURN_IF_ERROR(world->StartServer("open", world->Path("open"), {}));
  return world;
}

absl::Status World::StartServer(const char* name, const std::string& data_dir,
                                std::vector<std::string> flags) {
  flags.insert(flags.end(),
               {absl::StrCat("--workers=", kWorkers), absl::StrCat("--worker-standby=", kStandby),
                "--worker-memory=1GiB", "--worker-timeout=30s",
                absl::StrCat("--cache-max-size=", kCacheBytes), "--cache-memory-size=8MiB",
                "--max-request-bytes=128MiB", "--request-timeout=4s", "--max-queued-jobs=64",
                "--max-connections=256", "--max-connection-age=20s", "--remote-queue-size=4MiB",
                "--signing-key=" + Path("signing.key")});
  if (redis_ != nullptr) flags.push_back("--remote-cache=redis://" + redis_->address());
  KILN_ASSIGN_OR_RETURN(auto process, integration::ServerProcess::Start(data_dir, flags));
  servers_.push_back({name, std::move(process), data_dir});
  return absl::OkStatus();
}

void World::WriteFile(const std::string& name, const std::string& text) const {
  const std::string path = Path(name);
  std::ofstream(path + ".new") << text;
  chmod((path + ".new").c_str(), 0600);
  std::rename((path + ".new").c_str(), path.c_str());
}

void World::ShowCertificate(const testing::Pair& pair) const {
  WriteFile("cert.pem", pair.certificate);
  WriteFile("key.pem", pair.key);
}

std::vector<std::string> World::ClientEnvironment(const std::string& servers) const {
  return {"KILN_SERVER=" + servers, absl::StrCat("KILN_TOKEN=", kToken),
          "KILN_TLS_CA=" + Path("ca.pem"), "KILN_KNOWN_SERVERS=" + Path("known_servers"),
          "KILN_TIMEOUT_S=60"};
}

std::unique_ptr<v1::CompileService::Stub> World::StubWithoutToken() {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority_.certificate();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::CompileService::NewStub(
      grpc::CreateCustomChannel(secure().grpc_address(), grpc::SslCredentials(options), arguments));
}

void World::Rest(absl::Duration time) const {
  const absl::Time end = absl::Now() + time;
  while (!ending_ && absl::Now() < end) {
    absl::SleepFor(std::min(absl::Milliseconds(20), end - absl::Now()));
  }
}

}  // namespace kiln::soak
