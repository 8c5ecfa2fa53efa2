#include "compiler/ir/parse.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify.h"
#include "gmock/gmock.h"
#include "tests/unit/compiler/ir/module_texts.h"

namespace kiln::ir {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view text) {
  absl::StatusOr<Module> module = Parse(text);
  EXPECT_FALSE(module.ok()) << "parsed: " << text;
  if (module.ok()) return "";
  EXPECT_EQ(module.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(module.status().message());
}

std::string Repeat(absl::string_view s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) absl::StrAppend(&out, s);
  return out;
}

TEST(ParseTest, ReadsFieldsOfEveryKind) {
  const Module m = ParseForTest(kEveryConstruct);
  ASSERT_EQ(m.buffers.size(), 9u);
  EXPECT_EQ(m.buffers[2].dtype, DType::kBF16);
  EXPECT_EQ(m.buffers[2].kind, BufferKind::kConstant);
  EXPECT_EQ(m.buffers[5].name, "odd name\n");
  ASSERT_EQ(m.operations.size(), 3u);
  const Kernel& gather = std::get<Kernel>(m.operations[1]);
  EXPECT_EQ(gather.num_values, 15);
  const Inst& load = gather.phases[0].body[1];
  EXPECT_EQ(load.indices[0].kind(), IntKind::kIndirect);
  EXPECT_EQ(load.indices[0].extent(), m.buffers[2].sizes[0]);
  const Inst& masked = gather.phases[0].body[8];
  EXPECT_TRUE(masked.has_mask);
  EXPECT_EQ(masked.operands, std::vector<ValueId>{7});
  const Library& library = std::get<Library>(m.operations[2]);
  ASSERT_EQ(library.args.size(), 8u);
  EXPECT_EQ(std::get<LibraryArgs>(library.args[3].value).size(), 4u);
  EXPECT_EQ(library.args[5].name, "scale");
  EXPECT_EQ(std::get<double>(library.args[5].value), 0.1);
  EXPECT_EQ(std::get<std::complex<double>>(library.args[6].value).real(), 0.5);
  EXPECT_EQ(library.positions, (std::vector<int>{0, 2}));
  ASSERT_EQ(m.outputs.size(), 3u);
  EXPECT_EQ(std::get<BufferWindow>(m.outputs[0].value).buffer, 6);
}

TEST(ParseTest, CommentsAndLayoutDoNotCount) {
  const std::string spread = absl::StrReplaceAll(kEveryConstruct, {{"{\n", "// note\n{ // {\n\n"}});
  EXPECT_EQ(Print(ParseForTest(spread)), std::string(kEveryConstruct));
}

TEST(ParseTest, ErrorsNameTheLine) {
  EXPECT_EQ(ErrorOf(""), "line 1: expected 'module', found the end of the text");
  EXPECT_EQ(
      ErrorOf("module {\n\n  bufer"),
      "line 3: expected 'symbol', 'buffer', 'kernel', 'repeat', 'library', 'output' or '}', found "
      "'bufer'");
  EXPECT_THAT(ErrorOf("module {\n  buffer @x f33[] strides[] temp }"),
              HasSubstr("line 2: expected an element type, found 'f33'"));
  EXPECT_THAT(ErrorOf("module { output @x sizes[] }"), HasSubstr("no buffer @x"));
  EXPECT_THAT(ErrorOf("module { output int s9 }"), HasSubstr("'s9' is in scope"));
  EXPECT_THAT(ErrorOf("module { output int floordiv(1, 0) }"), HasSubstr("division by zero"));
  EXPECT_THAT(ErrorOf("module { output int 99999999999999999999 }"), HasSubstr("64-bit"));
  EXPECT_THAT(ErrorOf("module { output int [%0] }"), HasSubstr("in a load or store only"));
  EXPECT_THAT(ErrorOf("module { } module"), HasSubstr("the end of the text"));
  EXPECT_THAT(ErrorOf("module { library \"a\n\" }"), HasSubstr("does not end on its line"));
  EXPECT_THAT(ErrorOf("module { # }"), HasSubstr("unexpected character with code 35"));
}

TEST(ParseTest, NamesAreDeclaredOnce) {
  EXPECT_THAT(ErrorOf("module { symbol s [0, 1] hint 0 symbol s [0, 1] hint 0 }"),
              HasSubstr("symbol s is declared twice"));
  EXPECT_THAT(ErrorOf("module { buffer @x f32[] strides[] temp buffer @x f32[] strides[] temp }"),
              HasSubstr("buffer @x is declared twice"));
  EXPECT_THAT(ErrorOf("module { symbol s [2, 1] hint 0 }"), HasSubstr("empty range"));
}

TEST(ParseTest, LoopVariablesEndWithTheirBlock) {
  EXPECT_THAT(ErrorOf("module { kernel @k (d0: 2) { phase (r0: 2) { } phase () "
                      "{ %0 = index i64 r0 } } }"),
              HasSubstr("'r0' is in scope"));
  EXPECT_THAT(ErrorOf("module { kernel @k (d0: 2, d1: d0) { } }"), HasSubstr("'d0' is in scope"));
  EXPECT_THAT(ErrorOf("module { kernel @k (d0: 2) { } output int d0 }"),
              HasSubstr("'d0' is in scope"));
}

TEST(ParseTest, HostileTextIsBounded) {
  EXPECT_THAT(ErrorOf("module { output int " + Repeat("(", 100000)), HasSubstr("too deep"));
  EXPECT_THAT(ErrorOf("module { output int " + Repeat("-", 100000)), HasSubstr("too "));
  EXPECT_THAT(ErrorOf("module { output int " + Repeat("1+", 100000)), HasSubstr("too long"));
  EXPECT_THAT(ErrorOf("module { library \"a\" (" + Repeat("[", 100000)), HasSubstr("too deep"));
  EXPECT_THAT(ErrorOf("module { buffer @x f32[" + Repeat("1,", 100000)), HasSubstr("too many"));
  EXPECT_THAT(ErrorOf("module { kernel @k () { phase () { %99999999 = const f32 0 } } }"),
              HasSubstr("values are numbered below"));
}

// Random damage to a legal text: whatever comes out is an error or a module that can be verified
// and whose text reads back.
TEST(ParseTest, DamagedTextNeverCrashes) {
  constexpr unsigned kSeed = 20260101;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937 random(kSeed);
  const std::string original(kEveryConstruct);
  const std::string pieces = "()[]{}%@\"-+*=,<.:0123456789 \nabdrs";
  int parsed = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = original;
    for (unsigned edits = random() % 3 + 1; edits > 0; --edits) {
      const size_t at = random() % text.size();
      const size_t length = std::min<size_t>(random() % 4, text.size() - at);
      text.replace(at, length,
                   random() % 3 ? std::string(1, pieces[random() % pieces.size()])
                                : text.substr(random() % text.size(), 6));
    }
    absl::StatusOr<Module> module = Parse(text);
    if (!module.ok()) continue;
    ++parsed;
    Verify(*module).IgnoreError();  // either answer is right
    const std::string printed = Print(*module);
    absl::StatusOr<Module> back = Parse(printed);
    ASSERT_TRUE(back.ok()) << back.status() << "\n" << printed;
    ASSERT_EQ(Print(*back), printed);
  }
  EXPECT_GT(parsed, 30);
}

}  // namespace
}  // namespace kiln::ir
