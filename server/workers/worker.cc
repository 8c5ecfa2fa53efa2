#include "server/workers/worker.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "compiler/compiler.h"
#include "kiln/v1/error.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/scheduling.h"
#include "proto/base/status_macros.h"
#include "server/workers/frame.h"
#include "server/workers/huge_code.h"
#include "server/workers/ptxas.h"
#include "server/workers/sandbox.h"
#include "server/workers/task_process.h"
#include "server/workers/worker_compiler.h"
#include "server/workers/worker_process.h"

namespace kiln::server {
namespace {

struct WorkerFlags {
  int64_t parent_pid = 0;
  int64_t memory_bytes = 0;
  int64_t cpu_seconds = 0;
  bool huge_code = false;  // else its code stays in the files that all workers share
  // Where one is set the worker runs that program and does nothing else.
  std::string ptxas, nvdisasm;
};

bool ParseFlags(absl::Span<char* const> arguments, WorkerFlags& flags) {
  for (absl::string_view argument : arguments) {
    if (argument == kHugeCodeFlag) {
      flags.huge_code = true;
      continue;
    }
    std::string* program = absl::ConsumePrefix(&argument, "--ptxas=")      ? &flags.ptxas
                           : absl::ConsumePrefix(&argument, "--nvdisasm=") ? &flags.nvdisasm
                                                                           : nullptr;
    if (program != nullptr) {
      *program = std::string(argument);
      continue;
    }
    int64_t* value = absl::ConsumePrefix(&argument, "--parent-pid=")     ? &flags.parent_pid
                     : absl::ConsumePrefix(&argument, "--memory-bytes=") ? &flags.memory_bytes
                     : absl::ConsumePrefix(&argument, "--cpu-seconds=")  ? &flags.cpu_seconds
                                                                         : nullptr;
    if (value == nullptr || !absl::SimpleAtoi(argument, value)) return false;
  }
  return flags.parent_pid > 0 && flags.memory_bytes > 0 && flags.cpu_seconds > 0;
}

// Processor time counts for the process's whole life, so each piece of work moves the limit on.
void LimitProcessorTime(int64_t more_seconds) {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  auto used_seconds = static_cast<rlim_t>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec);
  rlimit limit = {used_seconds + static_cast<rlim_t>(more_seconds) + 2, RLIM_INFINITY};
  setrlimit(RLIMIT_CPU, &limit);
}

// Dies with the server, and leaves signals for the whole group to it.
bool BecomeWorker(const WorkerFlags& flags, v1::WorkerReady& ready) {
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  std::set_new_handler([] { _exit(kWorkerOutOfMemoryExit); });
  for (std::string& what : LimitProcess({.memory_bytes = flags.memory_bytes})) {
    ready.add_not_isolated(std::move(what));
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);      // a change of user, as above, would undo it
  return getppid() == flags.parent_pid;  // else the server died before the line above
}

void SetError(const absl::Status& status, v1::WorkerResponse& response) {
  v1::WorkerError& error = *response.mutable_error();
  error.set_code(static_cast<int>(status.code()));
  error.set_message(std::string(status.message()));
  if (auto detail = GetDetail(status)) *error.mutable_detail() = *detail;
}

absl::Status Send(const v1::WorkerResponse& response) {
  return WriteFrame(kWorkerSocketFd, response.SerializeAsString(), {});
}

v1::WorkerResponse Interpret(const v1::InterpretRequest& request, int64_t cpu_seconds) {
  absl::Status status = InterpretGraph(request, [&](const v1::InterpretEvent& event) {
    LimitProcessorTime(cpu_seconds);
    v1::WorkerResponse response;
    *response.mutable_interpret() = event;
    return Send(response);
  });
  v1::WorkerResponse response;
  if (status.ok()) {
    response.set_done(true);
  } else {
    SetError(status, response);
  }
  return response;
}

v1::WorkerResponse Serve(const WorkerCompiler& compiler, const v1::WorkerRequest& request,
                         int64_t cpu_seconds) {
  v1::WorkerResponse response;
  absl::Status status;
  switch (request.kind_case()) {
    case v1::WorkerRequest::kPlan: {
      auto plan = compiler.plan(request.plan());
      status = plan.status();
      if (plan.ok()) *response.mutable_plan() = *std::move(plan);
      break;
    }
    case v1::WorkerRequest::kCompileKernel: {
      auto object = compiler.compile_kernel(request.compile_kernel());
      status = object.status();
      if (object.ok()) *response.mutable_compile_kernel() = *std::move(object);
      break;
    }
    case v1::WorkerRequest::kLink: {
      auto linked = compiler.link(request.link());
      status = linked.status();
      if (linked.ok()) *response.mutable_link() = *std::move(linked);
      break;
    }
    case v1::WorkerRequest::kInterpret:
      return Interpret(request.interpret(), cpu_seconds);
    case v1::WorkerRequest::kAssemble:
    case v1::WorkerRequest::kDisassemble:
      status = absl::InternalError("this worker runs no other program");
      break;
    case v1::WorkerRequest::KIND_NOT_SET:
      status = absl::InternalError("a request without content");
  }
  if (!status.ok()) SetError(status, response);
  return response;
}

// In the process of a task.
int RunTask(const v1::StartTask& start, int64_t cpu_seconds) {
  LimitProcessorTime(cpu_seconds);
  TakeOwnToolchainFiles();
  v1::WorkerResponse sealed;
  v1::WorkerReady& ready = *sealed.mutable_ready();
  for (std::string& what : SealTask()) ready.add_not_isolated(std::move(what));
  if (!Send(sealed).ok()) return 0;
  // A task that it matters to fails by itself, and says why.
  if (start.warm_up()) WarmUpForKernels(start.prepare()).IgnoreError();
  absl::StatusOr<std::string> frame = ReadFrame(kWorkerSocketFd, {});
  if (!frame.ok()) return 0;  // the server closed its end
  v1::WorkerRequest request;
  if (!request.ParseFromString(*frame)) return 1;
  Send(Serve(MakeWorkerCompiler(), request, cpu_seconds)).IgnoreError();  // nobody is there then
  return 0;
}

// What the one program of such a worker makes of a request; `version` is ptxas', "" for nvdisasm.
// `ahead`, where there is one, has started for such a request.
absl::Status RunProgramFor(const v1::WorkerRequest& request, absl::StatusOr<Assembler> ahead,
                           const std::string& version, v1::WorkerResponse& response) {
  if (request.has_assemble()) {
    const std::string& arch = request.assemble().arch();
    if (!ahead.ok() || ahead->arch() != arch || ahead->HasEnded()) ahead = Assembler::Start(arch);
    KILN_RETURN_IF_ERROR(ahead.status());
    KILN_ASSIGN_OR_RETURN(*response.mutable_assemble(), ahead->Finish(request.assemble().ptx()));
    response.mutable_assemble()->set_assembler(absl::StrCat("ptxas ", version));
  } else {
    KILN_ASSIGN_OR_RETURN(*response.mutable_disassemble(), Disassemble(request.disassemble()));
  }
  return absl::OkStatus();
}

// In the process of a task of a worker with a program: `takes` is the kind of its requests.
int RunProgramTask(const v1::StartTask& start, int64_t cpu_seconds, const std::string& version,
                   v1::WorkerRequest::KindCase takes) {
  LimitProcessorTime(cpu_seconds);
  v1::WorkerResponse response;
  response.mutable_ready();
  if (!Send(response).ok()) return 0;
  absl::StatusOr<Assembler> ahead = absl::UnavailableError("none has started");
  if (start.warm_up()) ahead = Assembler::Start(start.prepare().device().arch());
  absl::StatusOr<std::string> frame = ReadFrame(kWorkerSocketFd, {});
  if (!frame.ok()) return 0;  // the server closed its end
  v1::WorkerRequest request;
  if (!request.ParseFromString(*frame) || request.kind_case() != takes) return 1;
  const absl::Status done = RunProgramFor(request, std::move(ahead), version, response);
  if (!done.ok()) SetError(done, response);
  Send(response).IgnoreError();  // nobody is there then
  return 0;
}

int RunProgramWorker(const WorkerFlags& flags, v1::WorkerResponse& ready) {
  const bool assembles = !flags.ptxas.empty();
  if (absl::Status status = OpenProgram(assembles ? flags.ptxas : flags.nvdisasm); !status.ok()) {
    Log(LogLevel::kError, "there is no program", {{"why", status.ToString()}});
    return 1;
  }
  for (std::string& what : SealAssembler(kPtxasFd)) {
    ready.mutable_ready()->add_not_isolated(std::move(what));
  }
  const std::string version = assembles ? PtxasVersion() : "";
  if (!Send(ready).ok()) return 0;
  const auto takes = assembles ? v1::WorkerRequest::kAssemble : v1::WorkerRequest::kDisassemble;
  return ServeTasks(static_cast<pid_t>(flags.parent_pid),
                    {.prepare = [](const v1::CompileKernelRequest&) {},
                     .run =
                         [&](const v1::StartTask& start) {
                           return RunProgramTask(start, flags.cpu_seconds, version, takes);
                         }});
}

}  // namespace

