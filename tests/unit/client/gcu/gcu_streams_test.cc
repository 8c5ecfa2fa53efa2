// Launches and copies of a run on several streams: what waits for what, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/runtime/gcu/queue.h"
#include "tests/unit/client/gcu/gcu_artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

class GcuStreams : public ::testing::Test {
 protected:
  void SetUp() override { WatchGcu(); }
  void TearDown() override { DropGcuWaits(false); }
};

// x0 + x1 and x0 + x2, and their sum.
v1::Artifact Fork() {
  Made made(50, 3);
  const uint32_t left = made.Workspace(0), right = made.Workspace(1);
  const uint32_t out = made.Buffer(v1::Buffer::KIND_OUTPUT);
  made.Launch("gcu_add", {0, 1, left});
  made.Launch("gcu_add", {0, 2, right});
  made.Launch("gcu_add", {left, right, out});
  made.Output(out);
  return made.OnGcu();
}

TEST_F(GcuStreams, AStreamWaitsForWhatItsWorkNeedsOnly) {
  Values a = Iota(50, 1), b = Iota(50, 2), c = Iota(50, 3);
  const auto program = LoadGcu(Fork());
  ResetGcuWatch();
  const auto result = RunOn(*program, {&a, &b, &c});
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t i = 0; i < 50; ++i) EXPECT_EQ((*result)[0][i], 2 * a[i] + b[i] + c[i]);
  // Each of the first two for copies of its operands, the last one, behind the second, for the
  // first, and the copy of the result for the last one.
  EXPECT_EQ(ReadGcuWatch().waits, 4);
  // One behind another needs no waits but for copies.
  Made made(50, 2);
  uint32_t last = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t next = i < 3 ? made.Workspace(i) : made.Buffer(v1::Buffer::KIND_OUTPUT);
    made.Launch("gcu_add", {last, 1, next});
    last = next;
  }
  made.Output(last);
  const auto chain = LoadGcu(made.OnGcu());
  ResetGcuWatch();
  ASSERT_TRUE(RunOn(*chain, {&a, &b}).ok());
  EXPECT_EQ(ReadGcuWatch().waits, 2);
}

TEST_F(GcuStreams, WithoutItsWaitsARunIsAFault) {
  Values a = Iota(50, 1), b = Iota(50, 2), c = Iota(50, 3);
  const auto program = LoadGcu(Fork());
  DropGcuWaits(true);
  const absl::Status status = RunOn(*program, {&a, &b, &c}).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("GCU_RACE: kernel 'gcu_add' reads ["));
  EXPECT_THAT(
      status.message(),
      HasSubstr("which a copy to the device writes on another stream that it does not wait"));
  DropGcuWaits(false);
  EXPECT_TRUE(RunOn(*program, {&a, &b, &c}).ok());
}

// By looking at all work that there was.
TEST(GcuDependences, AreThoseOfEveryByte) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    gcu::Dependences dependences;
    struct Done {
      int work;
      gcu::Access access;
    };
    std::vector<Done> all;
    for (int work = 0; work < 40; ++work) {
      std::vector<int> before;
      std::set<int> expected;
      std::vector<gcu::Access> accesses;
      for (int i = 0; i < 1 + static_cast<int>(random() % 3); ++i) {
        accesses.push_back({1000 + random() % 40, random() % 12, random() % 2 == 0});
      }
      for (const gcu::Access& access : accesses) dependences.Add(work, access, before);
      const std::set<int> found(before.begin(), before.end());
      // For each byte: the last writer, and, of what writes, who read since then.
      for (const gcu::Access& access : accesses) {
        for (uint64_t byte = access.begin; byte < access.begin + access.bytes; ++byte) {
          for (auto it = all.rbegin(); it != all.rend(); ++it) {
            if (byte < it->access.begin || byte >= it->access.begin + it->access.bytes) continue;
            if (access.writes || it->access.writes) expected.insert(it->work);
            if (it->access.writes) break;
          }
        }
      }
      EXPECT_EQ(found, expected) << "work " << work;
      for (const gcu::Access& access : accesses) all.push_back({work, access});
    }
  }
}

}  // namespace
}  // namespace kiln::testing
