// The compiler as the server's workers call it. compiler.cc is the story: one line a stage.
//
// A compile has three parts, because the server looks up and spreads kernels between them:
//   PlanGraph      graph -> program and kernels' sources
//   CompileKernel  one source -> object
//   LinkKernels    objects -> shared object
// All are thread-compatible: separate calls may run in separate threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/base/digest.h"

namespace kiln {
namespace v1 {
class CompileKernelRequest;
class CompileKernelResponse;
class Graph;
class InterpretEvent;
class InterpretRequest;
class PlanRequest;
class PlanResponse;
}  // namespace v1

// Identifies this compiler: a hash of its sources and its toolchain's versions. Part of every key.
std::string CompilerBuildId();
std::string ToolchainVersion();

// Asked between stages and kernels; a non-OK answer ends the work with it.
using StopCheck = std::function<absl::Status()>;

// INVALID_ARGUMENT where the graph has more of something than PlanGraph takes. Looks at counts
// only: for a server to refuse an oversized graph before it copies or hashes it.
absl::Status CheckGraphSize(const v1::Graph& graph);

absl::StatusOr<v1::PlanResponse> PlanGraph(const v1::PlanRequest& request, const StopCheck& stop);
absl::StatusOr<v1::CompileKernelResponse> CompileKernel(const v1::CompileKernelRequest& request);
absl::StatusOr<std::string> LinkKernels(absl::Span<const std::string> objects);

// The key under which the answer to `request` may be kept: made of the very invocation of Clang
// that CompileKernel runs, so that two requests have one key just where they have one answer.
// Compiles nothing: the server calls it with what a worker, which may lie, wants compiled.
absl::StatusOr<Digest> KernelKeyOf(const v1::CompileKernelRequest& request);

// Does beforehand what every CompileKernel of `like`'s device and options begins with, for those
// calls in this process and in ones forked from it. Reads no source.
absl::Status PrepareForKernels(const v1::CompileKernelRequest& like);

// Makes the linker's files anew, for a process that was just forked: it shares no file with others.
// REQUIRES: one thread.
void TakeOwnLinkerFiles();

// Runs the reference interpreter; `emit` gets progress and outputs as they come, each at most 1
// MiB.
absl::Status InterpretGraph(const v1::InterpretRequest& request,
                            const std::function<absl::Status(const v1::InterpretEvent&)>& emit);

}  // namespace kiln
