#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "kiln/client.h"
#include "kiln/kiln.h"
#include "kiln/v1/graph.pb.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct StatusDeleter {
  void operator()(kiln_status* s) const { kiln_status_destroy(s); }
};
using StatusPtr = std::unique_ptr<kiln_status, StatusDeleter>;

struct ProgramDeleter {
  void operator()(kiln_program* p) const { kiln_program_destroy(p); }
};
using ProgramPtr = std::unique_ptr<kiln_program, ProgramDeleter>;

ProgramPtr LoadProgram(const v1::Artifact& artifact) {
  std::string file = ToArtifactFile(Sealed(artifact));
  kiln_program* program = nullptr;
  StatusPtr status(kiln_program_load(file.data(), file.size(), 1, &program));
  EXPECT_EQ(status, nullptr) << kiln_status_message(status.get());
  return ProgramPtr(program);
}

TEST(CApi, NullArgumentsAreErrorsThatNameThem) {
  StatusPtr status(kiln_graph_load(nullptr, nullptr));
  EXPECT_EQ(kiln_status_code(status.get()), KILN_INVALID_ARGUMENT);
  EXPECT_THAT(kiln_status_message(status.get()), HasSubstr("'path' is null"));
  status.reset(kiln_compile(nullptr, nullptr, nullptr, nullptr, nullptr));
  EXPECT_THAT(kiln_status_message(status.get()), HasSubstr("'client' is null"));
  status.reset(kiln_program_run(nullptr, nullptr, 0, nullptr, 0, nullptr));
  EXPECT_THAT(kiln_status_message(status.get()), HasSubstr("'program' is null"));
  EXPECT_EQ(kiln_status_code(nullptr), KILN_OK);
  EXPECT_STREQ(kiln_status_message(nullptr), "");
  kiln_status_destroy(nullptr);
  kiln_graph_destroy(nullptr);
  kiln_client_destroy(nullptr);
  kiln_program_destroy(nullptr);
  kiln_bytes_free(nullptr);
  kiln_outputs_release(nullptr, 3);
}

