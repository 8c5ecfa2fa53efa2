// Products by mma.sync: their trees, and what warps do, emulated, against the reference
// interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/parse.h"
#include "compiler/schedule/interpret.h"
#include "compiler/schedule/verify.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kShapes = 6;  // of tiles

DeviceInfo Device(const std::string& arch, int rank) {
  DeviceInfo device;
  device.arch = arch;
  device.compute_units = 108;
  device.rank = rank;
  return device;
}

// The module by emulated threads and, its trees, by the interpreter, against the reference.
void CheckOn(const std::string& text, const DeviceInfo& device,
             const std::string& has = "KProductByWarps<Shape>") {
  ir::Module module = *ir::Parse(text);
  const std::vector<HostTensor> inputs = MakeInputs(module, {});
  const auto expected = ir::Interpret(module, inputs, {}, {});
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto tree = TestTarget(device)->Schedule(module, module.operations[0]);
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_EQ(schedule::Verify(module, *tree), absl::OkStatus());
  const auto interpreted = schedule::Interpret(module, {&*tree, 1}, inputs, {}, {});
  ASSERT_TRUE(interpreted.ok()) << interpreted.status();
  auto native = NativeModule::Build(module, device);
  ASSERT_TRUE(native.ok()) << native.status();
  ASSERT_THAT((*native)->kernels()[0].source, HasSubstr(has));
  const auto emulated = (*native)->Run(inputs, {}, 1);
  ASSERT_TRUE(emulated.ok()) << emulated.status();
  for (size_t i = 0; i < expected->size(); ++i) {
    ExpectSame((*interpreted)[i], (*expected)[i], 1e-4, StrCat("the tree's output ", i));
    ExpectSame((*emulated)[i], (*expected)[i], 2e-4,
               StrCat("output ", i, "\n", (*native)->kernels()[0].source));
  }
}

// In every shape of tiles and both depths of steps, with an end in the middle of each side and more
// steps than stages.
TEST(PtxWarpsTest, MultiplyAndFinishAsTheReferenceDoes) {
  for (const char* arch : {"sm_80", "sm_86"}) {
    for (int rank = 0; rank < kShapes; ++rank) {
      SCOPED_TRACE(StrCat(arch, " rank ", rank));
      CheckOn(ProductAndMore("bf16", 136, 72, 200, false, false), Device(arch, rank));
      if (HasFailure()) return;
    }
  }
}

TEST(PtxWarpsTest, TakeOperandsInAnyOrder) {
  for (const char* arch : {"sm_80", "sm_86"}) {
    for (const auto& [a_turned, b_turned] : {std::pair(true, false), {false, true}, {true, true}}) {
      for (int rank = arch == std::string("sm_80") ? 0 : 1; rank < kShapes; rank += 2) {
        SCOPED_TRACE(StrCat(arch, " rank ", rank, ", turned ", a_turned, " ", b_turned));
        CheckOn(ProductAndMore("f16", 72, 136, 104, a_turned, b_turned), Device(arch, rank));
        if (HasFailure()) return;
      }
    }
  }
}

// Of columns that are no octets; of a single step; of one row.
TEST(PtxWarpsTest, TakeAnySizes) {
  for (const auto& [m, n, k] :
       {std::tuple(70, 133, 72), {65, 64, 8}, {1, 72, 200}, {129, 9, 136}, {16, 256, 64}}) {
    for (int rank = 0; rank < kShapes; rank += 3) {
      SCOPED_TRACE(StrCat(m, " x ", n, " x ", k, ", rank ", rank));
      CheckOn(ProductAndMore("bf16", m, n, k, false, false), Device("sm_80", rank));
      if (HasFailure()) return;
    }
  }
}

