// A server that signs programs which are not those of the graph (lies.h): what a client takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "kiln/client.h"
#include "kiln/v1/graph.pb.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_process.h"
#include "tests/temp_dir.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;

class ChangedProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ForgetPrograms();
    auto server = ServerProcess::Start(dir_.path() + "/data", {"--workers=1"}, KILND_MISBEHAVING);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~ChangedProgramTest() override {
    if (HasFailure() && server_ != nullptr) std::cerr << server_->process().Errors();
  }

  absl::StatusOr<Compiled> Compile(const v1::Graph& graph) {
    ClientOptions options;
    options.server = server_->grpc_address();
    options.threads = 1;
    options.local_cache = dir_.path() + "/local";
    auto client = Client::Create(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return (*client)->Compile(graph);
  }

  // What the client says of the lie about a graph that no other lie is about.
  absl::StatusOr<Compiled> Lie(const std::string& lie) {
    v1::Graph graph = QuickRequest(++elements_).graph();
    graph.set_name(absl::StrCat("lie:", lie));
    return Compile(graph);
  }

  TempDir dir_;
  std::unique_ptr<ServerProcess> server_;
  int64_t elements_ = 1000;
};

TEST_F(ChangedProgramTest, IsRefusedWhenItIsLoaded) {
  const std::pair<const char*, const char*> lies[] = {
      {"no_output", "has 0 outputs; expected 1"},
      {"more_outputs", "has 2 outputs; expected 1"},
      {"output_none", "output 0 is nothing; expected a tensor"},
      {"output_number", "output 0 is a number; expected a tensor"},
      {"output_input", "output 0 lies in input 0"},
      {"smaller_output", "gives its kernel 4 bytes as buffer"},
      {"fewer_buffers", "gives its kernel 1 buffers and 0 sizes; expected 2 and 0"},
      {"uncountable", "the workspace has"},
  };
  for (const auto& [lie, words] : lies) {
    const absl::Status status = Lie(lie).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << lie << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(words)) << lie;
    std::cout << lie << ": " << status.message() << "\n";
  }
}

TEST_F(ChangedProgramTest, OfTerabytesFailsToRunAndNoMore) {
  auto compiled = Lie("terabytes");
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  std::vector<float> x = SampleInput(elements_);
  const int64_t one = 1;
  kiln_tensor input{x.data(), &elements_, &one, 1, KILN_FLOAT32, KILN_CPU, 0};
  const absl::Status status = compiled->program->Run({input}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(x, SampleInput(elements_));
}

// The machine's disk believes no more than the network: what it has is compared with the graph,
// too.
TEST_F(ChangedProgramTest, OfTheLocalCacheIsRefusedAsWell) {
  v1::Graph graph = QuickRequest(500).graph();
  ASSERT_TRUE(Compile(graph).ok());
  ForgetPrograms();
  auto again = Compile(graph);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_STREQ(again->source, "local_disk");
  EXPECT_TRUE(absl::IsDataLoss(Lie("output_none").status()));
  int kept = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path() + "/local")) {
    kept += entry.path().extension() == ".kiln";
  }
  // The honest artifact and the compiler's name; a program that was refused is not kept.
  EXPECT_EQ(kept, 2);
}

TEST_F(ChangedProgramTest, LeavesHonestOnesAsTheyAre) {
  EXPECT_TRUE(absl::IsDataLoss(Lie("output_none").status()));
  auto compiled = Compile(QuickRequest(300).graph());
  EXPECT_TRUE(compiled.ok()) << compiled.status();
}

}  // namespace
}  // namespace kiln::integration
