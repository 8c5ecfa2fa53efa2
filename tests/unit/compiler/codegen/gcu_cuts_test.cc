// Where target gcu cuts kernels into launches, and what these load from memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/gcu/launch.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/verify.h"
#include "compiler/schedule/gcu/groups.h"
#include "tests/unit/compiler/codegen/gcu_device.h"
#include "tests/unit/compiler/codegen/gcu_launches.h"

namespace kiln::codegen {
namespace {

constexpr int kKernels = 5;

// Rows less their greatest number, two steps element by element, and columns less theirs. Of what
// is handed on all but @c, which has the type `narrow`, is float32.
struct Square {
  std::string narrow;

  std::string Kernel(int number) const {
    switch (number) {
      case 0:
        return OfLines("rows", "x", "a", "d0, r0");
      case 1:
        return OfElements("first", "a", "f32", "b", "f32");
      case 2:
        return OfElements("second", "b", "f32", "c", narrow);
      case 3:
        return OfElements("third", "c", narrow, "d", "f32");
      default:
        return OfLines("columns", "d", "y", "r0, d0");
    }
  }

  // The module of the kernels from `begin` on to the one before `end`.
  std::string Text(int begin, int end) const {
    const std::vector<std::pair<std::string, std::string>> buffers = {
        {"x", "f32"}, {"a", "f32"}, {"b", "f32"}, {"c", narrow}, {"d", "f32"}, {"y", "f32"}};
    std::string text = "module {\n";
    for (int i = begin; i <= end; ++i) {
      absl::StrAppend(&text, " buffer @", buffers[i].first, " ", buffers[i].second,
                      "[1024,1024] strides[1024,1] ",
                      i == begin ? "input(0)"
                      : i == end ? "output"
                                 : "temp",
                      "\n");
    }
    for (int k = begin; k < end; ++k) text += Kernel(k);
    return absl::StrCat(text, " output @", buffers[end].first,
                        " sizes[1024,1024] strides[1024,1] offset 0\n}\n");
  }

