#include "server/observe/run_reports.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kiln/v1/activity.pb.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/digest.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

constexpr size_t kMostReports = 64;
constexpr int kMostKernels = 1000;
constexpr size_t kMostNameBytes = 64;
constexpr int kMostLaunches = 1'000'000;
constexpr double kMostMicroseconds = 1e12;

absl::Status CheckName(absl::string_view name, absl::string_view what) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
  if (plain && !name.empty() && name.size() <= kMostNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " '", absl::CHexEscape(name.substr(0, kMostNameBytes)),
                   "' is no name of 1 to 64 letters, digits, _ and -"));
}

absl::Status CheckTimes(const v1::DeviceTimes& times) {
  KILN_RETURN_IF_ERROR(CheckName(times.device(), "the device's name"));
  if (times.launches().empty() || times.launches_size() > kMostKernels) {
    return absl::InvalidArgumentError(absl::StrCat("the report is of ", times.launches_size(),
                                                   " kernels; expected 1 to ", kMostKernels));
  }
  absl::flat_hash_set<absl::string_view> kernels;
  for (const v1::LaunchTime& time : times.launches()) {
    KILN_RETURN_IF_ERROR(CheckName(time.kernel(), "the kernel's name"));
    const auto bad = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("kernel ", time.kernel(), " ", what));
    };
    if (!kernels.insert(time.kernel()).second) return bad("is reported twice");
    if (time.launches() < 1 || time.launches() > kMostLaunches) {
      return bad(absl::StrCat("has ", time.launches(), " launches; expected 1 to ", kMostLaunches));
    }
    if (!(time.mean_us() > 0 && time.mean_us() < kMostMicroseconds)) {
      return bad(absl::StrCat("took ", time.mean_us(), " us; expected a positive number below ",
                              kMostMicroseconds));
    }
    if (time.l2_peak_bytes() < 0) return bad("has a peak of negative bytes");
  }
  return absl::OkStatus();
}

}  // namespace

RunReports::RunReports(ActivityLog* activity) : activity_(*activity) {}

RunReports::~RunReports() = default;

absl::Status RunReports::Add(const v1::ReportRunRequest& request) {
  if (request.key().size() != sizeof(Digest::bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the key has ", request.key().size(),
                                                   " bytes; expected ", sizeof(Digest::bytes)));
  }
  KILN_RETURN_IF_ERROR(CheckTimes(request.times()));
  std::string key = absl::BytesToHexString(request.key());
  v1::CompileRecord record;
  if (!activity_.FindRecord(key, record)) {
    return absl::NotFoundError("no recent compile has this key");
  }
  auto times = std::make_shared<const v1::DeviceTimes>(request.times());
  absl::MutexLock lock(&mu_);
  reports_.remove_if([&](const Report& report) { return report.key == key; });
  reports_.push_front({std::move(key), std::move(times)});
  if (reports_.size() > kMostReports) reports_.pop_back();
  return absl::OkStatus();
}

std::shared_ptr<const v1::DeviceTimes> RunReports::Find(absl::string_view key_hex) const {
  absl::MutexLock lock(&mu_);
  for (const Report& report : reports_) {
    if (report.key == key_hex) return report.times;
  }
  return nullptr;
}

}  // namespace kiln::server
