#include "client/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "kiln/client.h"
#include "kiln/kiln.h"
#include "kiln/v1/graph.pb.h"
#include "tests/temp_dir.h"
#include "tests/unit/client/artifacts.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Length(uint64_t value) {
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

std::string File(absl::string_view header, absl::string_view data) {
  return absl::StrCat(Length(header.size()), header, data);
}

std::string Floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(Safetensors, SaysWhatIsInAFile) {
  const auto entries = ParseSafetensors(File(
      R"( { "__metadata__" : {"format": "pt"}, "a\u00e9\ud83d\ude00\n": {"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
          "b":{"data_offsets":[8,8],"shape":[0,3],"dtype":"I64"}, "c":{"dtype":"F4","shape":[4],"data_offsets":[8,10]}}  )",
      "0123456789"));
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_THAT(*entries, SizeIs(3));
  EXPECT_EQ((*entries)[0].name, "a\xC3\xA9\xF0\x9F\x98\x80\n");
  EXPECT_EQ((*entries)[0].dtype, DType::kF32);
  EXPECT_THAT((*entries)[0].sizes, ElementsAre(2, 1));
  EXPECT_EQ((*entries)[0].size_bytes, 8u);
  EXPECT_EQ((*entries)[1].size_bytes, 0u);
  EXPECT_FALSE((*entries)[2].dtype.has_value());
  EXPECT_TRUE(ParseSafetensors(File("{}", "")).ok());
}