 private:
  static std::string OfLines(const std::string& name, const std::string& from,
                             const std::string& to, const std::string& at) {
    return absl::StrCat(" kernel @", name, " (d0: 1024) {\n phase (r0: 1024) {\n  %0 = load f32 @",
                        from, "[", at, "]\n  %1 = reduce.max f32 %0\n }\n phase (r0: 1024) {\n",
                        "  %2 = load f32 @", from, "[", at, "]\n  %3 = sub f32 %2, %1\n",
                        "  store f32 @", to, "[", at, "], %3\n }\n }\n");
  }
  static std::string OfElements(const std::string& name, const std::string& from,
                                const std::string& from_type, const std::string& to,
                                const std::string& to_type) {
    std::string text = absl::StrCat(" kernel @", name, " (d0: 1024, d1: 1024) {\n phase () {\n",
                                    "  %0 = load ", from_type, " @", from, "[d0, d1]\n");
    std::string x = "%0", y = "%2";
    if (from_type != "f32") {
      absl::StrAppend(&text, "  %1 = cast f32 %0\n");
      x = "%1";
    }
    absl::StrAppend(&text, "  %2 = exp f32 ", x, "\n");
    if (to_type != "f32") {
      absl::StrAppend(&text, "  %3 = cast ", to_type, " %2\n");
      y = "%3";
    }
    return absl::StrCat(text, "  store ", to_type, " @", to, "[d0, d1], ", y, "\n }\n }\n");
  }
};

// Of 1 MiB L2: none of the tensors fits.
schedule::gcu::Machine Small() {
  schedule::gcu::Machine machine = Reference();
  machine.l2_bytes = 1 << 20;
  return machine;
}

ir::Module Grouped(const std::string& text) {
  absl::StatusOr<ir::Module> module = ir::Parse(text);
  EXPECT_TRUE(module.ok()) << module.status() << "\n" << text;
  GroupFor(*module, Small(), {});
  return *std::move(module);
}

// Of all launches.
double Predicted(ir::Module& module) {
  double seconds = 0;
  for (const ir::Operation& operation : module.operations) {
    const auto launch = gcu::MakeLaunch(module, operation, Small());
    EXPECT_TRUE(launch.ok()) << launch.status();
    if (launch.ok()) seconds += launch->versions[0].seconds;
  }
  return seconds;
}

std::vector<size_t> SizesOf(const ir::Module& module) {
  std::vector<size_t> sizes;
  for (const ir::Operation& operation : module.operations) {
    sizes.push_back(KernelsOf(operation).size());
  }
  return sizes;
}

// Rows and columns cannot share tiles: one tensor between them must go through memory. Taking in
// kernels as long as rows are their tiles would leave the last, of four bytes a number.
TEST(GcuCuts, TheSmallestTensorIsWhereRowsEndAndColumnsBegin) {
  ir::Module narrow = Grouped(Square{"bf16"}.Text(0, kKernels));
  EXPECT_EQ(SizesOf(narrow), (std::vector<size_t>{3, 2}));
  const auto& first = std::get<ir::Repeat>(narrow.operations[0]);
  const auto& second = std::get<ir::Repeat>(narrow.operations[1]);
  EXPECT_FALSE(first.steps.empty());
  EXPECT_FALSE(second.steps.empty());
}

// Against every way to cut the kernels into launches, one after another.
TEST(GcuCuts, NoOtherCutIsCheaper) {
  for (const std::string narrow : {"bf16", "f32"}) {
    const Square square{narrow};
    double cost[kKernels + 1][kKernels + 1];
    for (int begin = 0; begin < kKernels; ++begin) {
      for (int end = begin + 1; end <= kKernels; ++end) {
        ir::Module part = Grouped(square.Text(begin, end));
        cost[begin][end] = Predicted(part);
      }
    }
    double best = std::numeric_limits<double>::infinity();
    for (int cuts = 0; cuts < 1 << (kKernels - 1); ++cuts) {
      double seconds = 0;
      int begin = 0;
      for (int end = 1; end <= kKernels; ++end) {
        if (end < kKernels && (cuts >> (end - 1) & 1) == 0) continue;
        seconds += cost[begin][end];
        begin = end;
      }
      best = std::min(best, seconds);
    }
    ir::Module all = Grouped(square.Text(0, kKernels));
    EXPECT_LE(Predicted(all), best * 1.01) << narrow;
    // And it is worth something: kernels on their own take longer.
    double apart = 0;
    for (int k = 0; k < kKernels; ++k) apart += cost[k][k + 1];
    EXPECT_LT(best * 1.3, apart) << narrow;
  }
}

// Whatever reason a device has: registers, instructions, L1.
TEST(GcuCuts, GroupsThatTheDeviceCannotRunBecomeSmaller) {
  for (const size_t most : {1, 2, 3}) {
    ir::Module module = *ir::Parse(Chain(64, 16, 112, 6));
    schedule::gcu::Group(module, Reference(), {}, [&](const ir::Operation& operation) {
      return KernelsOf(operation).size() > most ? absl::UnimplementedError("too many kernels")
                                                : absl::OkStatus();
    });
    EXPECT_EQ(ir::Verify(module), absl::OkStatus());
    const std::vector<size_t> sizes = SizesOf(module);
    EXPECT_EQ(absl::c_accumulate(sizes, size_t{0}), 6u);
    EXPECT_LE(*absl::c_max_element(sizes), most);
    EXPECT_LE(sizes.size(), most == 1 ? 6u : 3u);
  }
}

// Three kernels whose sizes are known, and three over rows of which so many are known at run time
// only; these have no loop in common, and neither have those.
std::string KnownThenDynamic() {
  std::string text = "module {\n symbol s0 [1, 1048576] hint 4\n", kernels;
  for (const auto& [prefix, rows, index] : {std::tuple("a", "96", 0), std::tuple("b", "s0", 1)}) {
    for (int i = 0; i <= 3; ++i) {
      absl::StrAppend(&text, " buffer @", prefix, i, " f32[", rows, ",65536] strides[65536,1] ",
                      i == 0   ? absl::StrCat("input(", index, ")")
                      : i == 3 ? "output"
                               : "temp",
                      "\n");
      if (i == 3) continue;
      absl::StrAppend(&kernels, " kernel @", prefix, "k", i, " (d0: ", rows,
                      ", d1: 65536) {\n phase () {\n  %0 = load f32 @", prefix, i,
                      "[d0, d1]\n  %1 = exp f32 %0\n  store f32 @", prefix, i + 1,
                      "[d0, d1], %1\n }\n }\n");
    }
  }
  return absl::StrCat(text, kernels, " output @a3 sizes[96,65536] strides[65536,1] offset 0\n",
                      " output @b3 sizes[s0,65536] strides[65536,1] offset 0\n}\n");
}

// What is planned anew in the place of one group leaves the others as they were planned.
TEST(GcuCuts, AGroupThatTheDeviceCannotRunLeavesTheVersionsOfTheNext) {
  std::vector<ir::Module> modules;
  for (const bool refuses : {false, true}) {
    ir::Module& module = modules.emplace_back(*ir::Parse(KnownThenDynamic()));
    schedule::gcu::Group(module, Reference(), {"afe"}, [&](const ir::Operation& operation) {
      const absl::Span<const ir::Kernel> kernels = KernelsOf(operation);
      return refuses && kernels.size() > 1 && kernels[0].name == "ak0"
                 ? absl::UnimplementedError("not these")
                 : absl::OkStatus();
    });
    EXPECT_EQ(ir::Verify(module), absl::OkStatus());
  }
  EXPECT_EQ(SizesOf(modules[0]), (std::vector<size_t>{3, 3}));
  EXPECT_EQ(SizesOf(modules[1]), (std::vector<size_t>{1, 2, 3}));
  const auto& planned = std::get<ir::Repeat>(modules[0].operations.back());
  const auto& left = std::get<ir::Repeat>(modules[1].operations.back());
  ASSERT_GT(planned.versions.size(), 1u);
  ASSERT_EQ(left.versions.size(), planned.versions.size());
  for (size_t i = 0; i < planned.versions.size(); ++i) {
    EXPECT_EQ(left.versions[i].most, planned.versions[i].most);
    EXPECT_EQ(left.versions[i].step, planned.versions[i].step);
  }
}

// Weights of 74 KB, which every tile of images needs: 4 tiles or 8 of them.
TEST(GcuCuts, WeightsComeFromMemoryOnceHoweverManyTilesThereAre) {
  std::vector<int64_t> bytes;
  for (const int64_t step : {12, 6}) {
    ir::Module module = *ir::Parse(Chain(48, 32, 56, 2));
    Group(module);
    ASSERT_EQ(module.operations.size(), 1u);
    auto& repeat = std::get<ir::Repeat>(module.operations[0]);
    ASSERT_EQ(repeat.steps.size(), 1u);
    repeat.steps[0] = step;
    const auto launch = gcu::MakeLaunch(module, module.operations[0], Reference());
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_TRUE(absl::c_any_of(launch->versions[0].reasons, [](const std::string& reason) {
      return absl::StrContains(reason, "come to L2 once and stay");
    }));
    EXPECT_LE(launch->kernel.l2_bytes, static_cast<uint64_t>(Reference().l2_bytes));
    std::vector<std::string> data;
    for (ir::BufferId buffer : launch->buffers) {
      const int64_t size = ir::SizeBytes(*module.ints, module.buffers[buffer]).value();
      data.emplace_back(static_cast<size_t>(size), '\0');
    }
    std::vector<HostBuffer> buffers;
    for (std::string& of : data) buffers.push_back({of.data(), of.size()});
    const auto times = GcuDevice(Reference().profile).Run(launch->kernel, buffers, {});
    ASSERT_TRUE(times.ok()) << times.status();
    bytes.push_back(times->l3_bytes);
  }
  EXPECT_LT(bytes[1], bytes[0] + (int64_t{1} << 19));
}

// Convolutions whose images, and products whose rows, do not all fit; some weights are more than
// what fits beside tiles. Weights that stay are priced as they run, so that what one strategy finds
// the search finds, too.
TEST(GcuCuts, AllStrategiesTogetherAreNoSlowerThanOneOfThem) {
  for (const std::string& text : {Chain(16, 64, 56, 4), Chain(24, 128, 28, 6), Chain(8, 256, 28, 4),
                                  Square{"f32"}.Text(0, 5)}) {
    const auto simulated = [&](const std::vector<std::string>& without) {
      ir::Module module = *ir::Parse(text);
      Group(module, without);
      double seconds = 0;
      for (const ir::Operation& operation : module.operations) {
        const auto launch = gcu::MakeLaunch(module, operation, Reference());
        EXPECT_TRUE(launch.ok()) << launch.status();
        if (launch.ok()) seconds += Simulate(module, *launch);
      }
      return seconds;
    };
    const double all = simulated({});
    EXPECT_LE(all, simulated({"afe"}) * 1.01) << text;
    EXPECT_LE(all, simulated({"tlf"}) * 1.01) << text;
  }
}

}  // namespace
}  // namespace kiln::codegen
