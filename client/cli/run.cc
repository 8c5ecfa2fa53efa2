// `kiln run`: a saved graph or an artifact, on inputs from a seed or a file.
#include <algorithm>
#include <cstdio>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/command.h"
#include "client/cli/compare.h"
#include "client/cli/gpu_tensors.h"
#include "client/cli/inputs.h"
#include "client/cli/npz.h"
#include "client/cli/profile.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/dtype.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

constexpr int kWarmUpRuns = 3;
constexpr size_t kMostProfileRows = 40;

struct Loaded {
  v1::Graph graph;  // of an artifact: symbols and inputs only
  std::shared_ptr<const Program> program;
  std::string source;
  double ready_ms = 0;
};

// `graph`: what `data` is where it is no artifact.
absl::StatusOr<Loaded> Load(Client& client, const Args& args, const std::string& data,
                            v1::Graph graph) {
  Loaded out;
  const absl::Time start = absl::Now();
  if (IsArtifactFile(data)) {
    KILN_ASSIGN_OR_RETURN(int64_t threads, args.GetInt("--threads", 0, 1, 1024));
    KILN_ASSIGN_OR_RETURN(out.program, Program::Load(data, static_cast<int>(threads)));
    out.source = "file";
    *out.graph.mutable_symbols() = out.program->artifact().program().symbols();
    *out.graph.mutable_inputs() = out.program->artifact().program().inputs();
  } else {
    out.graph = std::move(graph);
    ProgressLine progress;
    KILN_ASSIGN_OR_RETURN(Compiled compiled, client.Compile(out.graph, progress.callback()));
    out.program = compiled.program;
    out.source = compiled.source;
  }
  out.ready_ms = absl::ToDoubleMilliseconds(absl::Now() - start);
  return out;
}

// The reference interpreter's tensors by the number of the output.
absl::StatusOr<std::map<int, v1::TensorData>> Reference(Client& client, const v1::Graph& graph,
                                                        const RunInputs& inputs) {
  v1::InterpretRequest request;
  *request.mutable_graph() = graph;
  KILN_RETURN_IF_ERROR(AddInputs(graph, inputs, request));
  std::map<int, v1::TensorData> outputs;
  KILN_RETURN_IF_ERROR(client.Interpret(request, [&](const v1::InterpretEvent& event) {
    if (event.has_output()) outputs[event.index()] = event.output();
    if (event.kind_case() == v1::InterpretEvent::kContinuation) {
      outputs[event.index()].mutable_data()->append(event.continuation());
    }
    return absl::OkStatus();
  }));
  return outputs;
}

struct Timing {
  double median_ms = 0;
  double min_ms = 0;
};

// Runs once, and waits: on the GPU where `gpu` is not null.
absl::StatusOr<Outputs> RunOnce(const Program& program, const RunInputs& inputs, GpuTensors* gpu) {
  if (gpu == nullptr) return program.Run(inputs.all);
  Outputs outputs(static_cast<size_t>(program.artifact().program().outputs_size()));
  KILN_RETURN_IF_ERROR(gpu->Run(program, outputs.span()));
  return outputs;
}

absl::StatusOr<Timing> Bench(const Program& program, const RunInputs& inputs, GpuTensors* gpu,
                             int64_t count) {
  std::vector<double> times;
  for (int64_t i = 0; i < count + kWarmUpRuns; ++i) {
    absl::Time start = absl::Now();
    KILN_RETURN_IF_ERROR(RunOnce(program, inputs, gpu).status());
    if (i >= kWarmUpRuns) times.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
  }
  std::sort(times.begin(), times.end());
  return Timing{times[times.size() / 2], times.front()};
}

// What a run leaves: the outputs, then the new values of the inputs that the graph updates, in the
// order of its mutations.
std::vector<kiln_output> Results(const Outputs& outputs, const v1::Graph& graph,
                                 absl::Span<const kiln_tensor> inputs) {
  std::vector<kiln_output> results;
  for (size_t i = 0; i < outputs.size(); ++i) results.push_back(outputs[i]);
  for (const v1::Mutation& mutation : graph.mutations()) {
    const kiln_tensor& input = inputs[mutation.input()];
    kiln_output& result = results.emplace_back();
    result.kind = KILN_TENSOR;
    result.dtype = input.dtype;
    result.ndim = input.ndim;
    result.data = input.data;
    std::copy_n(input.sizes, input.ndim, result.sizes);
    std::copy_n(input.strides, input.ndim, result.strides);
  }
  return results;
}

