// Groups of target gcu whose tiles overlap: kernels that read windows of each other. These are
// small, so that what does not fit L2 would rather lie in memory: AFE, which would do that, is off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/gcu/launch.h"
#include "compiler/ir/parse.h"
#include "compiler/schedule/gcu/tiles.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/gcu_launches.h"
#include "tests/unit/compiler/codegen/native_run.h"
#include "tests/unit/compiler/codegen/window_chains.h"

namespace kiln::codegen {
namespace {

using ::testing::HasSubstr;

// How many repeats of the module have windows, how many kernels these have together, and how many
// of the repeats keep rows that two tiles need, and run such rows twice.
struct Windowed {
  int repeats = 0;
  size_t kernels = 0;
  int keep = 0, run_twice = 0;
};
Windowed WindowedOf(ir::Module& module) {
  Windowed found;
  for (const ir::Operation& operation : module.operations) {
    const auto* repeat = std::get_if<ir::Repeat>(&operation);
    if (repeat == nullptr || repeat->windows.empty()) continue;
    ++found.repeats;
    found.kernels += repeat->kernels.size();
    const auto launch = gcu::MakeLaunch(module, operation, Reference());
    EXPECT_TRUE(launch.ok()) << launch.status();
    if (!launch.ok()) continue;
    const std::vector<schedule::gcu::Overlap>& overlaps = launch->versions[0].plan.overlaps;
    found.keep += absl::c_any_of(overlaps, [](const auto& kernel) { return kernel.carried; });
    found.run_twice += absl::c_any_of(overlaps, [](const auto& kernel) {
      return !kernel.carried && schedule::gcu::StaysOf(kernel.window) > 0;
    });
  }
  return found;
}

// The text of a module of convolutions and poolings over pictures, one after another.
class Pictures {
 public:
  Pictures(std::string type, int images, int channels, int size)
      : type_(std::move(type)), images_(images) {
    values_.push_back({channels, size});
    Declare("input(0)");
  }

  struct Window {
    int taps = 3, stride = 1, dilation = 1, pad = 1;
  };

  // A convolution, what the value of number `plus` has added to it, and nothing below 0.
  int Convolve(int channels, const Window& window, int plus = -1) {
    const Value in = values_.back();
    const std::string weight = absl::StrCat("w", values_.size());
    absl::StrAppend(&buffers_, " buffer @", weight, " ", type_, "[", channels, ",", in.channels,
                    ",", window.taps, ",", window.taps, "] strides[",
                    in.channels * window.taps * window.taps, ",", window.taps * window.taps, ",",
                    window.taps, ",1] input(", ++inputs_, ")\n");
    values_.push_back({channels, SizeOf(window, in.size)});
    Begin(" contraction", absl::StrCat("r0: ", in.channels, ", "), window.taps);
    const std::string x = Load(absl::StrCat("w", values_.size() - 1), "d1, r0, r1, r2");
    const std::string y = LoadWindow("r0", window, in.size, "0");
    absl::StrAppend(&kernels_, "  %50 = mul f32 ", x, ", ", y, "\n  %51 = reduce.sum f32 %50\n }\n",
                    " phase () {\n");
    std::string sum = "%51";
    if (plus >= 0) {
      absl::StrAppend(&kernels_, "  %52 = add f32 ", sum, ", ",
                      Load(absl::StrCat("t", plus), "d0, d1, d2, d3"), "\n");
      sum = "%52";
    }
    absl::StrAppend(&kernels_, "  %53 = const f32 0\n  %54 = max f32 ", sum, ", %53\n");
    return End("%54");
  }

  // The greatest of each window.
  int Pool(const Window& window) {
    const Value in = values_.back();
    values_.push_back({in.channels, SizeOf(window, in.size)});
    Begin("", "r0: 1, ", window.taps);
    const std::string x = LoadWindow("d1", window, in.size, "-inf");
    absl::StrAppend(&kernels_, "  %51 = reduce.max f32 ", x, "\n }\n phase () {\n");
    return End("%51");
  }

  std::string Text() {
    const std::string shape = Shape();
    std::string buffers = buffers_;
    buffers.replace(buffers.rfind(" temp"), 5, " output");
    return absl::StrCat("module {\n", buffers, kernels_, " output @t", values_.size() - 1, " sizes",
                        shape.substr(shape.find('[')), " offset 0\n}\n");
  }

