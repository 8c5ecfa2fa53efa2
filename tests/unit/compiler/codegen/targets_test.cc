// What every target of the list keeps to, and target null.
#include "compiler/codegen/targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/verify.h"
#include "compiler/schedule/parse.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/target_name.h"

namespace kiln::codegen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ir::Module Parsed(absl::string_view text) {
  absl::StatusOr<ir::Module> module = ir::Parse(text);
  EXPECT_TRUE(module.ok()) << module.status();
  const absl::Status verified = ir::Verify(*module);
  EXPECT_TRUE(verified.ok()) << verified;
  return *std::move(module);
}

const ir::Kernel& KernelOf(const ir::Module& module, size_t i = 0) {
  return std::get<ir::Kernel>(module.operations[i]);
}

std::unique_ptr<Target> Make(const TargetKind& kind) {
  auto target = kind.make(kind.sample_device);
  EXPECT_TRUE(target.ok()) << target.status();
  return *std::move(target);
}

std::unique_ptr<Target> MakeNull() {
  return Make(**FindTarget("null"));
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const TargetKind& kind : Targets()) names.emplace_back(kind.name);
  return names;
}

class EveryTarget : public ::testing::TestWithParam<std::string> {
 protected:
  const TargetKind& kind() const { return **FindTarget(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Targets, EveryTarget, ::testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryTarget, HasTheNameOfItsNumberInTheWireFormat) {
  EXPECT_NE(TargetNumber(GetParam()), v1::TARGET_UNSPECIFIED);
  EXPECT_EQ(Make(kind())->name(), GetParam());
}

TEST_P(EveryTarget, CompilesAndLinksItsSample) {
  const auto target = Make(kind());
  ASSERT_TRUE(target->PrepareToCompile({}).ok());
  auto compiled = target->Compile({.source = kind().sample_source});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_FALSE(compiled->object.empty());
  auto linked = target->Link({compiled->object});
  ASSERT_TRUE(linked.ok()) << linked.status();
  ASSERT_FALSE(linked->empty());
  for (const Binary& binary : *linked) {
    EXPECT_FALSE(binary.data.empty());
    // An older client would load what is number 0 as a shared object.
    EXPECT_EQ(binary.number == 0, binary.kind == BinaryKind::kSharedObject);
  }
}

TEST_P(EveryTarget, EmitsAKernelThatItCompilesToABinaryThatItLinks) {
  const auto target = Make(kind());
  ir::Module module = Parsed(R"(module {
    symbol n [1, 100] hint 8
    buffer @x f32[n] strides[1] input(0)
    buffer @y f32[n] strides[1] output
    kernel @relu (d0: n) from "relu" {
      phase () {
        %0 = load f32 @x[d0]
        %1 = const f32 0
        %2 = max f32 %0, %1
        store f32 @y[d0], %2
      }
    }
    output @y sizes[n] strides[1] offset 0
  })");
  auto emitted = target->Emit(module, KernelOf(module));
  ASSERT_TRUE(emitted.ok()) << emitted.status();
  EXPECT_THAT(emitted->source, HasSubstr(std::string(kSymbolPlaceholder)));
  EXPECT_THAT(emitted->buffers, ElementsAre(0, 1));
  EXPECT_THAT(emitted->symbols, ElementsAre(0));
  const std::string source = absl::StrReplaceAll(
      absl::StrCat(emitted->source, target->InterfaceText("buffers { }", emitted->binary)),
      {{kSymbolPlaceholder, "kiln_relu"}});
  auto compiled = target->Compile({.source = source});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  std::vector<std::string> objects = {compiled->object};
  for (const Routine& routine : emitted->routines) {
    auto object = target->Compile({.source = routine.source});
    ASSERT_TRUE(object.ok()) << routine.name << ": " << object.status();
    objects.push_back(object->object);
  }
  auto linked = target->Link(objects);
  ASSERT_TRUE(linked.ok()) << linked.status();
  bool has_its_binary = false;
  for (const Binary& binary : *linked) has_its_binary |= binary.number == emitted->binary;
  EXPECT_TRUE(has_its_binary);
}

TEST_P(EveryTarget, KeysFollowTheSourceAndWhoCompilesIt) {
  std::set<Digest> keys;
  for (const TargetKind& each : Targets()) {
    keys.insert(Make(each)->KeyOf({.source = kind().sample_source}));
  }
  EXPECT_EQ(keys.size(), Targets().size()) << "two targets have one key";
  EXPECT_TRUE(keys.insert(Make(kind())->KeyOf({.source = "another"})).second);
}

TEST(Targets, AnotherTargetIsRefusedWithWhatThereIs) {
  const absl::Status status = FindTarget("tpu").status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no target tpu; it has cpp, gcu, null"));
}

TEST(NullTarget, HasOneArchitecture) {
  const TargetKind& kind = **FindTarget("null");
  DeviceInfo device;
  device.arch = "znver4";
  EXPECT_TRUE(absl::IsInvalidArgument(kind.make(device).status()));
}

constexpr absl::string_view kTwoEqualKernels = R"(module {
  buffer @x f32[8,4] strides[4,1] input(0)
  buffer @first f32[8] strides[1] temp
  buffer @w f32[8,4] strides[4,1] input(1)
  buffer @second f32[8] strides[1] output
  kernel @one (d0: 8) from "sum_1" {
    phase (r0: 4) {
      %0 = load f32 @x[d0, r0]
      %1 = reduce.sum f32 %0
    }
    phase () {
      store f32 @first[d0], %1
    }
  }
  kernel @two (d0: 8) from "sum_2" {
    phase (r0: 4) {
      %0 = load f32 @w[d0, r0]
      %1 = reduce.sum f32 %0
    }
    phase () {
      store f32 @second[d0], %1
    }
  }
  output @second sizes[8] strides[1] offset 0
})";

