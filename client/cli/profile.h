// Where a run of a program spends its time, step by step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kiln/client.h"

namespace kiln::cli {

struct StepTime {
  kiln_step_kind kind = KILN_STEP_COPY;
  std::string name;   // the kernel's symbol, the operator of a library step, or "copy"
  std::string nodes;  // of the graph, comma-separated; "" where they are not known
  double median_us = 0;
  double cpu_us = 0;    // median of the processor's time, of all threads of the process
  double begin_us = 0;  // in the last run, from its first step on
  double last_us = 0;   // in the last run
};

// Runs the program `count` times after some runs to warm up. Steps that only prepare parameters
// are run, and left out here. REQUIRES: count >= 1; inputs in the host's memory.
absl::StatusOr<std::vector<StepTime>> Profile(const Program& program,
                                              absl::Span<const kiln_tensor> inputs, int64_t count);

// A table of the steps that take longest, their share of the sum, their processor time, and how
// often the kernel runs.
std::string ProfileTable(absl::Span<const StepTime> steps, size_t most);

// The last run in the Trace Event Format, which chrome://tracing and Perfetto show.
std::string ChromeTrace(absl::Span<const StepTime> steps);

}  // namespace kiln::cli
