#include "compiler/codegen/ptx/wgmma.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/source/kernel_text.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using source::Writer;

// "%3, %4", within a string of the source. To find where it names an operand, Clang reads the
// string literal that it is in from its beginning, so a long list is many short ones, side by side:
// all in one took a seventh of a kernel's time there.
std::string Registers(int first, int count) {
  constexpr int kAtOnce = 4;
  std::string names;
  for (int i = 0; i < count; ++i) {
    if (i > 0) StrAppend(&names, i % kAtOnce == 0 ? ", \"\"" : ", ");
    StrAppend(&names, "%", first + i);
  }
  return names;
}

}  // namespace

std::string InstructionText(absl::string_view name, const SumsOfTile& tile) {
  const bool has_registers = tile.first == FirstOperand::kRegisters;
  const int count = tile.columns / 2, steps = tile.depth / 16;
  const int second = count + (has_registers ? 4 * steps : 1);  // which operand it is
  std::vector<std::string> operands, factors;
  for (int i = 0; i < count; ++i) operands.push_back(StrCat("\"+f\"(d[", i, "])"));
  for (int i = 0; i < 4 * steps; ++i) factors.push_back(StrCat("\"r\"(a[", i, "])"));
  const std::string sums = absl::StrJoin(operands, ", ");
  // What 16 elements of the depth are apart, in the descriptors' units of 16 bytes: in a tile that
  // is contiguous along it, 64 of them are a box of so many rows.
  const auto along = [](int step, int rows) { return step / 4 * (rows * 8) + step % 4 * 2; };
  const auto across = [](int step) { return step * 128; };
  Writer out;
  out.Line("struct ", name, " {");
  out.Line("KILN_FN void Multiply(float (&d)[", count, "], ",
           has_registers ? StrCat("const unsigned (&a)[", 4 * steps, "]") : "unsigned long a",
           ", unsigned long b, int adds) {");
  out.Line("asm volatile(\"{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %", second + 1,
           ", 0;\\n\"");
  for (int step = 0; step < steps; ++step) {
    std::string a =
        has_registers ? StrCat("{", Registers(count + 4 * step, 4), "}") : StrCat("%", count);
    std::string b = StrCat("%", second);
    if (step > 0) {
      if (!has_registers) {
        const bool is_turned = tile.first == FirstOperand::kTurned;
        out.Line("\"add.s64 a, ", a, ", ", is_turned ? across(step) : along(step, tile.rows),
                 ";\\n\"");
        a = "a";
      }
      out.Line("\"add.s64 b, ", b, ", ",
               tile.is_second_turned ? across(step) : along(step, tile.columns), ";\\n\"");
      b = "b";
      if (step == 1) out.Line("\"setp.eq.b32 p, 0, 0;\\n\"");
    }
    out.Line("\"wgmma.mma_async.sync.aligned.m64n", tile.columns, "k16.f32.", tile.type, ".",
             tile.type, " {", Registers(0, count), "}, ", a, ", ", b, ", p, 1, 1, ",
             has_registers                         ? ""
             : tile.first == FirstOperand::kTurned ? "1, "
                                                   : "0, ",
             tile.is_second_turned ? "1" : "0", ";\\n\"");
  }
  out.Line("\"}\" : ", sums);
  out.Line(": ", has_registers ? absl::StrJoin(factors, ", ") : "\"l\"(a)",
           ", \"l\"(b), \"r\"(adds));");
  out.Line("}");
  if (!tile.has_wait) {
    out.Line("};");
    return out.text();
  }
  out.Line("// Until all but the last kLater groups are done.");
  out.Line("template <int kLater>");
  out.Line("KILN_FN void Wait(float (&d)[", count, "]) {");
  out.Line("asm volatile(\"wgmma.wait_group.sync.aligned %", count, ";\" : ", sums,
           " : \"n\"(kLater) : \"memory\");");
  out.Line("}");
  out.Line("};");
  return out.text();
}

std::string WaitText(absl::string_view name, absl::Span<const int> counts) {
  std::vector<std::string> arrays, operands;
  for (size_t i = 0; i < counts.size(); ++i) {
    arrays.push_back(StrCat("float (&d", i, ")[", counts[i], "]"));
    for (int j = 0; j < counts[i]; ++j) operands.push_back(StrCat("\"+f\"(d", i, "[", j, "])"));
  }
  Writer out;
  out.Line("KILN_FN void ", name, "(", absl::StrJoin(arrays, ", "), ") {");
  out.Line("asm volatile(\"wgmma.wait_group.sync.aligned 0;\" : ", absl::StrJoin(operands, ", "),
           " : : \"memory\");");
  out.Line("}");
  return out.text();
}

}  // namespace kiln::codegen::ptx
