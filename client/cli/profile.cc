#include "client/cli/profile.h"

#include <time.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/program_info.h"
#include "proto/base/dtype.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

constexpr int kWarmUpRuns = 3;
constexpr size_t kMostNodeText = 60;
constexpr size_t kCacheLine = 64;

double NowUs(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// The clocks of this process' threads. That of the process itself lags: it has what other threads
// have run only as of the system's last tick, which is longer ago than most steps take.
std::vector<clockid_t> ThreadClocks() {
  std::vector<clockid_t> clocks;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    int thread = 0;
    // The kernel's own form of a thread's clock (clock_getcpuclockid(3) gives those of processes).
    constexpr unsigned kSchedulerClockOfThread = 6;
    if (absl::SimpleAtoi(entry.path().filename().string(), &thread)) {
      clocks.push_back(
          static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | kSchedulerClockOfThread));
    }
  }
  return clocks;
}

struct Moment {
  double wall_us = 0;
  double cpu_us = 0;
};

// What runs are given: the spans of one run's steps by the step's number, and memory for outputs
// that all runs share, so that none is measured beside the system's finding memory for it.
struct Spans {
  struct Span {
    Moment begin, end;
    double wall_us() const { return end.wall_us - begin.wall_us; }
    double cpu_us() const { return end.cpu_us - begin.cpu_us; }
  };
  std::vector<Span> steps;
  std::vector<clockid_t> threads;
  std::map<int32_t, std::vector<char>> outputs;  // by allocation

  double ProcessorUs() const {
    double sum = 0;
    for (const clockid_t thread : threads) sum += NowUs(thread);  // 0 once it has ended
    return sum;
  }

  static kiln_status* Allocate(void* user, int32_t allocation, int32_t dtype, int32_t ndim,
                               const int64_t* sizes, const int64_t* strides, void** data) {
    int64_t last = 0;
    for (int32_t d = 0; d < ndim; ++d) last += (sizes[d] - 1) * strides[d];
    std::vector<char>& memory = static_cast<Spans*>(user)->outputs[allocation];
    const size_t bytes =
        static_cast<size_t>(std::max<int64_t>(last + 1, 0) * DTypeSize(static_cast<DType>(dtype)));
    memory.resize(std::max(memory.size(), bytes + kCacheLine));
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    *data = memory.data() + (kCacheLine - address % kCacheLine) % kCacheLine;
    return nullptr;
  }

  static void Tell(void* user, int32_t step, int32_t begins) {
    auto& spans = *static_cast<Spans*>(user);
    Span& span = spans.steps[static_cast<size_t>(step)];
    // The reading of many clocks is no part of the step.
    if (begins != 0) span.begin.cpu_us = spans.ProcessorUs();
    (begins != 0 ? span.begin : span.end).wall_us = NowUs(CLOCK_MONOTONIC);
    if (begins == 0) span.end.cpu_us = spans.ProcessorUs();
  }
};

double Median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

const char* KindName(kiln_step_kind kind) {
  switch (kind) {
    case KILN_STEP_KERNEL:
      return "kernel";
    case KILN_STEP_LIBRARY:
      return "library";
    case KILN_STEP_COPY:
      return "copy";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<StepTime>> Profile(const Program& program,
                                              absl::Span<const kiln_tensor> inputs, int64_t count) {
  const ProgramInfo& info = program.info();
  Spans spans;
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  options.user = &spans;
  options.allocate_output = &Spans::Allocate;
  options.step = &Spans::Tell;
  std::vector<std::vector<double>> wall(info.steps().size()), cpu(info.steps().size());
  for (int64_t run = 0; run < count + kWarmUpRuns; ++run) {
    spans.steps.assign(info.steps().size(), {});
    spans.threads = ThreadClocks();  // the first run makes some
    Outputs outputs(info.outputs().size());
    KILN_RETURN_IF_ERROR(program.Run(inputs, outputs.span(), &options));
    for (size_t i = 0; run >= kWarmUpRuns && i < wall.size(); ++i) {
      wall[i].push_back(spans.steps[i].wall_us());
      cpu[i].push_back(spans.steps[i].cpu_us());
    }
  }
  std::vector<StepTime> out;
  double begin_us = 0;
  for (size_t i = 0; i < wall.size(); ++i) {
    const kiln_step_info& step = info.steps()[i];
    if (step.prepares != 0) continue;
    if (out.empty()) begin_us = spans.steps[i].begin.wall_us;
    out.push_back({static_cast<kiln_step_kind>(step.kind), step.name, step.nodes, Median(wall[i]),
                   Median(cpu[i]), spans.steps[i].begin.wall_us - begin_us,
                   spans.steps[i].wall_us()});
  }
  return out;
}

std::string ProfileTable(absl::Span<const StepTime> steps, size_t most) {
  double sum_us = 0, cpu_us = 0;
  std::map<std::string, int> uses;
  std::vector<const StepTime*> sorted;
  for (const StepTime& step : steps) {
    sum_us += step.median_us;
    cpu_us += step.cpu_us;
    ++uses[step.name];
    sorted.push_back(&step);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const StepTime* a, const StepTime* b) {
    return a->median_us > b->median_us;
  });
  std::string text = absl::StrFormat(
      "steps      %d, %.1f us in all, %.1f us of processor time; medians, shares of the time, "
      "processor time\n",
      static_cast<int>(steps.size()), sum_us, cpu_us);
  if (sorted.size() > most) sorted.resize(most);
  for (const StepTime* step : sorted) {
    std::string nodes = step->nodes;
    if (nodes.size() > kMostNodeText) nodes = absl::StrCat(nodes.substr(0, kMostNodeText), "...");
    absl::StrAppendFormat(&text, "%10.1f us %5.1f %% %10.1f us  %-7s %s (%d of it)  %s\n",
                          step->median_us, sum_us > 0 ? 100 * step->median_us / sum_us : 0.0,
                          step->cpu_us, KindName(step->kind), step->name, uses[step->name], nodes);
  }
  return text;
}

std::string ChromeTrace(absl::Span<const StepTime> steps) {
  std::string text = "{\"traceEvents\": [";
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepTime& step = steps[i];
    absl::StrAppendFormat(
        &text,
        "%s\n{\"name\": %s, \"cat\": \"%s\", \"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"ts\": %.3f, "
        "\"dur\": %.3f, \"args\": {\"step\": %d, \"nodes\": %s}}",
        i > 0 ? "," : "", JsonQuote(step.name), KindName(step.kind), step.begin_us, step.last_us,
        static_cast<int>(i), JsonQuote(step.nodes));
  }
  return text + "\n]}\n";
}

}  // namespace kiln::cli