// "f32[2, 3] 0.1 0.2 ..."
std::string DescribeOutput(const kiln_output& output) {
  if (output.kind == KILN_NONE) return "none";
  if (output.kind == KILN_INT) return absl::StrCat("int ", output.value);
  std::string out =
      absl::StrCat(DTypeName(static_cast<DType>(output.dtype)), "[",
                   absl::StrJoin(absl::MakeSpan(output.sizes, output.ndim), ", "), "]");
  int64_t count = NumElements(output);
  for (int64_t i = 0; i < std::min<int64_t>(count, 4); ++i) {
    absl::StrAppend(&out, " ", ElementAt(output, i));
  }
  if (count > 4) absl::StrAppend(&out, " ...");
  return out;
}

struct Report {
  std::vector<std::string> outputs;  // a line each
  std::vector<std::string> wrong;
  int checked = 0;
  double worst = 0;  // the largest rmse as a part of its limit
};

absl::StatusOr<Report> Check(const std::vector<kiln_output>& outputs,
                             const std::map<int, v1::TensorData>& reference) {
  Report report;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].kind != KILN_TENSOR) continue;
    auto it = reference.find(static_cast<int>(i));
    if (it == reference.end()) {
      return absl::InternalError(absl::StrCat("the server's reference lacks output ", i));
    }
    KILN_ASSIGN_OR_RETURN(Comparison comparison, Compare(outputs[i], it->second));
    ++report.checked;
    if (comparison.limit > 0)
      report.worst = std::max(report.worst, comparison.rmse / comparison.limit);
    if (!comparison.same) report.wrong.push_back(absl::StrCat("output ", i, ": ", comparison.why));
  }
  return report;
}

// Against the arrays output_0, output_1, ... of an .npz file.
absl::StatusOr<Report> CheckExpected(const std::vector<kiln_output>& outputs,
                                     const std::string& path) {
  KILN_ASSIGN_OR_RETURN(std::string data, ReadFile(path));
  KILN_ASSIGN_OR_RETURN(std::vector<NpzArray> arrays, ParseNpz(data));
  std::map<std::string, const HostTensor*> expected;
  for (const NpzArray& array : arrays) expected[array.name] = &array.tensor;
  Report report;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].kind == KILN_NONE) continue;
    const std::string name = absl::StrCat("output_", i);
    auto it = expected.find(name);
    if (it == expected.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " has no array '", name, "'"));
    }
    kiln_output output = outputs[i];
    if (output.kind == KILN_INT) {
      output.dtype = KILN_INT64;
      output.ndim = 0;
      output.data = &output.value;
    }
    Comparison comparison = CompareElements(output, *it->second);
    ++report.checked;
    report.worst = std::max(report.worst, comparison.rmse);
    if (!comparison.same) report.wrong.push_back(absl::StrCat("output ", i, ": ", comparison.why));
  }
  return report;
}

void Print(const Loaded& loaded, const Report& report, bool checked, int64_t bench,
           const Timing& timing, bool json) {
  const std::string device = loaded.program->LastRun();
  if (json) {
    std::vector<std::string> outputs;
    for (const std::string& text : report.outputs) outputs.push_back(JsonQuote(text));
    std::string text =
        absl::StrCat("{\"source\": ", JsonQuote(loaded.source), ", \"ready_ms\": ", loaded.ready_ms,
                     ", \"outputs\": [", absl::StrJoin(outputs, ", "), "]");
    if (checked) {
      absl::StrAppend(&text, ", \"check\": {\"outputs\": ", report.checked,
                      ", \"wrong\": ", report.wrong.size(), ", \"worst\": ", report.worst, "}");
    }
    if (bench > 0) {
      absl::StrAppend(&text, ", \"bench\": {\"runs\": ", bench,
                      ", \"median_ms\": ", timing.median_ms, ", \"min_ms\": ", timing.min_ms, "}");
    }
    if (!device.empty()) absl::StrAppend(&text, ", \"device\": ", JsonQuote(device));
    std::printf("%s}\n", text.c_str());
    return;
  }
  std::printf("program    %s, ready in %.1f ms\n", loaded.source.c_str(), loaded.ready_ms);
  for (size_t i = 0; i < report.outputs.size(); ++i) {
    std::printf("output %-3zu %s\n", i, report.outputs[i].c_str());
  }
  if (!device.empty()) std::printf("device     %s\n", device.c_str());
  if (checked && report.wrong.empty()) {
    std::printf(
        "check      %d outputs equal the reference (largest error %.2g of what is allowed)\n",
        report.checked, report.worst);
  }
  if (bench > 0) {
    std::printf("time       median %.3f ms, min %.3f ms over %lld runs\n", timing.median_ms,
                timing.min_ms, static_cast<long long>(bench));
  }
}

