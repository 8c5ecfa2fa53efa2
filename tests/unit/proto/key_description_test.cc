#include "proto/base/key_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/key_description.pb.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void AddVector(v1::ValueType& type, int64_t size) {
  type.mutable_tensor()->set_dtype(v1::DTYPE_FLOAT32);
  type.mutable_tensor()->add_sizes()->set_value(size);
  type.mutable_tensor()->add_strides()->set_value(1);
}

// One input and a chain of operators.
v1::Graph Chain(const std::vector<std::string>& ops, int64_t size = 8) {
  v1::Graph graph;
  graph.set_name("chain");
  v1::Input& input = *graph.add_inputs();
  input.set_role(v1::Input::ROLE_USER);
  AddVector(*input.mutable_type(), size);
  uint32_t value = 0;
  for (const std::string& op : ops) {
    v1::Node& node = *graph.add_nodes();
    node.set_op(op);
    node.add_args()->set_value(value++);
    AddVector(*node.add_results(), size);
  }
  graph.add_outputs()->set_value(value);
  return graph;
}

v1::KeyDescription Describe(const v1::Graph& graph, const std::string& arch = "znver4") {
  v1::Device device;
  device.set_target(v1::TARGET_CPP);
  device.set_arch(arch);
  return DescribeKey(graph, device, {}, "build 1");
}

std::vector<std::string> Components(const v1::KeyDescription& a, const v1::KeyDescription& b) {
  std::vector<std::string> names;
  for (const KeyDifferenceText& difference : CompareKeys(a, b, 20)) {
    names.push_back(difference.component);
  }
  return names;
}

TEST(KeyDescription, SaysWhatAPersonWouldAsk) {
  const v1::KeyDescription description = Describe(Chain({"aten.relu.default"}));
  EXPECT_EQ(description.inputs(0), "user f32[8] strides [1]");
  EXPECT_EQ(description.nodes(0), "aten.relu.default(%0) -> f32[8] strides [1]");
  EXPECT_EQ(description.outputs(0), "%1");
}

TEST(KeyDescription, NamesTheComponentsThatDiffer) {
  const v1::Graph graph = Chain({"aten.relu.default", "aten.exp.default"});
  EXPECT_THAT(Components(Describe(graph), Describe(graph)), IsEmpty());
  EXPECT_THAT(Components(Describe(graph), Describe(graph, "x86-64-v3")),
              ElementsAre("device.arch"));
  EXPECT_THAT(
      Components(Describe(graph), Describe(Chain({"aten.relu.default", "aten.exp.default"}, 9))),
      ElementsAre("input 0", "node 0", "node 1"));
  const auto differences = CompareKeys(Describe(graph), Describe(graph, "x86-64-v3"), 20);
  EXPECT_EQ(differences[0].asked, "znver4");
  EXPECT_EQ(differences[0].nearest, "x86-64-v3");
}

TEST(KeyDescription, WhatADeviceDoesNotSayIsNoComponent) {
  const v1::Graph graph = Chain({"aten.relu.default"});
  v1::Device device;
  device.set_target(v1::TARGET_CPP);
  device.set_arch("znver4");
  device.set_compute_units(132);
  v1::MemorySpace& space = *device.add_memory_spaces();
  space.set_kind(v1::MemorySpace::KIND_SHARED);
  space.set_bytes(1000);
  const v1::KeyDescription more = DescribeKey(graph, device, {}, "build 1");
  EXPECT_THAT(Components(more, Describe(graph)),
              ElementsAre("device.compute_units", "device.memory_spaces"));
  EXPECT_EQ(CompareKeys(more, Describe(graph), 20)[1].asked, "KIND_SHARED 1000 bytes 0 bytes/s;");
}

TEST(KeyDescription, AnInsertedNodeIsOneDifference) {
  const v1::KeyDescription longer = Describe(
      Chain({"aten.relu.default", "aten.tanh.default", "aten.exp.default", "aten.abs.default"}));
  const v1::KeyDescription shorter =
      Describe(Chain({"aten.relu.default", "aten.exp.default", "aten.abs.default"}));
  EXPECT_THAT(Components(longer, shorter), ElementsAre("node 1", "output 0"));
  const auto differences = CompareKeys(shorter, longer, 20);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].asked, "");
  EXPECT_THAT(differences[0].nearest, HasSubstr("tanh"));
}

TEST(KeyDescription, AnotherVersionsComponentsAreComparedByName) {
  const v1::KeyDescription now = Describe(Chain({"aten.relu.default"}));
  v1::KeyDescription then = now;
  // One more, in the middle, and none that tells of the encoding.
  v1::KeyComponent& more = *then.add_components();
  more.set_name("device.processors");
  more.set_value("8");
  then.mutable_components()->SwapElements(4, then.components_size() - 1);
  then.mutable_components()->DeleteSubrange(0, 1);
  EXPECT_THAT(Components(now, then), ElementsAre("key encoding", "device.processors"));
  EXPECT_EQ(CompareKeys(now, then, 20)[1].nearest, "8");
  EXPECT_EQ(KeyDistance(now, then), KeyDistance(then, now));
}

TEST(KeyDescription, StopsAtTheLimit) {
  std::vector<std::string> ops(100, "aten.relu.default"), others(100, "aten.exp.default");
  EXPECT_EQ(CompareKeys(Describe(Chain(ops)), Describe(Chain(others)), 7).size(), 7u);
}

TEST(KeyDescription, TheNearestIsTheLeastDistant) {
  const v1::Graph graph = Chain({"aten.relu.default", "aten.exp.default"});
  const double same = KeyDistance(Describe(graph), Describe(graph));
  const double node =
      KeyDistance(Describe(graph), Describe(Chain({"aten.relu.default", "aten.abs.default"})));
  const double arch = KeyDistance(Describe(graph), Describe(graph, "x86-64-v3"));
  EXPECT_EQ(same, 0);
  EXPECT_LT(same, node);
  EXPECT_LT(node, arch);
}

TEST(KeyDescription, LongTextsCountByTheirHash) {
  v1::Graph graph = Chain({"aten.relu.default"}), other = graph;
  graph.mutable_nodes(0)->add_args()->set_string(std::string(5000, 'x') + "a");
  other.mutable_nodes(0)->add_args()->set_string(std::string(5000, 'x') + "b");
  EXPECT_LT(Describe(graph).nodes(0).size(), 320u);
  EXPECT_NE(Describe(graph).nodes(0), Describe(other).nodes(0));
}

}  // namespace
}  // namespace kiln
