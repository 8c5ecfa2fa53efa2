// What operators point their tools at: metrics, probes, health, reflection.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

using ProbesTest = ServerTest;

TEST_F(ProbesTest, EveryMetricIsThereWithItsTypeAndLabels) {
  ASSERT_TRUE(StartServer());
  v1::CompileRequest request = QuickRequest(64);
  request.mutable_graph()->mutable_nodes(0)->set_op("aten.no_such_operator.default");
  request.mutable_device()->add_libraries("torch");
  ASSERT_TRUE(Compile(stub(), request).ok());
  MetricText metrics = Metrics();
  const struct {
    std::string name;
    std::string type;
    std::vector<std::string> labels;
  } expected[] = {
      {"kiln_compile_duration_seconds", "histogram", {"target", "result"}},
      {"kiln_compile_stage_duration_seconds", "histogram", {"stage", "target"}},
      {"kiln_rpc_duration_seconds", "histogram", {"method", "code"}},
      {"kiln_cache_requests_total", "counter", {"kind", "tier", "result"}},
      {"kiln_cache_size_bytes", "gauge", {"kind", "tier"}},
      {"kiln_cache_entries", "gauge", {"kind", "tier"}},
      {"kiln_jobs_queued", "gauge", {}},
      {"kiln_jobs_running", "gauge", {}},
      {"kiln_waiters", "gauge", {}},
      {"kiln_jobs_coalesced_total", "counter", {}},
      {"kiln_workers", "gauge", {"state"}},
      {"kiln_worker_exits_total", "counter", {"reason"}},
      {"kiln_library_steps_total", "counter", {"op"}},
      {"kiln_build_info", "gauge", {"version", "build"}},
      {"kiln_connections", "gauge", {}},
      {"kiln_connections_refused_total", "counter", {"reason"}},
      {"kiln_descriptors_exhausted", "gauge", {}},
      {"kiln_incomplete_requests_refused_total", "counter", {"reason"}},
      {"kiln_worker_isolation_gaps", "gauge", {}},
  };
  for (const auto& metric : expected) {
    EXPECT_EQ(metrics.Type(metric.name), metric.type) << metric.name;
    std::string sample = metric.type == "histogram" ? metric.name + "_count" : metric.name;
    EXPECT_THAT(metrics.LabelNames(sample), IsSupersetOf(metric.labels)) << metric.name;
  }
  EXPECT_EQ(metrics.Sum("kiln_build_info"), 1);
  EXPECT_EQ(metrics.Sum("kiln_workers"), 2);
  EXPECT_EQ(metrics.Sum("kiln_compile_duration_seconds_count", {{"target", "cpp"}}), 1);
  EXPECT_EQ(metrics.Sum("kiln_rpc_duration_seconds_count", {{"method", "Compile"}}), 1);
  EXPECT_EQ(metrics.Sum("kiln_cache_entries", {{"kind", "artifact"}, {"tier", "disk"}}), 1);
  EXPECT_GT(metrics.Sum("kiln_cache_size_bytes", {{"kind", "kernel"}, {"tier", "memory"}}), 0);
}

TEST_F(ProbesTest, HttpProbesAnswer) {
  ASSERT_TRUE(StartServer());
  for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
    auto answer = HttpGet(server().http_address(), path);
    ASSERT_TRUE(answer.ok()) << path << ": " << answer.status();
    EXPECT_EQ(answer->code, 200) << path;
    EXPECT_FALSE(answer->body.empty()) << path;
  }
  auto absent = HttpGet(server().http_address(), "/no-such-page");
  ASSERT_TRUE(absent.ok()) << absent.status();
  EXPECT_EQ(absent->code, 404);
}

// A call by its name, with messages as they are on the wire: these services' classes are not
// installed with gRPC. The first answer.
struct RawAnswer {
  grpc::Status status;
  std::string bytes;
};

RawAnswer CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, method, &queue);
  RawAnswer answer;
  auto wait = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  bool ok = wait();
  grpc::Slice slice(request);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  ok = ok && wait();
  call->WritesDone(nullptr);
  ok = ok && wait();
  grpc::ByteBuffer buffer;
  call->Read(&buffer, nullptr);
  if (ok && wait()) {
    std::vector<grpc::Slice> slices;
    if (buffer.Dump(&slices).ok()) {
      for (const grpc::Slice& part : slices) {
        answer.bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
      }
    }
  }
  call->Finish(&answer.status, nullptr);
  wait();
  queue.Shutdown();
  return answer;
}

TEST_F(ProbesTest, TheHealthServiceSaysServing) {
  ASSERT_TRUE(StartServer());
  // HealthCheckRequest.service is field 1; HealthCheckResponse.status is field 1, SERVING is 1.
  const std::string service = "kiln.v1.CompileService";
  const std::string requests[] = {
      "", absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service)};
  for (const std::string& request : requests) {
    RawAnswer answer = CallRaw(server().Connect(), "/grpc.health.v1.Health/Check", request);
    EXPECT_TRUE(answer.status.ok()) << Text(answer.status);
    EXPECT_EQ(answer.bytes, "\x08\x01");
  }
}

TEST_F(ProbesTest, ReflectionListsTheServices) {
  ASSERT_TRUE(StartServer());
  // ServerReflectionRequest.list_services is field 7, a string that nobody reads.
  RawAnswer answer =
      CallRaw(server().Connect(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              "\x3a\x01*");
  EXPECT_TRUE(answer.status.ok()) << Text(answer.status);
  EXPECT_THAT(answer.bytes, HasSubstr("kiln.v1.CompileService"));
  EXPECT_THAT(answer.bytes, HasSubstr("grpc.health.v1.Health"));
}

}  // namespace
}  // namespace kiln::integration