// Lines of operands that end in the middle of 16 bytes, before those of the next one begin.
TEST(PtxWarpsTest, ReadNothingPastTheEndOfLines) {
  for (const bool turned : {false, true}) {
    // Of 104 or 72 elements, of which the last three or five are none.
    const std::string text = absl::StrReplaceAll(
        ProductAndMore("bf16", 72, 72, 104, turned, turned),
        turned
            ? std::vector<std::pair<std::string, std::string>>{{"[104,72]", "[104,67]"},
                                                               {"[72,72] strides[72,1] input(3)",
                                                                "[67,67] strides[67,1] input(3)"},
                                                               {"[72,72]", "[67,67]"},
                                                               {"[72] strides", "[67] strides"},
                                                               {": 72", ": 67"},
                                                               {"y bf16[72,72] strides[72,1]",
                                                                "y bf16[67,67] strides[67,1]"},
                                                               {"sizes[72,72] strides[72,1]",
                                                                "sizes[67,67] strides[67,1]"}}
            : std::vector<std::pair<std::string, std::string>>{{"[72,104]", "[72,101]"},
                                                               {"r0: 104", "r0: 101"}});
    for (int rank = 0; rank < kShapes; ++rank) {
      SCOPED_TRACE(StrCat("rank ", rank, "\n", text));
      CheckOn(text, Device(rank % 2 == 0 ? "sm_80" : "sm_86", rank),
              "kWholeA = false, kWholeB = false");
      if (HasFailure()) return;
    }
  }
}

TEST(PtxWarpsTest, HaveSeveralResultsAndWideOnes) {
  const std::string text = ProductAndMore("bf16", 72, 136, 72, false, false);
  const std::string two = WithResult(text, "bf16",
                                     "      %14 = mul f32 %11, %8\n"
                                     "      %15 = cast bf16 %14\n"
                                     "      store bf16 @z[d0, d1], %15\n");
  const std::string wide = WithResult(text, "f32", "      store f32 @z[d0, d1], %12\n");
  for (const std::string& more : {two, wide, Alone(text)}) {
    for (int rank = 0; rank < kShapes; rank += 2) {
      CheckOn(more, Device(rank % 4 == 0 ? "sm_80" : "sm_90", rank));
    }
  }
}

// Of each architecture, in every shape and layout; sm_89 has sm_86's.
TEST(PtxWarpsTest, AssembleWithoutSpills) {
  for (const std::string arch : {"sm_80", "sm_86", "sm_89", "sm_90"}) {
    std::set<std::string> shapes;
    for (int rank = 0; rank < kShapes; ++rank) {
      for (int layout = 0; layout < (arch == "sm_89" ? 1 : 4); ++layout) {
        const bool a_turned = layout % 2 == 1, b_turned = layout / 2 == 1;
        std::string text = ProductAndMore("bf16", 2048, 50256, 768, a_turned, b_turned);
        const bool waits_short = (rank + layout) % 2 == 1;  // else the sums wait as float32
        if (waits_short) text = Alone(text);
        const Made made = Compile(text, arch, rank);
        ASSERT_EQ(made.objects.size(), 1);
        const size_t at = made.schedules.find("multiply_warps");
        const std::string shape = made.schedules.substr(at, made.schedules.find('(', at) - at);
        shapes.insert(shape);
        SCOPED_TRACE(StrCat(arch, ", ", shape, ", layout ", layout));
        EXPECT_THAT(made.objects[0], HasSubstr("mma.sync.aligned.m16n8k16"));
        EXPECT_THAT(made.objects[0], HasSubstr("cp.async.cg.shared.global"));
        EXPECT_THAT(made.objects[0], Not(AnyOf(HasSubstr(".local"), HasSubstr("wgmma"))));
        EXPECT_EQ(absl::StrContains(made.objects[0], "stmatrix"), waits_short && arch == "sm_90");
        Assemble(made.objects[0], arch);
      }
    }
    EXPECT_EQ(shapes.size(), kShapes);
  }
}

// Of two results, of one of 32 bits beside it, of the sum alone, and of columns that are no octets.
TEST(PtxWarpsTest, WorkOnSumsDoesNotSpill) {
  const auto variant = [](absl::string_view type, int number, int columns) {
    const std::string text = ProductAndMore("bf16", 2048, columns, 768, false, false);
    const std::string made = number == 0   ? text
                             : number == 1 ? Alone(text)
                             : number == 2
                                 ? WithResult(text, "bf16",
                                              "      %14 = mul f32 %11, %8\n"
                                              "      %15 = cast bf16 %14\n"
                                              "      store bf16 @z[d0, d1], %15\n")
                                 : WithResult(text, "f32", "      store f32 @z[d0, d1], %12\n");
    return absl::StrReplaceAll(made, {{"bf16", type}});
  };
  int first = 0;
  for (int number = 0; number < 4; ++number) {
    for (const int columns : {50256, 50257}) {
      for (int rank = first; rank < kShapes; rank += 2) {
        const absl::string_view type = rank % 3 == 0 ? "bf16" : "f16";
        SCOPED_TRACE(StrCat("variant ", number, ", ", columns, " columns, rank ", rank));
        const Made made = Compile(variant(type, number, columns), "sm_80", rank);
        ASSERT_EQ(made.objects.size(), 1);
        EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
        Assemble(made.objects[0], "sm_80");
      }
      first = 1 - first;
    }
  }
}

