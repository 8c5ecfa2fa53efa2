// Limits on what a request holds besides its graph (compiler.h's CheckGraphSize), so that nothing
// large is hashed, queued, logged or handed to a worker that no client of ours would send.
#pragma once

#include "absl/status/status.h"

namespace kiln::v1 {
class CompileOptions;
class Device;
}  // namespace kiln::v1

namespace kiln::server {

inline constexpr int kMaxDeviceNames = 1024;  // features; libraries
inline constexpr int kMaxDeviceParts = 64;    // memory spaces; binary formats
inline constexpr int kMaxDisabledPasses = 64;
inline constexpr size_t kMaxRequestNameBytes =
    256;  // of any of these, and of arch, model and driver

// INVALID_ARGUMENT, naming the field.
absl::Status CheckRequestLimits(const v1::Device& device, const v1::CompileOptions& options);

}  // namespace kiln::server