 private:
  struct Value {
    int channels, size;
  };

  static int SizeOf(const Window& w, int size) {
    return (size + 2 * w.pad - w.dilation * (w.taps - 1) - 1) / w.stride + 1;
  }

  std::string Shape() const {
    const auto [channels, size] = values_.back();
    return absl::StrCat(type_, "[", images_, ",", channels, ",", size, ",", size, "] strides[",
                        channels * size * size, ",", size * size, ",", size, ",1]");
  }
  void Declare(const std::string& kind) {
    absl::StrAppend(&buffers_, " buffer @t", values_.size() - 1, " ", Shape(), " ", kind, "\n");
  }

  void Begin(const std::string& schedule, const std::string& depth, int taps) {
    const auto [channels, size] = values_.back();
    number_ = 0;
    Declare("temp");
    absl::StrAppend(&kernels_, " kernel @k", values_.size() - 1, schedule, " (d0: ", images_,
                    ", d1: ", channels, ", d2: ", size, ", d3: ", size, ") {\n phase (", depth,
                    "r1: ", taps, ", r2: ", taps, ") {\n");
  }
  int End(std::string value) {
    if (type_ != "f32") {
      absl::StrAppend(&kernels_, "  %60 = cast ", type_, " ", value, "\n");
      value = "%60";
    }
    const int number = static_cast<int>(values_.size()) - 1;
    absl::StrAppend(&kernels_, "  store ", type_, " @t", number, "[d0, d1, d2, d3], ", value,
                    "\n }\n }\n");
    return number;
  }

  // A load as float32.
  std::string Load(const std::string& buffer, const std::string& at, const std::string& rest = "") {
    absl::StrAppend(&kernels_, "  %", number_, " = load ", type_, " @", buffer, "[", at, "]", rest,
                    "\n");
    if (type_ != "f32") {
      absl::StrAppend(&kernels_, "  %", number_ + 1, " = cast f32 %", number_, "\n");
      ++number_;
    }
    return absl::StrCat("%", number_++);
  }
  std::string LoadWindow(const std::string& channel, const Window& w, int size,
                         const std::string& otherwise) {
    std::string mask, at = absl::StrCat("d0, ", channel);
    for (const int d : {1, 2}) {
      const std::string index =
          absl::StrCat(w.stride, "*d", d + 1, " + ", w.dilation, "*r", d, " - ", w.pad);
      absl::StrAppend(&at, ", ", index);
      const int n = number_;
      absl::StrAppend(&kernels_, "  %", n, " = index i64 ", index, "\n  %", n + 1,
                      " = const i64 0\n  %", n + 2, " = ge bool %", n, ", %", n + 1, "\n  %", n + 3,
                      " = const i64 ", size, "\n  %", n + 4, " = lt bool %", n, ", %", n + 3,
                      "\n  %", n + 5, " = and bool %", n + 2, ", %", n + 4, "\n");
      number_ += 6;
      if (!mask.empty()) {
        absl::StrAppend(&kernels_, "  %", number_, " = and bool ", mask, ", %", n + 5, "\n");
        ++number_;
      }
      mask = absl::StrCat("%", number_ - 1);
    }
    return Load(absl::StrCat("t", values_.size() - 2), at,
                absl::StrCat(" if ", mask, " else ", otherwise));
  }