// As a device says, or its architecture: what a block asks for fits, for as many as are to run on a
// multiprocessor.
TEST(PtxWarpsTest, StagesFitTheDevicesSharedMemory) {
  for (const auto& [arch, kilobytes] :
       {std::pair("sm_80", 164), {"sm_86", 100}, {"sm_89", 100}, {"sm_90", 228}, {"sm_90", 100}}) {
    for (int rank = 0; rank < kShapes; ++rank) {
      DeviceInfo device = Device(arch, rank);
      device.memory_spaces = {{MemoryKind::kShared, int64_t{kilobytes} << 10, 0}};
      ir::Module module = *ir::Parse(ProductAndMore("bf16", 512, 512, 512, false, false));
      const auto emitted = TestTarget(device)->Emit(module, module.operations[0]);
      ASSERT_TRUE(emitted.ok()) << emitted.status();
      const size_t at = emitted->source.find("// kiln resident ");
      const int blocks = std::stoi(emitted->source.substr(at + 17));
      EXPECT_GE(blocks, 1);
      const int64_t bytes = emitted->grid.shared_bytes.value() + 1024;
      EXPECT_LE(blocks * bytes, int64_t{kilobytes} << 10) << arch << " rank " << rank;
    }
  }
}

TEST(PtxWarpsTest, ADeviceThatSaysItHasHardlyAnySharedMemoryHasNoSuchProducts) {
  for (const int64_t bytes : {1, 8 << 10, 63 << 10, 64 << 10}) {
    DeviceInfo device = Device("sm_80", kShapes);
    device.memory_spaces = {{MemoryKind::kShared, bytes, 0}};
    ir::Module module = *ir::Parse(ProductAndMore("bf16", 512, 512, 512, false, false));
    const auto tree = TestTarget(device)->Schedule(module, module.operations[0]);
    ASSERT_TRUE(tree.ok()) << tree.status();
    EXPECT_EQ(tree->team == 128 && absl::StrContains(tree->reasons[0], "mma.sync"),
              bytes == 64 << 10);
  }
}

// A library's product and a kernel after it take longer where the kernel's bytes count for much.
TEST(PtxWarpsTest, AreTakenWhereTheyAreExpectedToBeFaster) {
  const auto is_taken = [](const char* arch, int kilobytes, int m, int n, int k, bool goes_on) {
    DeviceInfo device = Device(arch, 0);
    device.clock_mhz = 1410;
    device.memory_spaces = {{MemoryKind::kShared, int64_t{kilobytes} << 10, 0},
                            {MemoryKind::kGlobal, 0, 1'555'000'000'000}};
    ir::Module module = *ir::Parse(ProductAndMore("bf16", m, n, k, false, false));
    return !TestTarget(device)->LeavesToLibraries(
        module, std::get<ir::Kernel>(module.operations[0]), goes_on);
  };
  EXPECT_TRUE(is_taken("sm_80", 164, 8192, 3072, 768, true));
  EXPECT_FALSE(is_taken("sm_80", 164, 8192, 3072, 768, false));
  EXPECT_FALSE(is_taken("sm_80", 164, 4096, 4096, 16384, true));
  EXPECT_FALSE(is_taken("sm_80", 164, 64, 3072, 768, true));
  // There a library has faster instructions, unless the device's shared memory tells otherwise.
  EXPECT_FALSE(is_taken("sm_90", 228, 8192, 3072, 768, true));
  EXPECT_TRUE(is_taken("sm_90", 100, 8192, 3072, 256, true));
}

}  // namespace
}  // namespace kiln::codegen
