// What target gcu predicts of kernels beside what they take on the simulator.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/ir/parse.h"
#include "tests/unit/compiler/codegen/gcu_launches.h"

namespace kiln::codegen {
namespace {

struct Case {
  std::string name, text;
};

// [32, 128, 128] and another of the same sizes along the first dimension, each as it lies.
std::string Join(const std::string& first, const std::string& second, const std::string& joined) {
  return absl::StrCat(R"(module {
  buffer @a f32[32,128,128] strides[)",
                      first, R"(] input(0)
  buffer @b f32[32,128,128] strides[)",
                      second, R"(] input(1)
  buffer @y f32[64,128,128] strides[)",
                      joined, R"(] output
  kernel @join (d0: 64, d1: 128, d2: 128) {
    phase () {
      %0 = index i64 d0
      %1 = const i64 32
      %2 = lt bool %0, %1
      %3 = load f32 @a[d0, d1, d2] if %2 else 0
      %4 = ge bool %0, %1
      %5 = load f32 @b[d0 - 32, d1, d2] if %4 else 0
      %6 = select f32 %2, %3, %5
      store f32 @y[d0, d1, d2], %6
    }
  }
  output @y sizes[64,128,128] strides[)",
                      joined, R"(] offset 0
}
)");
}

// Channels side by side, the border read as 0.
constexpr char kDepthwise[] = R"(module {
  buffer @x f32[64,112,112] strides[1,7168,64] input(0)
  buffer @w f32[64,3,3] strides[9,3,1] input(1)
  buffer @y f32[64,112,112] strides[1,7168,64] output
  kernel @depthwise contraction (d0: 112, d1: 112, d2: 64) {
    phase (r0: 3, r1: 3) {
      %0 = const i64 0
      %1 = const i64 112
      %2 = index i64 d0 + r0 - 1
      %3 = ge bool %2, %0
      %4 = lt bool %2, %1
      %5 = and bool %3, %4
      %6 = index i64 d1 + r1 - 1
      %7 = ge bool %6, %0
      %8 = and bool %5, %7
      %9 = lt bool %6, %1
      %10 = and bool %8, %9
      %11 = load f32 @x[d2, d0 + r0 - 1, d1 + r1 - 1] if %10 else 0
      %12 = load f32 @w[d2, r0, r1]
      %13 = mul f32 %11, %12
      %14 = reduce.sum f32 %13
    }
    phase () {
      store f32 @y[d2, d0, d1], %14
    }
  }
  output @y sizes[64,112,112] strides[1,7168,64] offset 0
}
)";

constexpr char kTranspose[] = R"(module {
  buffer @x f32[512,384] strides[384,1] input(0)
  buffer @y f32[384,512] strides[512,1] output
  kernel @transpose (d0: 384, d1: 512) {
    phase () {
      %0 = load f32 @x[d1, d0]
      store f32 @y[d0, d1], %0
    }
  }
  output @y sizes[384,512] strides[512,1] offset 0
}
)";

std::string Product(int rows, int depth, int columns) {
  return absl::StrCat("module {\n  buffer @a f32[", rows, ",", depth, "] strides[", depth,
                      ",1] input(0)\n  buffer @b f32[", depth, ",", columns, "] strides[", columns,
                      ",1] input(1)\n  buffer @y f32[", rows, ",", columns, "] strides[", columns,
                      ",1] output\n  kernel @product contraction (d0: ", rows, ", d1: ", columns,
                      ") {\n    phase (r0: ", depth, R"() {
      %0 = load f32 @a[d0, r0]
      %1 = load f32 @b[r0, d1]
      %2 = mul f32 %0, %1
      %3 = reduce.sum f32 %2
    }
    phase () {
      store f32 @y[d0, d1], %3
    }
  }
  output @y sizes[)",
                      rows, ",", columns, "] strides[", columns, ",1] offset 0\n}\n");
}

constexpr char kColumnSums[] = R"(module {
  buffer @x f32[2048,256] strides[256,1] input(0)
  buffer @y f32[256] strides[1] output
  kernel @sums (d0: 256) {
    phase (r0: 2048) {
      %0 = load f32 @x[r0, d0]
      %1 = reduce.sum f32 %0
    }
    phase () {
      store f32 @y[d0], %1
    }
  }
  output @y sizes[256] strides[1] offset 0
}
)";

constexpr char kSoftmax[] = R"(module {
  buffer @x f32[1024,512] strides[512,1] input(0)
  buffer @y f32[1024,512] strides[512,1] output
  kernel @softmax (d0: 1024) {
    phase (r0: 512) {
      %0 = load f32 @x[d0, r0]
      %1 = reduce.max f32 %0
    }
    phase (r0: 512) {
      %2 = load f32 @x[d0, r0]
      %3 = sub f32 %2, %1
      %4 = exp f32 %3
      %5 = reduce.sum f32 %4
    }
    phase (r0: 512) {
      %6 = load f32 @x[d0, r0]
      %7 = sub f32 %6, %1
      %8 = exp f32 %7
      %9 = div f32 %8, %5
      store f32 @y[d0, r0], %9
    }
  }
  output @y sizes[1024,512] strides[512,1] offset 0
}
)";

