#include "compiler/codegen/ptx/gradients_printer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/ptx/attention_printer.h"
#include "compiler/codegen/ptx/kernel_launch.h"
#include "compiler/codegen/ptx/kernel_printer.h"
#include "compiler/codegen/ptx/product_printer.h"
#include "compiler/codegen/ptx/wgmma.h"
#include "compiler/codegen/source/tree_printer.h"
#include "compiler/schedule/micro.h"
#include "compiler/schedule/ptx/gradients.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using ir::IntExpr;
using schedule::For;
using schedule::Micro;
using schedule::Node;
using schedule::ptx::GradientsTile;
using source::Writer;
using Of = schedule::OfGradients;

constexpr int kLine = 64, kLineOfSums = 32;       // elements of a box along a head
constexpr int kStoredRows = 16, kAddedRows = 64;  // that leave at a time
// Of queries, their gradients and the sums of those whose heads' tiles run at a time: what the
// second-level cache keeps.
constexpr int64_t kCached = 32 << 20;
constexpr int kWaves = 2;  // of tiles that come together, at least: those with few steps end them

class GradientsPrinter : public source::TreePrinter {
 public:
  GradientsPrinter(ir::Module& module, const schedule::Tree& tree, int compute_units)
      : TreePrinter(module, tree),
        compute_units_(compute_units),
        gradients_(*FindMicro(tree, schedule::MicroKind::kAttendGradients)),
        tile_(GradientsTile::FromConstants(gradients_.constants)) {}
  absl::StatusOr<EmittedKernel> Print();

 private:
  void PrintVectorLoop(const For&, Function&) override {}
  void PrintArray(schedule::AllocId, Function&) override {}
  void PrintMicro(const Micro&, Function&) override {}

  IntExpr Along(size_t window, const For& loop) const {
    return ints_.CoefficientOf(gradients_.windows[window].index, loop.var);
  }
  // Elements from one of its heads to the next.
  IntExpr HeadStride(size_t window) const {
    return Of::HasHeads(window) ? gradients_.sizes[Of::HeadStride(window)]
                                : Along(window, *loops_[1]);
  }
  IntExpr First(size_t window) const {
    ir::IntContext::VarMap zeros;
    for (const For* loop : loops_) zeros[loop->var] = ints_.Const(0);
    return ints_.Substitute(gradients_.windows[window].index, zeros);
  }
  IntExpr Heads() const { return ints_.Mul(loops_[1]->end, tile_.of_key); }
  IntExpr Queries() const { return gradients_.sizes[Of::kNumQueries]; }
  IntExpr Keys() const { return loops_[2]->end; }
  EmittedTensorMap MapOf(size_t window, int line, int rows) const;
  std::string ShapeText() const;
  std::string RowsText(size_t window);
  std::string SizesText();

  const int compute_units_;
  const Micro& gradients_;
  const GradientsTile tile_;
  std::vector<const For*> loops_;  // batches, heads of keys, rows of those
};

// Boxes of `rows` rows of a head, of `line` elements each.
EmittedTensorMap GradientsPrinter::MapOf(size_t window, int line, int rows) const {
  const bool has_heads = Of::HasHeads(window);
  EmittedTensorMap map;
  map.buffer = gradients_.windows[window].buffer;
  map.offset = First(window);
  map.sizes = {ints_.Const(tile_.width), has_heads ? Queries() : Keys(),
               has_heads ? Heads() : loops_[1]->end, loops_[0]->end};
  map.strides = {gradients_.sizes[Of::RowStride(window)], HeadStride(window),
                 Along(window, *loops_[0])};
  AllowStrides(map);
  map.box = {line, rows, 1, 1};
  return map;
}

std::string GradientsPrinter::ShapeText() const {
  const bool is_half = module_.buffers[gradients_.windows[Of::kQuery].buffer].dtype == DType::kF16;
  const absl::string_view type = is_half ? "f16" : "bf16";
  Writer out;
  out.AppendText(InstructionText("OfScores", {.type = type,
                                              .columns = tile_.queries,
                                              .depth = tile_.width,
                                              .first = FirstOperand::kShared,
                                              .rows = tile_.kKeys,
                                              .is_second_turned = false}));
  out.AppendText(InstructionText("OfSteps", {.type = type,
                                             .columns = kLine,
                                             .depth = tile_.kKeys,
                                             .first = FirstOperand::kShared,
                                             .rows = tile_.queries,
                                             .is_second_turned = true}));
  out.AppendText(InstructionText("OfSums", {.type = type,
                                            .columns = tile_.width,
                                            .depth = tile_.queries,
                                            .first = FirstOperand::kRegisters,
                                            .is_second_turned = true}));
  out.AppendText(InstructionText("OfSharedSums", {.type = type,
                                                  .columns = tile_.width,
                                                  .depth = tile_.queries,
                                                  .first = FirstOperand::kTurned,
                                                  .is_second_turned = true}));
  out.Line("struct Shape {");
  out.Line("static constexpr int kHead = ", tile_.width, ", kGroups = ", tile_.kGroups,
           ", kQueries = ", tile_.queries, ", kStages = ", tile_.stages, ";");
  out.Line("static constexpr bool kCausal = ", Truth(tile_.is_causal), ", kHalf = ", Truth(is_half),
           ";");
  out.Line("using Scores = OfScores;");
  out.Line("using Steps = OfSteps;");
  out.Line("using Sums = OfSums;");
  out.Line("using SharedSums = OfSharedSums;");
  out.Line("};");
  return out.text();
}

