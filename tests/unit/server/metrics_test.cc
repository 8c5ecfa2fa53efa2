#include "server/observe/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, GaugesShowWhatTheyAreGiven) {
  Metrics metrics("1.2", "build");
  GaugeValues gauges;
  gauges.jobs_queued = 7;
  gauges.workers_busy = 2;
  gauges.caches = {{"disk", cache::EntryKind::kKernel, 3, 400}};
  std::string text = metrics.Render(gauges);
  EXPECT_THAT(text, HasSubstr("\nkiln_jobs_queued 7\n"));
  EXPECT_THAT(text, HasSubstr("\nkiln_workers{state=\"busy\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nkiln_cache_entries{kind=\"kernel\",tier=\"disk\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nkiln_cache_size_bytes{kind=\"kernel\",tier=\"disk\"} 400\n"));
  EXPECT_THAT(text, HasSubstr("\nkiln_build_info{build=\"build\",version=\"1.2\"} 1\n"));
}

TEST(Metrics, CompilesCountByTargetAndResult) {
  Metrics metrics("1", "b");
  metrics.CompileDone("cpp", absl::OkStatus(), absl::Seconds(1));
  metrics.CompileDone("cpp", absl::InternalError("x"), absl::Seconds(1));
  metrics.CompileDone("cpp", absl::CancelledError("x"), absl::Seconds(1));
  std::string text = metrics.Render({});
  for (const char* result : {"ok", "error", "cancelled"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("kiln_compile_duration_seconds_count{result=\"",
                                             result, "\",target=\"cpp\"} 1\n")));
  }
}

TEST(Metrics, NamesOfLibraryOpsAreBounded) {
  Metrics metrics("1", "b");
  for (int i = 0; i < 2000; ++i) metrics.LibraryStep(absl::StrCat("aten.op", i));
  std::string text = metrics.Render({});
  std::vector<std::string> parts = absl::StrSplit(text, "kiln_library_steps_total{");
  EXPECT_EQ(parts.size() - 1, 501u);
  EXPECT_THAT(text, HasSubstr("kiln_library_steps_total{op=\"other\"} 1500\n"));
}

TEST(Metrics, HitsAreCountedByTierAndTenant) {
  Metrics metrics("1", "b");
  metrics.HitServed("disk", "team-a", absl::Milliseconds(2));
  std::string text = metrics.Render({});
  EXPECT_THAT(text, HasSubstr("kiln_hit_duration_seconds_count{tier=\"disk\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("kiln_hit_duration_seconds_bucket{tier=\"disk\",le=\"0.001\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("kiln_hit_duration_seconds_bucket{tier=\"disk\",le=\"0.0025\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("kiln_tenant_hits_total{tenant=\"team-a\"} 1\n"));
}

TEST(Metrics, CountersThatAlertsLookAtExistFromTheStart) {
  Metrics metrics("1", "b");
  metrics.AddTarget("cpp", "c");
  std::string text = metrics.Render({});
  for (const char* sample :
       {"kiln_target_build_info{build=\"c\",target=\"cpp\"} 1\n",
        "kiln_calls_rejected_total{reason=\"queue_full\"} 0\n",
        "kiln_worker_exits_total{reason=\"crash\"} 0\n",
        "kiln_trace_spans_dropped_total{reason=\"unreachable\"} 0\n",
        "kiln_compile_duration_seconds_count{result=\"error\",target=\"cpp\"} 0\n",
        "kiln_cache_requests_total{kind=\"artifact\",result=\"corrupt\",tier=\"disk\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(sample));
  }
}

TEST(Metrics, EvictionsAreCountedAsTheirTierHasThem) {
  Metrics metrics("1", "b");
  GaugeValues gauges;
  gauges.caches = {{.tier = "disk",
                    .kind = cache::EntryKind::kKernel,
                    .entries = 0,
                    .size_bytes = 0,
                    .evicted = 3,
                    .expired = 1}};
  metrics.Render(gauges);
  gauges.caches[0].evicted = 5;
  const std::string text = metrics.Render(gauges);
  EXPECT_THAT(text, HasSubstr("kiln_cache_evictions_total{kind=\"kernel\",reason=\"room\","
                              "tier=\"disk\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("kiln_cache_evictions_total{kind=\"kernel\",reason=\"age\","
                              "tier=\"disk\"} 1\n"));
}

TEST(Metrics, ACertificateIsShownWhereThereIsOne) {
  Metrics metrics("1", "b");
  GaugeValues gauges;
  EXPECT_THAT(metrics.Render(gauges), Not(HasSubstr("kiln_tls_certificate_remaining_seconds ")));
  gauges.certificate_left = -absl::Minutes(1);
  EXPECT_THAT(metrics.Render(gauges), HasSubstr("\nkiln_tls_certificate_remaining_seconds -60\n"));
}

TEST(Metrics, TheProcessIsShownAsItStands) {
  Metrics metrics("1", "b");
  GaugeValues gauges;
  gauges.process.cpu_seconds = 1.5;
  gauges.process.open_fds = 12;
  metrics.Render(gauges);
  gauges.process.cpu_seconds = 2.5;
  std::string text = metrics.Render(gauges);
  EXPECT_THAT(text, HasSubstr("\nprocess_cpu_seconds_total 2.5\n"));
  EXPECT_THAT(text, HasSubstr("\nprocess_open_fds 12\n"));
}

}  // namespace
}  // namespace kiln::server
