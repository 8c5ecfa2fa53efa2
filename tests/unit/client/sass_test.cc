#include "client/cli/sass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "kiln/v1/artifact.pb.h"
#include "tests/temp_dir.h"

namespace kiln::cli {
namespace {

using ::testing::HasSubstr;

constexpr char kInterface[] = "// interface grid { blocks { value: 1 } threads { value: 1 } }\n";

// With a PATH that has nothing but the folder of a program that stands for nvdisasm.
class SassTest : public ::testing::Test {
 protected:
  SassTest() : path_(getenv("PATH")) {
    setenv("PATH", folder_.path().c_str(), 1);
    unsetenv("CUDA_HOME");
    unsetenv("CUDA_PATH");
    v1::Binary& binary = *artifact_.add_binaries();
    binary.set_kind(v1::BINARY_KIND_CUBIN);
    binary.set_data(absl::StrCat("// kiln kernels 1\n// kernel a 0 3\n", kInterface,
                                 "// kernel b 3 4\n", kInterface, "\noneother"));
  }
  ~SassTest() override { setenv("PATH", path_.c_str(), 1); }

  void WriteDisassembler(const std::string& does) {
    const std::string program = folder_.path() + "/nvdisasm";
    std::ofstream(program) << "#!/bin/sh\n" << does << "\n";
    chmod(program.c_str(), 0755);
  }

  v1::Artifact artifact_;

 private:
  const TempDir folder_;
  const std::string path_;
};

TEST_F(SassTest, IsWhatTheDisassemblerPrintsForEachKernel) {
  WriteDisassembler(R"(IFS= read -r code < "$2"; echo "$1 of $code")");
  const auto text = SassText(artifact_);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "// a\n-c of one\n\n// b\n-c of othe\n\n");
}

TEST_F(SassTest, IsAnErrorThatSaysWhatThereIsNot) {
  WriteDisassembler("echo no cubin; exit 3");
  EXPECT_THAT(SassText(artifact_).status().message(), HasSubstr("failed: no cubin"));
  artifact_.mutable_binaries(0)->set_kind(v1::BINARY_KIND_PTX);
  EXPECT_THAT(SassText(artifact_).status().message(), HasSubstr("the artifact has no cubin"));
  artifact_.mutable_binaries(0)->set_kind(v1::BINARY_KIND_CUBIN);
  artifact_.mutable_binaries(0)->set_data("no archive");
  EXPECT_TRUE(absl::IsDataLoss(SassText(artifact_).status()));
}

}  // namespace
}  // namespace kiln::cli
