// Compiling, sharing and fetching, over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using CompileTest = ServerTest;

TEST_F(CompileTest, CompilesToAProgramWithTheRightAnswer) {
  ASSERT_TRUE(StartServer());
  Answer answer = Compile(stub(), QuickRequest(1000));
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.source, "compiled");
  EXPECT_EQ(answer.artifact.header().target(), v1::TARGET_CPP);
  EXPECT_EQ(answer.artifact.header().library_steps(), 0);
  std::vector<float> x = SampleInput(1000);
  auto y = RunArtifact(answer.bytes, x);
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_THAT(*y, ::testing::Pointwise(::testing::FloatEq(), QuickAnswer(x)));
}

TEST_F(CompileTest, ClientsThatAskForOneKeyAtOnceShareOneCompile) {
  ASSERT_TRUE(StartServer());
  v1::CompileRequest request = SlowRequest(/*count=*/12, /*seed=*/1);
  absl::Notification running;
  auto first = std::async(std::launch::async, [&] {
    auto own_stub = server().NewStub();
    return Compile(*own_stub, request, [&](const v1::Progress& progress, grpc::ClientContext&) {
      if (!running.HasBeenNotified()) running.Notify();
    });
  });
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(absl::Seconds(60)));
  std::vector<std::future<Answer>> others;
  for (int i = 0; i < 3; ++i) {
    others.push_back(std::async(std::launch::async, [&] {
      auto own_stub = server().NewStub();
      return Compile(*own_stub, request);
    }));
  }
  Answer answer = first.get();
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.source, "compiled");
  EXPECT_EQ(answer.artifact.header().kernels_size(), 12);
  for (std::future<Answer>& other : others) {
    Answer same = other.get();
    ASSERT_TRUE(same.ok()) << Text(same.status);
    EXPECT_EQ(same.source, "coalesced");
    EXPECT_EQ(same.bytes, answer.bytes);
  }
  MetricText metrics = Metrics();
  EXPECT_EQ(metrics.Sum("kiln_compile_duration_seconds_count"), 1);
  EXPECT_EQ(metrics.Sum("kiln_jobs_coalesced_total"), 3);
  EXPECT_EQ(metrics.Sum("kiln_kernels_compiled_total"), 12);
}

TEST_F(CompileTest, TheSecondAskIsAHitFromMemoryAndFromDiskAfterARestart) {
  ASSERT_TRUE(StartServer());
  v1::CompileRequest request = QuickRequest(100);
  Answer compiled = Compile(stub(), request);
  ASSERT_TRUE(compiled.ok()) << Text(compiled.status);
  Answer again = Compile(stub(), request);
  ASSERT_TRUE(again.ok()) << Text(again.status);
  EXPECT_EQ(again.source, "memory");
  EXPECT_EQ(again.bytes, compiled.bytes);
  MetricText metrics = Metrics();
  EXPECT_EQ(metrics.Sum("kiln_compile_duration_seconds_count"), 1);
  EXPECT_EQ(metrics.Sum("kiln_cache_requests_total",
                        {{"kind", "artifact"}, {"tier", "memory"}, {"result", "hit"}}),
            1);

  ASSERT_TRUE(StartServer());
  EXPECT_THAT(server().ready_line(), ::testing::HasSubstr("(1 artifacts, 2 kernels)"));
  Answer from_disk = Compile(stub(), request);
  ASSERT_TRUE(from_disk.ok()) << Text(from_disk.status);
  EXPECT_EQ(from_disk.source, "disk");
  EXPECT_EQ(from_disk.bytes, compiled.bytes);
  EXPECT_EQ(Metrics().Sum("kiln_compile_duration_seconds_count"), 0);
}

