// Target ptx: equal kernels as one launch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/identity.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/parse.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::HasSubstr;
using ::testing::Not;

// `count` kernels of that text, each with buffers of its own in the place of @x, @y and @s.
std::string Module(int count, const std::string& buffers, const std::string& kernel,
                   const std::string& outputs) {
  const auto each = [&](const std::string& text) {
    std::string all;
    for (int i = 0; i < count; ++i) {
      all += absl::StrReplaceAll(text, {{"@x", StrCat("@x", i)},
                                        {"@y", StrCat("@y", i)},
                                        {"@s", StrCat("@s", i)},
                                        {"@k", StrCat("@k", i)},
                                        {"INPUT", StrCat("input(", i, ")")}});
    }
    return all;
  };
  return StrCat("module {\n", each(buffers), each(kernel), each(outputs), "}\n");
}

// An update of each element, a step of each tensor.
std::string Updates(int count, const std::string& type, int size) {
  return absl::StrReplaceAll(Module(count,
                                    "buffer @x TYPE[SIZE] strides[1] INPUT\n"
                                    "buffer @y TYPE[SIZE] strides[1] output\n"
                                    "buffer @s f32[] strides[] output\n",
                                    R"(
  kernel @k () {
    phase () {
      %0 = const f32 0.5
      %1 = pow f32 %0, %0
      store f32 @s[], %1
    }
    phase (r0: SIZE) {
      %2 = load TYPE @x[r0]
      %3 = cast f32 %2
      %4 = mul f32 %3, %1
      %5 = cast TYPE %4
      store TYPE @y[r0], %5
    }
  }
)",
                                    "output @y sizes[SIZE] strides[1] offset 0\n"
                                    "output @s sizes[] strides[] offset 0\n"),
                             {{"TYPE", type}, {"SIZE", StrCat(size)}});
}

// Rows less their mean, which threads meet for.
std::string Rows(int count, int rows, int columns) {
  return absl::StrReplaceAll(Module(count,
                                    "buffer @x f32[ROWS,COLUMNS] strides[COLUMNS,1] INPUT\n"
                                    "buffer @y f32[ROWS,COLUMNS] strides[COLUMNS,1] output\n",
                                    R"(
  kernel @k (d0: ROWS) {
    phase (r0: COLUMNS) {
      %0 = load f32 @x[d0, r0]
      %1 = reduce.sum f32 %0
    }
    phase () {
      %2 = const f32 0.001
      %3 = mul f32 %1, %2
    }
    phase (r0: COLUMNS) {
      %4 = load f32 @x[d0, r0]
      %5 = sub f32 %4, %3
      store f32 @y[d0, r0], %5
    }
  }
)",
                                    "output @y sizes[ROWS,COLUMNS] strides[COLUMNS,1] offset 0\n"),
                             {{"ROWS", StrCat(rows)}, {"COLUMNS", StrCat(columns)}});
}

// By the emulator, against the interpreter's kernels one after another.
void CheckTogether(const std::string& text) {
  absl::StatusOr<ir::Module> module = ir::Parse(text);
  ASSERT_TRUE(module.ok()) << module.status() << text;
  const std::vector<HostTensor> inputs = MakeInputs(*module, {});
  const auto expected = ir::Interpret(*module, inputs, {}, {});
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto native = NativeModule::Build(*module, TestDevice(kPtxIsa), /*together=*/true);
  ASSERT_TRUE(native.ok()) << native.status();
  ASSERT_EQ((*native)->kernels().size(), 1);
  const auto actual = (*native)->Run(inputs, {}, 1);
  ASSERT_TRUE(actual.ok()) << actual.status();
  ASSERT_EQ(actual->size(), expected->size());
  for (size_t i = 0; i < actual->size(); ++i) {
    ExpectSame((*actual)[i], (*expected)[i], 2e-5, StrCat("output ", i));
  }
}

TEST(PtxTogetherTest, EachBlockRunsItsCopy) {
  for (const std::string type : {"f32", "bf16", "f16"}) {
    SCOPED_TRACE(type);
    CheckTogether(Updates(2, type, 768));
    CheckTogether(Updates(37, type, 100));
  }
  CheckTogether(Rows(3, 5, 1000));
  CheckTogether(Rows(5, 70, 40));
}

TEST(PtxTogetherTest, ParametersAreGlobalMemoryAndLoadsComeBeforeStores) {
  ir::Module module = *ir::Parse(Updates(40, "bf16", 768));
  const std::vector<ir::Identity> identities = ir::Identify(module);
  std::vector<BufferMap> copies(identities.size());
  for (size_t copy = 0; copy < copies.size(); ++copy) {
    for (size_t i = 0; i < identities[0].buffers.size(); ++i) {
      copies[copy][identities[0].buffers[i]] = identities[copy].buffers[i];
    }
  }
  const auto target = MakePtx();
  const auto tree = target->Schedule(module, module.operations[0]);
  ASSERT_TRUE(tree.ok()) << tree.status();
  auto emitted = target->PrintTogether(module, *tree, copies);
  ASSERT_TRUE(emitted.ok() && *emitted) << emitted.status();
  EXPECT_EQ((*emitted)->buffers.size(), 120);
  const std::string source =
      StrCat(absl::StrReplaceAll((*emitted)->source, {{kSymbolPlaceholder, "together"}}),
             target->InterfaceText("scratch_bytes {}", 1));
  const auto compiled = target->Compile({.source = source});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_THAT(compiled->object, HasSubstr("ld.global"));
  EXPECT_THAT(compiled->object, Not(HasSubstr("\tld.v")));  // not of any memory
  EXPECT_THAT(compiled->object, Not(HasSubstr("\tst.v")));
  EXPECT_THAT(compiled->object, Not(HasSubstr(".local")));
}

}  // namespace
}  // namespace kiln::codegen