TEST(Safetensors, BadFilesAreErrorsThatSayWhy) {
  const std::string tensor = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string data = "01234567";
  const std::pair<std::string, const char*> cases[] = {
      {"", "too short"},
      {"1234567", "too short"},
      {Length(3) + "{}", "its header would have 3 bytes"},
      {Length(UINT64_MAX) + "{}", "its header would have 18446744073709551615 bytes"},
      {Length(uint64_t{1} << 40) + "{}", "no .safetensors file"},
      {R"({"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors"}})",
       "index of a model in several files"},
      {File("", ""), "lacks a '{'"},
      {File("[]", ""), "lacks a '{'"},
      {File("{", ""), "lacks a '\"'"},
      {File("{}x", ""), "goes on after its end"},
      {File("{" + tensor + "," + tensor + "}", data), "the name 'a' twice"},
      {File(R"({"__metadata__":{},"__metadata__":{}})", ""), "twice"},
      {File(R"({"__metadata__":{"n":1}})", ""), "lacks a '\"'"},
      {File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"dtype":"F32"}})", data),
       "has 'dtype' twice"},
      {File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", data),
       "has a field 'x'"},
      {File(R"({"a":{"dtype":"F32","shape":[2]}})", ""), "lacks one of"},
      {File(R"({"a":{}})", ""), "lacks one of"},
      {File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", data), "no begin and end"},
      {File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", data), "no begin and end"},
      {File(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", data),
       "ends at byte 16 of the data, which has 8"},
      {File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775807]}})", data),
       "ends at byte 9223372036854775807"},
      {File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775808]}})", data),
       "beyond 64 bits"},
      {File(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", data), "shape take"},
      {File(R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}})", data), "shape take"},
      {File(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", data),
       "no machine can count"},
      {File(R"({"a":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", ""),
       "no machine can count"},
      {File(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", ""),
       "shape take"},
      {File(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", data),
       "number from 0 up"},
      {File(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", data), "lacks a ']'"},
      {File(R"({"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}})", data),
       "number from 0 up"},
      {File(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
            R"("b":{"dtype":"F32","shape":[],"data_offsets":[2,6]}})",
            data),
       "'b' overlaps"},
      {File(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})", data),
       "bytes before it that belong to none"},
      {File(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", data),
       "4 bytes after its last tensor"},
      {File(R"({"a)", ""), "does not end"},
      {File(R"({"a\)", ""), "wrong escape"},
      {File(R"({"a\u12)", ""), "does not end"},
      {File(R"({"\ud800":{}})", ""), "wrong escape"},
      {File(R"({"\ud800\u0041":{}})", ""), "wrong escape"},
      {File("{\"a\nb\":{}}", ""), "does not end"},
      {File("{\"a\\u001b[31m\":{}}", ""), "'a\\x1b[31m'"},
  };
  for (const auto& [file, why] : cases) {
    const auto entries = ParseSafetensors(file);
    EXPECT_EQ(entries.status().code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(entries.status().message(), HasSubstr(why));
  }
  std::string dims = "1";
  for (int i = 0; i < 33; ++i) dims += ",1";
  EXPECT_THAT(ParseSafetensors(File(absl::StrCat(R"({"a":{"dtype":"U8","shape":[)", dims,
                                                 R"(],"data_offsets":[0,1]}})"),
                                    "x"))
                  .status()
                  .message(),
              HasSubstr("34 dimensions"));
}

// Inputs "arg0" (a module's "weight" and "tied") and "arg1", of 2 by 3 and of 2 f32 elements.
v1::Graph TwoInputs() {
  v1::Graph graph;
  graph.set_format_version(1);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 3}, std::vector<int64_t>{2}}) {
    v1::Input& input = *graph.add_inputs();
    input.set_name(absl::StrCat("arg", graph.inputs_size() - 1));
    v1::TensorType& type = *input.mutable_type()->mutable_tensor();
    type.set_dtype(v1::DTYPE_FLOAT32);
    for (const int64_t size : sizes) *type.add_sizes() = testing::Size(size);
    if (sizes.size() == 2) *type.add_strides() = testing::Size(3);
    *type.add_strides() = testing::Size(1);
  }
  graph.mutable_inputs(0)->add_module_names("weight");
  graph.mutable_inputs(0)->add_module_names("tied");
  return graph;
}

std::string SixFloats(absl::string_view name, size_t padding) {
  std::string header =
      absl::StrCat("{\"", name, R"(":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})");
  header.append((8 - header.size() % 8) % 8 + padding, ' ');
  return File(header, Floats({1, 2, 3, 4, 5, 6}));
}

class WeightsTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string path = absl::StrCat(folder_.path(), "/", name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  const TempDir folder_;
};

TEST_F(WeightsTest, AreTheFilesOwnBytesWhereTheyAreAligned) {
  for (const size_t padding : {0, 1}) {
    const std::string path = Write("weights.safetensors", SixFloats("tied", padding));
    const auto weights = Weights::Load({path});
    ASSERT_TRUE(weights.ok()) << weights.status();
    std::vector<kiln_tensor> first(2), second(2);
    for (std::vector<kiln_tensor>* inputs : {&first, &second}) {
      const auto bound = (*weights)->Bind(TwoInputs(), absl::MakeSpan(*inputs));
      ASSERT_TRUE(bound.ok()) << bound.status();
      EXPECT_THAT(bound->given, ElementsAre(true, false));
      EXPECT_THAT(bound->unused, SizeIs(0));
      EXPECT_EQ((*inputs)[1].data, nullptr);
      EXPECT_EQ(static_cast<const float*>((*inputs)[0].data)[5], 6);
      EXPECT_EQ(reinterpret_cast<uintptr_t>((*inputs)[0].data) % sizeof(float), 0u);
    }
    EXPECT_EQ(first[0].data == second[0].data, padding == 0) << "the file's memory, or a copy";
    // What is written stays here.
    static_cast<float*>(first[0].data)[0] = 77;
    std::ifstream again(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(again)), {});
    EXPECT_EQ(bytes, SixFloats("tied", padding));
  }
}

TEST_F(WeightsTest, TakeTheLayoutOfTheGraph) {
  v1::Graph graph = TwoInputs();
  v1::TensorType& type = *graph.mutable_inputs(0)->mutable_type()->mutable_tensor();
  *type.mutable_strides(0) = testing::Size(1);
  *type.mutable_strides(1) = testing::Size(4);  // columns with room after them
  const auto weights = Weights::Load({Write("columns.safetensors", SixFloats("weight", 0))});
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<kiln_tensor> inputs(2);
  ASSERT_TRUE((*weights)->Bind(graph, absl::MakeSpan(inputs)).ok());
  const float* data = static_cast<const float*>(inputs[0].data);
  EXPECT_EQ(data[1], 4);
  EXPECT_EQ(data[4], 2);
  EXPECT_EQ(data[9], 6);
  *type.mutable_strides(1) = testing::Size(INT64_MAX);
  EXPECT_THAT((*weights)->Bind(graph, absl::MakeSpan(inputs)).status().message(),
              HasSubstr("impossible strides"));
}

TEST_F(WeightsTest, WhatDoesNotFitIsAnErrorAndChangesNothing) {
  v1::Graph graph = TwoInputs();
  const std::string path = Write("wrong.safetensors", SixFloats("arg1", 0));
  const auto weights = Weights::Load({path});
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<kiln_tensor> inputs(2);
  EXPECT_EQ((*weights)->Bind(graph, absl::MakeSpan(inputs)).status().message(),
            absl::StrCat("tensor 'arg1' of '", path,
                         "' is f32[2, 3]; the graph's input 'arg1' is f32[2]"));
  EXPECT_EQ(inputs[1].data, nullptr);
  inputs.resize(3);
  EXPECT_THAT((*weights)->Bind(graph, absl::MakeSpan(inputs)).status().message(),
              HasSubstr("got 3 inputs; the graph has 2"));
  EXPECT_EQ(Weights::Load({"/nonexistent.safetensors"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(Weights::Load({folder_.path()}).status().message(), HasSubstr("no regular file"));
  EXPECT_THAT(Weights::Load({Write("empty.safetensors", "")}).status().message(),
              HasSubstr("too short"));
  EXPECT_THAT(Weights::Load({path, path}).status().message(), HasSubstr("'arg1' is in '"));
}

TEST_F(WeightsTest, TwoNamesOfOneTensorHaveToAgree) {
  const std::string tied = Write("tied.safetensors", SixFloats("tied", 0));
  std::string same = SixFloats("weight", 0), other = same;
  other.back() = 'x';
  std::vector<kiln_tensor> inputs(2);
  const auto agree = Weights::Load({tied, Write("same.safetensors", same)});
  EXPECT_TRUE((*agree)->Bind(TwoInputs(), absl::MakeSpan(inputs)).ok());
  const auto differ = Weights::Load({tied, Write("other.safetensors", other)});
  EXPECT_THAT((*differ)->Bind(TwoInputs(), absl::MakeSpan(inputs)).status().message(),
              HasSubstr("differ; the graph has them as one, its input 'arg0'"));
}

TEST_F(WeightsTest, AreThereInC) {
  const std::string bytes = TwoInputs().SerializeAsString();
  kiln_graph* graph = nullptr;
  ASSERT_EQ(kiln_graph_parse(bytes.data(), bytes.size(), &graph), nullptr);
  EXPECT_EQ(kiln_graph_num_inputs(graph), 2u);
  EXPECT_STREQ(kiln_graph_input_name(graph, 0, 0), "arg0");
  EXPECT_STREQ(kiln_graph_input_name(graph, 0, 2), "tied");
  EXPECT_EQ(kiln_graph_input_name(graph, 0, 3), nullptr);
  EXPECT_EQ(kiln_graph_input_name(graph, 2, 0), nullptr);
  const std::string path = Write("c.safetensors", SixFloats("weight", 0));
  const char* paths[] = {path.c_str()};
  kiln_weights* weights = nullptr;
  ASSERT_EQ(kiln_weights_load(paths, 1, &weights), nullptr);
  EXPECT_EQ(kiln_weights_size(weights), 1u);
  EXPECT_STREQ(kiln_weights_name(weights, 0), "weight");
  EXPECT_EQ(kiln_weights_name(weights, 1), nullptr);
  kiln_tensor inputs[2] = {};
  size_t bound = 0;
  ASSERT_EQ(kiln_weights_bind(weights, graph, inputs, 2, &bound), nullptr);
  EXPECT_EQ(bound, 1u);
  EXPECT_EQ(static_cast<const float*>(inputs[0].data)[1], 2);
  kiln_weights_destroy(weights);
  kiln_graph_destroy(graph);
  kiln_status* status = kiln_weights_load(nullptr, 1, &weights);
  EXPECT_THAT(kiln_status_message(status), HasSubstr("'paths' is null"));
  kiln_status_destroy(status);
  kiln_weights_destroy(nullptr);
}

}  // namespace
}  // namespace kiln
