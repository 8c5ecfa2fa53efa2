#include "server/workers/ptxas.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

#include "kiln/v1/worker.pb.h"
#include "proto/base/status_macros.h"
#include "server/workers/sandbox.h"
#include "server/workers/worker_process.h"
#include "tests/temp_dir.h"

namespace kiln::server {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::KilledBySignal;

constexpr char kPtx[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) { ret; }\n";

// Runs `what` in a worker that may execute `program` alone.
[[noreturn]] void Sealed(const std::string& program, bool (*what)()) {
  LimitProcess({.memory_bytes = int64_t{1} << 30});
  signal(SIGPIPE, SIG_IGN);              // as a worker does
  dup2(STDERR_FILENO, kWorkerSocketFd);  // a task has its socket there
  if (!OpenProgram(program).ok()) _exit(2);
  SealAssembler(kPtxasFd);
  _exit(what() ? 0 : 1);
}

absl::StatusOr<v1::AssembleResponse> AssembleText(const std::string& ptx) {
  KILN_ASSIGN_OR_RETURN(Assembler assembler, Assembler::Start("sm_80"));
  return assembler.Finish(ptx);
}

TEST(Ptxas, AScriptOrNothingIsNoAssembler) {
  const TempDir folder;
  const std::string script = folder.path() + "/ptxas_script";
  std::ofstream(script) << "#!/bin/sh\nsleep 1000\n";
  chmod(script.c_str(), 0755);
  EXPECT_THAT(FindPtxas(script).status().message(), HasSubstr("is no program"));
  EXPECT_THAT(FindPtxas("/absent").status().message(), HasSubstr("'/absent'"));
  EXPECT_EQ(*FindPtxas("none"), "");
  EXPECT_EQ(*FindPtxas("/bin/true"), "/bin/true");
}

TEST(Ptxas, AProgramThatFailsOrMakesNothingIsAnError) {
  EXPECT_EXIT(Sealed("/bin/false", [] { return absl::IsInternal(AssembleText(kPtx).status()); }),
              ExitedWithCode(0), "");
  EXPECT_EXIT(Sealed("/bin/true",
                     [] { return AssembleText(kPtx).status().message() == "ptxas made no cubin"; }),
              ExitedWithCode(0), "");
}

TEST(Ptxas, WhatAProgramMayDoInstead) {
  EXPECT_EXIT(Sealed(KILN_FAKE_PTXAS "-works",
                     [] {
                       const auto made = AssembleText(kPtx);
                       return made.ok() && PtxasVersion() == "0.1.2" &&
                              made->cubin().find("made by a fake") != std::string::npos;
                     }),
              ExitedWithCode(0), "");
  EXPECT_EXIT(Sealed(KILN_FAKE_PTXAS "-garbage",
                     [] { return AssembleText(kPtx).status().message() == "ptxas made no cubin"; }),
              ExitedWithCode(0), "");
  // The system ends it at its limit on files, or the output is found to be too long.
  EXPECT_EXIT(Sealed(KILN_FAKE_PTXAS "-flood",
                     [] { return absl::IsInternal(AssembleText(kPtx).status()); }),
              ExitedWithCode(0), "");
  EXPECT_EXIT(Sealed(KILN_FAKE_PTXAS "-fail",
                     [] {
                       const std::string why(AssembleText(kPtx).status().message());
                       return why.find("exit 255 ptxas fatal : fake") != std::string::npos;
                     }),
              ExitedWithCode(0), "");
}

TEST(Ptxas, OneThatEndsBeforeItHasReadAllSaysWhyAndOneThatWaitsHasNotEnded) {
  EXPECT_EXIT(Sealed(KILN_FAKE_PTXAS "-fail",
                     [] {
                       auto assembler = Assembler::Start("sm_80");
                       if (!assembler.ok()) return false;
                       while (!assembler->HasEnded()) usleep(1000);
                       const auto made = assembler->Finish(std::string(1 << 20, ' '));
                       return made.status().message().find("fake") != std::string::npos;
                     }),
              ExitedWithCode(0), "");
  EXPECT_EXIT(Sealed(KILN_FAKE_PTXAS "-works",
                     [] {
                       auto assembler = Assembler::Start("sm_80");
                       usleep(50'000);
                       return assembler.ok() && !assembler->HasEnded() &&
                              assembler->Finish(std::string(1 << 20, ' ')).ok();
                     }),
              ExitedWithCode(0), "");
}

TEST(Ptxas, NoOtherProgramRunsThere) {
  EXPECT_EXIT(Sealed("/bin/true",
                     [] {
                       char* none[] = {nullptr};
                       execve("/bin/true", none, none);
                       return true;
                     }),
              KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(Sealed("/bin/true",
                     [] {
                       char* none[] = {nullptr};
                       syscall(SYS_execveat, AT_FDCWD, "/bin/true", none, none, 0);
                       return true;
                     }),
              KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(Sealed("/bin/true", [] { return dup3(2, kPtxasFd, O_CLOEXEC) < 0; }),
              ExitedWithCode(0), "");
}

TEST(Ptxas, TheRealOneMakesACubinAndRefusesWhatIsNoPtx) {
  if (FindPtxas("auto")->empty()) GTEST_SKIP() << "there is no ptxas";
  EXPECT_EXIT(Sealed(*FindPtxas("auto"),
                     [] {
                       const std::string version = PtxasVersion();
                       const absl::Status made = AssembleText(kPtx).status();
                       const absl::Status refused = AssembleText("garbage").status();
                       std::cerr << version << "; " << made << "; " << refused << std::endl;
                       return !version.empty() && made.ok() && absl::IsInternal(refused);
                     }),
              ExitedWithCode(0), "");
}

bool Shows(const std::string& cubin, const std::string& expected) {
  v1::DisassembleRequest request;
  request.set_cubin(cubin);
  const auto shown = Disassemble(request);
  std::cerr << shown.status() << std::endl;
  return expected.empty() ? absl::IsInternal(shown.status())
                          : shown.ok() && shown->text().find(expected) != std::string::npos;
}

TEST(Nvdisasm, WhatAProgramMayDo) {
  EXPECT_EXIT(
      Sealed(KILN_FAKE_PTXAS "-works", [] { return Shows("\177ELF", "machine code: ELF"); }),
      ExitedWithCode(0), "");
  EXPECT_EXIT(Sealed("/bin/true", [] { return Shows("\177ELF", ""); }), ExitedWithCode(0),
              "printed nothing");
  EXPECT_EXIT(Sealed(KILN_FAKE_PTXAS "-fail", [] { return Shows("\177ELF", ""); }),
              ExitedWithCode(0), "nvdisasm: exit 255");
}

TEST(Nvdisasm, IsLookedForBesidePtxasFirst) {
  EXPECT_EQ(*FindNvdisasm("none", "/usr/bin/ptxas"), "");
  EXPECT_EQ(*FindNvdisasm("/bin/true", ""), "/bin/true");
  EXPECT_THAT(FindNvdisasm("/absent", "").status().message(), HasSubstr("--nvdisasm: '/absent'"));
  const TempDir folder;
  const std::string program = folder.path() + "/nvdisasm";
  ASSERT_EQ(symlink("/bin/true", program.c_str()), 0);
  EXPECT_EQ(*FindNvdisasm("auto", folder.path() + "/ptxas"), program);
}

TEST(Nvdisasm, TheRealOneShowsInstructionsAndRefusesWhatIsNoCubin) {
  const std::string ptxas = *FindPtxas("auto");
  if (ptxas.empty() || FindNvdisasm("auto", ptxas)->empty()) {
    GTEST_SKIP() << "there is no nvdisasm, or no ptxas";
  }
  const TempDir folder;
  const std::string made = folder.path() + "/made.cubin";
  {
    std::ofstream(made + ".ptx") << kPtx;
    const std::string command = ptxas + " -arch=sm_80 " + made + ".ptx -o " + made;
    ASSERT_EQ(system(command.c_str()), 0);
  }
  std::ifstream in(made, std::ios::binary);
  static std::string cubin;
  cubin.assign(std::istreambuf_iterator<char>(in), {});
  EXPECT_EXIT(Sealed(*FindNvdisasm("auto", ptxas), [] { return Shows(cubin, "EXIT"); }),
              ExitedWithCode(0), "");
  EXPECT_EXIT(Sealed(*FindNvdisasm("auto", ptxas), [] { return Shows("garbage", ""); }),
              ExitedWithCode(0), "");
}

}  // namespace
}  // namespace kiln::server
