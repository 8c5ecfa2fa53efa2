#include "tests/unit/compiler/codegen/ptx_made.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/codegen/ptx/ptx_target.h"
#include "compiler/codegen/targets.h"
#include "compiler/fusion/fuse.h"
#include "compiler/graph/import.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/verify.h"
#include "compiler/lowering/lower.h"
#include "compiler/schedule/interpret.h"
#include "compiler/schedule/print.h"
#include "compiler/schedule/verify.h"
#include "compiler/toolchain/clang.h"
#include "compiler/toolchain/lld.h"
#include "proto/base/status_macros.h"
#include "tests/temp_dir.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/gpu_emulator.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {

using absl::StrCat;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ProductAndMore(const std::string& type, int m, int n, int k, bool a_turned,
                           bool b_turned) {
  return absl::StrReplaceAll(
      R"(module {
  buffer @a TYPE[A_SIZES] strides[A_STRIDE,1] input(0)
  buffer @b TYPE[B_SIZES] strides[B_STRIDE,1] input(1)
  buffer @bias TYPE[COLUMNS] strides[1] input(2)
  buffer @x TYPE[ROWS,COLUMNS] strides[COLUMNS,1] input(3)
  buffer @y TYPE[ROWS,COLUMNS] strides[COLUMNS,1] output
  kernel @mm contraction (d0: ROWS, d1: COLUMNS) {
    phase (r0: DEPTH) {
      %0 = load TYPE @a[A_AT]
      %1 = cast f32 %0
      %2 = load TYPE @b[B_AT]
      %3 = cast f32 %2
      %4 = mul f32 %1, %3
      %5 = reduce.sum f32 %4
    }
    phase () {
      %6 = load TYPE @bias[d1]
      %7 = cast f32 %6
      %8 = add f32 %5, %7
      %9 = erf f32 %8
      %10 = load TYPE @x[d0, d1]
      %11 = cast f32 %10
      %12 = add f32 %9, %11
      %13 = cast TYPE %12
      store TYPE @y[d0, d1], %13
    }
  }
  output @y sizes[ROWS,COLUMNS] strides[COLUMNS,1] offset 0
}
)",
      {{"TYPE", type},
       {"ROWS", StrCat(m)},
       {"COLUMNS", StrCat(n)},
       {"DEPTH", StrCat(k)},
       {"A_SIZES", a_turned ? StrCat(k, ",", m) : StrCat(m, ",", k)},
       {"A_STRIDE", StrCat(a_turned ? m : k)},
       {"A_AT", a_turned ? "r0, d0" : "d0, r0"},
       {"B_SIZES", b_turned ? StrCat(k, ",", n) : StrCat(n, ",", k)},
       {"B_STRIDE", StrCat(b_turned ? n : k)},
       {"B_AT", b_turned ? "r0, d1" : "d1, r0"}});
}

std::string Alone(const std::string& text) {
  const std::string alone =
      absl::StrReplaceAll(text, {{"      %6 = load bf16 @bias[d1]\n      %7 = cast f32 %6\n"
                                  "      %8 = add f32 %5, %7\n      %9 = erf f32 %8\n"
                                  "      %10 = load bf16 @x[d0, d1]\n      %11 = cast f32 %10\n"
                                  "      %12 = add f32 %9, %11\n      %13 = cast bf16 %12\n",
                                  "      %13 = cast bf16 %5\n"}});
  EXPECT_NE(alone, text);
  return alone;
}

std::string WithResult(const std::string& text, absl::string_view type, absl::string_view store) {
  const std::string sizes =
      text.substr(text.find("@y bf16[") + 8, text.find("] output") - text.find("@y bf16[") - 8);
  return absl::StrReplaceAll(
      text,
      {{"  kernel @mm", StrCat("  buffer @z ", type, "[", sizes, "] output\n  kernel @mm")},
       {"      store bf16 @y[d0, d1], %13\n", StrCat("      store bf16 @y[d0, d1], %13\n", store)},
       {"  output @y", StrCat("  output @z sizes[", sizes, "] offset 0\n  output @y")}});
}

std::unique_ptr<Target> MakePtx(const std::string& arch, int rank) {
  DeviceInfo device;
  device.arch = arch;
  device.compute_units = 132;
  device.rank = rank;
  return *(*FindTarget("ptx"))->make(device);
}