TEST(CApi, ThreadsAboveTheProcessorsAreCappedWithALine) {
  const std::string file = ToArtifactFile(Sealed(AddAndDouble(8)));
  kiln_program* program = nullptr;
  ::testing::internal::CaptureStderr();
  StatusPtr status(kiln_program_load(file.data(), file.size(), 1000, &program));
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_EQ(status, nullptr) << kiln_status_message(status.get());
  kiln_program_stats stats = KILN_PROGRAM_STATS_INIT;
  kiln_program_get_stats(program, &stats);
  kiln_program_destroy(program);
  EXPECT_EQ(stats.threads, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_THAT(log, HasSubstr("threads is above what this process has of processors"));
  EXPECT_THAT(log, HasSubstr("threads=1000"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
}

TEST(CApi, GraphsGoThroughJsonAndBytes) {
  const std::string json =
      R"({"format_version": 1, "name": "g", "nodes": [{"name": "n", "op": "aten.add.Tensor",)"
      R"( "args": [{"value": 0}, {"float": "-Infinity"}]}]})";
  kiln_graph* graph = nullptr;
  StatusPtr status(kiln_graph_parse_json(json.data(), json.size(), &graph));
  ASSERT_EQ(status, nullptr) << kiln_status_message(status.get());
  kiln_bytes bytes{}, text{};
  ASSERT_EQ(kiln_graph_serialize(graph, &bytes), nullptr);
  ASSERT_EQ(kiln_graph_to_json(graph, &text), nullptr);
  EXPECT_THAT(text.data, HasSubstr("\"format_version\":1"));
  v1::Graph parsed;
  ASSERT_TRUE(parsed.ParseFromArray(bytes.data, static_cast<int>(bytes.size)));
  EXPECT_LT(parsed.nodes(0).args(1).float_(), 0);
  kiln_graph* again = nullptr;
  ASSERT_EQ(kiln_graph_parse(bytes.data, bytes.size, &again), nullptr);
  kiln_graph_destroy(again);
  kiln_graph_destroy(graph);
  kiln_bytes_free(&bytes);
  kiln_bytes_free(&text);
  status.reset(kiln_graph_parse_json("{\"nodez\": 1}", 12, &graph));
  EXPECT_EQ(kiln_status_code(status.get()), KILN_INVALID_ARGUMENT);
  EXPECT_THAT(kiln_status_message(status.get()), HasSubstr("nodez"));
  status.reset(kiln_graph_parse("\xff\xff", 2, &graph));
  EXPECT_EQ(kiln_status_code(status.get()), KILN_INVALID_ARGUMENT);
}

TEST(CApi, DescribesInputsOutputsAndSteps) {
  ProgramPtr program = LoadProgram(AddLibraryResult(4));
  ASSERT_EQ(kiln_program_num_inputs(program.get()), 1u);
  ASSERT_EQ(kiln_program_num_outputs(program.get()), 2u);
  kiln_value_info info;
  ASSERT_EQ(kiln_program_input(program.get(), 0, &info), nullptr);
  EXPECT_STREQ(info.name, "a");
  EXPECT_EQ(info.dtype, KILN_FLOAT32);
  EXPECT_EQ(info.sizes[0], 4);
  ASSERT_EQ(kiln_program_output(program.get(), 1, &info), nullptr);
  EXPECT_EQ(info.storage, KILN_STORAGE_LIBRARY);
  kiln_library_info library;
  ASSERT_EQ(kiln_program_library_step(program.get(), 0, &library), nullptr);
  EXPECT_STREQ(library.op, "aten.test.default");
  EXPECT_STREQ(library.node, "lib");
  EXPECT_EQ(library.num_tensors, 1u);
  EXPECT_EQ(library.num_ints, 1u);
  EXPECT_EQ(library.num_results, 1u);
  EXPECT_THAT(library.json, HasSubstr("aten.test.default"));
  v1::LibraryStep step;
  EXPECT_TRUE(step.ParseFromArray(library.proto, static_cast<int>(library.proto_size)));
  EXPECT_EQ(step.node(), "lib");
  StatusPtr status(kiln_program_library_step(program.get(), 1, &library));
  EXPECT_THAT(kiln_status_message(status.get()), HasSubstr("no library step 1"));
  ASSERT_EQ(kiln_program_num_steps(program.get()), 2u);
  kiln_step_info first, second;
  ASSERT_EQ(kiln_program_step(program.get(), 0, &first), nullptr);
  ASSERT_EQ(kiln_program_step(program.get(), 1, &second), nullptr);
  EXPECT_EQ(first.kind, KILN_STEP_LIBRARY);
  EXPECT_STREQ(first.name, "aten.test.default");
  EXPECT_STREQ(first.nodes, "lib");
  EXPECT_EQ(second.kind, KILN_STEP_KERNEL);
  EXPECT_STREQ(second.name, "test_add");
  EXPECT_STREQ(second.nodes, "");
  EXPECT_EQ(second.prepares, 0);
  status.reset(kiln_program_step(program.get(), 2, &first));
  EXPECT_THAT(kiln_status_message(status.get()), HasSubstr("no step 2"));
  kiln_program_stats stats = KILN_PROGRAM_STATS_INIT;
  kiln_program_get_stats(program.get(), &stats);
  EXPECT_EQ(stats.native_steps, 1);
  EXPECT_EQ(stats.library_steps, 1);
  EXPECT_EQ(stats.threads, 1);
  EXPECT_EQ(kiln_program_key(program.get()), std::string(64, 'a'));
}

TEST(CApi, DynamicSizesAreMarked) {
  ProgramPtr program = LoadProgram(DynamicAdd());
  kiln_value_info info;
  ASSERT_EQ(kiln_program_input(program.get(), 0, &info), nullptr);
  EXPECT_EQ(info.sizes[0], KILN_DYNAMIC);
  EXPECT_EQ(info.strides[0], 1);
  ASSERT_EQ(kiln_program_output(program.get(), 1, &info), nullptr);
  EXPECT_EQ(info.kind, KILN_INT);
}

TEST(CApi, RunsAndReleases) {
  ProgramPtr program = LoadProgram(AddAndDouble(3));
  float a[3] = {1, 2, 3};
  int64_t n = 3;
  kiln_tensor inputs[2] = {Vector(a, n), Vector(a, n)};
  kiln_output outputs[1];
  StatusPtr status(kiln_program_run(program.get(), inputs, 2, outputs, 1, nullptr));
  ASSERT_EQ(status, nullptr) << kiln_status_message(status.get());
  program.reset();  // outputs live on
  EXPECT_EQ(static_cast<float*>(outputs[0].data)[2], 12);
  kiln_outputs_release(outputs, 1);
  EXPECT_EQ(outputs[0].data, nullptr);
  kiln_outputs_release(outputs, 1);
}

TEST(CApi, LibraryErrorsCarryOpAndNode) {
  ProgramPtr program = LoadProgram(AddLibraryResult(4));
  float a[4] = {};
  int64_t n = 4;
  kiln_tensor input = Vector(a, n);
  kiln_output outputs[2];
  StatusPtr status(kiln_program_run(program.get(), &input, 1, outputs, 2, nullptr));
  EXPECT_EQ(kiln_status_code(status.get()), KILN_FAILED_PRECONDITION);
  EXPECT_STREQ(kiln_status_node(status.get()), "lib");
  EXPECT_STREQ(kiln_status_op(status.get()), "aten.test.default");
}

TEST(CApi, ClientOptionsAreChecked) {
  kiln_client* client = nullptr;
  auto error = [&](kiln_client_options options) {
    StatusPtr status(kiln_client_create(&options, &client));
    EXPECT_EQ(kiln_status_code(status.get()), KILN_INVALID_ARGUMENT);
    return std::string(kiln_status_message(status.get()));
  };
  kiln_client_options options = KILN_CLIENT_OPTIONS_INIT;
  options.server = "nowhere";
  EXPECT_THAT(error(options), HasSubstr("'nowhere'; expected HOST:PORT"));
  options.server = "127.0.0.1:99999";
  EXPECT_THAT(error(options), HasSubstr("expected HOST:PORT"));
  options = KILN_CLIENT_OPTIONS_INIT;
  options.threads = -1;
  EXPECT_THAT(error(options), HasSubstr("threads is -1"));
  options = KILN_CLIENT_OPTIONS_INIT;
  options.arch = "z80";
  EXPECT_THAT(error(options), HasSubstr("unknown CPU 'z80'"));
  options = KILN_CLIENT_OPTIONS_INIT;
  options.struct_size = 0;
  EXPECT_THAT(error(options), HasSubstr("struct_size is 0"));
}

TEST(CApi, AnOlderCallersShorterOptionsWork) {
  kiln_client_options options = KILN_CLIENT_OPTIONS_INIT;
  options.struct_size = offsetof(kiln_client_options, threads);
  options.threads = -5;  // beyond what that caller knows
  kiln_client* client = nullptr;
  StatusPtr status(kiln_client_create(&options, &client));
  ASSERT_EQ(status, nullptr) << kiln_status_message(status.get());
  kiln_bytes text{};
  ASSERT_EQ(kiln_client_device_json(client, &text), nullptr);
  EXPECT_THAT(text.data, AllOf(StartsWith("{"), HasSubstr("TARGET_CPP")));
  kiln_bytes_free(&text);
  kiln_client_destroy(client);
}

}  // namespace
}  // namespace kiln::testing
