#include "client/runtime/strided_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace kiln::runtime {
namespace {

TEST(StridedCopy, TransposesAndKeepsWhatLiesBetween) {
  std::vector<int> from = {1, 2, 3, 4, 5, 6};  // 2 x 3
  std::vector<int> to(9, 0);                   // 2 x 3 in strides 1, 3: column-major with a gap
  CopyStrided(reinterpret_cast<char*>(to.data()), {1, 3},
              reinterpret_cast<const char*>(from.data()), {3, 1}, {2, 3}, sizeof(int));
  EXPECT_EQ(to, (std::vector<int>{1, 4, 0, 2, 5, 0, 3, 6, 0}));
}

TEST(StridedCopy, CopiesScalarsEmptyAndBroadcastWindows) {
  int from = 7, to[3] = {0, 0, 0};
  CopyStrided(reinterpret_cast<char*>(to), {}, reinterpret_cast<const char*>(&from), {}, {},
              sizeof(int));
  EXPECT_EQ(to[0], 7);
  CopyStrided(nullptr, {3, 1}, nullptr, {3, 1}, {0, 3}, sizeof(int));
  CopyStrided(reinterpret_cast<char*>(to), {1}, reinterpret_cast<const char*>(&from), {0}, {3},
              sizeof(int));
  EXPECT_EQ(to[2], 7);
}

TEST(ReachElements, CountsToTheLastElement) {
  EXPECT_EQ(ReachElements({}, {}), 1);
  EXPECT_EQ(ReachElements({2, 3}, {10, 1}), 13);
  EXPECT_EQ(ReachElements({2, 0}, {10, 1}), 0);
  EXPECT_EQ(ReachElements({5}, {0}), 1);
  EXPECT_EQ(ReachElements({-1}, {1}), std::nullopt);
  EXPECT_EQ(ReachElements({2}, {-1}), std::nullopt);
  EXPECT_EQ(ReachElements({INT64_MAX}, {INT64_MAX}), std::nullopt);
  EXPECT_EQ(ReachElements({INT64_MAX, INT64_MAX}, {1, 1}), std::nullopt);
}

TEST(SameLayout, IgnoresStridesThatDoNotMatter) {
  std::vector<int64_t> a = {4, 1}, b = {4, 9};
  EXPECT_TRUE(SameLayout({2, 1}, a.data(), b.data()));
  EXPECT_FALSE(SameLayout({2, 2}, a.data(), b.data()));
  EXPECT_TRUE(SameLayout({2, 0}, a.data(), b.data()));
  EXPECT_TRUE(SameLayout({}, nullptr, nullptr));
}

}  // namespace
}  // namespace kiln::runtime
