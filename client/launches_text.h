// Launches of a device that the compiler predicts times of, for people: plans beside runs.
#pragma once

#include <string>

#include "client/runtime/executor.h"

namespace kiln {
namespace v1 {
class Artifact;
class DeviceTimes;
}  // namespace v1

// Each kernel's launches as one row. Empty of a run on a device that does not tell.
v1::DeviceTimes TimesOf(const runtime::DeviceRun& ran);

// A table: for each kernel, and each range of sizes that it was planned for, strategy, memory on
// the chip, how it is split, times predicted fused and unfused, the time that
// debug().device_times() has and the error of the prediction; below it sums over the program's
// launches. "" where the artifact has no plans.
std::string LaunchesText(const v1::Artifact& artifact);

}  // namespace kiln