std::vector<Case> Cases() {
  const std::string rows = "16384,128,1", channels = "1,4096,32", joined_channels = "1,8192,64";
  return {
      {"joined channels, of which one operand has them side by side",
       Join(channels, rows, "16384,128,1")},
      {"joined channels side by side", Join(channels, channels, joined_channels)},
      {"joined planes", Join(rows, rows, "16384,128,1")},
      {"depthwise convolution", kDepthwise},
      {"transpose", kTranspose},
      {"product bound by the matrix unit", Product(512, 256, 512)},
      {"product bound by L3", Product(16, 1024, 1024)},
      {"product of few tiles", Product(128, 128, 128)},
      {"sums of columns", kColumnSums},
      {"softmax of rows", kSoftmax},
      {"convolutions of 3 x 3", Chain(1, 64, 28, 1)},
  };
}

// Without what every launch takes, so that the rest is not lost in it.
TEST(GcuCost, KernelsTakeWhatIsPredicted) {
  const double launch_seconds = static_cast<double>(Reference().launch_ns) * 1e-9;
  double errors = 0;
  const std::vector<Case> cases = Cases();
  for (const Case& of : cases) {
    SCOPED_TRACE(of.name);
    absl::StatusOr<ir::Module> module = ir::Parse(of.text);
    ASSERT_TRUE(module.ok()) << module.status();
    const auto launch = gcu::MakeLaunch(*module, module->operations[0], Reference());
    ASSERT_TRUE(launch.ok()) << launch.status();
    const double seconds = Simulate(*module, *launch) - launch_seconds;
    const double predicted = launch->versions[0].seconds - launch_seconds;
    EXPECT_NEAR(predicted / seconds, 1, 0.15) << launch->versions[0].reasons[0];
    errors += std::abs(predicted / seconds - 1);
  }
  EXPECT_LT(errors / static_cast<double>(cases.size()), 0.06);
}

// Products one after another of so many rows: of each width with weights to the next.
std::string Products(int rows, const std::vector<int>& widths) {
  const size_t last = widths.size() - 1;
  const auto shape = [](int a, int b) {
    return absl::StrCat("f32[", a, ",", b, "] strides[", b, ",1] ");
  };
  std::string buffers, kernels;
  for (size_t i = 0; i <= last; ++i) {
    absl::StrAppend(&buffers, "  buffer @t", i, " ", shape(rows, widths[i]),
                    i == 0      ? "input(0)"
                    : i == last ? "output"
                                : "temp",
                    "\n");
    if (i == last) break;
    absl::StrAppend(&buffers, "  buffer @w", i, " ", shape(widths[i], widths[i + 1]), "input(",
                    i + 1, ")\n");
    absl::StrAppend(&kernels, "  kernel @k", i, " contraction (d0: ", rows, ", d1: ", widths[i + 1],
                    ") {\n    phase (r0: ", widths[i], ") {\n      %0 = load f32 @t", i,
                    "[d0, r0]\n      %1 = load f32 @w", i,
                    "[r0, d1]\n      %2 = mul f32 %0, %1\n      %3 = reduce.sum f32 %2\n    }\n",
                    "    phase () {\n      store f32 @t", i + 1, "[d0, d1], %3\n    }\n  }\n");
  }
  return absl::StrCat("module {\n", buffers, kernels, "  output @t", last, " sizes[", rows, ",",
                      widths[last], "] strides[", widths[last], ",1] offset 0\n}\n");
}

// One core, whose engine moves less than L3 gives, copies weights ahead there.
TEST(GcuCost, WeightsAheadTakeWhatOneEngineTakes) {
  const auto machine = *schedule::gcu::FindMachine("gcu-s60");
  ASSERT_LT(machine.EngineRate(), static_cast<double>(machine.l3_rate) / 2);
  for (const int rows : {128, 196}) {
    const std::string chain = Products(rows, {256, 1024, 256, 1024, 256, 1024});
    ir::Module module = *ir::Parse(chain);
    GroupFor(module, machine, {});
    ASSERT_EQ(module.operations.size(), 1u);
    const auto launch = gcu::MakeLaunch(module, module.operations[0], machine);
    ASSERT_TRUE(launch.ok()) << launch.status();
    const double seconds = Simulate(module, *launch, machine);
    EXPECT_NEAR(launch->versions[0].seconds / seconds, 1, 0.12) << seconds;
  }
}

}  // namespace
}  // namespace kiln::codegen
