// `kiln compile` and `kiln explain`.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/inputs.h"
#include "client/cli/sass.h"
#include "client/debug_dir.h"
#include "client/runtime/plan.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

// Sources or assembly of every kernel and routine, each under a line with its name.
std::string KernelText(const v1::Artifact& artifact, bool assembly) {
  const char* comment = assembly ? "# " : "// ";
  std::string out;
  const auto append = [&](absl::string_view name, absl::string_view what,
                          const v1::Debug::KernelSource& from) {
    absl::StrAppend(&out, comment, name, ": ", what, "\n",
                    assembly ? from.assembly() : from.source(), "\n");
  };
  for (const v1::Debug::KernelSource& kernel : artifact.debug().kernels()) {
    append(kernel.symbol(), absl::StrJoin(kernel.ops(), ", "), kernel);
  }
  for (const v1::Debug::KernelSource& routine : artifact.debug().routines()) {
    append(routine.symbol(), "a routine", routine);
  }
  return out;
}

absl::StatusOr<std::string> IrText(const v1::Artifact& artifact, const std::string& stage) {
  std::vector<std::string> stages;
  const v1::Debug::StageIr* found = nullptr;
  for (const v1::Debug::StageIr& ir : artifact.debug().ir()) {
    stages.push_back(ir.stage());
    if (stage.empty() || ir.stage() == stage) found = &ir;
  }
  if (found != nullptr) return found->text();
  return absl::NotFoundError(absl::StrCat("there is no IR after stage '", stage, "'; there is ",
                                          stages.empty() ? "none" : absl::StrJoin(stages, ", ")));
}

struct Answer {
  ArtifactBytes artifact;
  v1::Artifact parsed;
};

absl::StatusOr<Answer> CompileGraph(Client& client, const v1::Graph& graph) {
  ProgressLine progress;
  Answer out;
  KILN_ASSIGN_OR_RETURN(out.artifact, client.CompileArtifact(graph, progress.callback()));
  if (!out.parsed.ParseFromString(out.artifact.bytes)) {
    return absl::DataLossError("the server's artifact does not parse");
  }
  KILN_RETURN_IF_ERROR(runtime::CheckProgram(out.parsed.program()));
  return out;
}

void PrintSummary(const Answer& answer, bool json) {
  const v1::ArtifactHeader& header = answer.parsed.header();
  int cached = 0;
  for (const v1::KernelInfo& kernel : header.kernels()) cached += kernel.cached() ? 1 : 0;
  if (json) {
    std::printf(
        "{\"key\": %s, \"source\": %s, \"fetch_ms\": %.3f, \"compile_ms\": %.3f, "
        "\"artifact_bytes\": %zu, \"native_steps\": %d, \"library_steps\": %d, \"kernels\": %d, "
        "\"kernels_cached\": %d, \"arch\": %s}\n",
        JsonQuote(header.key()).c_str(), JsonQuote(answer.artifact.source).c_str(),
        answer.artifact.fetch_ms, answer.artifact.compile_ms, answer.artifact.bytes.size(),
        header.native_steps(), header.library_steps(), header.kernels_size(), cached,
        JsonQuote(header.arch()).c_str());
    return;
  }
  std::printf("%s  %s in %.1f ms, %zu bytes for %s\n", header.key().substr(0, 12).c_str(),
              answer.artifact.source.c_str(), answer.artifact.fetch_ms + answer.artifact.compile_ms,
              answer.artifact.bytes.size(), header.arch().c_str());
  std::printf("%d native steps (%d kernels, %d from the kernel cache), %d library steps\n",
              header.native_steps(), header.kernels_size(), cached, header.library_steps());
}

// What a run with random inputs did on the device.
absl::StatusOr<v1::DeviceTimes> Simulate(const Answer& answer, const v1::Graph& graph) {
  KILN_ASSIGN_OR_RETURN(const std::shared_ptr<const Program> program,
                        Program::Load(ToArtifactFile(answer.artifact.bytes), 0));
  KILN_ASSIGN_OR_RETURN(const RunInputs inputs, MakeInputs(graph, "random"));
  KILN_RETURN_IF_ERROR(program->Run(inputs.all).status());
  return program->LastDeviceTimes();
}

absl::StatusOr<std::string> Emit(const Answer& answer, const std::string& what,
                                 const std::string& stage) {
  if (what == "artifact") return ToArtifactFile(answer.artifact.bytes);
  if (what == "sass") return SassText(answer.parsed);
  if (what == "ir") return IrText(answer.parsed, stage);
  return KernelText(answer.parsed, what == "asm");
}

// Assembly, and of a GPU's kernels machine code; a note where that cannot be had.
void PrintCode(const v1::Artifact& artifact) {
  std::printf("\nAssembly\n%s", KernelText(artifact, /*assembly=*/true).c_str());
  if (artifact.header().target() != v1::TARGET_PTX) return;
  const absl::StatusOr<std::string> machine_code = SassText(artifact);
  if (machine_code.ok()) {
    std::printf("\nMachine code\n%s", machine_code->c_str());
  } else {
    std::fprintf(stderr, "kiln: no machine code: %s\n",
                 std::string(machine_code.status().message()).c_str());
  }
}

