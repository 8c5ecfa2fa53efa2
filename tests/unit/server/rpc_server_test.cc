#include "server/rpc/rpc_server.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/rpc/health.h"
#include "server/rpc/messages.h"
#include "server/rpc/reflection.h"

namespace kiln::server {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!bytes.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

// What became of the calls that reactors answered.
struct Log {
  std::atomic<int> cancelled = 0;
  std::atomic<int> done = 0;
  std::atomic<int> failed_writes = 0;
};

// Answers its one message with the same.
class Echo final : public Reactor {
 public:
  Echo(grpc::ByteBuffer& request, Log& log) : request_(request), log_(log) {}
  void Start() override { StartWriteAndFinish(request_, grpc::Status::OK); }
  void OnDone() override {
    ++log_.done;
    delete this;
  }

 private:
  grpc::ByteBuffer request_;
  Log& log_;
};

// Answers a stream with as many messages; "fail" ends it.
class EchoStream final : public Reactor {
 public:
  explicit EchoStream(Log& log) : log_(log) {}
  void Start() override { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (Text(message_) == "fail") return Finish({grpc::StatusCode::DATA_LOSS, "as asked"});
    StartWrite(message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&message_);
  }
  void OnDone() override {
    ++log_.done;
    delete this;
  }

 private:
  Log& log_;
  grpc::ByteBuffer message_;
};

// Ends only when it is cancelled; `slow_start` lets that come before its start does.
class Wait final : public Reactor {
 public:
  Wait(Log& log, absl::Duration slow_start) : log_(log), slow_start_(slow_start) {}
  void Start() override {
    absl::SleepFor(slow_start_);
    started_ = true;
  }
  void OnCancel() override {
    EXPECT_TRUE(started_);
    ++log_.cancelled;
    StartWrite(Bytes("too late"));
  }
  void OnWriteDone(bool ok) override {
    if (!ok) ++log_.failed_writes;
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    ++log_.done;
    delete this;
  }

 private:
  Log& log_;
  const absl::Duration slow_start_;
  bool started_ = false;
};

class RpcServerTest : public testing::Test {
 protected:
  struct Answer {
    std::vector<std::string> messages;
    grpc::Status status;
  };

  void StartServer(int threads = 1) {
    methods_["/t.T/Echo"].make = [this](grpc::ServerContextBase&, grpc::ByteBuffer& request) {
      return new Echo(request, log_);
    };
    methods_["/t.T/Stream"] = {.reads_stream = true,
                               .make = [this](grpc::ServerContextBase&, grpc::ByteBuffer&) {
                                 return new EchoStream(log_);
                               }};
    methods_["/t.T/Wait"].make = [this](grpc::ServerContextBase&, grpc::ByteBuffer&) {
      return new Wait(log_, absl::ZeroDuration());
    };
    methods_["/t.T/SlowWait"].make = [this](grpc::ServerContextBase&, grpc::ByteBuffer&) {
      return new Wait(log_, absl::Milliseconds(200));
    };
    health_.AddMethods(methods_);
    AddReflection({"t.T"}, methods_);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    server_ = RpcServer::Start(builder, std::move(methods_), threads);
    ASSERT_NE(server_, nullptr);
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials());
  }

  // Sends `requests`, each after the answer to the one before, and takes all answers.
  Answer Call(const std::string& method, const std::vector<std::string>& requests,
              absl::Duration timeout = absl::Seconds(10)) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    grpc::CompletionQueue queue;
    auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto call = stub.PrepareCall(&context, method, &queue);
    Answer answer;
    call->StartCall(nullptr);
    grpc::ByteBuffer message;
    if (wait()) {
      bool open = true;
      for (const std::string& request : requests) {
        call->Write(Bytes(request), nullptr);
        open = wait();
        if (!open) break;
        call->Read(&message, nullptr);
        open = wait();
        if (!open) break;
        answer.messages.push_back(Text(message));
      }
      if (open) {
        call->WritesDone(nullptr);
        wait();
        for (call->Read(&message, nullptr); wait(); call->Read(&message, nullptr)) {
          answer.messages.push_back(Text(message));
        }
      }
    }
    call->Finish(&answer.status, nullptr);
    wait();
    queue.Shutdown();
    return answer;
  }

  ServerReflectionResponse Reflect(const ServerReflectionRequest& request) {
    const Answer answer = Call("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                               {request.SerializeAsString()});
    ServerReflectionResponse response;
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_TRUE(answer.messages.size() == 1 && response.ParseFromString(answer.messages[0]));
    return response;
  }

  void WaitUntil(const std::function<bool()>& done) {
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    while (!done() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_TRUE(done());
  }

  Log log_;
  HealthService health_;
  Methods methods_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(RpcServerTest, AnswersOneMessage) {
  StartServer();
  const Answer answer = Call("/t.T/Echo", {"hello"});
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.messages, std::vector<std::string>{"hello"});
  WaitUntil([this] { return log_.done == 1; });
  EXPECT_EQ(log_.cancelled, 0);
}

TEST_F(RpcServerTest, ReadsAStreamToItsEnd) {
  StartServer();
  const Answer answer = Call("/t.T/Stream", {"a", "", std::string(100000, 'b')});
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.messages, (std::vector<std::string>{"a", "", std::string(100000, 'b')}));
  EXPECT_TRUE(Call("/t.T/Stream", {}).status.ok());
  WaitUntil([this] { return log_.done == 2; });
}

TEST_F(RpcServerTest, AReactorMayEndAStreamEarly) {
  StartServer();
  const Answer answer = Call("/t.T/Stream", {"a", "fail", "b"});
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(answer.status.error_message(), "as asked");
  EXPECT_EQ(answer.messages, std::vector<std::string>{"a"});
  WaitUntil([this] { return log_.done == 1; });
}

