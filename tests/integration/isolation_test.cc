// A kilnd whose compiler misbehaves (misbehaving_compiler.cc): what it costs others, what its
// caller is told, and what is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KILN_SANITIZED 1
#endif
#endif

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kWorkerTimeout = absl::Seconds(5);
constexpr int kWorkers = 2;

struct Misdeed {
  std::string name;
  grpc::StatusCode code;
  v1::ErrorDetail::Reason reason;
  std::string in_message;
};

// Of a size that goes with the deed: names are no part of a key, and one deed has one key.
v1::CompileRequest Misbehave(const std::string& deed) {
  v1::CompileRequest request =
      QuickRequest(1'000'000 + static_cast<int64_t>(absl::HashOf(deed) % 1'000'000));
  request.mutable_graph()->set_name(absl::StrCat("misbehave:", deed));
  return request;
}

// Processes that this server's workers and their tasks are, or left: all carry its number in their
// command line.
int CountProcessesOf(pid_t server) {
  std::string mark = absl::StrCat("--parent-pid=", server, " ");
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    std::ifstream file(entry.path() / "cmdline");
    std::stringstream text;
    text << file.rdbuf();
    std::string zero(1, '\0');
    count += absl::StrContains(absl::StrReplaceAll(text.str(), {{zero, " "}}), mark);
  }
  return count;
}

// Somebody else's compiles, one after another, on a connection of their own.
class Others {
 public:
  explicit Others(const ServerProcess& server)
      : stub_(server.NewStub()), thread_([this] { Run(); }) {}
  ~Others() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int served() const { return served_; }
  const std::vector<std::string>& errors() const { return errors_; }  // after Stop

