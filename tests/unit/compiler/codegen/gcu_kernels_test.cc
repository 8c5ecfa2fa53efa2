// How target gcu runs single kernels, and what it loads ahead for the next ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "compiler/ir/parse.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/gcu_device.h"
#include "tests/unit/compiler/codegen/gcu_launches.h"

namespace kiln::codegen {
namespace {

using ::testing::HasSubstr;

// One of Chain's, of one picture.
std::vector<float> Convolve(const std::vector<float>& x, const std::vector<float>& w, int channels,
                            int size) {
  const auto at = [&](int c, int row, int column) {
    return static_cast<size_t>((c * size + row) * size + column);
  };
  std::vector<float> y(x.size(), 0);
  for (int out = 0; out < channels; ++out) {
    for (int in = 0; in < channels; ++in) {
      const float* weights = &w[static_cast<size_t>((out * channels + in) * 9)];
      for (int row = 0; row < size; ++row) {
        for (int column = 0; column < size; ++column) {
          float sum = 0;
          for (int i = std::max(0, 1 - row); i < 3 && row + i <= size; ++i) {
            for (int j = std::max(0, 1 - column); j < 3 && column + j <= size; ++j) {
              sum += weights[3 * i + j] * x[at(in, row + i - 1, column + j - 1)];
            }
          }
          y[at(out, row, column)] += sum;
        }
      }
    }
  }
  for (float& value : y) value = std::max(value, 0.0f);
  return y;
}

TEST(GcuGroups, WeightsComeToL2WhileKernelsBeforeCompute) {
  constexpr int kDepth = 4;
  constexpr int kChannels = 256, kSize = 14;
  ir::Module module = *ir::Parse(Chain(1, kChannels, kSize, kDepth));
  Group(module);
  ASSERT_EQ(module.operations.size(), 1u);
  const auto launch = gcu::MakeLaunch(module, module.operations[0], Reference());
  ASSERT_TRUE(launch.ok()) << launch.status();
  int weights = 0;
  for (const schedule::gcu::L2Buffer& buffer : launch->versions[0].l2.buffers) {
    if (module.buffers[buffer.buffer].kind == ir::BufferKind::kInput) ++weights;
  }
  EXPECT_EQ(weights, kDepth - 1);  // nothing runs before the first kernel

  std::vector<std::vector<float>> tensors;
  std::vector<const std::vector<float>*> inputs(kDepth + 1);
  const std::vector<float>* y = nullptr;
  tensors.reserve(launch->buffers.size());
  for (const ir::BufferId id : launch->buffers) {
    const ir::Buffer& buffer = module.buffers[id];
    auto& tensor =
        tensors.emplace_back(static_cast<size_t>(ir::SizeBytes(*module.ints, buffer).value() / 4));
    if (buffer.kind == ir::BufferKind::kOutput) y = &tensor;
    if (buffer.kind != ir::BufferKind::kInput) continue;
    inputs[static_cast<size_t>(buffer.index)] = &tensor;
    for (size_t i = 0; i < tensor.size(); ++i) {
      tensor[i] = (static_cast<float>((i + tensors.size()) * 7919 % 1009) / 505 - 1) / 16;
    }
  }
  ASSERT_NE(y, nullptr);
  std::vector<HostBuffer> buffers;
  for (std::vector<float>& tensor : tensors) {
    buffers.push_back({reinterpret_cast<char*>(tensor.data()), tensor.size() * 4});
  }
  GcuDevice device(Reference().profile);
  const auto times = device.Run(launch->kernel, buffers, {});
  ASSERT_TRUE(times.ok()) << times.status();
  // Weights are loaded once, but for the first kernel's, which several cores need.
  const int64_t weight_bytes = int64_t{kChannels} * kChannels * 9 * 4;
  EXPECT_LT(times->l3_bytes, (kDepth + 3) * weight_bytes);

  std::vector<float> expected = *inputs[0];
  for (int k = 1; k <= kDepth; ++k) {
    expected = Convolve(expected, *inputs[static_cast<size_t>(k)], kChannels, kSize);
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR((*y)[i], expected[i], 1e-4 * (1 + expected[i])) << i;
  }
}

// The first layer of a network of pictures: the matrix unit's lanes are for 16 products, and
// neither 3 channels nor 7 rows fill them.
TEST(GcuKernels, ShortSumsAreOneWithThoseAroundThem) {
  const std::string text = R"(module {
  buffer @x f32[1,3,32,32] strides[3072,1024,32,1] input(0)
  buffer @w f32[16,3,7,7] strides[147,49,7,1] input(1)
  buffer @y f32[1,16,16,16] strides[4096,256,16,1] output
  kernel @first contraction (d0: 1, d1: 16, d2: 16, d3: 16) {
    phase (r0: 3, r1: 7, r2: 7) {
      %0 = load f32 @w[d1, r0, r1, r2]
      %1 = index i64 2*d2 + r1 - 3
      %2 = const i64 0
      %3 = ge bool %1, %2
      %4 = const i64 32
      %5 = lt bool %1, %4
      %6 = and bool %3, %5
      %7 = index i64 2*d3 + r2 - 3
      %8 = ge bool %7, %2
      %9 = and bool %6, %8
      %10 = lt bool %7, %4
      %11 = and bool %9, %10
      %12 = load f32 @x[d0, r0, 2*d2 + r1 - 3, 2*d3 + r2 - 3] if %11 else 0
      %13 = mul f32 %0, %12
      %14 = reduce.sum f32 %13
    }
    phase () {
      store f32 @y[d0, d1, d2, d3], %14
    }
  }
  output @y sizes[1,16,16,16] strides[4096,256,16,1] offset 0
}
)";
  ir::Module module = *ir::Parse(text);
  const auto launch = gcu::MakeLaunch(module, module.operations[0], Reference());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_THAT(launch->versions[0].reasons[0], HasSubstr("3/3, 7/7, 1/7 serial"));
  CheckModule(text);
}

// Channels lie side by side in what vectors walk, and 9 apart in the weights' memory.
TEST(GcuKernels, WeightsOfDepthwiseConvolutionsLieAsVectorsWalkThem) {
  const std::string text = R"(module {
  buffer @x f32[64,20,20] strides[1,1280,64] input(0)
  buffer @w f32[64,3,3] strides[9,3,1] input(1)
  buffer @y f32[64,18,18] strides[1,1152,64] output
  kernel @depthwise contraction (d0: 18, d1: 18, d2: 64) {
    phase (r0: 3, r1: 3) {
      %0 = load f32 @x[d2, d0 + r0, d1 + r1]
      %1 = load f32 @w[d2, r0, r1]
      %2 = mul f32 %0, %1
      %3 = reduce.sum f32 %2
    }
    phase () {
      store f32 @y[d2, d0, d1], %3
    }
  }
  output @y sizes[64,18,18] strides[1,1152,64] offset 0
}
)";
  ir::Module module = *ir::Parse(text);
  const auto launch = gcu::MakeLaunch(module, module.operations[0], Reference());
  ASSERT_TRUE(launch.ok()) << launch.status();
  const double seconds = Simulate(module, *launch);
  EXPECT_NEAR(launch->versions[0].seconds / seconds, 1, 0.25);
  // Less than at an element a cycle, copies included; 10 us are the launch's.
  EXPECT_LT(seconds - 10e-6,
            18.0 * 18 * 64 * 9 / Reference().cores / static_cast<double>(Reference().clock_hz));
  CheckModule(text);
}

}  // namespace
}  // namespace kiln::codegen