TEST_F(RpcServerTest, AMethodThatIsNotThereIsNamed) {
  StartServer();
  const Answer answer = Call("/t.T/Nothing", {"hello"});
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(answer.status.error_message(), "this server has no method /t.T/Nothing");
}

TEST_F(RpcServerTest, ACallWithoutItsMessageFails) {
  StartServer();
  const Answer answer = Call("/t.T/Echo", {});
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(answer.status.error_message(), "the call brings no message");
  EXPECT_EQ(log_.done, 0);
}

TEST_F(RpcServerTest, AReactorLearnsThatItsCallWasCancelled) {
  StartServer();
  const Answer answer = Call("/t.T/Wait", {"x"}, absl::Milliseconds(100));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  WaitUntil([this] { return log_.done == 1; });
  EXPECT_EQ(log_.cancelled, 1);
  EXPECT_EQ(log_.failed_writes, 1);
}

TEST_F(RpcServerTest, ACallCancelledWhileItsReactorStartsIsCancelledAfterIt) {
  StartServer();
  EXPECT_FALSE(Call("/t.T/SlowWait", {"x"}, absl::Milliseconds(50)).status.ok());
  WaitUntil([this] { return log_.done == 1; });
  EXPECT_EQ(log_.cancelled, 1);
}

TEST_F(RpcServerTest, EndsWithCallsUnderWay) {
  StartServer(2);
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([this] { EXPECT_FALSE(Call("/t.T/Wait", {"x"}).status.ok()); });
  }
  EXPECT_TRUE(Call("/t.T/Echo", {"x"}).status.ok());
  absl::SleepFor(absl::Milliseconds(100));
  const int before = log_.done;
  EXPECT_EQ(before, 1);
  server_.reset();
  const int begun = log_.cancelled;
  EXPECT_EQ(log_.done, begun + 1);
  for (std::thread& caller : callers) caller.join();
}

TEST_F(RpcServerTest, ManyCallsOnSeveralThreads) {
  StartServer(3);
  constexpr int kCallers = 8;
  constexpr int kCalls = 200;
  std::vector<std::thread> callers;
  std::atomic<int> good = 0;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([this, i, &good] {
      for (int j = 0; j < kCalls; ++j) {
        const std::string text = std::to_string(i) + " " + std::to_string(j);
        const bool stream = j % 2 == 0;
        const Answer answer = Call(stream ? "/t.T/Stream" : "/t.T/Echo", {text});
        if (answer.status.ok() && answer.messages == std::vector<std::string>{text}) ++good;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(good, kCallers * kCalls);
  WaitUntil([this] { return log_.done == kCallers * kCalls; });
}

TEST_F(RpcServerTest, APortThatIsTakenIsSaid) {
  StartServer();
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort("203.0.113.1:1", grpc::InsecureServerCredentials());
  EXPECT_EQ(RpcServer::Start(builder, {}, 1), nullptr);
}

TEST_F(RpcServerTest, HealthTellsWatchersOfEveryChange) {
  health_.SetServing("s", true);
  StartServer();
  HealthCheckRequest request;
  request.set_service("s");
  std::vector<HealthCheckResponse::ServingStatus> seen;
  absl::Notification first;
  std::thread watcher([&] {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto call = stub.PrepareCall(&context, "/grpc.health.v1.Health/Watch", &queue);
    call->StartCall(nullptr);
    wait();
    call->WriteLast(SerializeMessage(request), grpc::WriteOptions(), nullptr);
    wait();
    while (seen.size() < 3) {
      grpc::ByteBuffer message;
      HealthCheckResponse response;
      call->Read(&message, nullptr);
      if (!wait() || !ParseMessage(message, response).ok()) break;
      seen.push_back(response.status());
      if (!first.HasBeenNotified()) first.Notify();
      if (seen.size() == 2) health_.SetServing("s", true);
    }
    context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    queue.Shutdown();
  });
  first.WaitForNotification();
  health_.SetServing("other", true);
  health_.SetServing("s", false);
  watcher.join();
  EXPECT_EQ(seen, (std::vector{HealthCheckResponse::SERVING, HealthCheckResponse::NOT_SERVING,
                               HealthCheckResponse::SERVING}));
  health_.SetServing("s", false);  // whoever has gone is told nothing
}

TEST_F(RpcServerTest, ReflectionGivesFilesThatBuild) {
  StartServer();
  ServerReflectionRequest request;
  request.set_file_containing_symbol("grpc.reflection.v1alpha.ServerReflection");
  const ServerReflectionResponse response = Reflect(request);
  google::protobuf::DescriptorPool pool;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(bytes));
    EXPECT_NE(pool.BuildFile(file), nullptr);
  }
  EXPECT_NE(pool.FindMethodByName("grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo"),
            nullptr);
}

TEST_F(RpcServerTest, ReflectionSaysWhatItDoesNotKnow) {
  StartServer();
  ServerReflectionRequest request;
  EXPECT_EQ(Reflect(request).error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_file_by_filename("no.proto");
  EXPECT_EQ(Reflect(request).error_response().error_message(), "no descriptor of no.proto");
  request.mutable_file_containing_extension()->set_containing_type("no.Type");
  request.mutable_file_containing_extension()->set_extension_number(7);
  EXPECT_EQ(Reflect(request).error_response().error_message(),
            "no descriptor of extension 7 of no.Type");
  request.set_all_extension_numbers_of_type("google.protobuf.FieldOptions");
  EXPECT_EQ(Reflect(request).all_extension_numbers_response().base_type_name(),
            "google.protobuf.FieldOptions");
}

}  // namespace
}  // namespace kiln::server
