// Attention by mma.sync: its trees, and what warps do, emulated, against the reference interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret.h"
#include "tests/unit/compiler/codegen/attention_graphs.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Case = AttentionCase;

constexpr int kMostShapes = 3;  // of tiles, of one width

std::string Name(const Case& c, const std::string& arch, int rank) {
  return StrCat(arch, " rank ", rank, ": type ", c.type, ", ", c.batches, " x ", c.heads, "/",
                c.key_heads, " x ", c.queries, " x ", c.keys, " x ", c.width,
                c.is_causal ? " causal" : "", ", mask ", c.mask);
}

ir::Module Lowered(const Case& c, const std::string& arch, bool by_libraries = false) {
  return LowerFor(*MakePtx(arch), AttentionGraph(c).proto(), by_libraries);
}

// By emulated threads and, its tree, by the interpreter, against the reference.
void CheckOn(const Case& c, const std::string& arch, int rank) {
  SCOPED_TRACE(Name(c, arch, rank));
  ir::Module module = Lowered(c, arch);
  ASSERT_EQ(module.operations.size(), c.has_states ? 2u : 1u);
  ASSERT_TRUE(std::holds_alternative<ir::Repeat>(module.operations[0]));
  std::vector<int64_t> symbols;
  if (c.is_dynamic) symbols.push_back(c.batches);
  // Others differ in how it runs.
  if (rank == 0) CheckTrees(module, symbols, 1e-4, arch, rank);
  const std::vector<HostTensor> inputs = MakeInputs(module, {.symbols = symbols, .scale = 2});
  const auto expected = ir::Interpret(module, inputs, symbols, {}, {});
  ASSERT_TRUE(expected.ok()) << expected.status();
  DeviceInfo device;
  device.arch = arch;
  device.compute_units = 132;
  device.rank = rank;
  auto native = NativeModule::Build(module, device);
  ASSERT_TRUE(native.ok()) << native.status();
  ASSERT_THAT((*native)->kernels()[0].source, HasSubstr("KAttentionByWarps<Shape>"));
  const auto emulated = (*native)->Run(inputs, symbols, 1);
  ASSERT_TRUE(emulated.ok()) << emulated.status();
  for (size_t i = 0; i < expected->size(); ++i) {
    ExpectSame((*emulated)[i], (*expected)[i], 2e-3,
               StrCat("output ", i, "\n", (*native)->kernels()[0].source));
  }
}

