#include "tests/integration/redis_process.h"

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace kiln::integration {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(20);

std::string TextOf(const redisReply* reply) {
  switch (reply->type) {
    case REDIS_REPLY_NIL:
      return "(nil)";
    case REDIS_REPLY_INTEGER:
      return absl::StrCat(reply->integer);
    case REDIS_REPLY_ARRAY: {
      std::string text;
      for (size_t i = 0; i < reply->elements; ++i) {
        absl::StrAppend(&text, i == 0 ? "" : " ", TextOf(reply->element[i]));
      }
      return text;
    }
    default:
      return {reply->str, reply->len};
  }
}

redisReply* Send(redisContext* context, const std::vector<std::string>& command) {
  std::vector<const char*> arguments;
  std::vector<size_t> sizes;
  for (const std::string& argument : command) {
    arguments.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  return static_cast<redisReply*>(redisCommandArgv(context, static_cast<int>(arguments.size()),
                                                   arguments.data(), sizes.data()));
}

}  // namespace

std::string FindProgram(const std::string& name) {
  const char* path = std::getenv("PATH");
  for (absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    std::string candidate = absl::StrCat(folder, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

std::string RedisServerProgram() {
  const char* named = std::getenv("KILN_REDIS_SERVER");
  return named != nullptr ? named : FindProgram("redis-server");
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

absl::StatusOr<std::unique_ptr<RedisProcess>> RedisProcess::Start(
    std::vector<std::string> options) {
  auto redis = std::make_unique<RedisProcess>();
  redis->port_ = FreePort();
  redis->command_ = {RedisServerProgram(),
                     "--bind",
                     "127.0.0.1",
                     "--port",
                     absl::StrCat(redis->port_),
                     "--save",
                     "",
                     "--appendonly",
                     "no",
                     "--logfile",
                     "log",
                     "--dir",
                     redis->dir_.path()};
  for (size_t i = 0; i + 1 < options.size(); i += 2) {
    if (options[i] == "--requirepass") redis->password_ = options[i + 1];
  }
  for (std::string& option : options) redis->command_.push_back(std::move(option));
  if (absl::Status status = redis->StartAgain(); !status.ok()) return status;
  return redis;
}

absl::Status RedisProcess::StartAgain() {
  auto process = Process::Start(command_);
  if (!process.ok()) return process.status();
  process_ = *std::move(process);
  if (Becomes({"PING"}, "PONG", kStartLimit)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("redis-server does not answer: ", process_->Errors()));
}

std::string RedisProcess::address() const {
  return absl::StrCat("127.0.0.1:", port_);
}

std::string RedisProcess::Call(const std::vector<std::string>& command) const {
  const timeval limit = {5, 0};
  std::unique_ptr<redisContext, void (*)(redisContext*)> context(
      redisConnectWithTimeout("127.0.0.1", port_, limit), redisFree);
  if (context == nullptr || context->err != 0) return "(no answer)";
  redisSetTimeout(context.get(), limit);
  if (!password_.empty()) freeReplyObject(Send(context.get(), {"AUTH", password_}));
  redisReply* reply = Send(context.get(), command);
  if (reply == nullptr) return "(no answer)";
  std::string text = TextOf(reply);
  freeReplyObject(reply);
  return text;
}

bool RedisProcess::Becomes(const std::vector<std::string>& command, const std::string& answer,
                           absl::Duration timeout) const {
  const absl::Time end = absl::Now() + timeout;
  while (Call(command) != answer) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

void RedisProcess::Kill() {
  process_->Signal(9 /* SIGKILL */);
  process_->Wait(absl::Seconds(10));
}

absl::StatusOr<std::unique_ptr<RedisCluster>> RedisCluster::Start() {
  auto cluster = std::make_unique<RedisCluster>();
  for (int i = 0; i < 4; ++i) {
    auto node =
        RedisProcess::Start({"--cluster-enabled", "yes", "--cluster-port", absl::StrCat(FreePort()),
                             "--cluster-node-timeout", "1500", "--cluster-require-full-coverage",
                             "no", "--repl-diskless-sync-delay", "0"});
    if (!node.ok()) return node.status();
    cluster->nodes_.push_back(*std::move(node));
  }
  std::vector<std::string> addresses = cluster->addresses();
  const std::string cli = FindProgram("redis-cli");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {cli, "--cluster", "create", addresses[0], addresses[1], addresses[2], "--cluster-yes"},
           {cli, "--cluster", "add-node", addresses[3], addresses[0], "--cluster-slave",
            "--cluster-master-id", cluster->IdOf(0)}}) {
    if (const Ended ended = RunToEnd(command); ended.code != 0) {
      return absl::InternalError(
          absl::StrCat("redis-cli --cluster fails: ", ended.output, ended.errors));
    }
  }
  // Everybody has heard of all of it.
  const absl::Time end = absl::Now() + kStartLimit;
  for (auto& node : cluster->nodes_) {
    while (!absl::StrContains(node->Call({"CLUSTER", "INFO"}), "cluster_known_nodes:4") ||
           !absl::StrContains(node->Call({"CLUSTER", "INFO"}), "cluster_state:ok") ||
           !absl::StrContains(node->Call({"CLUSTER", "NODES"}), "slave") ||
           !absl::StrContains(cluster->replica().Call({"INFO", "replication"}),
                              "master_link_status:up")) {
      if (absl::Now() > end) return absl::InternalError("the cluster does not become ready");
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  return cluster;
}

std::vector<std::string> RedisCluster::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& node : nodes_) addresses.push_back(node->address());
  return addresses;
}

int RedisCluster::OwnerOf(const std::string& key) {
  for (int i = 0; i < 3; ++i) {
    if (!absl::StartsWith(master(i).Call({"GET", key}), "MOVED")) return i;
  }
  return -1;
}

std::string RedisCluster::IdOf(int node) {
  return nodes_[static_cast<size_t>(node)]->Call({"CLUSTER", "MYID"});
}

void RedisCluster::BeginMove(const std::string& key, int from, int to) {
  const std::string slot = master(from).Call({"CLUSTER", "KEYSLOT", key});
  master(to).Call({"CLUSTER", "SETSLOT", slot, "IMPORTING", IdOf(from)});
  master(from).Call({"CLUSTER", "SETSLOT", slot, "MIGRATING", IdOf(to)});
  const std::string keys = master(from).Call({"CLUSTER", "GETKEYSINSLOT", slot, "1000"});
  for (absl::string_view each : absl::StrSplit(keys, ' ', absl::SkipEmpty())) {
    master(from).Call(
        {"MIGRATE", "127.0.0.1", absl::StrCat(master(to).port()), std::string(each), "0", "5000"});
  }
}

void RedisCluster::EndMove(const std::string& key, int from, int to) {
  const std::string slot = master(from).Call({"CLUSTER", "KEYSLOT", key});
  const std::string owner = IdOf(to);
  for (int i : {to, from, 0, 1, 2}) master(i).Call({"CLUSTER", "SETSLOT", slot, "NODE", owner});
}

}  // namespace kiln::integration
