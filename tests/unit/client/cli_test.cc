// Runs the `kiln` binary: wrong use, an absent server, absent and senseless files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/temp_dir.h"

namespace kiln::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Result {
  int exit_code = -1;
  std::string output;  // standard output and standard error
};

Result Kiln(const std::string& arguments) {
  Result out;
  std::FILE* pipe = popen(absl::StrCat(KILN_CLI, " ", arguments, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return out;
  char buffer[4096];
  while (size_t size = std::fread(buffer, 1, sizeof(buffer), pipe)) out.output.append(buffer, size);
  int status = pclose(pipe);
  if (WIFEXITED(status)) out.exit_code = WEXITSTATUS(status);
  return out;
}

void ExpectUsage(const std::string& arguments, const std::string& sentence) {
  Result result = Kiln(arguments);
  EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.output;
  EXPECT_THAT(result.output, HasSubstr(sentence)) << arguments;
}

TEST(Cli, WrongUseExitsWithTwoAndASentence) {
  ExpectUsage("", "usage: kiln");
  ExpectUsage("frobnicate", "there is no command 'frobnicate'");
  ExpectUsage("status --frob", "unknown flag --frob");
  ExpectUsage("status extra", "takes no arguments");
  ExpectUsage("status --server nowhere", "expected HOST:PORT");
  ExpectUsage("compile", "takes saved graphs");
  ExpectUsage("compile a.kgraph b.kgraph -o c", "-o and --emit go with one graph");
  ExpectUsage("compile a.kgraph --emit fortran", "expected artifact, source, asm, sass, ir");
  ExpectUsage("compile a.kgraph --stage fuse", "--stage goes with --emit ir");
  ExpectUsage("doctor --arch z80", "unknown CPU 'z80'");
  ExpectUsage("doctor --target tpu", "--target is 'tpu'");
  ExpectUsage("run a.kgraph --bench 0", "--bench is '0'");
  ExpectUsage("run a.kgraph --profile 0", "--profile is '0'");
  ExpectUsage("run a.kgraph --trace t.json", "--trace needs --profile");
  ExpectUsage("run a.kgraph --profile 3 --json", "there is --trace");
  ExpectUsage("run a.kgraph --threads x", "--threads is 'x'");
  ExpectUsage("cache", "takes one of ls, stat, verify, clear");
  ExpectUsage("cache burn", "has no 'burn'");
  ExpectUsage("cache ls --kind toys", "expected , artifact, kernel");
}

TEST(Cli, ThreadsAboveTheProcessorsAreCappedWithALine) {
  const TempDir folder;
  const std::string path = folder.path() + "/threads.kgraph";
  std::ofstream(path, std::ios::binary) << std::string("\x08\x01", 2);  // a graph of nothing
  const std::string command = absl::StrCat("run ", path, " --server 127.0.0.1:1 --threads ");
  EXPECT_THAT(Kiln(command + "1000").output, HasSubstr("threads is above what this process has"));
  EXPECT_THAT(Kiln(command + "1").output, Not(HasSubstr("threads is above")));
}

TEST(Cli, AnAbsentServerExitsWithThree) {
  Result result = Kiln("status --server 127.0.0.1:1");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output, HasSubstr("cannot reach the server at 127.0.0.1:1"));
}

TEST(Cli, AbsentAndSenselessFilesAreErrors) {
  Result absent = Kiln("run /nonexistent.kgraph");
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.output, HasSubstr("cannot read '/nonexistent.kgraph'"));
  const TempDir folder;
  const std::string path = folder.path() + "/senseless.kgraph";
  std::ofstream(path) << "this is no graph";
  Result senseless = Kiln(absl::StrCat("compile ", path));
  EXPECT_EQ(senseless.exit_code, 4);
  EXPECT_THAT(senseless.output, HasSubstr("is no saved graph"));
  std::ofstream(path) << "KILNART1 and then nothing";
  Result damaged = Kiln(absl::StrCat("run ", path));
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.output, HasSubstr("cut off"));
}

TEST(Cli, HelpAndVersionExitWithZero) {
  EXPECT_EQ(Kiln("--help").exit_code, 0);
  Result run = Kiln("run --help");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.output, HasSubstr("--expect FILE.npz"));
  EXPECT_THAT(run.output, HasSubstr("--server HOST:PORT"));
  EXPECT_THAT(run.output, Not(HasSubstr("--signed-by"))) << "another command's";
  EXPECT_THAT(Kiln("--version").output, HasSubstr("kiln "));
}

TEST(Cli, TheManualAndTheCompletionKnowEveryFlagOfTheHelp) {
  const std::string manual = Kiln("manual").output;
  const std::string script = Kiln("completion bash").output;
  for (const char* command : {"run", "compile", "cache", "load"}) {
    const std::string help = Kiln(absl::StrCat(command, " --help")).output;
    for (absl::string_view line : absl::StrSplit(help, '\n')) {
      if (!absl::ConsumePrefix(&line, "  --")) continue;
      const std::string flag(line.substr(0, line.find(' ')));
      EXPECT_THAT(script, HasSubstr("--" + flag)) << command;
      EXPECT_THAT(manual, HasSubstr("\\-\\-" + absl::StrReplaceAll(flag, {{"-", "\\-"}})));
    }
  }
  std::FILE* shell = popen("bash -n 2>&1", "w");
  ASSERT_NE(shell, nullptr);
  std::fputs(script.c_str(), shell);
  EXPECT_EQ(pclose(shell), 0) << script;
}

}  // namespace
}  // namespace kiln::cli
