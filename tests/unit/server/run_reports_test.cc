#include "server/observe/run_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

class RunReportsTest : public ::testing::Test {
 protected:
  // A report of a compile that the server remembers.
  v1::ReportRunRequest Known(const std::string& graph) {
    const Digest key = Sha256(graph);
    auto request = std::make_shared<v1::CompileRequest>();
    request->mutable_graph()->set_name(graph);
    activity_.JobQueued(++jobs_, key, request, {});
    activity_.JobStarted(jobs_);
    activity_.JobEnded(jobs_, absl::OkStatus(), "compiled");
    return Report(key);
  }
  static v1::ReportRunRequest Report(const Digest& key) {
    v1::ReportRunRequest report;
    report.set_key(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size());
    report.mutable_times()->set_device("gcu-16m");
    v1::LaunchTime& time = *report.mutable_times()->add_launches();
    time.set_kernel("kiln_0123");
    time.set_launches(2);
    time.set_mean_us(12.5);
    time.set_l2_peak_bytes(4096);
    return report;
  }

  int64_t jobs_ = 0;
  ActivityLog activity_;
  RunReports reports_{&activity_};
};

TEST_F(RunReportsTest, TheLastReportOfACompileIsFound) {
  v1::ReportRunRequest report = Known("a");
  ASSERT_EQ(reports_.Add(report), absl::OkStatus());
  report.mutable_times()->mutable_launches(0)->set_mean_us(20);
  ASSERT_EQ(reports_.Add(report), absl::OkStatus());
  const auto times = reports_.Find(Sha256("a").ToHex());
  ASSERT_NE(times, nullptr);
  EXPECT_EQ(times->device(), "gcu-16m");
  ASSERT_EQ(times->launches_size(), 1);
  EXPECT_EQ(times->launches(0).mean_us(), 20);
  EXPECT_EQ(reports_.Find(Sha256("b").ToHex()), nullptr);
}

TEST_F(RunReportsTest, OfCompilesThatNobodyRemembersNoneAreKept) {
  const absl::Status status = reports_.Add(Report(Sha256("gone")));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(reports_.Find(Sha256("gone").ToHex()), nullptr);
}

TEST_F(RunReportsTest, WhatCannotBeARunIsRefusedWithASentence) {
  const v1::ReportRunRequest good = Known("a");
  const auto refused = [&](const auto& change, absl::string_view why) {
    v1::ReportRunRequest report = good;
    change(report, *report.mutable_times(), *report.mutable_times()->mutable_launches(0));
    const absl::Status status = reports_.Add(report);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  refused([](auto& r, auto&, auto&) { r.set_key("short"); }, "the key has 5 bytes; expected 32");
  refused([](auto&, auto& t, auto&) { t.set_device(""); }, "the device's name ''");
  refused([](auto&, auto& t, auto&) { t.set_device("<b>"); }, "the device's name '<b>'");
  refused([](auto&, auto& t, auto&) { t.clear_launches(); }, "is of 0 kernels");
  refused([](auto&, auto& t, auto& l) { *t.add_launches() = l; }, "is reported twice");
  refused([](auto&, auto&, auto& l) { l.set_kernel(std::string(65, 'k')); }, "the kernel's name");
  refused([](auto&, auto&, auto& l) { l.set_launches(0); }, "has 0 launches");
  refused([](auto&, auto&, auto& l) { l.set_mean_us(0); }, "took 0 us");
  refused([](auto&, auto&, auto& l) { l.set_mean_us(-1); }, "took -1 us");
  refused([](auto&, auto&, auto& l) { l.set_mean_us(std::numeric_limits<double>::quiet_NaN()); },
          "took nan us");
  refused([](auto&, auto&, auto& l) { l.set_mean_us(std::numeric_limits<double>::infinity()); },
          "took inf us");
  refused([](auto&, auto&, auto& l) { l.set_l2_peak_bytes(-1); }, "a peak of negative bytes");
  refused(
      [](auto&, auto& t, auto&) {
        for (int i = 0; i < 1000; ++i) t.add_launches()->set_kernel(absl::StrCat("k", i));
      },
      "is of 1001 kernels");
  EXPECT_EQ(reports_.Find(Sha256("a").ToHex()), nullptr);
}

TEST_F(RunReportsTest, TheOldestGoWhereThereAreMany) {
  for (int i = 0; i < 70; ++i) {
    ASSERT_EQ(reports_.Add(Known(absl::StrCat("g", i))), absl::OkStatus());
  }
  EXPECT_EQ(reports_.Find(Sha256("g5").ToHex()), nullptr);
  EXPECT_NE(reports_.Find(Sha256("g6").ToHex()), nullptr);
  EXPECT_NE(reports_.Find(Sha256("g69").ToHex()), nullptr);
}

}  // namespace
}  // namespace kiln::server
