#include "client/launches_text.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {
namespace {

constexpr double kMiB = 1 << 20;

// "TLF", or of one range of sizes among several "DAFE: TLF for s0 <= 64".
std::string StrategyText(const v1::LaunchPlan& plan) {
  if (plan.sizes().empty()) return plan.strategy();
  return absl::StrCat("DAFE: ", plan.strategy(), " for ", plan.sizes());
}

// "16 tiles of 2 in dimension 0 of relu f32[32, 64, 56, 56]".
std::string SplitText(const v1::LaunchPlan& plan) {
  if (plan.tile() == 0) return "";
  return absl::StrCat(plan.tiles(), " tiles of ", plan.tile(), " in dimension ",
                      plan.split_dimension(), " of ", plan.split_buffer());
}

double PercentOff(double predicted, double simulated) {
  return (predicted - simulated) / simulated * 100;
}

// Sums over all launches of the program, and how far off the predictions are.
class Sums {
 public:
  void Add(const v1::LaunchPlan& plan, const v1::LaunchTime* time, int launches) {
    predicted_ += launches * plan.predicted_us();
    unfused_ += launches * plan.unfused_us();
    if (time == nullptr) return;
    simulated_ += launches * time->mean_us();
    off_ += launches * std::abs(PercentOff(plan.predicted_us(), time->mean_us()));
    timed_ += launches;
  }

  // `launches`: of the program, on the device.
  std::string Text(int launches) const {
    std::string out = absl::StrFormat("all %d launches: predicted %.1f us, unfused %.1f us",
                                      launches, predicted_, unfused_);
    if (timed_ == launches && timed_ > 0) {
      absl::StrAppendFormat(&out,
                            ", simulated %.1f us, error %+.1f %%; mean error of a launch %.1f %%",
                            simulated_, PercentOff(predicted_, simulated_), off_ / timed_);
    }
    return absl::StrCat(out, "\n");
  }

 private:
  double predicted_ = 0, unfused_ = 0, simulated_ = 0, off_ = 0;
  int timed_ = 0;
};

}  // namespace

v1::DeviceTimes TimesOf(const runtime::DeviceRun& ran) {
  v1::DeviceTimes times;
  times.set_device(ran.device);
  for (const runtime::DeviceRun::Launch& launch : ran.launches) {
    auto& rows = *times.mutable_launches();
    auto row = std::find_if(rows.begin(), rows.end(), [&](const v1::LaunchTime& known) {
      return known.kernel() == launch.kernel;
    });
    v1::LaunchTime& time = row == rows.end() ? *rows.Add() : *row;
    time.set_kernel(launch.kernel);
    const double sum = time.mean_us() * time.launches() + launch.microseconds;
    time.set_launches(time.launches() + 1);
    time.set_mean_us(sum / time.launches());
    time.set_l2_peak_bytes(std::max(time.l2_peak_bytes(), launch.l2_peak_bytes));
  }
  return times;
}

std::string LaunchesText(const v1::Artifact& artifact) {
  std::map<absl::string_view, const v1::LaunchTime*> times;
  for (const v1::LaunchTime& time : artifact.debug().device_times().launches()) {
    times[time.kernel()] = &time;
  }
  std::map<absl::string_view, int> launches;
  // Of each run: what only prepares parameters runs once.
  const v1::Program& program = artifact.program();
  for (int i = static_cast<int>(program.prepare_steps()); i < program.steps_size(); ++i) {
    if (program.steps(i).has_launch()) ++launches[program.steps(i).launch().kernel()];
  }
  std::string rows;
  Sums sums;
  int all = 0;
  for (const v1::Debug::KernelSource& kernel : artifact.debug().kernels()) {
    const int count = launches[kernel.symbol()];
    if (kernel.plans().empty() || count == 0) continue;
    all += count;
    absl::StrAppend(&rows, kernel.symbol(), ", ", count, count == 1 ? " launch" : " launches", ": ",
                    absl::StrJoin(kernel.ops(), ", "), "\n");
    for (const v1::LaunchPlan& plan : kernel.plans()) {
      const auto found = times.find(kernel.symbol());
      const v1::LaunchTime* time =
          found == times.end() || !plan.typical() ? nullptr : found->second;
      if (plan.typical()) sums.Add(plan, time, count);
      std::string simulated = "-", error = "-";
      if (time != nullptr) {
        simulated = absl::StrFormat("%.1f", time->mean_us());
        error = absl::StrFormat("%+.1f", PercentOff(plan.predicted_us(), time->mean_us()));
      }
      absl::StrAppendFormat(&rows, "  %7d  %6.2f of %2.0f  %9.1f  %9.1f  %9s  %7s  %s",
                            plan.kernels(), static_cast<double>(plan.l2_peak_bytes()) / kMiB,
                            static_cast<double>(plan.l2_bytes()) / kMiB, plan.predicted_us(),
                            plan.unfused_us(), simulated, error, StrategyText(plan));
      const std::string split = SplitText(plan);
      absl::StrAppend(&rows, split.empty() ? "" : ", ", split, "\n");
    }
  }
  if (rows.empty()) return "";
  return absl::StrFormat(
      "\nLaunches, in microseconds each; simulated: %s\n"
      "  kernels  L2 peak MiB  predicted    unfused  simulated  error %%  strategy\n%s%s",
      artifact.debug().has_device_times()
          ? absl::StrCat("on ", artifact.debug().device_times().device(), ", random inputs")
          : "not run",
      rows, sums.Text(all));
}

}  // namespace kiln
