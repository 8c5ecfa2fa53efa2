#include "server/observe/bounded_labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kiln::server {
namespace {

using ::testing::UnorderedElementsAre;

TEST(BoundedLabels, TheFirstNamesAreThemselvesAndTheRestOther) {
  BoundedLabels labels(2);
  EXPECT_EQ(labels.Label("a"), "a");
  EXPECT_EQ(labels.Label("b"), "b");
  EXPECT_THAT(labels.All(), UnorderedElementsAre("a", "b"));
  EXPECT_EQ(labels.Label("c"), "other");
  EXPECT_EQ(labels.Label("a"), "a");
  EXPECT_THAT(labels.All(), UnorderedElementsAre("a", "b", "other"));
}

TEST(BoundedLabels, AReservedNameIsNeverOther) {
  BoundedLabels labels(1);
  EXPECT_EQ(labels.Label("a"), "a");
  labels.Reserve("gold");
  EXPECT_EQ(labels.Label("gold"), "gold");
  EXPECT_EQ(labels.Label("b"), "other");
}

}  // namespace
}  // namespace kiln::server