int RunWorker(absl::Span<char* const> arguments) {
  WorkerFlags flags;
  SetLogLevel(LogLevelFromEnvironment(LogLevel::kInfo));
  if (!ParseFlags(arguments, flags)) {
    Log(LogLevel::kError, "'kilnd worker' is started by kilnd itself, not by hand");
    return 2;
  }
  StandBack();  // hits must not wait for processors that compiles have
  v1::WorkerResponse ready;
  if (!BecomeWorker(flags, *ready.mutable_ready())) return 0;
  LimitProcessorTime(flags.cpu_seconds);
  if (!flags.ptxas.empty() || !flags.nvdisasm.empty()) return RunProgramWorker(flags, ready);
  if (absl::Status status = WarmUpTargets(); !status.ok()) {
    Log(LogLevel::kError, "the compiler does not work", {{"why", status.ToString()}});
    return 1;
  }
  if (flags.huge_code) MoveCodeToHugePages();
  for (std::string& what : SealWorker()) {
    ready.mutable_ready()->add_not_isolated(std::move(what));
  }
  if (!Send(ready).ok()) return 0;
  return ServeTasks(
      static_cast<pid_t>(flags.parent_pid),
      {.prepare =
           [&flags](const v1::CompileKernelRequest& like) {
             LimitProcessorTime(flags.cpu_seconds);
             // A task that it matters to fails by itself, and says why.
             PrepareForKernels(like).IgnoreError();
           },
       .run = [&flags](const v1::StartTask& start) { return RunTask(start, flags.cpu_seconds); }});
}

}  // namespace kiln::server
