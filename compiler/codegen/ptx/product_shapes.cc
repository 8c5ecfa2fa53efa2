#include "compiler/codegen/ptx/product_shapes.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/ptx/product_printer.h"
#include "compiler/codegen/source/kernel_text.h"
#include "compiler/schedule/ptx/few_rows.h"
#include "compiler/schedule/ptx/warp_tiles.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using schedule::MicroKind;
using schedule::ptx::RowsShape;
using schedule::ptx::WarpTiles;
using source::Writer;

// wgmma of 64 rows: every sum is an operand, and of the wait for it too, so that none moves.
std::string InstructionText(int columns, bool is_half) {
  const int count = columns / 2;
  const absl::string_view type = is_half ? "f16" : "bf16";
  std::string registers, operands;
  for (int i = 0; i < count; ++i) {
    StrAppend(&registers, i > 0 ? ", " : "", "%", i);
    StrAppend(&operands, i > 0 ? ", " : "", "\"+f\"(d[", i, "])");
  }
  Writer out;
  out.Line("struct Instruction {");
  out.Line("template <int kTurnedA, int kTurnedB>");
  out.Line("KILN_FN void Multiply(float (&d)[", count,
           "], unsigned long a, unsigned long b, int adds) {");
  out.Line("asm volatile(\"{.reg .pred p; setp.ne.b32 p, %", count + 2, ", 0;\\n\"");
  out.Line("\"wgmma.mma_async.sync.aligned.m64n", columns, "k16.f32.", type, ".", type, " {",
           registers, "}, %", count, ", %", count + 1, ", p, 1, 1, %", count + 3, ", %", count + 4,
           ";}\"");
  out.Line(": ", operands);
  out.Line(": \"l\"(a), \"l\"(b), \"r\"(adds), \"n\"(kTurnedA), \"n\"(kTurnedB));");
  out.Line("}");
  out.Line("KILN_FN void Wait(float (&d)[", count, "]) {");
  out.Line("asm volatile(\"wgmma.wait_group.sync.aligned 0;\" : ", operands, " : : \"memory\");");
  out.Line("}");
  out.Line("};");
  return out.text();
}

// What prelude_sums.inc.h takes, but for tiles.
void PrintFinish(const ProductShape& shape, Writer& out) {
  out.Line("static constexpr int kAtOnce = ", shape.at_once, ";");
  out.Line("static constexpr bool kShort = ", Truth(shape.waits_short),
           ", kWhole = ", Truth(shape.is_whole), ", kRagged = ", Truth(shape.is_ragged),
           ", kByBlocks = ", Truth(shape.stores_matrices), ";");
}

// The instruction and what KProduct is made for.
void PrintTileShape(const ProductShape& shape, Writer& out) {
  const std::vector<int>& c = shape.micro.constants;
  out.AppendText(InstructionText(c[1], shape.is_half));
  out.Line("struct Shape {");
  out.Line("static constexpr int kRows = ", c[0], ", kColumns = ", c[1], ", kStages = ", c[2],
           ", kCluster = ", c[4], ";");
  out.Line("static constexpr bool kTurns = ", Truth(c[3] == 1),
           ", kTurnedA = ", Truth(shape.is_turned_a), ", kTurnedB = ", Truth(shape.is_turned_b),
           ";");
  out.Line("static constexpr bool kManyRegisters = ", Truth(shape.has_many_sums), ";");
  PrintFinish(shape, out);
  out.Line("using Mma = Instruction;");
  out.Line("};");
}

// What KProductOfRows is made for.
void PrintRowsShape(const ProductShape& shape, Writer& out) {
  const RowsShape rows = RowsShape::FromConstants(shape.micro.constants);
  out.Line("struct Shape {");
  out.Line("static constexpr int kRows = ", rows.rows, ", kColumns = ", rows.columns,
           ", kOfWarp = ", rows.of_warp, ", kGroups = ", rows.groups, ", kBoxes = ", rows.boxes,
           ";");
  out.Line("static constexpr int kStages = ", rows.stages, ", kCluster = ", rows.cluster,
           ", kBits = ", shape.weight_bits, ", kInner = ", rows.inner, ", kGroup = ", rows.group,
           ";");
  out.Line("static constexpr bool kHalf = ", Truth(shape.is_half), ";");
  PrintFinish(shape, out);
  out.Line("};");
}

// What KProductByWarps is made for.
void PrintWarpShape(const ProductShape& shape, Writer& out) {
  const WarpTiles tiles = WarpTiles::FromConstants(shape.micro.constants);
  out.Line("struct Shape {");
  out.Line("static constexpr int kRows = ", tiles.rows, ", kColumns = ", tiles.columns,
           ", kWarpRows = ", tiles.warp_rows, ", kWarpColumns = ", tiles.warp_columns, ";");
  out.Line("static constexpr int kStages = ", tiles.stages, ", kStep = ", tiles.step,
           ", kCluster = 1;");
  out.Line("static constexpr bool kTurnedA = ", Truth(shape.is_turned_a),
           ", kTurnedB = ", Truth(shape.is_turned_b), ", kHalf = ", Truth(shape.is_half), ";");
  out.Line("static constexpr bool kWholeA = ", Truth(shape.is_whole_a),
           ", kWholeB = ", Truth(shape.is_whole_b), ";");
  PrintFinish(shape, out);
  out.Line("};");
}

}  // namespace

std::string ShapeText(const ProductShape& shape) {
  Writer out;
  switch (shape.micro.kind) {
    case MicroKind::kMultiplyRows:
      PrintRowsShape(shape, out);
      break;
    case MicroKind::kMultiplyWarps:
      PrintWarpShape(shape, out);
      break;
    default:
      PrintTileShape(shape, out);
  }
  return out.text();
}

}  // namespace kiln::codegen::ptx