 private:
  void Run() {
    for (int64_t elements = 100; !stop_; ++elements) {
      Answer answer = Compile(*stub_, QuickRequest(elements), nullptr, absl::Seconds(30));
      if (answer.ok()) {
        ++served_;
      } else {
        errors_.push_back(Text(answer.status));
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  std::unique_ptr<v1::CompileService::Stub> stub_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> served_ = 0;
  std::vector<std::string> errors_;
  std::thread thread_;
};

class IsolationTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef KILN_SANITIZED
    GTEST_SKIP() << "a sanitizer needs what workers may not do, and turns crashes into exits";
#endif
    // Anyone may write here: only the sandbox keeps a worker from it.
    std::filesystem::create_directory(folder());
    ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
    ASSERT_EQ(chmod(folder().c_str(), 0777), 0);
  }
  ~IsolationTest() override {
    if (HasFailure() && server_ != nullptr) std::cerr << server_->process().Errors();
  }

  void StartServer(int standby) {
    auto server = ServerProcess::Start(
        dir_.path() + "/data",
        {absl::StrCat("--workers=", kWorkers),
         absl::StrCat("--worker-timeout=", absl::FormatDuration(kWorkerTimeout)),
         "--worker-memory=384MiB", absl::StrCat("--worker-standby=", standby)},
        KILND_MISBEHAVING, {"KILN_TEST_SECRET=of-the-server"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = server_->NewStub();
  }

  std::string folder() const { return dir_.path() + "/open"; }
  bool AllWorkersServe() {
    MetricText metrics = server_->Metrics();
    return metrics.Sum("kiln_workers", {{"state", "starting"}}) == 0 &&
           metrics.Sum("kiln_workers") == kWorkers &&
           CountProcessesOf(server_->process().pid()) == kWorkers &&
           ZombiesOf(server_->process().pid()).empty();
  }
  void Commit(const Misdeed& deed);
  void ExpectDenials();

  TempDir dir_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<v1::CompileService::Stub> stub_;
};

// One bad graph: a typed error in time, the slot back, the graph refused, nothing left.
void IsolationTest::Commit(const Misdeed& deed) {
  SCOPED_TRACE(deed.name);
  v1::CompileRequest request =
      Misbehave(deed.name == "disk"   ? absl::StrCat("disk:", folder())
                : deed.name == "exec" ? absl::StrCat("exec:", folder(), "/ran")
                                      : deed.name);
  absl::Time start = absl::Now();
  Answer answer = Compile(*stub_, request);
  absl::Duration told = absl::Now() - start;
  bool back = Eventually(absl::Seconds(10), [&] { return AllWorkersServe(); });
  absl::Duration until_back = absl::Now() - start - told;
  std::cout << deed.name << ": told after " << told << ", slot back after " << until_back << ": "
            << Text(answer.status) << std::endl;
  EXPECT_LT(told, kWorkerTimeout + absl::Seconds(2));
  EXPECT_EQ(answer.status.error_code(), deed.code);
  EXPECT_EQ(answer.detail.reason(), deed.reason);
  EXPECT_THAT(answer.status.error_message(), HasSubstr(deed.in_message));
  EXPECT_TRUE(back);
  EXPECT_LT(until_back, absl::Seconds(3));
  Answer refused = Compile(*stub_, request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << Text(refused.status);
  EXPECT_GT(refused.detail.retry_after_ms(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder()));
}

TEST_F(IsolationTest, AGraphThatMisbehavesCostsNobodyElseAnything) {
  using v1::ErrorDetail;
  const Misdeed kMisdeeds[] = {
      {"segfault", grpc::INTERNAL, ErrorDetail::REASON_WORKER_CRASHED, "signal 11"},
      {"stack", grpc::INTERNAL, ErrorDetail::REASON_WORKER_CRASHED, "signal 11"},
      {"loop", grpc::RESOURCE_EXHAUSTED, ErrorDetail::REASON_WORKER_TIMEOUT, "longer than 5s"},
      {"allocate", grpc::RESOURCE_EXHAUSTED, ErrorDetail::REASON_WORKER_MEMORY, "memory"},
      {"map", grpc::RESOURCE_EXHAUSTED, ErrorDetail::REASON_WORKER_MEMORY, "memory"},
      {"fork", grpc::INTERNAL, ErrorDetail::REASON_WORKER_CRASHED, "may not make"},
      {"disk", grpc::INTERNAL, ErrorDetail::REASON_WORKER_CRASHED, "may not make"},
      {"exec", grpc::INTERNAL, ErrorDetail::REASON_WORKER_CRASHED, "may not make"},
      {"connect", grpc::INTERNAL, ErrorDetail::REASON_WORKER_CRASHED, "may not make"},
  };
  ASSERT_NO_FATAL_FAILURE(StartServer(/*standby=*/0));
  Others others(*server_);
  for (const Misdeed& deed : kMisdeeds) Commit(deed);
  others.Stop();
  EXPECT_THAT(others.errors(), IsEmpty());
  EXPECT_GT(others.served(), 10);
  std::cout << others.served() << " compiles of others succeeded meanwhile" << std::endl;
  MetricText metrics = server_->Metrics();
  EXPECT_EQ(metrics.Sum("kiln_worker_exits_total", {{"reason", "crash"}}), 12);  // two tries each
  EXPECT_EQ(metrics.Sum("kiln_worker_exits_total", {{"reason", "timeout"}}), 1);
  EXPECT_EQ(metrics.Sum("kiln_worker_exits_total", {{"reason", "memory"}}), 2);
  EXPECT_EQ(metrics.Sum("kiln_graphs_refused_total"), std::size(kMisdeeds));
  // Cleared, a graph is tried again at once.
  grpc::ClientContext context;
  v1::ClearRefusalsResponse cleared;
  grpc::Status status = stub_->ClearRefusals(&context, {}, &cleared);
  EXPECT_TRUE(status.ok()) << Text(status);
  EXPECT_EQ(cleared.cleared(), std::size(kMisdeeds));
  Commit(kMisdeeds[0]);
  // The server itself ends in order, and takes its workers along.
  pid_t pid = server_->process().pid();
  stub_.reset();
  EXPECT_EQ(server_->Terminate(), 0);
  EXPECT_EQ(CountProcessesOf(pid), 0);
}

void IsolationTest::ExpectDenials() {
  std::string secret = dir_.path() + "/secret";
  std::ofstream(secret) << "of the server";
  for (const char* deed : {"threads", "memory-files", "make-code"}) {
    Answer answer = Compile(*stub_, Misbehave(deed));
    EXPECT_EQ(answer.status.error_code(), grpc::PERMISSION_DENIED) << Text(answer.status);
  }
  Answer told = Compile(*stub_, Misbehave("tell"));
  EXPECT_THAT(told.status.error_message(), HasSubstr("descriptors: 0 1 2 3 4 5; secret: none"));
  Answer read = Compile(*stub_, Misbehave("read:" + secret));
  std::string log = server_->process().Errors();
  if (absl::StrContains(log, "landlock")) {
    EXPECT_THAT(log, HasSubstr("files can be read (landlock)"));
  } else {
    EXPECT_EQ(read.status.error_code(), grpc::PERMISSION_DENIED) << Text(read.status);
  }
  EXPECT_EQ(server_->Metrics().Sum("kiln_worker_exits_total"), 0);
  EXPECT_THAT(log, HasSubstr("compile workers are isolated"));
}

TEST_F(IsolationTest, WhatAWorkerMayNotHaveItIsDenied) {
  ASSERT_NO_FATAL_FAILURE(StartServer(/*standby=*/0));
  ExpectDenials();
}

TEST_F(IsolationTest, WhatAWorkerMayNotHaveAProcessThatWaitedIsDenied) {
  ASSERT_NO_FATAL_FAILURE(StartServer(/*standby=*/8));
  const auto all = [&] { return CountProcessesOf(server_->process().pid()) == kWorkers + 8; };
  ASSERT_TRUE(Eventually(absl::Seconds(20), all));
  ExpectDenials();
}

// A server whose one worker plans, compiles and links for honest clients and for one that lies.
class LiesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = ServerProcess::Start(dir_.path() + "/data", {"--workers=1"}, KILND_MISBEHAVING);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = server_->NewStub();
  }
  ~LiesTest() override {
    if (HasFailure() && server_ != nullptr) std::cerr << server_->process().Errors();
  }

  // A client asks for a graph with the same kernels as the honest one's, under another key.
  Answer Lie(const std::string& what) {
    v1::CompileRequest request = QuickRequest(kElements);
    request.mutable_graph()->set_name("lie:" + what);
    request.mutable_options()->add_disabled_passes(what);
    return Compile(*stub_, request);
  }

  // The next client's program is what it asked for.
  void ExpectTruth() {
    Answer answer = Compile(*stub_, QuickRequest(kElements));
    ASSERT_TRUE(answer.ok()) << Text(answer.status);
    auto outputs = RunArtifact(answer.bytes, SampleInput(kElements));
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    EXPECT_EQ(*outputs, QuickAnswer(SampleInput(kElements)));
    honest_ = answer.artifact.header().kernels(0);
  }

  // Whether the program of the liar itself does what its graph says.
  static bool IsTrue(const Answer& answer) {
    auto outputs = RunArtifact(answer.bytes, SampleInput(kElements));
    return outputs.ok() && *outputs == QuickAnswer(SampleInput(kElements));
  }

  static constexpr int64_t kElements = 1000;
  TempDir dir_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<v1::CompileService::Stub> stub_;
  v1::KernelInfo honest_;
};

TEST_F(LiesTest, AnotherSourceUnderAKernelsNameHasAnotherKey) {
  Answer lied = Lie("name");
  ASSERT_TRUE(lied.ok()) << Text(lied.status);
  EXPECT_FALSE(IsTrue(lied)) << "the lie was not told";
  ExpectTruth();
  const v1::KernelInfo& forged = lied.artifact.header().kernels(0);
  EXPECT_EQ(forged.symbol(), honest_.symbol());
  EXPECT_NE(forged.key(), honest_.key());
  EXPECT_FALSE(honest_.cached());
}

TEST_F(LiesTest, ATaskLeavesNothingBehindForTheNext) {
  for (const char* what : {"plan", "compile", "link"}) {
    SCOPED_TRACE(what);
    Answer lied = Lie(what);
    ASSERT_TRUE(lied.ok()) << Text(lied.status);
    EXPECT_FALSE(IsTrue(lied)) << "the lie was not told";
    // All steps once more.
    v1::ClearCacheResponse cleared;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->ClearCache(&context, {}, &cleared).ok());
    ExpectTruth();
    EXPECT_FALSE(honest_.cached());
  }
  EXPECT_EQ(server_->Metrics().Sum("kiln_worker_exits_total"), 0);
  EXPECT_THAT(ZombiesOf(server_->process().pid()), IsEmpty());
}

TEST_F(LiesTest, MoreAnswersThanOneReachNobody) {
  Answer lied = Lie("answers");
  ASSERT_TRUE(lied.ok()) << Text(lied.status);
  EXPECT_TRUE(IsTrue(lied)) << "its first answer was true";
  ExpectTruth();
}

}  // namespace
}  // namespace kiln::integration