TEST(NullTarget, EqualKernelsOverOtherBuffersHaveOneText) {
  ir::Module module = Parsed(kTwoEqualKernels);
  const auto target = MakeNull();
  const auto one = target->Emit(module, KernelOf(module, 0));
  const auto two = target->Emit(module, KernelOf(module, 1));
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->source, two->source);
  EXPECT_THAT(one->buffers, ElementsAre(0, 1));
  EXPECT_THAT(two->buffers, ElementsAre(2, 3));
  EXPECT_THAT(one->source, Not(HasSubstr("sum_1")));
  // The module was lent.
  EXPECT_TRUE(ir::Verify(module).ok());
}

TEST(NullTarget, ASourceIsAModuleOfOneKernel) {
  ir::Module module = Parsed(kTwoEqualKernels);
  const auto emitted = MakeNull()->Emit(module, KernelOf(module));
  ASSERT_TRUE(emitted.ok()) << emitted.status();
  const auto parsed = schedule::Parse(emitted->source);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->trees.size(), 1u);
  EXPECT_EQ(parsed->trees[0].name, kSymbolPlaceholder);
  const ir::Module& read = parsed->module;
  ASSERT_EQ(read.buffers.size(), 2u);
  EXPECT_EQ(read.buffers[0].kind, ir::BufferKind::kInput);
  EXPECT_EQ(read.buffers[1].kind, ir::BufferKind::kOutput);
  EXPECT_EQ(read.outputs.size(), 1u);
}

TEST(NullTarget, CompilesNothingButOneKernelsText) {
  const auto target = MakeNull();
  const std::vector<absl::string_view> sources = {"", "int main() {}", "module {\n}\n",
                                                  kTwoEqualKernels};
  for (absl::string_view source : sources) {
    EXPECT_TRUE(absl::IsInternal(target->Compile({.source = source}).status())) << source;
  }
}

TEST(NullTarget, TheIndexOfWhatIsLinkedSaysWhereEachKernelIs) {
  const auto target = MakeNull();
  ir::Module module = Parsed(kTwoEqualKernels);
  const auto emitted = target->Emit(module, KernelOf(module));
  ASSERT_TRUE(emitted.ok()) << emitted.status();
  std::vector<std::string> objects;
  for (const char* name : {"kiln_a", "kiln_b"}) {
    auto compiled = target->Compile(
        {.source = absl::StrReplaceAll(emitted->source, {{kSymbolPlaceholder, name}})});
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    objects.push_back(compiled->object);
  }
  auto linked = target->Link(objects);
  ASSERT_TRUE(linked.ok()) << linked.status();
  ASSERT_EQ(linked->size(), 1u);
  const std::string& data = linked->front().data;
  const size_t index_end = data.find("\n\n");
  ASSERT_NE(index_end, std::string::npos);
  const std::vector<std::string> lines = absl::StrSplit(data.substr(0, index_end), '\n');
  ASSERT_EQ(lines.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<std::string> words = absl::StrSplit(lines[i], ' ');
    ASSERT_EQ(words.size(), 4u) << lines[i];
    EXPECT_EQ(words[1], i == 0 ? "kiln_a" : "kiln_b");
    size_t offset = 0, size = 0;
    ASSERT_TRUE(absl::SimpleAtoi(words[2], &offset) && absl::SimpleAtoi(words[3], &size));
    EXPECT_EQ(data.substr(index_end + 2 + offset, size), objects[i]);
  }
  EXPECT_TRUE(absl::IsInternal(target->Link({"an object of another kind"}).status()));
}

}  // namespace
}  // namespace kiln::codegen