namespace {

void Add(const Target& target, const ir::Operation& operation, Made& made) {
  const auto tree = target.Schedule(made.module, operation);
  ASSERT_TRUE(tree.ok()) << tree.status();
  absl::StrAppend(&made.schedules, schedule::Print(made.module, *tree));
  absl::StatusOr<EmittedKernel> emitted = target.Print(made.module, *tree);
  ASSERT_TRUE(emitted.ok()) << emitted.status();
  emitted->source += target.InterfaceText("scratch_bytes {}", emitted->binary);
  const std::string name = StrCat("kernel_", made.kernels.size());
  const std::string source = absl::StrReplaceAll(emitted->source, {{kSymbolPlaceholder, name}});
  auto compiled = target.Compile({.source = source});
  EXPECT_TRUE(compiled.ok()) << compiled.status() << "\n" << emitted->source;
  if (compiled.ok()) made.objects.push_back(std::move(compiled->object));
  made.kernels.push_back(*std::move(emitted));
}

}  // namespace

Made Compile(const std::string& text, const std::string& arch, int rank) {
  Made made;
  made.module = *ir::Parse(text);
  const auto target = MakePtx(arch, rank);
  target->Tile(made.module);
  EXPECT_EQ(ir::Verify(made.module), absl::OkStatus());
  for (const ir::Operation& operation : made.module.operations) Add(*target, operation, made);
  return made;
}

Made CompileOne(ir::Module module, size_t number, const std::string& arch, int rank) {
  Made made;
  made.module = std::move(module);
  Add(*MakePtx(arch, rank), made.module.operations[number], made);
  return made;
}

ir::Module LowerFor(const Target& target, const v1::Graph& graph, bool by_libraries) {
  ir::Module module;
  const absl::StatusOr<graph::Graph> imported = graph::Import(graph, *module.ints);
  EXPECT_TRUE(imported.ok()) << imported.status();
  const lowering::LoweringOptions options = {
      .library_steps = by_libraries,
      .left_to_libraries = [&](ir::Module& m, const ir::Kernel& kernel,
                               bool on) { return target.LeavesToLibraries(m, kernel, on); },
      .taken_together =
          [&](ir::Module& m, const std::vector<const ir::Kernel*>& kernels) {
            return target.TakesTogether(m, kernels, by_libraries);
          },
      .attention_by_libraries = target.LeavesAttentionToLibraries()};
  EXPECT_EQ(lowering::Lower(*imported, options, module), absl::OkStatus());
  EXPECT_EQ(fusion::Fuse(module, {.plain_operands = true}, nullptr), absl::OkStatus());
  EXPECT_EQ(ir::Verify(module), absl::OkStatus());
  return module;
}

void CheckTrees(ir::Module& module, const std::vector<int64_t>& symbols, double tolerance,
                const std::string& arch, int rank) {
  const auto target = MakePtx(arch, rank);
  std::vector<schedule::Tree> trees;
  for (const ir::Operation& operation : module.operations) {
    auto tree = target->Schedule(module, operation);
    ASSERT_TRUE(tree.ok()) << tree.status();
    ASSERT_EQ(schedule::Verify(module, *tree), absl::OkStatus());
    trees.push_back(*std::move(tree));
  }
  const std::vector<HostTensor> inputs = MakeInputs(module, {.symbols = symbols, .scale = 2});
  const auto expected = ir::Interpret(module, inputs, symbols, {}, {});
  const auto actual = schedule::Interpret(module, trees, inputs, symbols, {});
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(actual.ok()) << actual.status();
  ASSERT_EQ(expected->size(), actual->size());
  for (size_t i = 0; i < expected->size(); ++i) {
    ExpectSame((*actual)[i], (*expected)[i], tolerance, StrCat("output ", i));
  }
}

absl::StatusOr<void*> LibraryForThisMachine(absl::string_view text) {
  const std::string source = absl::StrCat(EmulatedPrelude(), PtxPrelude(), text);
  KILN_ASSIGN_OR_RETURN(const toolchain::ClangOutput output,
                        toolchain::CompileCpp(toolchain::Prepare(
                            toolchain::ClangJob{.source = source, .arch = "x86-64"})));
  KILN_ASSIGN_OR_RETURN(const std::string linked, toolchain::LinkSharedObject({output.object}));
  return LoadLibrary(linked);
}

void Assemble(const std::string& object, const std::string& arch) {
  if (std::system("ptxas --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "there is no ptxas";
  const TempDir folder;
  const std::string path = folder.path() + "/made.ptx";
  std::ofstream(path) << object;
  const std::string command = StrCat("ptxas --warn-on-spills -Werror -arch=", arch, " ", path,
                                     " -o ", path, ".cubin > ", path, ".log 2>&1");
  const int status = std::system(command.c_str());
  std::ifstream file(path + ".log");
  const std::string log(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(status, 0) << log << object;
  // Notes that tensor cores wait for each other: "Potential Performance Loss: wgmma".
  EXPECT_THAT(log, Not(HasSubstr("wgmma"))) << object;
  EXPECT_THAT(log, Not(HasSubstr("setmaxnreg"))) << object;  // "ignored"
}

}  // namespace kiln::codegen