  const std::string type_;
  const int images_;
  std::vector<Value> values_;
  std::string buffers_, kernels_;
  int inputs_ = 0, number_ = 0;
};

// The first layers of a network for images, with a residual link.
std::string Stem(const std::string& type, int images, int size) {
  Pictures pictures(type, images, 3, size);
  pictures.Convolve(8, {.taps = 7, .stride = 2, .pad = 3});
  const int pooled = pictures.Pool({.stride = 2});
  pictures.Convolve(8, {});
  pictures.Convolve(8, {}, pooled);
  pictures.Convolve(8, {.dilation = 2, .pad = 2});
  return pictures.Text();
}

TEST(GcuWindows, AStemThatDoesNotFitIsOneLaunchOfTilesOfRows) {
  for (const int size : {48, 51}) {
    for (const std::string type : {"f32", "f16", "bf16"}) {
      SCOPED_TRACE(absl::StrCat(type, " ", size));
      ir::Module module = CheckGroups(Stem(type, 1, size), 16 << 10, {"afe"},
                                      {.scale = 0.2, .tolerance = type == "f32" ? 1e-4 : 3e-2});
      if (HasFailure()) return;
      const Windowed found = WindowedOf(module);
      EXPECT_GE(found.repeats, 1);
      EXPECT_GE(found.kernels, 4u);
    }
  }
}

// Of two images at once, none of which fits; all channels make each of the next, so that only rows
// can be cut.
std::string Pools(int channels, int size, int taps) {
  Pictures pictures("f32", 2, channels, size);
  for (int i = 0; i < 2; ++i) {
    pictures.Pool({.taps = taps, .pad = taps / 2});
    pictures.Convolve(channels, {.taps = 1, .pad = 0});
  }
  return pictures.Text();
}

TEST(GcuWindows, SeveralImagesShareATile) {
  ir::Module module = CheckGroups(Pools(16, 128, 3), 512 << 10, {}, {.scale = 0.3});
  EXPECT_EQ(WindowedOf(module).kernels, 4u);
}

// Where rows take long to compute, those that two tiles need stay in L2.
TEST(GcuWindows, RowsThatTakeLongStay) {
  ir::Module module = CheckGroups(Pools(16, 128, 9), 1 << 20, {}, {.scale = 0.3});
  EXPECT_GE(WindowedOf(module).kernels, 2u);
  EXPECT_GE(WindowedOf(module).keep, 1);
}

// Over tensors of 67 MB, which L3 would keep waiting.
TEST(GcuWindows, TilesOfRowsAreFasterThanMemory) {
  const std::string text = Pools(32, 512, 3);
  ir::Module tiled = *ir::Parse(text), whole = *ir::Parse(text);
  Group(tiled);
  Group(whole, {"tlf"});
  EXPECT_EQ(WindowedOf(tiled).kernels, 4u);
  double seconds = 0, without = 0, predicted = 0;
  for (auto [module, sum] : {std::pair(&tiled, &seconds), std::pair(&whole, &without)}) {
    for (const ir::Operation& operation : module->operations) {
      const auto launch = gcu::MakeLaunch(*module, operation, Reference());
      ASSERT_TRUE(launch.ok()) << launch.status();
      *sum += Simulate(*module, *launch);
      if (module == &tiled) predicted += launch->versions[0].seconds;
    }
  }
  EXPECT_LT(seconds * 1.3, without);
  EXPECT_NEAR(predicted / seconds, 1, 0.15);
}

TEST(GcuWindows, ReasonsNameTheDimensionThatIsSplit) {
  const auto target = TestTarget(TestDevice(kGcuIsa));
  ir::Module module = *ir::Parse(Pools(32, 512, 3));
  target->Tile(module);
  ASSERT_EQ(module.operations.size(), 1u);
  const auto tree = target->Schedule(module, module.operations[0]);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_THAT(tree->reasons[0], HasSubstr("TLF: tiles of "));
  EXPECT_THAT(tree->reasons[0], HasSubstr(" of them, of dimension 2 of t4 f32["));
  EXPECT_THAT(tree->reasons[0], HasSubstr("]; rows that two tiles"));
}

// One row of the first tensor is more than all of L2.
TEST(GcuWindows, WhatNoTileFitsIsCut) {
  const ir::Module module = CheckGroups(Stem("f32", 1, 40), 2 << 10, {"afe"}, {.scale = 0.3});
  EXPECT_GT(module.operations.size(), 1u);
}

TEST(GcuWindows, RandomChainsRunAlike) {
  Windowed all;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const WindowChain chain = MakeWindowChain(seed);
    for (const int64_t bytes : {3 << 10, 8 << 10}) {
      const CheckOptions options{.symbols = chain.symbols, .seed = seed + 1, .tolerance = 1e-4};
      ir::Module module = CheckGroups(chain.text, bytes, {"afe"}, options);
      if (HasFailure()) return;
      const Windowed found = WindowedOf(module);
      all.repeats += found.repeats;
      all.kernels += found.kernels;
      all.keep += found.keep;
      all.run_twice += found.run_twice;
    }
  }
  EXPECT_GT(all.repeats, 5);
  EXPECT_GT(all.kernels, 15u);
  EXPECT_GT(all.run_twice, 3);
}

}  // namespace
}  // namespace kiln::codegen