// What gives a row's number of a window without lanes.
std::string GradientsPrinter::RowsText(size_t window) {
  return StrCat("[&](long batch, long head, long row) KILN_INLINE { return ",
                names_.Buffer(gradients_.windows[window].buffer), "[", Expr(First(window)),
                " + batch * ", Expr(Along(window, *loops_[0])), " + head * ",
                Expr(HeadStride(window)), " + row * ",
                Expr(gradients_.sizes[Of::RowStride(window)]), "]; }");
}

// A KAttentionSizes.
std::string GradientsPrinter::SizesText() {
  constexpr int64_t kBytes = 2 + 2 + 4;  // of a query's element, its gradient's and that's sum's
  const IntExpr one = ints_.Const(1);
  const IntExpr head_bytes = ints_.Mul(Queries(), kBytes * tile_.width * tile_.of_key);
  const IntExpr cached = ints_.FloorDiv(ints_.Const(kCached), head_bytes);
  const IntExpr busy = ints_.FloorDiv(ints_.Const(int64_t{kWaves} * compute_units_),
                                      ints_.CeilDiv(Keys(), ints_.Const(tile_.kKeys)));
  const IntExpr at_a_time = ints_.Max(ints_.Max(cached, busy), one);
  return absl::StrJoin(
      {Expr(loops_[0]->end), Expr(Heads()), Expr(Queries()), Expr(Keys()),
       Expr(ints_.Const(tile_.of_key)), Expr(at_a_time)},
      ", ", [](std::string* out, const std::string& size) { StrAppend(out, "(int)", size); });
}

absl::StatusOr<EmittedKernel> GradientsPrinter::Print() {
  ForEachNode(tree_.body, [&](const Node& node) {
    if (const auto* loop = std::get_if<For>(&node.value)) loops_.push_back(loop);
  });
  if (loops_.size() != 3) {
    return absl::InternalError(
        StrCat("kernel @", tree_.name, ": gradients of attention are no tiles of rows of heads"));
  }
  for (const schedule::Window& window : gradients_.windows) names_.Buffer(window.buffer);
  for (const size_t window : {Of::kKeys, Of::kValues, Of::kQueries}) {
    names_.MarkStored(gradients_.windows[window].buffer);
  }
  const std::string log_sums = RowsText(Of::kLogSums), dots = RowsText(Of::kDots);
  const std::string sizes = SizesText();

  EmittedKernel kernel;
  kernel.grid.blocks = {ints_.Mul(ints_.Mul(loops_[0]->end, loops_[1]->end),
                                  ints_.CeilDiv(loops_[2]->end, loops_[2]->step))};
  kernel.grid.threads = {ints_.Const(tile_.kThreads)};
  kernel.grid.shared_bytes = ints_.Const(tile_.SharedBytes());
  kernel.waits = true;
  kernel.zeroed = tree_.zeroed;
  kernel.tensor_maps = {
      MapOf(Of::kQuery, kLine, tile_.queries),      MapOf(Of::kKey, kLine, tile_.kKeys),
      MapOf(Of::kValue, kLine, tile_.kKeys),        MapOf(Of::kGrad, kLine, tile_.queries),
      MapOf(Of::kQueries, kLineOfSums, kAddedRows), MapOf(Of::kKeys, kLine, kStoredRows),
      MapOf(Of::kValues, kLine, kStoredRows)};
  const std::string parameters = ParametersText(module_, kernel, names_, "__restrict ");
  const std::vector<absl::string_view> maps = {"map_queries",  "map_keys",       "map_values",
                                               "map_grads",    "map_of_queries", "map_of_keys",
                                               "map_of_values"};
  Writer out;
  out.Line(kKernelMark, kSymbolPlaceholder);
  out.Line(kThreadsMark, tile_.kThreads);
  out.Line(kResidentMark, 1);
  out.AppendText(ShapeText());
  out.Line("extern \"C\" KILN_KERNEL void ", kSymbolPlaceholder, "(", parameters,
           "char* scratch, int* error_out, KTensorMap m0, KTensorMap m1, KTensorMap m2, "
           "KTensorMap m3, KTensorMap m4, KTensorMap m5, KTensorMap m6) {");
  PrintSymbols(names_, index_type_, out);
  PrintMapAddresses(FirstMap(names_), maps, out);
  out.Line("const KGradientsMaps maps = {", absl::StrJoin(maps, ", "), "};");
  out.Line("const KAttentionSizes sizes = {", sizes, "};");
  out.Line("KGradients<Shape>(maps, sizes, ", source::FloatLiteral(DType::kF32, tile_.scale), ", ",
           log_sums, ", ", dots, ");");
  out.Line("}");

  SetText(ints_, names_, out, kernel);
  return kernel;
}

}  // namespace

bool IsGradients(const schedule::Tree& tree) {
  return FindMicro(tree, schedule::MicroKind::kAttendGradients) != nullptr;
}

absl::StatusOr<EmittedKernel> PrintGradients(ir::Module& module, const schedule::Tree& tree,
                                             int compute_units) {
  return GradientsPrinter(module, tree, compute_units).Print();
}

}  // namespace kiln::codegen::ptx
