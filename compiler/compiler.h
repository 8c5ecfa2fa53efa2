// The compiler as the server's workers call it. compiler.cc is the story: one line a stage.
//
// A compile has three parts, because the server looks up and spreads kernels between them:
//   PlanGraph      graph -> program and kernels' sources
//   CompileKernel  one source -> object
//   LinkKernels    objects -> what a client loads
// All are thread-compatible: separate calls may run in separate threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/base/digest.h"

namespace kiln {
namespace v1 {
class CompileKernelRequest;
class CompileKernelResponse;
class Graph;
class InterpretEvent;
class InterpretRequest;
class LinkRequest;
class LinkResponse;
class PlanRequest;
class PlanResponse;
}  // namespace v1

// A target of this build.
struct CompilerTarget {
  std::string name;       // proto/base/target_name.h
  std::string build;      // of its sources and its toolchain's versions: in each of its keys
  std::string toolchain;  // for people; empty where there is none
};
// The first is TARGET_CPP.
std::vector<CompilerTarget> CompilerTargets();

// Compiles and links one small kernel for each target, so that later ones do not pay for the
// start of the toolchains.
absl::Status WarmUpTargets();

// Asked between stages and kernels; a non-OK answer ends the work with it.
using StopCheck = std::function<absl::Status()>;

// INVALID_ARGUMENT where the graph has more of something than PlanGraph takes. Looks at counts
// only: for a server to refuse an oversized graph before it copies or hashes it.
absl::Status CheckGraphSize(const v1::Graph& graph);

absl::StatusOr<v1::PlanResponse> PlanGraph(const v1::PlanRequest& request, const StopCheck& stop);
absl::StatusOr<v1::CompileKernelResponse> CompileKernel(const v1::CompileKernelRequest& request);
// The same, at once where this build has compiled the kernel (compiler/kernels_ahead.h). In the
// library kiln_kernels_ahead.
absl::StatusOr<v1::CompileKernelResponse> FindOrCompileKernel(
    const v1::CompileKernelRequest& request);
// Those that it has, of target ptx: each what FindOrCompileKernel gives for its key. In the same
// library.
struct KernelOfBuild {
  Digest key;
  std::string arch;
  absl::string_view object;  // lives as long as the process
};
std::vector<KernelOfBuild> KernelsOfBuild();
absl::StatusOr<v1::LinkResponse> LinkKernels(const v1::LinkRequest& request);

// The key under which the answer to `request` may be kept: made by the target of all that
// CompileKernel reads, so that two requests have one key just where they have one answer. Compiles
// nothing: the server calls it with what a worker, which may lie, wants compiled.
absl::StatusOr<Digest> KernelKeyOf(const v1::CompileKernelRequest& request);

// Does beforehand what every CompileKernel of `like`'s device and options begins with, for those
// calls in this process and in ones forked from it. Reads no source.
absl::Status PrepareForKernels(const v1::CompileKernelRequest& like);

// Compiles a small kernel as CompileKernel(like) would: for a process that waits for its first
// kernel, whose code and memory are touched then. Reads no source.
absl::Status WarmUpForKernels(const v1::CompileKernelRequest& like);

// For a process that was just forked: it shares no file of the toolchains with others. REQUIRES:
// one thread.
void TakeOwnToolchainFiles();

// Runs the reference interpreter; `emit` gets progress and outputs as they come, each at most 1
// MiB.
absl::Status InterpretGraph(const v1::InterpretRequest& request,
                            const std::function<absl::Status(const v1::InterpretEvent&)>& emit);

}  // namespace kiln