// Prints where runs spend their time, and writes the last one's trace where `trace` names a file.
absl::Status PrintProfile(const Program& program, const RunInputs& inputs, int64_t count,
                          const std::string& trace) {
  KILN_ASSIGN_OR_RETURN(const std::vector<StepTime> steps, Profile(program, inputs.all, count));
  std::fputs(ProfileTable(steps, kMostProfileRows).c_str(), stdout);
  return trace.empty() ? absl::OkStatus() : WriteFile(trace, ChromeTrace(steps));
}

}  // namespace

Outcome RunRun(const Args& args) {
  if (args.positional().size() != 1) return Usage("kiln run takes one saved graph or artifact");
  auto bench = args.GetInt("--bench", 0, 1, 1000000);
  if (!bench.ok()) return Usage(bench.status());
  auto profile = args.GetInt("--profile", 0, 1, 1000000);
  if (!profile.ok()) return Usage(profile.status());
  if (*profile > 0 && args.Has("--json")) {
    return Usage("--profile prints a table; for programs to read there is --trace");
  }
  if (*profile == 0 && args.Has("--trace")) return Usage("--trace needs --profile N");
  const absl::Status flags = TakeClientFlags(args).status();
  if (!flags.ok()) return Usage(flags);
  auto data = ReadFile(args.positional().front());
  if (!data.ok()) return Failed(data.status());
  if (args.Has("--check") && IsArtifactFile(*data)) {
    return Usage("--check needs the graph; an artifact does not hold it");
  }
  if (args.Has("--weights") && IsArtifactFile(*data)) {
    return Usage("--weights needs the graph; an artifact does not hold its parameters' names");
  }
  if (args.Has("--check") && args.Has("--expect")) {
    return Usage("--check compares with the reference interpreter, --expect with a file: give one");
  }
  v1::Graph graph;
  v1::SavedGraph::Asked asked;
  if (!IsArtifactFile(*data)) {
    auto saved = GraphArgument(args, &asked);
    if (!saved.ok()) return Failed(saved.status());
    graph = *std::move(saved);
    asked.clear_libraries();  // there are none here
  }
  auto client = MakeClient(args, *profile > 0, asked);
  if (!client.ok()) return Usage(client.status());
  auto loaded = Load(**client, args, *data, std::move(graph));
  if (!loaded.ok()) return Failed(loaded.status());
  auto inputs = MakeInputs(loaded->graph, args.Get("--inputs", "random"), args.All("--weights"));
  if (!inputs.ok()) return Usage(inputs.status());
  for (const std::string& note : inputs->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  // First, for a run may update its inputs.
  absl::StatusOr<std::map<int, v1::TensorData>> reference;
  if (args.Has("--check")) {
    reference = Reference(**client, loaded->graph, *inputs);
    if (!reference.ok()) return Failed(reference.status());
  }
  std::unique_ptr<GpuTensors> gpu;
  if (loaded->program->artifact().header().target() == v1::TARGET_PTX) {
    auto uploaded = GpuTensors::Upload(*loaded->program, *inputs);
    if (!uploaded.ok()) return Failed(uploaded.status());
    gpu = *std::move(uploaded);
    if (*profile > 0) {
      return Usage("--profile times steps on the CPU; a GPU's are seen by its own profiler");
    }
  }
  auto outputs = RunOnce(*loaded->program, *inputs, gpu.get());
  if (!outputs.ok()) return Failed(outputs.status());
  std::vector<kiln_output> results =
      Results(*outputs, loaded->graph, gpu != nullptr ? gpu->inputs() : inputs->all);
  if (gpu != nullptr) {
    const absl::Status downloaded = gpu->Download(absl::MakeSpan(results));
    if (!downloaded.ok()) return Failed(downloaded);
  }
  Report report;
  if (args.Has("--check")) {
    auto checked = Check(results, *reference);
    if (!checked.ok()) return Failed(checked.status());
    report = *std::move(checked);
  }
  if (args.Has("--expect")) {
    auto checked = CheckExpected(results, args.Get("--expect", ""));
    if (!checked.ok()) return Usage(checked.status());
    report = *std::move(checked);
  }
  for (const kiln_output& result : results) report.outputs.push_back(DescribeOutput(result));
  Timing timing;
  if (*bench > 0) {
    auto measured = Bench(*loaded->program, *inputs, gpu.get(), *bench);
    if (!measured.ok()) return Failed(measured.status());
    timing = *measured;
  }
  const bool checked = args.Has("--check") || args.Has("--expect");
  Print(*loaded, report, checked, *bench, timing, args.Has("--json"));
  if (*profile > 0) {
    const absl::Status printed =
        PrintProfile(*loaded->program, *inputs, *profile, args.Get("--trace", ""));
    if (!printed.ok()) return Failed(printed);
  }
  if (report.wrong.empty()) return Ok();
  return Failed(
      absl::InternalError(absl::StrCat("wrong result: ", absl::StrJoin(report.wrong, "; "))));
}

}  // namespace kiln::cli
