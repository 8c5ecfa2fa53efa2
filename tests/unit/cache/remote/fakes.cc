#include "tests/unit/cache/remote/fakes.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "tests/temp_dir.h"

namespace kiln::cache {
namespace {

Reply TextReply(Reply::Type type, std::string text) {
  Reply reply;
  reply.type = type;
  reply.text = std::move(text);
  return reply;
}

}  // namespace

Reply StringReply(std::string text) {
  return TextReply(Reply::Type::kString, std::move(text));
}
Reply StatusReply(std::string text) {
  return TextReply(Reply::Type::kStatus, std::move(text));
}
Reply ErrorReply(std::string text) {
  return TextReply(Reply::Type::kError, std::move(text));
}
Reply NilReply() {
  return {};
}

Reply IntegerReply(int64_t value) {
  Reply reply;
  reply.type = Reply::Type::kInteger;
  reply.integer = value;
  return reply;
}

Reply ArrayReply(std::vector<Reply> elements) {
  Reply reply;
  reply.type = Reply::Type::kArray;
  reply.elements = std::move(elements);
  return reply;
}

Reply SlotsReply(const std::vector<std::pair<std::pair<int, int>, Endpoint>>& ranges) {
  Reply reply = ArrayReply({});
  for (const auto& [range, owner] : ranges) {
    reply.elements.push_back(
        ArrayReply({IntegerReply(range.first), IntegerReply(range.second),
                    ArrayReply({StringReply(owner.host), IntegerReply(owner.port)})}));
  }
  return reply;
}

std::unique_ptr<SigningKey> NewSigningKey() {
  TempDir dir;
  return SigningKey::LoadOrCreate(dir.path() + "/signing.key").value();
}

absl::StatusOr<Reply> FakeClient::Run(absl::string_view, const Command& command, const ReplyLimits&,
                                      SteadyTime) {
  {
    absl::MutexLock lock(&mu_);
    last_.clear();
    for (absl::string_view argument : command) last_.emplace_back(argument);
    ++calls_;
  }
  return answer_(absl::StrJoin(command, " "));
}

std::vector<absl::StatusOr<Reply>> FakeClient::RunEach(absl::Span<const Command> commands,
                                                       const ReplyLimits& limits,
                                                       SteadyTime deadline) {
  {
    absl::MutexLock lock(&mu_);
    ++batches_;
  }
  std::vector<absl::StatusOr<Reply>> replies;
  for (const Command& command : commands) {
    replies.push_back(Run(command[1], command, limits, deadline));
  }
  return replies;
}

int FakeClient::batches() const {
  absl::MutexLock lock(&mu_);
  return batches_;
}

std::vector<std::string> FakeClient::last() const {
  absl::MutexLock lock(&mu_);
  return last_;
}

int FakeClient::calls() const {
  absl::MutexLock lock(&mu_);
  return calls_;
}

struct FakeNodes::State {
  absl::Mutex mu;
  absl::flat_hash_map<int, Answer> answers ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<int, std::vector<std::string>> commands ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<int, int> exchanges ABSL_GUARDED_BY(mu);
};

class FakeNodes::FakeNode final : public Node {
 public:
  FakeNode(std::shared_ptr<State> state, int port) : state_(std::move(state)), port_(port) {}

  absl::StatusOr<std::vector<Reply>> Exchange(absl::Span<const Command> commands,
                                              const ReplyLimits&, SteadyTime) override {
    std::vector<Reply> replies;
    {
      absl::MutexLock lock(&state_->mu);
      ++state_->exchanges[port_];
    }
    for (const Command& command : commands) {
      const std::string text = absl::StrJoin(command, " ");
      Answer answer;
      {
        absl::MutexLock lock(&state_->mu);
        state_->commands[port_].push_back(text);
        answer = state_->answers[port_];
      }
      if (!answer) return absl::UnavailableError("connection refused");
      if (text == "ASKING") {
        replies.push_back(StatusReply("OK"));
        continue;
      }
      absl::StatusOr<Reply> reply = answer(text);
      if (!reply.ok()) return reply.status();
      replies.push_back(*std::move(reply));
    }
    return replies;
  }

  BreakerState breaker() const override { return BreakerState::kClosed; }

 private:
  const std::shared_ptr<State> state_;
  const int port_;
};

FakeNodes::FakeNodes() = default;

void FakeNodes::Set(int port, Answer answer) {
  absl::MutexLock lock(&state_->mu);
  state_->answers[port] = std::move(answer);
}

void FakeNodes::Kill(int port) {
  Set(port, nullptr);
}

std::vector<std::string> FakeNodes::Commands(int port) const {
  absl::MutexLock lock(&state_->mu);
  return state_->commands[port];
}

int FakeNodes::Exchanges(int port) const {
  absl::MutexLock lock(&state_->mu);
  return state_->exchanges[port];
}

NodeFactory FakeNodes::Factory() {
  return [state = state_](const Endpoint& endpoint) {
    return std::make_shared<FakeNode>(state, endpoint.port);
  };
}

}  // namespace kiln::cache