// Of tiles and steps that end in the middle, and more steps than stages.
TEST(PtxAttentionWarpsTest, EveryShapeComputesWhatItsKernelsDo) {
  for (const int64_t width : {64, 96, 128, 256}) {
    for (int rank = 0; rank < kMostShapes; ++rank) {
      for (const bool is_causal : {false, true}) {
        const Case c = {.type = rank % 2 == 0 ? v1::DTYPE_BFLOAT16 : v1::DTYPE_FLOAT16,
                        .batches = 1,
                        .heads = rank == 0 ? 2 : 1,
                        .key_heads = 1,
                        .queries = 132,
                        .keys = 150,
                        .width = width,
                        .is_causal = is_causal,
                        .has_log_sums = true};
        CheckOn(c, rank == 1 ? "sm_86" : "sm_80", rank);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(PtxAttentionWarpsTest, TakesAnySizes) {
  CheckOn({.batches = 1, .heads = 3, .key_heads = 1, .queries = 1, .keys = 200, .width = 64},
          "sm_80", 0);
  CheckOn({.batches = 1, .heads = 2, .key_heads = 2, .queries = 65, .keys = 2, .is_causal = true},
          "sm_90", 0);
  CheckOn({.batches = 1,
           .heads = 2,
           .key_heads = 2,
           .queries = 40,
           .keys = 200,
           .width = 128,
           .is_causal = true},
          "sm_90", 0);
  CheckOn({.batches = 1,
           .heads = 1,
           .key_heads = 1,
           .queries = 200,
           .keys = 40,
           .width = 128,
           .is_causal = true},
          "sm_89", 0);
  CheckOn({.batches = 3,
           .heads = 1,
           .key_heads = 1,
           .is_causal = true,
           .has_log_sums = true,
           .is_dynamic = true},
          "sm_80", 0);
  CheckOn({.batches = 1, .heads = 2, .key_heads = 2, .is_causal = true, .has_states = true},
          "sm_80", 0);
}

TEST(PtxAttentionWarpsTest, TakesMasks) {
  for (const int64_t width : {64, 96, 128, 256}) {
    for (const v1::DType mask : {v1::DTYPE_BOOL, v1::DTYPE_FLOAT32, v1::DTYPE_FLOAT16}) {
      for (const int64_t keys : {90, 131}) {
        CheckOn({.type = v1::DTYPE_FLOAT16,
                 .batches = 1,
                 .heads = 2,
                 .key_heads = 2,
                 .queries = 40,
                 .keys = keys,
                 .width = width,
                 .has_log_sums = true,
                 .mask = mask,
                 .is_mask_of_keys = keys == 131},
                "sm_80", keys == 131 ? 1 : 0);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// What there is of each shape, and that a device has room for it.
TEST(PtxAttentionWarpsTest, AssembleWithoutSpills) {
  for (const std::string arch : {"sm_80", "sm_86", "sm_89", "sm_90"}) {
    for (const int64_t width : {64, 96, 128, 256}) {
      for (const v1::DType mask : {v1::DTYPE_UNSPECIFIED, v1::DTYPE_BOOL, v1::DTYPE_FLOAT32}) {
        for (const bool is_causal : {false, true}) {
          if (is_causal && mask != v1::DTYPE_UNSPECIFIED) continue;
          for (int rank = 0; rank < (arch == "sm_80" ? kMostShapes : 1); ++rank) {
            const Case c = {.type = is_causal ? v1::DTYPE_FLOAT16 : v1::DTYPE_BFLOAT16,
                            .heads = 12,
                            .key_heads = 12,
                            .queries = 1000,
                            .keys = 1001,
                            .width = width,
                            .is_causal = is_causal,
                            .has_log_sums = rank == 1,
                            .mask = mask};
            SCOPED_TRACE(Name(c, arch, rank));
            const Made made = CompileOne(Lowered(c, arch), 0, arch, rank);
            ASSERT_EQ(made.objects.size(), 1u);
            EXPECT_THAT(made.schedules, HasSubstr(StrCat("attend_warps<", width, ", ")));
            EXPECT_THAT(made.objects[0], HasSubstr("mma.sync.aligned.m16n8k16"));
            EXPECT_THAT(made.objects[0], HasSubstr("cp.async.cg.shared.global"));
            EXPECT_THAT(made.objects[0], Not(AnyOf(HasSubstr(".local"), HasSubstr("wgmma"))));
            EXPECT_EQ(absl::StrContains(made.objects[0], "stmatrix"), arch == "sm_90");
            EXPECT_EQ(made.kernels[0].waits, arch == "sm_90");
            Assemble(made.objects[0], arch);
          }
        }
      }
    }
  }
}

// As a device says, or its architecture, for as many blocks as are to run on a multiprocessor.
TEST(PtxAttentionWarpsTest, StagesFitTheDevicesSharedMemory) {
  for (const auto& [arch, kilobytes] :
       {std::pair("sm_80", 164), {"sm_86", 100}, {"sm_89", 100}, {"sm_90", 228}, {"sm_90", 100}}) {
    for (const int64_t width : {64, 96, 128, 256}) {
      ir::Module module = Lowered({.width = width}, arch);
      for (int rank = 0; rank < kMostShapes; ++rank) {
        DeviceInfo device;
        device.arch = arch;
        device.rank = rank;
        device.memory_spaces = {{MemoryKind::kShared, int64_t{kilobytes} << 10, 0}};
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
}

bool IsOneKernel(const Case& c, const std::string& arch, bool by_libraries) {
  const ir::Module module = Lowered(c, arch, by_libraries);
  return module.operations.size() == 1 &&
         std::holds_alternative<ir::Repeat>(module.operations.back());
}

TEST(PtxAttentionWarpsTest, IsTakenWhereNoLibraryIsOrOneIsSlower) {
  const Case plain = {.queries = 2048, .keys = 2048};
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"}) {
    SCOPED_TRACE(arch);
    EXPECT_TRUE(IsOneKernel(plain, arch, false));
    EXPECT_EQ(IsOneKernel(plain, arch, true), arch == std::string("sm_90a"));
    EXPECT_TRUE(IsOneKernel({.queries = 20}, arch, false)) << "few queries";
    EXPECT_FALSE(IsOneKernel({.queries = 20}, arch, true));
    EXPECT_TRUE(IsOneKernel({.queries = 2048, .keys = 2048, .mask = v1::DTYPE_BOOL}, arch, true));
    EXPECT_FALSE(IsOneKernel({.type = v1::DTYPE_FLOAT32}, arch, false));
    EXPECT_FALSE(IsOneKernel({.width = 80}, arch, false));
  }
}

}  // namespace
}  // namespace kiln::codegen
