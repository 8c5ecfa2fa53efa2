#include "compiler/codegen/ptx/product_shapes.h"

#include <vector>

#include "compiler/codegen/ptx/product_printer.h"
#include "compiler/codegen/ptx/wgmma.h"
#include "compiler/codegen/source/kernel_text.h"
#include "compiler/schedule/ptx/few_rows.h"
#include "compiler/schedule/ptx/product.h"
#include "compiler/schedule/ptx/warp_tiles.h"

namespace kiln::codegen::ptx {
namespace {

using schedule::MicroKind;
using schedule::ptx::RowsShape;
using schedule::ptx::WarpTiles;
using source::Writer;

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
  out.AppendText(InstructionText(
      "Instruction", {.type = shape.is_half ? "f16" : "bf16",
                      .columns = c[1],
                      .depth = schedule::ptx::kProductStep,
                      .first = shape.is_turned_a ? FirstOperand::kTurned : FirstOperand::kShared,
                      .is_second_turned = shape.is_turned_b}));
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