// The saved graphs that the arguments are, or that lie in the folders that they are, in order.
absl::StatusOr<std::vector<std::string>> GraphFiles(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (entry.path().extension() == ".kgraph") files.push_back(entry.path().string());
    }
    if (files.size() == before) {
      return absl::NotFoundError(absl::StrCat("the folder '", path, "' has no saved graphs"));
    }
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  }
  return files;
}

absl::StatusOr<Answer> CompileFile(const Args& args, const std::string& file) {
  v1::SavedGraph::Asked asked;
  KILN_ASSIGN_OR_RETURN(const v1::Graph graph, LoadSavedGraph(file, &asked));
  KILN_ASSIGN_OR_RETURN(auto client, MakeClient(args, false, asked));
  return CompileGraph(*client, graph);
}

// All of them, whichever fail; the first failure.
absl::Status WarmUp(const Args& args, const std::vector<std::string>& files) {
  absl::Status first;
  for (const std::string& file : files) {
    absl::StatusOr<Answer> answer = CompileFile(args, file);
    if (answer.ok()) {
      if (!args.Has("--json")) std::printf("%s\n  ", file.c_str());
      PrintSummary(*answer, args.Has("--json"));
      continue;
    }
    std::fprintf(stderr, "kiln: %s: %s\n", file.c_str(),
                 std::string(answer.status().message()).c_str());
    first.Update(answer.status());
  }
  return first;
}

}  // namespace

Outcome RunCompile(const Args& args) {
  if (args.positional().empty()) return Usage("kiln compile takes saved graphs, or their folders");
  auto emit = args.GetChoice("--emit", "artifact", {"artifact", "source", "asm", "sass", "ir"});
  if (!emit.ok()) return Usage(emit.status());
  if (args.Has("--stage") && *emit != "ir") return Usage("--stage goes with --emit ir");
  std::string out = args.Get("-o", "");
  auto files = GraphFiles(args.positional());
  if (!files.ok()) return Failed(files.status());
  if (files->size() > 1 && (!out.empty() || *emit != "artifact")) {
    return Usage("-o and --emit go with one graph");
  }
  if (files->size() > 1) return Failed(WarmUp(args, *files));
  v1::SavedGraph::Asked asked;
  auto graph = LoadSavedGraph(files->front(), &asked);
  if (!graph.ok()) return Failed(graph.status());
  auto client = MakeClient(args, *emit != "artifact", asked);
  if (!client.ok()) return Usage(client.status());
  auto answer = CompileGraph(**client, *graph);
  if (!answer.ok()) return Failed(answer.status());
  if (*emit != "artifact" || !out.empty()) {
    auto text = Emit(*answer, *emit, args.Get("--stage", ""));
    if (!text.ok()) return Failed(text.status());
    absl::Status written = WriteFile(out.empty() ? "-" : out, *text);
    if (!written.ok()) return Failed(written);
  }
  // Standard output is the text's where there is no file for it.
  if (!out.empty() && out != "-") PrintSummary(*answer, args.Has("--json"));
  if (out.empty() && *emit == "artifact") PrintSummary(*answer, args.Has("--json"));
  return Ok();
}

Outcome RunExplain(const Args& args) {
  if (args.positional().size() != 1) return Usage("kiln explain takes one saved graph");
  const absl::Status flags = TakeClientFlags(args).status();
  if (!flags.ok()) return Usage(flags);
  v1::SavedGraph::Asked asked;
  auto graph = GraphArgument(args, &asked);
  if (!graph.ok()) return Failed(graph.status());
  auto client = MakeClient(args, true, asked);
  if (!client.ok()) return Usage(client.status());
  auto answer = CompileGraph(**client, *graph);
  if (!answer.ok()) return Failed(answer.status());
  if (answer->parsed.header().target() == v1::TARGET_GCU) {
    // A simulator tells what launches take; without one, what is predicted is there.
    auto simulated = Simulate(*answer, *graph);
    if (simulated.ok()) {
      ReportRun(**client, answer->parsed.header().key(), *simulated);
      *answer->parsed.mutable_debug()->mutable_device_times() = *std::move(simulated);
    } else {
      std::fprintf(stderr, "kiln: times are predicted alone: %s\n",
                   std::string(simulated.status().message()).c_str());
    }
  }
  if (args.Has("--json")) {
    answer->parsed.clear_binary();
    *answer->parsed.mutable_program()->mutable_inputs() = graph->inputs();  // with their names
    PrintJson(answer->parsed);
  } else {
    std::fputs(ExplainArtifact(answer->parsed).c_str(), stdout);
    std::printf("\nInputs\n%s", DescribeInputs(*graph).c_str());
    if (args.Has("--code")) PrintCode(answer->parsed);
  }
  return Ok();
}

}  // namespace kiln::cli
