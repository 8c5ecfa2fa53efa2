#include "server/metrics.h"

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

}  // namespace
}  // namespace kiln::server
