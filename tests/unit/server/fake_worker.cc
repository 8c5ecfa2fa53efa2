// A worker whose tasks do what the source of a kernel says: "echo TEXT", "crash", "crash-once
// FILE", "exit", "hang", "hang-up", "allocate", "spin", "fail", "remember TEXT", "recall",
// "answer-twice", "answer-a-plan", "prepared-for", "warmed-up-for". What worker_pool_test.cc
// drives.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kiln/v1/worker.pb.h"
#include "server/workers/frame.h"
#include "server/workers/task_process.h"
#include "server/workers/worker_process.h"

namespace {

// The last arch that this process, or the one that it was forked from, was told to get ready for.
std::string prepared_for;
// The arch that this process compiled a small kernel for, ahead of its task's.
std::string warmed_up_for;

[[noreturn]] void Crash() {
  signal(SIGSEGV, SIG_DFL);  // a sanitizer would exit instead
  raise(SIGSEGV);
  _exit(1);
}

[[noreturn]] void AllocateWithoutEnd() {
  std::vector<std::string> blocks;
  while (true) {
    blocks.emplace_back(1 << 20, 'x');
    usleep(1000);
  }
}

[[noreturn]] void Spin() {
  rlimit limit = {1, RLIM_INFINITY};
  setrlimit(RLIMIT_CPU, &limit);
  for (volatile unsigned i = 0;; i = i + 1) {
  }
}

bool Send(const kiln::v1::WorkerResponse& response) {
  return kiln::server::WriteFrame(kiln::server::kWorkerSocketFd, response.SerializeAsString(), {})
      .ok();
}

// What a task left in its process's memory.
std::string remembered = "nothing";

kiln::v1::WorkerResponse Obey(absl::string_view order) {
  kiln::v1::WorkerResponse response;
  if (order == "crash") Crash();
  if (absl::ConsumePrefix(&order, "crash-once ")) {
    std::string file(order);
    if (access(file.c_str(), F_OK) != 0) {
      std::ofstream{file} << "crashed";
      Crash();
    }
  }
  if (order == "exit") _exit(3);
  if (order == "hang") pause();
  if (order == "hang-up") {
    close(kiln::server::kWorkerSocketFd);
    pause();
  }
  if (order == "allocate") AllocateWithoutEnd();
  if (order == "spin") Spin();
  if (order == "fail") {
    response.mutable_error()->set_code(3);
    response.mutable_error()->set_message("as told");
    response.mutable_error()->mutable_detail()->set_node("n1");
    return response;
  }
  if (order == "answer-a-plan") {
    response.mutable_plan();
    return response;
  }
  if (absl::ConsumePrefix(&order, "answer-twice ")) {
    response.mutable_compile_kernel()->set_object(std::string(order));
    Send(response);
    return response;
  }
  if (absl::ConsumePrefix(&order, "remember ")) remembered = std::string(order);
  if (order == "recall") order = remembered;
  if (order == "prepared-for") order = prepared_for;
  if (order == "warmed-up-for") order = warmed_up_for;
  absl::ConsumePrefix(&order, "echo ");
  response.mutable_compile_kernel()->set_object(std::string(order));
  return response;
}

// Started as "... half-isolated", it says that something was not allowed.
bool half_isolated = false;

kiln::v1::WorkerResponse Ready() {
  kiln::v1::WorkerResponse ready;
  ready.mutable_ready();
  if (half_isolated) ready.mutable_ready()->add_not_isolated("files can be read");
  return ready;
}

int RunTask(const kiln::v1::StartTask& start) {
  if (!Send(Ready())) return 0;
  if (start.warm_up()) warmed_up_for = start.prepare().device().arch();
  auto frame = kiln::server::ReadFrame(kiln::server::kWorkerSocketFd, {});
  kiln::v1::WorkerRequest request;
  if (!frame.ok() || !request.ParseFromString(*frame)) return 0;
  if (!request.has_interpret()) return Send(Obey(request.compile_kernel().source())) ? 0 : 1;
  for (int i = 0; i < 3; ++i) {
    kiln::v1::WorkerResponse event;
    event.mutable_interpret()->set_index(i);
    Send(event);
  }
  kiln::v1::WorkerResponse done;
  done.set_done(true);
  return Send(done) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  half_isolated = argc > 1 && absl::string_view(argv[1]) == "half-isolated";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!Send(Ready())) return 0;
  return kiln::server::ServeTasks(getppid(), {.prepare =
                                                  [](const kiln::v1::CompileKernelRequest& like) {
                                                    if (like.device().arch() == "crash") Crash();
                                                    prepared_for = like.device().arch();
                                                  },
                                              .run = &RunTask});
}
