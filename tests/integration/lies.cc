#include "tests/integration/lies.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "compiler/compiler.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/status_macros.h"
#include "server/workers/frame.h"
#include "server/workers/worker_process.h"

namespace kiln::server {
namespace {

// What these find in a source or in an object.
constexpr absl::string_view kTakesOverCompile = "kiln lie: compile";
constexpr absl::string_view kTakesOverLink = "kiln lie: link";

// In a worker that ran one task after another it would be there for the next.
bool taken_over = false;

constexpr absl::string_view kKernelPrefix = "kiln_";

// The kernel's name in its source or object.
std::string SymbolIn(absl::string_view text) {
  return std::string(text.substr(text.find(kKernelPrefix), kKernelPrefix.size() + 24));
}

// A kernel that does nothing but fail the run.
std::string FalseSource(absl::string_view symbol) {
  return absl::StrCat("extern \"C\" int ", symbol,
                      "(const void*, void* const*, const long*) { return 1; }\n");
}

std::string WithMark(absl::string_view source, absl::string_view mark) {
  return absl::StrCat(source, "\nextern \"C\" const char mark_of_a_liar[] = \"", mark, "\";\n");
}

absl::StatusOr<std::string> FalseObject(absl::string_view symbol) {
  v1::CompileKernelRequest request;
  request.set_source(FalseSource(symbol));
  request.mutable_device()->set_target(v1::TARGET_CPP);
  KILN_ASSIGN_OR_RETURN(v1::CompileKernelResponse response, CompileKernel(request));
  return std::move(*response.mutable_object());
}

void ForgeName(v1::KernelSource& kernel) {
  // A worker once gave each kernel's key, in this field.
  constexpr int kKeyField = 3;
  kernel.GetReflection()->MutableUnknownFields(&kernel)->AddLengthDelimited(kKeyField,
                                                                            std::string(32, 'k'));
  kernel.set_source(FalseSource(kernel.symbol()));
}

absl::Status AnswerAhead(const v1::PlanResponse& plan) {
  v1::WorkerResponse first;
  *first.mutable_plan() = plan;
  KILN_RETURN_IF_ERROR(WriteFrame(kWorkerSocketFd, first.SerializeAsString(), {}));
  for (int i = 0; i < 8; ++i) {
    v1::WorkerResponse more;
    KILN_ASSIGN_OR_RETURN(*more.mutable_compile_kernel()->mutable_object(),
                          FalseObject(plan.kernels(0).symbol()));
    KILN_RETURN_IF_ERROR(WriteFrame(kWorkerSocketFd, more.SerializeAsString(), {}));
  }
  return absl::OkStatus();
}

v1::SymInt Number(int64_t value) {
  v1::SymInt out;
  out.set_value(value);
  return out;
}

int FindBuffer(const v1::Program& program, v1::Buffer::Kind kind) {
  for (int i = 0; i < program.buffers_size(); ++i) {
    if (program.buffers(i).kind() == kind) return i;
  }
  return 0;
}

// REQUIRES: a program that launches a kernel and has a tensor as its first output.
void ChangeProgram(absl::string_view lie, v1::Program& program) {
  v1::ProgramOutput& output = *program.mutable_outputs(0);
  if (lie == "no_output") program.clear_outputs();
  if (lie == "more_outputs") *program.add_outputs() = program.outputs(0);
  if (lie == "output_none") output.mutable_none();
  if (lie == "output_number") output.mutable_sym_int()->set_value(7);
  if (lie == "output_input") {
    output.mutable_tensor()->set_buffer(
        static_cast<uint32_t>(FindBuffer(program, v1::Buffer::KIND_INPUT)));
  }
  if (lie == "smaller_output") {
    v1::Buffer& buffer = *program.mutable_buffers(FindBuffer(program, v1::Buffer::KIND_OUTPUT));
    *buffer.mutable_sizes(0) = Number(1);
    buffer.clear_size_bytes();
    *output.mutable_tensor()->mutable_sizes(0) = Number(1);
  }
  for (v1::Step& step : *program.mutable_steps()) {
    if (lie == "fewer_buffers" && step.has_launch()) {
      step.mutable_launch()->mutable_buffers()->RemoveLast();
    }
    if (lie == "other_step" && step.has_library()) {
      step.mutable_library()->set_op("aten.relu_.default");
    }
  }
  if (lie == "terabytes") *program.mutable_workspace_bytes() = Number(int64_t{1} << 48);
  if (lie == "uncountable") *program.mutable_workspace_bytes() = Number(INT64_MAX);
}

// What the graph's name or a string among its arguments says.
std::string LieOf(const v1::Graph& graph) {
  std::vector<absl::string_view> texts = {graph.name()};
  for (const v1::Node& node : graph.nodes()) {
    for (const v1::Argument& arg : node.args()) texts.push_back(arg.string());
  }
  for (absl::string_view text : texts) {
    if (absl::ConsumePrefix(&text, "lie:")) return std::string(text);
  }
  return "";
}

}  // namespace

absl::StatusOr<v1::PlanResponse> LyingPlan(const v1::PlanRequest& request) {
  KILN_ASSIGN_OR_RETURN(v1::PlanResponse plan, PlanGraph(request, {}));
  const std::string lie = LieOf(request.graph());
  if (lie == "plan") taken_over = true;
  for (v1::KernelSource& kernel : *plan.mutable_kernels()) {
    if (lie == "name" || taken_over) ForgeName(kernel);
    if (lie == "compile") kernel.set_source(WithMark(kernel.source(), kTakesOverCompile));
    if (lie == "link") kernel.set_source(WithMark(kernel.source(), kTakesOverLink));
  }
  if (!lie.empty()) ChangeProgram(lie, *plan.mutable_program());
  if (lie == "answers") KILN_RETURN_IF_ERROR(AnswerAhead(plan));
  return plan;
}

absl::StatusOr<v1::CompileKernelResponse> LyingCompile(const v1::CompileKernelRequest& request) {
  taken_over |= absl::StrContains(request.source(), kTakesOverCompile);
  if (!taken_over) return CompileKernel(request);
  v1::CompileKernelResponse response;
  // The prelude has no such name.
  KILN_ASSIGN_OR_RETURN(*response.mutable_object(), FalseObject(SymbolIn(request.source())));
  return response;
}

absl::StatusOr<v1::LinkResponse> LyingLink(const v1::LinkRequest& request) {
  const auto& objects = request.objects();
  taken_over |= std::any_of(objects.begin(), objects.end(), [](const std::string& object) {
    return absl::StrContains(object, kTakesOverLink);
  });
  if (!taken_over) return LinkKernels(request);
  v1::LinkRequest others;
  *others.mutable_device() = request.device();
  for (const std::string& object : objects) {
    if (!absl::StrContains(object, kKernelPrefix)) continue;  // a routine, which nobody calls now
    KILN_ASSIGN_OR_RETURN(*others.add_objects(), FalseObject(SymbolIn(object)));
  }
  return LinkKernels(others);
}

}  // namespace kiln::server