TEST_F(CompileTest, FetchStreamsWhatWasCompiledAndCompilesNothing) {
  ASSERT_TRUE(StartServer());
  Answer compiled = Compile(stub(), QuickRequest(200));
  ASSERT_TRUE(compiled.ok()) << Text(compiled.status);
  Answer fetched = Fetch(stub(), compiled.artifact.header().key());
  ASSERT_TRUE(fetched.ok()) << Text(fetched.status);
  EXPECT_EQ(fetched.bytes, compiled.bytes);
  Answer missed = Fetch(stub(), std::string(64, 'a'));
  EXPECT_EQ(missed.status.error_code(), grpc::StatusCode::NOT_FOUND) << Text(missed.status);
  Answer malformed = Fetch(stub(), "abcd");
  EXPECT_EQ(malformed.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << Text(malformed.status);
}

TEST_F(CompileTest, NamesAndDeviceNumberDoNotMakeAnotherKey) {
  ASSERT_TRUE(StartServer());
  v1::CompileRequest request = QuickRequest(300);
  ASSERT_TRUE(Compile(stub(), request).ok());
  request.mutable_graph()->set_name("another");
  request.mutable_graph()->mutable_nodes(0)->set_name("renamed");
  request.mutable_device()->set_index(7);
  EXPECT_EQ(Compile(stub(), request).source, "memory");
}

// Two graphs that share their first product and differ in what follows.
v1::CompileRequest SharingRequest(int64_t last_width) {
  GraphBuilder builder;
  uint32_t x = builder.Input({32, 48});
  uint32_t w = builder.Input({48, 56});
  uint32_t v = builder.Input({56, last_width});
  uint32_t shared = builder.Node("shared", "aten.mm.default", {x, w}, {32, 56});
  builder.Output(builder.Node("own", "aten.mm.default", {shared, v}, {32, last_width}));
  return builder.Request();
}

TEST_F(CompileTest, AKernelThatTwoGraphsShareIsCompiledOnce) {
  ASSERT_TRUE(StartServer());
  Answer first = Compile(stub(), SharingRequest(64));
  ASSERT_TRUE(first.ok()) << Text(first.status);
  ASSERT_EQ(first.artifact.header().kernels_size(), 2);
  Answer second = Compile(stub(), SharingRequest(72));
  ASSERT_TRUE(second.ok()) << Text(second.status);
  EXPECT_EQ(second.source, "compiled");
  ASSERT_EQ(second.artifact.header().kernels_size(), 2);
  int cached = 0;
  for (const v1::KernelInfo& kernel : second.artifact.header().kernels()) {
    cached += kernel.cached();
  }
  EXPECT_EQ(cached, 1);
  const auto& routines = second.artifact.header().routines();
  EXPECT_GT(routines.size(), 0);
  for (const v1::KernelInfo& routine : routines) EXPECT_TRUE(routine.cached()) << routine.symbol();
  MetricText metrics = Metrics();
  EXPECT_EQ(metrics.Sum("kiln_kernels_compiled_total"), 3);
  EXPECT_EQ(metrics.Sum("kiln_cache_requests_total", {{"kind", "kernel"}, {"result", "hit"}}),
            1 + routines.size());
}

TEST_F(CompileTest, AnArtifactOverFourMegabytesTravelsInChunks) {
  ASSERT_TRUE(StartServer());
  constexpr int kConstants = 72;
  constexpr int64_t kElements = 16384;  // 64 KiB, the most that a constant may have
  GraphBuilder builder;
  uint32_t sum = builder.Input({kElements});
  std::vector<uint32_t> constants;
  for (int i = 0; i < kConstants; ++i) {
    constants.push_back(builder.Constant(std::vector<float>(kElements, static_cast<float>(i))));
  }
  for (uint32_t constant : constants) {
    sum = builder.Node("add", "aten.add.Tensor", {sum, constant}, {kElements});
  }
  builder.Output(sum);
  Answer answer = Compile(stub(), builder.Request());
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_GT(answer.bytes.size(), size_t{4} << 20);
  EXPECT_GE(answer.chunks, 5);
  auto y = RunArtifact(answer.bytes, std::vector<float>(kElements, 0.5f));
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_THAT(*y, ::testing::Each(0.5f + kConstants * (kConstants - 1) / 2));
}

TEST_F(CompileTest, ADeadlineEndsTheCallAndItsCompile) {
  ASSERT_TRUE(StartServer());
  absl::Time start = absl::Now();
  Answer answer =
      Compile(stub(), SlowRequest(/*count=*/60, /*seed=*/2), nullptr, absl::Milliseconds(400));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << Text(answer.status);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
    MetricText metrics = Metrics();
    return metrics.Sum("kiln_jobs_running") == 0 && metrics.Sum("kiln_waiters") == 0;
  }));
  EXPECT_TRUE(Compile(stub(), QuickRequest(400)).ok());
}

TEST_F(CompileTest, ACancelledClientLeavesTheOthersTheirCompile) {
  ASSERT_TRUE(StartServer());
  v1::CompileRequest request = SlowRequest(/*count=*/12, /*seed=*/3);
  absl::Notification running;
  auto patient = std::async(std::launch::async, [&] {
    auto own_stub = server().NewStub();
    return Compile(*own_stub, request, [&](const v1::Progress&, grpc::ClientContext&) {
      if (!running.HasBeenNotified()) running.Notify();
    });
  });
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(absl::Seconds(60)));
  Answer cancelled =
      Compile(stub(), request,
              [](const v1::Progress&, grpc::ClientContext& context) { context.TryCancel(); });
  EXPECT_EQ(cancelled.status.error_code(), grpc::StatusCode::CANCELLED) << Text(cancelled.status);
  Answer answer = patient.get();
  EXPECT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.source, "compiled");
}

TEST_F(CompileTest, TheLastClientToCancelStopsTheCompile) {
  ASSERT_TRUE(StartServer());
  Answer cancelled =
      Compile(stub(), SlowRequest(/*count=*/200, /*seed=*/4),
              [](const v1::Progress&, grpc::ClientContext& context) { context.TryCancel(); });
  EXPECT_EQ(cancelled.status.error_code(), grpc::StatusCode::CANCELLED) << Text(cancelled.status);
  EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
    MetricText metrics = Metrics();
    return metrics.Sum("kiln_jobs_running") == 0 &&
           metrics.Sum("kiln_workers", {{"state", "idle"}}) == 2;
  }));
  EXPECT_LT(Metrics().Sum("kiln_kernels_compiled_total"), 200);
}

TEST_F(CompileTest, ServerInfoTellsWhatTheCachesHold) {
  ASSERT_TRUE(StartServer());
  ASSERT_TRUE(Compile(stub(), QuickRequest(500)).ok());
  v1::ServerInfo info = GetServerInfo(stub());
  EXPECT_FALSE(info.version().empty());
  EXPECT_FALSE(info.compiler_build().empty());
  EXPECT_EQ(info.workers(), 2);
  EXPECT_FALSE(info.draining());
  EXPECT_THAT(info.targets(), ::testing::Contains(v1::TARGET_CPP));
  std::map<std::string, uint64_t> entries;
  for (const v1::CacheInfo& cache : info.caches()) entries[cache.kind()] += cache.entries();
  EXPECT_EQ(entries["artifact"], 2) << "in memory and on disk";
  EXPECT_EQ(entries["kernel"], 4) << "with the routine that it calls";
  EXPECT_EQ(entries["description"], 1) << "what the key was made of, on disk";
}

}  // namespace
}  // namespace kiln::integration
