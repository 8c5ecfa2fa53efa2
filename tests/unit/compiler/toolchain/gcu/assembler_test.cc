#include <algorithm>
#include <random>
#include <set>

#include "compiler/toolchain/gcu/assembly.h"
#include "compiler/toolchain/gcu/binary.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/toolchain/gcu/random_module.h"

namespace kiln::gcu {
namespace {

constexpr char kScale[] = R"(
.gcu 1
.profile gcu-16m
.kernel scale
.arg x l3 read
.arg y l3 write
.arg n int
.l1 4096
.l2 0
  arg s8, 0          ; the first byte of x
  li s9, 0x400
again:
  tile t0, l3.f32.1, s8
  dimi t0, 0, s9, -1
  jlt s8, s9, again
  halt
.end
)";

std::string ErrorOf(absl::string_view text) {
  return std::string(Assemble(text).status().message());
}

// `kScale` with one piece replaced.
std::string With(const std::string& piece, const std::string& other) {
  std::string text = kScale;
  const size_t at = text.find(piece);
  EXPECT_NE(at, text.npos) << piece;
  return text.replace(at, piece.size(), other);
}

TEST(GcuTableTest, CodesAscendAndNamesAreUnique) {
  std::set<std::string> names;
  int last = -1;
  for (const OpInfo& info : AllOps()) {
    EXPECT_GT(static_cast<int>(info.op), last) << info.mnemonic;
    last = static_cast<int>(info.op);
    EXPECT_TRUE(names.insert(info.mnemonic).second) << info.mnemonic;
    EXPECT_EQ(FindOp(static_cast<uint16_t>(info.op))->mnemonic,
              FindOp(absl::string_view(info.mnemonic))->mnemonic);
    const std::string operands = info.operands;
    EXPECT_EQ(operands.find_first_not_of("SRDTCNKAILM"), operands.npos) << info.mnemonic;
    EXPECT_LE(operands.size() - std::count(operands.begin(), operands.end(), 'I') -
                  std::count(operands.begin(), operands.end(), 'L') -
                  std::count(operands.begin(), operands.end(), 'M'),
              8U);
  }
  EXPECT_EQ(FindOp(2), &AllOps()[2]);
  EXPECT_EQ(FindOp(20), nullptr);
  EXPECT_EQ(FindOp("v.nothing"), nullptr);
}

TEST(GcuAssemblerTest, ReadsATextAndPrintsItsLabels) {
  const absl::StatusOr<Module> module = Assemble(kScale);
  ASSERT_TRUE(module.ok()) << module.status();
  ASSERT_EQ(module->kernels.size(), 1U);
  const Kernel& kernel = module->kernels[0];
  EXPECT_EQ(kernel.arguments.size(), 3U);
  EXPECT_EQ(kernel.l1_bytes, 4096U);
  ASSERT_EQ(kernel.instructions.size(), 6U);
  EXPECT_EQ(kernel.instructions[1].immediate, 1024);
  EXPECT_EQ(TileTypeText(kernel.instructions[2].modifier), "l3.f32.1");
  EXPECT_EQ(kernel.instructions[3].immediate, -1);
  EXPECT_EQ(kernel.instructions[4].immediate, 2);
  EXPECT_NE(Disassemble(*module).find("L0:\n  tile t0, l3.f32.1, s8\n"), std::string::npos);
}

TEST(GcuAssemblerTest, ErrorsNameLineAndExpectation) {
  const std::pair<std::string, std::string> cases[] = {
      {With("li s9, 0x400", "lo s9, 4"), "line 11: unknown instruction lo"},
      {With("li s9, 0x400", "li s9"), "line 11: li takes 2 operands, got 1"},
      {With("li s9, 0x400", "li s9, four"), "line 11: expected a number, got 'four'"},
      {With("li s9, 0x400", "li s9, 99999999999999999999"),
       "line 11: expected a number, got '99999999999999999999'"},
      {With("li s9, 0x400", "li t9, 4"), "line 11: expected a register s0 and up, got 't9'"},
      {With("li s9, 0x400", "li s64, 4"),
       "kernel scale: instruction 1 has 64 as operand 'S', of which there are 64"},
      {With("l3.f32.1, s8", "l4.f32.1, s8"),
       "line 13: expected a tile's type as l1.f32.2, got 'l4.f32.1'"},
      {With("l3.f32.1, s8", "l3.f32.5, s8"),
       "line 13: expected a tile's type as l1.f32.2, got 'l3.f32.5'"},
      {With("s9, again", "s9, never"),
       "line 17: label never of line 15 stands before no instruction"},
      {With("  halt", "again:\n  halt"), "line 16: label again stands twice in its kernel"},
      {With("  halt\n", ""), "kernel scale: does not end with halt, jmp or trap"},
      {With(".end", ""), "line 18: kernel scale has no .end"},
      {With(".profile gcu-16m", ".profile gcu-1"), "there is no profile 'gcu-1'"},
      {With(".profile gcu-16m\n", ""), "line 17: there is no .profile"},
      {With(".gcu 1", ".gcu 2"), "line 2: this is an assembler of .gcu 1"},
      {With(".l1 4096", ".l1 4097000"), "kernel scale: takes more L1 or L2 than the profile has"},
      {With(".l1 4096", ".l1 -1"), "line 8: expected a number of bytes, got -1"},
      {With(".l2 0", ".l3 0"), "line 9: unknown directive .l3"},
      {With("x l3 read", "x l3"),
       "line 5: expected .arg NAME, and l3 or l2 with read, write or readwrite, or int, or bits"},
      {With("y l3 write", "x l3 write"), "kernel scale: arguments 0 and 1 have one name"},
      {With(".kernel scale", ""), "line 5: .arg is outside of a kernel"},
      {"halt", "line 1: an instruction is outside of a kernel"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(ErrorOf(text), message);
}

TEST(GcuAssemblerTest, EveryInstructionSurvivesTextAndBinary) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Module module = RandomModule(random);
    ASSERT_TRUE(Verify(module).ok()) << Verify(module);
    const absl::StatusOr<Module> read = Assemble(Disassemble(module));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, module);
    const absl::StatusOr<std::string> binary = Encode(module);
    ASSERT_TRUE(binary.ok()) << binary.status();
    const absl::StatusOr<Module> decoded = Decode(*binary);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, module);
  }
}

TEST(GcuBinaryTest, NoOtherBytesAreTaken) {
  const std::string binary = *Encode(*Assemble(kScale));
  for (size_t size = 0; size < binary.size(); ++size)
    EXPECT_FALSE(Decode(binary.substr(0, size)).ok()) << size;
  EXPECT_FALSE(Decode(binary + '\0').ok());
  for (size_t at = 0; at < binary.size(); ++at) {
    for (int change : {1, 0x80, 0xff}) {
      std::string changed = binary;
      changed[at] = static_cast<char>(changed[at] ^ change);
      EXPECT_FALSE(Decode(changed).ok()) << at;
    }
  }
}

}  // namespace
}  // namespace kiln::gcu
