#include "cache/remote/connection.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

constexpr size_t kReadBytes = 64 << 10;

// As the protocol has it on the wire.
absl::StatusOr<std::string> Format(absl::Span<const Command> commands) {
  std::string wire;
  for (const Command& command : commands) {
    std::vector<const char*> arguments;
    std::vector<size_t> sizes;
    for (absl::string_view argument : command) {
      arguments.push_back(argument.data());
      sizes.push_back(argument.size());
    }
    char* text = nullptr;
    const int size = redisFormatCommandArgv(&text, static_cast<int>(arguments.size()),
                                            arguments.data(), sizes.data());
    if (size < 0) return absl::ResourceExhaustedError("no memory for a command");
    wire.append(text, static_cast<size_t>(size));
    redisFreeCommand(text);
  }
  return wire;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const Endpoint& endpoint,
                                                             const ConnectionOptions& options,
                                                             SteadyTime deadline) {
  KILN_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses,
                        options.resolver->Resolve(endpoint, deadline));
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<Socket> socket,
                        Socket::Connect(endpoint, addresses, options.tls, deadline));
  std::unique_ptr<Connection> connection(new Connection(std::move(socket)));
  KILN_RETURN_IF_ERROR(connection->LogIn(options, deadline));
  return connection;
}

absl::Status Connection::LogIn(const ConnectionOptions& options, SteadyTime deadline) {
  const std::string database = absl::StrCat(options.database);
  std::vector<Command> commands;
  if (!options.password.empty()) {
    // The form without a user is the only one that servers before ACLs know.
    commands.push_back(options.user.empty() ? Command{"AUTH", options.password}
                                            : Command{"AUTH", options.user, options.password});
  }
  if (options.database != 0) commands.push_back({"SELECT", database});
  if (commands.empty()) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(std::vector<Reply> replies, Exchange(commands, ReplyLimits{}, deadline));
  for (size_t i = 0; i < replies.size(); ++i) {
    if (replies[i].type == Reply::Type::kStatus) continue;
    return absl::PermissionDeniedError(
        absl::StrCat(commands[i][0], " is refused: ", replies[i].text.substr(0, 200)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Reply>> Connection::Exchange(absl::Span<const Command> commands,
                                                        const ReplyLimits& limits,
                                                        SteadyTime deadline) {
  KILN_ASSIGN_OR_RETURN(std::string wire, Format(commands));
  KILN_RETURN_IF_ERROR(socket_->WriteAll(wire, deadline));
  // Of this exchange: nothing may be left over from the one before, or for the one after.
  ReplyReader reader(limits);
  std::vector<Reply> replies;
  const auto buffer = std::make_unique_for_overwrite<char[]>(kReadBytes);
  while (true) {
    Reply reply;
    KILN_ASSIGN_OR_RETURN(bool complete, reader.Next(reply));
    if (complete) {
      if (replies.size() == commands.size())
        return absl::DataLossError("more replies than asked for");
      replies.push_back(std::move(reply));
      deadline = std::max(deadline, DeadlineIn(limits.time_per_reply));
      continue;
    }
    if (replies.size() == commands.size()) return replies;
    KILN_ASSIGN_OR_RETURN(size_t size, socket_->ReadSome(buffer.get(), kReadBytes, deadline));
    KILN_RETURN_IF_ERROR(reader.Feed({buffer.get(), size}));
  }
}

}  // namespace kiln::cache
