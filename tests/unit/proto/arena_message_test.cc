#include "proto/base/arena_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {
namespace {

// Of the address space: what the heap keeps free is part of it.
int64_t MappedBytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

std::string LongGraph(int nodes) {
  const auto graph = MakeArenaMessage<v1::Graph>();  // the heap is no larger for it
  for (int i = 0; i < nodes; ++i) {
    v1::Node& node = *graph->add_nodes();
    node.set_name(absl::StrCat("n", i));
    node.add_results()->mutable_tensor()->add_sizes()->set_value(64);
  }
  return graph->SerializeAsString();
}

TEST(ArenaMessageTest, WhatALongGraphTookGoesBackWithItsLastOwnerWhateverWasMadeMeanwhile) {
  const std::string bytes = LongGraph(50'000);
  const int64_t before = MappedBytes();
  std::shared_ptr<v1::Graph> graph = MakeArenaMessage<v1::Graph>();
  ASSERT_TRUE(graph->ParseFromString(bytes));
  const auto kept = std::make_unique<std::string>(1000, 'x');
  const int64_t at_most = MappedBytes() - before;
  EXPECT_GT(at_most, 4 << 20) << "or this test says nothing";
  std::shared_ptr<const v1::Graph> other = graph;
  graph.reset();
  EXPECT_EQ(other->nodes(49'999).name(), "n49999");
  other.reset();
  EXPECT_LT(MappedBytes() - before, at_most / 4);
}

TEST(ArenaMessageTest, ASmallMessageMapsNothing) {
  const std::string bytes = LongGraph(20);
  MakeArenaMessage<v1::Graph>();  // the heap's first time
  const int64_t before = MappedBytes();
  for (int i = 0; i < 100; ++i) {
    std::shared_ptr<v1::Graph> graph = MakeArenaMessage<v1::Graph>();
    ASSERT_TRUE(graph->ParseFromString(bytes));
    EXPECT_EQ(MappedBytes(), before);
  }
}

}  // namespace
}  // namespace kiln
