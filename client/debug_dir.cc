#include "client/debug_dir.h"

#include <google/protobuf/util/json_util.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/launches_text.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/gpu_resources.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

// Names come from graphs and artifacts: nothing but plain characters reaches a path.
std::string SafeName(absl::string_view name) {
  std::string out;
  for (char c : name.substr(0, 80)) {
    bool plain = absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
    out.push_back(plain ? c : '_');
  }
  if (out.empty() || out.front() == '.') out.insert(out.begin(), '_');
  return out;
}

absl::Status WriteText(const fs::path& path, absl::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) return absl::InternalError(absl::StrCat("cannot write ", path.string()));
  return absl::OkStatus();
}

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  // A message of ours always prints; should it not, an empty file says so.
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  return text;
}

absl::Status MakeFolder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cannot create the folder ", path.string(), ": ", error.message()));
}

std::string SchedulesText(const v1::Artifact& artifact) {
  std::string out;
  for (const v1::Debug::KernelSource& kernel : artifact.debug().kernels()) {
    if (kernel.schedule().empty()) continue;
    absl::StrAppend(&out, out.empty() ? "\nSchedules\n" : "", kernel.symbol(), "\n");
    for (const std::string& choice : kernel.schedule()) absl::StrAppend(&out, "  ", choice, "\n");
  }
  return out;
}

std::string ResourcesText(const v1::Artifact& artifact) {
  std::string out;
  for (const auto& [symbol, text] : DescribeResources(artifact)) {
    absl::StrAppend(&out, out.empty() ? "\nOn a multiprocessor\n" : "", symbol, "\n  ", text, "\n");
  }
  return out;
}

}  // namespace

std::string DecisionsText(const v1::Artifact& artifact) {
  std::string out;
  for (const v1::FusionDecision& d : artifact.debug().decisions()) {
    absl::StrAppend(&out, d.fused() ? "fused    " : "separate ", d.producer(), " -> ", d.consumer(),
                    ": ", d.reason(), "\n");
  }
  return out;
}

std::string TimesText(const v1::Artifact& artifact) {
  std::string out;
  for (const v1::StageTime& stage : artifact.header().stages()) {
    absl::StrAppendFormat(&out, "%-24s %10.3f ms\n", stage.stage(),
                          static_cast<double>(stage.duration_ns()) * 1e-6);
  }
  const auto append = [&](absl::string_view kind, const auto& objects) {
    for (const v1::KernelInfo& info : objects) {
      absl::StrAppendFormat(&out, "%-24s %10.3f ms  %s %s%s\n", info.symbol(),
                            static_cast<double>(info.compile_ns()) * 1e-6, kind,
                            info.key().substr(0, 12), info.cached() ? " (cached)" : "");
    }
  };
  append("kernel", artifact.header().kernels());
  append("routine", artifact.header().routines());
  return out;
}

std::string ExplainArtifact(const v1::Artifact& artifact) {
  const v1::ArtifactHeader& header = artifact.header();
  std::string out =
      absl::StrCat("key       ", header.key(), "\ncompiler  ", header.compiler_build(),
                   "\ncode for  ", header.arch(), "\nsteps     ", header.native_steps(),
                   " native, ", header.library_steps(), " library\n");
  absl::StrAppend(&out, "\nStages and kernels\n", TimesText(artifact));
  std::map<std::string, std::vector<std::string>> ops;
  for (const v1::Debug::KernelSource& kernel : artifact.debug().kernels()) {
    ops[kernel.symbol()] = {kernel.ops().begin(), kernel.ops().end()};
  }
  absl::StrAppend(&out, "\nSteps\n");
  for (int i = 0; i < artifact.program().steps_size(); ++i) {
    const v1::Step& step = artifact.program().steps(i);
    if (step.has_launch()) {
      absl::StrAppendFormat(&out, "%4d  launch   %s", i, step.launch().kernel());
      auto it = ops.find(step.launch().kernel());
      if (it != ops.end()) absl::StrAppend(&out, ": ", absl::StrJoin(it->second, ", "));
    } else if (step.has_library()) {
      absl::StrAppendFormat(&out, "%4d  library  %s (node '%s')", i, step.library().op(),
                            step.library().node());
    } else {
      absl::StrAppendFormat(&out, "%4d  copy", i);
    }
    out.push_back('\n');
  }
  absl::StrAppend(&out, LaunchesText(artifact), SchedulesText(artifact), ResourcesText(artifact));
  std::string decisions = DecisionsText(artifact);
  if (!decisions.empty()) absl::StrAppend(&out, "\nFusion decisions\n", decisions);
  return out;
}

absl::Status WriteDebugFiles(const std::string& dir, const v1::Graph& graph,
                             const v1::Artifact& artifact) {
  const std::string name = graph.name().empty() ? "graph" : SafeName(graph.name());
  fs::path folder =
      fs::path(dir) / absl::StrCat(name, "-", SafeName(artifact.header().key().substr(0, 12)));
  KILN_RETURN_IF_ERROR(MakeFolder(folder / "ir"));
  KILN_RETURN_IF_ERROR(MakeFolder(folder / "kernels"));
  KILN_RETURN_IF_ERROR(WriteText(folder / "graph.kgraph", graph.SerializeAsString()));
  KILN_RETURN_IF_ERROR(WriteText(folder / "graph.json", Json(graph)));
  v1::Artifact program;
  *program.mutable_header() = artifact.header();
  *program.mutable_program() = artifact.program();
  KILN_RETURN_IF_ERROR(WriteText(folder / "program.json", Json(program)));
  const v1::Debug& debug = artifact.debug();
  for (int i = 0; i < debug.ir_size(); ++i) {
    KILN_RETURN_IF_ERROR(
        WriteText(folder / "ir" / absl::StrFormat("%02d-%s.kir", i, SafeName(debug.ir(i).stage())),
                  debug.ir(i).text()));
  }
  for (const auto* sources : {&debug.kernels(), &debug.routines()}) {
    for (const v1::Debug::KernelSource& source : *sources) {
      fs::path stem = folder / "kernels" / SafeName(source.symbol());
      KILN_RETURN_IF_ERROR(WriteText(stem.string() + ".cc", source.source()));
      if (!source.assembly().empty()) {
        KILN_RETURN_IF_ERROR(WriteText(stem.string() + ".s", source.assembly()));
      }
    }
  }
  KILN_RETURN_IF_ERROR(WriteText(folder / "decisions.txt", DecisionsText(artifact)));
  return WriteText(folder / "times.txt", TimesText(artifact));
}

}  // namespace kiln
