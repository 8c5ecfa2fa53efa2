#include "client/cli/top_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <locale.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kiln/v1/activity.pb.h"

namespace kiln::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Activity Sample(const std::string& graph) {
  v1::Activity a;
  a.set_now_unix_us(1'700'000'100'000'000);
  a.set_started_unix_us(1'700'000'000'000'000);
  a.set_version("9.9");
  a.set_jobs_running(1);
  a.set_workers_busy(1);
  a.set_workers_idle(1);
  a.mutable_hit_latency()->set_count(200);
  a.mutable_hit_latency()->set_p50_ms(0.131);
  v1::ActivityPoint& point = *a.add_history();
  point.set_hits(30);
  point.set_misses(10);
  for (const char* kind : {"artifact", "kernel"}) {
    v1::CacheUsage& cache = *a.add_caches();
    cache.set_kind(kind);
    cache.set_tier("disk");
    cache.set_entries(4);
    cache.set_size_bytes(1 << 20);
  }
  for (const char* tenant : {"a", "b"}) a.add_tenants()->set_tenant(tenant);
  v1::CompileRecord& running = *a.add_running();
  running.set_graph(graph);
  running.set_tenant("team");
  running.set_stage("compile");
  running.set_started_unix_us(a.now_unix_us() - 2'500'000);
  for (int i = 0; i < 50; ++i) {
    v1::CompileRecord& done = *a.add_recent();
    done.set_graph(absl::StrCat(graph, i));
    done.set_key(std::string(64, 'c'));
    done.set_outcome(i == 1 ? "INTERNAL: it broke" : "OK");
    done.set_source("compiled");
    done.set_started_unix_us(a.now_unix_us() - 9'000'000);
    done.set_finished_unix_us(a.now_unix_us() - 8'000'000);
  }
  return a;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();
  return lines;
}

TEST(TopScreenTest, FitsTheScreenWhateverItsSize) {
  for (auto [width, height] : {std::pair{80, 24}, {40, 10}, {200, 60}, {20, 3}, {1, 1}}) {
    TopScreen screen{.width = width, .height = height, .unicode = false, .server = "host:1"};
    std::vector<std::string> lines = Lines(RenderTop(Sample("graph"), screen));
    EXPECT_LE(lines.size(), static_cast<size_t>(height));
    for (const std::string& line : lines)
      EXPECT_LE(line.size(), static_cast<size_t>(width)) << line;
  }
}

TEST(TopScreenTest, ShowsWhatMattersOnEightyByTwentyFour) {
  TopScreen screen{.unicode = false, .server = "host:1"};
  std::string text = RenderTop(Sample("bert"), screen);
  EXPECT_THAT(text, HasSubstr("host:1  serving  version 9.9  up 1 min"));
  EXPECT_THAT(text, HasSubstr("75.0 % of 40"));
  EXPECT_THAT(text, HasSubstr("131 us"));
  EXPECT_THAT(text, HasSubstr("disk 8 entries, 2.0 MiB"));
  EXPECT_THAT(text, HasSubstr("1 of 2 workers busy"));
  EXPECT_THAT(text, HasSubstr("compile       2.5 s"));
  EXPECT_THAT(text, HasSubstr("bert0"));
  EXPECT_THAT(text, HasSubstr("cccccccccccc"));
  EXPECT_EQ(Lines(text).size(), 24u);
  EXPECT_THAT(text, Not(HasSubstr("\033")));
}

TEST(TopScreenTest, OneMissOfManyIsNotAHundredPercent) {
  v1::Activity a = Sample("bert");
  a.mutable_history(0)->set_hits(2999);
  a.mutable_history(0)->set_misses(1);
  EXPECT_THAT(RenderTop(a, {.unicode = false}), HasSubstr("99.9 % of 3000"));
  a.mutable_history(0)->set_misses(0);
  EXPECT_THAT(RenderTop(a, {.unicode = false}), HasSubstr("100.0 % of 2999"));
}

TEST(TopScreenTest, ColorIsOnlyWhereItIsWanted) {
  TopScreen screen{.color = true, .unicode = false};
  EXPECT_THAT(RenderTop(Sample("g"), screen), HasSubstr("\033["));
  screen.color = false;
  EXPECT_THAT(RenderTop(Sample("g"), screen), Not(HasSubstr("\033")));
}

TEST(TopScreenTest, NamesCannotSteerTheTerminal) {
  const std::string hostile[] = {"\033[2J\033]0;title\007", "a\r\nb\tc\x7f", "\u009b31m",
                                 "\u202egnp.exe", "\xff\xfe\x80"};
  for (const std::string& name : hostile) {
    std::string text = RenderTop(Sample(name), {.unicode = true});
    for (const char* bad : {"\033", "\r", "\t", "\007", "\x7f", "\u009b", "\u202e", "\xff"}) {
      EXPECT_THAT(text, Not(HasSubstr(bad))) << name;
    }
    EXPECT_THAT(text, HasSubstr("?"));
  }
}

TEST(TopScreenTest, AProblemStandsInTheFirstLine) {
  EXPECT_THAT(Lines(RenderTop(Sample("g"), {.server = "h:1", .problem = "no answer"})).front(),
              HasSubstr("h:1  no answer"));
}

TEST(FitTextTest, CutsAndFillsByColumns) {
  ASSERT_NE(setlocale(LC_CTYPE, "C.UTF-8"), nullptr);
  EXPECT_EQ(FitText("abc", 5, true), "abc  ");
  EXPECT_EQ(FitText("abcdef", 4, true), "abc\u2026");
  EXPECT_EQ(FitText("abcdef", 4, false), "abc~");
  EXPECT_EQ(FitText("\u4e2d\u6587", 4, true), "\u4e2d\u6587");
  EXPECT_EQ(FitText("\u4e2d\u6587x", 4, true), "\u4e2d\u2026 ");
  EXPECT_EQ(FitText("\u00e9t\u00e9", 3, true), "\u00e9t\u00e9");
  EXPECT_EQ(FitText("\u00e9", 1, false), "?");
  EXPECT_EQ(FitText("abc", 0, true), "");
}

}  // namespace
}  // namespace kiln::cli
