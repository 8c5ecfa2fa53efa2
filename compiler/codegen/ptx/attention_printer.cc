#include "compiler/codegen/ptx/attention_printer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/ptx/kernel_launch.h"
#include "compiler/codegen/ptx/kernel_printer.h"
#include "compiler/codegen/ptx/product_printer.h"
#include "compiler/codegen/ptx/wgmma.h"
#include "compiler/codegen/source/tree_printer.h"
#include "compiler/schedule/micro.h"
#include "compiler/schedule/ptx/attention.h"
#include "compiler/schedule/ptx/attention_form.h"
#include "compiler/schedule/ptx/attention_warps.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using ir::IntExpr;
using schedule::For;
using schedule::Micro;
using schedule::Node;
using schedule::ptx::AttentionForm;
using schedule::ptx::AttentionTile;
using schedule::ptx::AttentionWarps;
using source::CppType;
using source::Writer;

constexpr int kLine = 64;        // elements of a box along a head
constexpr int kStoredRows = 16;  // that a warp stores at a time
// Of keys and values whose heads' tiles run at a time: what the second-level cache keeps.
constexpr int64_t kCached = 32 << 20;

// Windows, and sizes, of the micro-kernel.
enum Operand : size_t { kResult, kQuery, kKey, kValue, kMask };
constexpr size_t kKeys = 2, kStrides = 3, kMaskStride = 7, kSumsStride = 8;
constexpr size_t kWindowsOfMaps[] = {kQuery, kKey, kValue, kResult};

}  // namespace

const Micro* FindMicro(const schedule::Tree& tree, schedule::MicroKind kind) {
  const Micro* found = nullptr;
  ForEachNode(tree.body, [&](const Node& node) {
    const auto* micro = std::get_if<Micro>(&node.value);
    if (micro != nullptr && micro->kind == kind) found = micro;
  });
  return found;
}

void AllowStrides(EmittedTensorMap& map) {
  for (size_t i = 0; i < map.strides.size(); ++i) {
    if (map.sizes[i + 1].is_const(1)) map.strides[i] = map.sizes[0];
  }
}

namespace {

// What is printed of either kind.
class AttentionPrinter : public source::TreePrinter {
 protected:
  AttentionPrinter(ir::Module& module, const schedule::Tree& tree, const Micro& attend)
      : TreePrinter(module, tree),
        attend_(attend),
        form_(AttentionForm::FromConstants(attend.constants)) {}

  void PrintVectorLoop(const For&, Function&) override {}
  void PrintArray(schedule::AllocId, Function&) override {}
  void PrintMicro(const Micro&, Function&) override {}

  IntExpr Along(size_t window, const For& loop) const {
    return ints_.CoefficientOf(attend_.windows[window].index, loop.var);
  }
  // Elements from one head of queries to the next, or of keys where `of_keys`.
  IntExpr HeadStride(size_t window, bool of_keys) const {
    return Along(window, of_keys || loops_[2]->end.is_const(1) ? *loops_[1] : *loops_[2]);
  }
  IntExpr First(size_t window) const {
    ir::IntContext::VarMap zeros;
    for (const For* loop : loops_) zeros[loop->var] = ints_.Const(0);
    return ints_.Substitute(attend_.windows[window].index, zeros);
  }
  IntExpr Heads() const { return ints_.Mul(loops_[1]->end, loops_[2]->end); }
  size_t Sums() const { return kMask + (form_.mask != 0 ? 1 : 0); }
  bool IsHalf() const {
    return module_.buffers[attend_.windows[kQuery].buffer].dtype == DType::kF16;
  }
  // A KAttentionSizes' numbers.
  struct Sizes {
    IntExpr batches, heads, queries, keys, of_key, together;
  };

  // Finds the loops, and names what the call has.
  absl::Status Begin();
  // Heads that share keys come together. `fewest_together`: tiles that come before those of other
  // heads, 1 or more.
  Sizes FindSizes(int64_t fewest_together) const;
  IntExpr RowTiles(IntExpr queries) const { return ints_.CeilDiv(queries, loops_[3]->step); }
  IntExpr Tiles(const Sizes& sizes) const {
    return ints_.Mul(ints_.Mul(sizes.batches, sizes.heads), RowTiles(sizes.queries));
  }
  std::string Text(const Sizes& sizes);
  // Whether there are no logarithms of sums, or those of a head follow each other, and heads, too.
  bool AreSumsDense() const;
  // Scale, mask and what takes sums: the last arguments of the call.
  std::string ArgumentsText() const {
    return StrCat(source::FloatLiteral(DType::kF32, form_.scale), ", ", mask_, ", ", sums_);
  }

  const Micro& attend_;
  const AttentionForm form_;
  std::vector<const For*> loops_;  // batches, heads of keys, heads that share one, rows

 private:
  std::string MaskText();
  std::string SumsText();

  std::string mask_, sums_;
};

// On sm_90a.
class TilePrinter : public AttentionPrinter {
 public:
  TilePrinter(ir::Module& module, const schedule::Tree& tree, const Micro& attend,
              int compute_units)
      : AttentionPrinter(module, tree, attend),
        compute_units_(compute_units),
        tile_(AttentionTile::FromConstants(attend_.constants)) {}
  absl::StatusOr<EmittedKernel> Print();

 private:
  std::vector<IntExpr> MapSizes(size_t window, const Sizes& sizes) const;
  EmittedTensorMap MapOf(size_t window, int rows, const Sizes& sizes) const;
  std::string ShapeText();
  IntExpr Blocks(const Sizes& sizes) const;
  void MakeForAnySizes(Sizes& sizes, EmittedKernel& kernel) const;

  const int compute_units_;
  const AttentionTile tile_;
};

// By mma.sync.
class WarpsPrinter : public AttentionPrinter {
 public:
  WarpsPrinter(ir::Module& module, const schedule::Tree& tree, const Micro& attend, bool waits)
      : AttentionPrinter(module, tree, attend),
        waits_(waits),
        warps_(AttentionWarps::FromConstants(attend_.constants)) {}
  absl::StatusOr<EmittedKernel> Print();

 private:
  std::string ShapeText() const;
  std::string HeadsText(size_t window);

  const bool waits_;
  const AttentionWarps warps_;
};

std::vector<IntExpr> TilePrinter::MapSizes(size_t window, const Sizes& sizes) const {
  const bool of_keys = window == kKey || window == kValue;
  return {ints_.Const(tile_.width), of_keys ? sizes.keys : sizes.queries,
          of_keys ? ints_.FloorDiv(sizes.heads, sizes.of_key) : sizes.heads, sizes.batches};
}

// Boxes of `rows` rows of a head.
EmittedTensorMap TilePrinter::MapOf(size_t window, int rows, const Sizes& sizes) const {
  EmittedTensorMap map;
  map.buffer = attend_.windows[window].buffer;
  map.offset = First(window);
  map.sizes = MapSizes(window, sizes);
  map.strides = {attend_.sizes[kStrides + window],
                 HeadStride(window, window == kKey || window == kValue), Along(window, *loops_[0])};
  AllowStrides(map);
  map.box = {kLine, rows, 1, 1};
  return map;
}

std::string TilePrinter::ShapeText() {
  const absl::string_view type = IsHalf() ? "f16" : "bf16";
  Writer out;
  out.AppendText(InstructionText("OfScores", {.type = type,
                                              .columns = tile_.keys,
                                              .depth = tile_.width,
                                              .first = FirstOperand::kShared,
                                              .rows = tile_.Queries(),
                                              .is_second_turned = false,
                                              .has_wait = false}));
  out.AppendText(InstructionText("OfValues", {.type = type,
                                              .columns = tile_.width,
                                              .depth = tile_.keys,
                                              .first = FirstOperand::kRegisters,
                                              .is_second_turned = true,
                                              .has_wait = false}));
  out.Line("struct Shape {");
  out.Line("static constexpr int kHead = ", tile_.width, ", kRows = ", tile_.Queries(),
           ", kGroups = ", tile_.groups, ", kKeys = ", tile_.keys, ", kStages = ", tile_.stages,
           ", kPlaces = ", tile_.places, ", kMask = ", tile_.mask, ";");
  const bool is_whole = multiples_.Is(ints_, attend_.sizes[kKeys], tile_.keys);
  out.Line("static constexpr bool kCausal = ", Truth(tile_.is_causal),
           ", kTurns = ", Truth(tile_.turns), ", kHalf = ", Truth(IsHalf()),
           ", kWholeSteps = ", Truth(is_whole), ";");
  out.Line("using Scores = OfScores;");
  out.Line("using Values = OfValues;");
  out.AppendText(WaitText("Wait", {tile_.keys / 2, tile_.width / 2}));
  out.Line("};");
  return out.text();
}

// A KMask.
std::string AttentionPrinter::MaskText() {
  if (form_.mask == 0) return "KNoMask{}";
  const schedule::Window& mask = attend_.windows[kMask];
  const IntExpr strides[] = {Along(kMask, *loops_[0]), HeadStride(kMask, /*of_keys=*/false),
                             attend_.sizes[kMaskStride]};
  const IntExpr first = First(kMask);
  const auto is_even = [&](IntExpr e) { return multiples_.Is(ints_, e, 2); };
  const bool is_aligned = is_even(first) && is_even(attend_.sizes[kKeys]) &&
                          std::all_of(std::begin(strides), std::end(strides), is_even);
  std::string text =
      StrCat("KMask<", CppType(module_.buffers[mask.buffer].dtype), ", ", Truth(is_aligned), ">{",
             names_.Buffer(mask.buffer), " + ", Expr(first));
  for (const IntExpr stride : strides) StrAppend(&text, ", ", Expr(stride));
  return StrCat(text, "}");
}

bool AttentionPrinter::AreSumsDense() const {
  if (!form_.has_log_sums) return true;
  const IntExpr queries = loops_[3]->end;
  return First(Sums()).is_const(0) && attend_.sizes[kSumsStride].is_const(1) &&
         HeadStride(Sums(), /*of_keys=*/false) == queries &&
         Along(Sums(), *loops_[0]) == ints_.Mul(Heads(), queries);
}

// What takes the logarithm of a row's sum of exponentials. `sizes` is there.
std::string AttentionPrinter::SumsText() {
  if (!form_.has_log_sums) return "[](long, long, long, float) {}";
  const schedule::Window& sums = attend_.windows[Sums()];
  if (AreSumsDense()) {
    return StrCat("[&](long batch, long head, long row, float value) KILN_INLINE { ",
                  names_.Buffer(sums.buffer),
                  "[(batch * sizes.heads + head) * sizes.queries + row] = value; }");
  }
  return StrCat("[&](long batch, long head, long row, float value) KILN_INLINE { ",
                names_.Buffer(sums.buffer), "[", Expr(First(Sums())), " + batch * ",
                Expr(Along(Sums(), *loops_[0])), " + head * ",
                Expr(HeadStride(Sums(), /*of_keys=*/false)), " + row * ",
                Expr(attend_.sizes[kSumsStride]), "] = value; }");
}

absl::Status AttentionPrinter::Begin() {
  ForEachNode(tree_.body, [&](const Node& node) {
    if (const auto* loop = std::get_if<For>(&node.value)) loops_.push_back(loop);
  });
  if (loops_.size() != 4) {
    return absl::InternalError(
        StrCat("kernel @", tree_.name, ": attention is no tiles of rows of heads"));
  }
  for (size_t window : {kResult, kQuery, kKey, kValue}) {
    names_.Buffer(attend_.windows[window].buffer);
  }
  names_.MarkStored(attend_.windows[kResult].buffer);
  if (form_.has_log_sums) names_.MarkStored(attend_.windows[Sums()].buffer);
  mask_ = MaskText();
  sums_ = SumsText();
  return absl::OkStatus();
}

AttentionPrinter::Sizes AttentionPrinter::FindSizes(int64_t fewest_together) const {
  const IntExpr keys = attend_.sizes[kKeys];
  const IntExpr head_bytes = ints_.Mul(keys, int64_t{2} * 2 * form_.width);
  // Of heads that share keys.
  const IntExpr tiles = ints_.Mul(RowTiles(loops_[3]->end), loops_[2]->end);
  const IntExpr at_a_time = ints_.Mul(ints_.Max(ints_.FloorDiv(ints_.Const(kCached), head_bytes),
                                                ints_.CeilDiv(ints_.Const(fewest_together), tiles)),
                                      loops_[2]->end);
  return {loops_[0]->end, Heads(), loops_[3]->end, keys, loops_[2]->end, at_a_time};
}

std::string AttentionPrinter::Text(const Sizes& sizes) {
  return absl::StrJoin(
      {Expr(sizes.batches), Expr(sizes.heads), Expr(sizes.queries), Expr(sizes.keys),
       Expr(sizes.of_key), Expr(sizes.together)},
      ", ", [](std::string* out, const std::string& size) { StrAppend(out, "(int)", size); });
}

IntExpr TilePrinter::Blocks(const Sizes& sizes) const {
  const IntExpr tiles = Tiles(sizes);
  return tile_.is_persistent ? ints_.Min(tiles, ints_.Const(compute_units_)) : tiles;
}

// What the text and the interface need not tell become numbers of the launch: attention of other
// lengths, heads and strides is the same kernel. Clients see that maps lie in their buffers.
void TilePrinter::MakeForAnySizes(Sizes& sizes, EmittedKernel& kernel) const {
  // Blocks that take tiles in turn take all, however many blocks there are.
  if (tile_.is_persistent) {
    kernel.grid.blocks = {AtLaunch(ints_, kernel.grid.blocks[0], 0, INT32_MAX, kernel)};
  }
  for (IntExpr* size : {&sizes.batches, &sizes.heads, &sizes.queries, &sizes.keys, &sizes.of_key,
                        &sizes.together}) {
    *size = AtLaunch(ints_, *size, size == &sizes.of_key ? 1 : 0, INT32_MAX, kernel);
  }
  if (!tile_.is_persistent) kernel.grid.blocks = {Blocks(sizes)};
  for (size_t i = 0; i < kernel.tensor_maps.size(); ++i) {
    EmittedTensorMap& map = kernel.tensor_maps[i];
    map.sizes = MapSizes(kWindowsOfMaps[i], sizes);
    PlaceAtLaunch(ints_, map, kernel);
  }
  for (const ir::BufferId buffer : names_.buffers()) {
    if (form_.has_log_sums && buffer == attend_.windows[Sums()].buffer) {
      kernel.buffer_bytes[buffer] =
          ints_.Mul(ints_.Mul(ints_.Mul(sizes.batches, sizes.heads), sizes.queries),
                    DTypeSize(module_.buffers[buffer].dtype));
    } else {
      SetBytesAtLaunch(module_, buffer, kernel);
    }
  }
}

absl::StatusOr<EmittedKernel> TilePrinter::Print() {
  KILN_RETURN_IF_ERROR(Begin());
  // A round of blocks with long tiles goes with one of short ones (KNumbersOfBlock).
  Sizes sizes = FindSizes(int64_t{2} * compute_units_);
  EmittedKernel kernel;
  kernel.waits = true;
  kernel.grid.blocks = {Blocks(sizes)};
  kernel.grid.threads = {ints_.Const(tile_.Threads())};
  kernel.grid.shared_bytes = ints_.Const(tile_.SharedBytes());
  const int rows[] = {tile_.Queries(), tile_.keys, tile_.keys, kStoredRows};
  for (size_t i = 0; i < std::size(kWindowsOfMaps); ++i) {
    kernel.tensor_maps.push_back(MapOf(kWindowsOfMaps[i], rows[i], sizes));
  }
  if (form_.mask == 0 && AreSumsDense()) MakeForAnySizes(sizes, kernel);
  const std::string of_call = Text(sizes);
  const std::string parameters = ParametersText(module_, kernel, names_, "__restrict ");
  Writer out;
  out.Line(kKernelMark, kSymbolPlaceholder);
  out.Line(kThreadsMark, tile_.Threads());
  out.Line(kResidentMark, 1);
  out.AppendText(ShapeText());
  out.Line("extern \"C\" KILN_KERNEL void ", kSymbolPlaceholder, "(", parameters,
           "char* scratch, int* error_out, KTensorMap of_queries, KTensorMap of_keys, "
           "KTensorMap of_values, KTensorMap of_result) {");
  PrintSymbols(names_, index_type_, out);
  PrintMapAddresses(FirstMap(names_), {"map_queries", "map_keys", "map_values", "map_result"}, out);
  out.Line("const KAttentionMaps maps = {map_queries, map_keys, map_values, map_result};");
  out.Line("const KAttentionSizes sizes = {", of_call, "};");
  out.Line("KAttention<Shape>(maps, sizes, ", ArgumentsText(), ");");
  out.Line("}");
  SetText(ints_, names_, out, kernel);
  return kernel;
}

std::string WarpsPrinter::ShapeText() const {
  Writer out;
  out.Line("struct Shape {");
  out.Line("static constexpr int kHead = ", warps_.width, ", kRows = ", warps_.rows,
           ", kWarpRows = ", warps_.warp_rows, ", kKeys = ", warps_.keys,
           ", kStages = ", warps_.stages, ", kMask = ", warps_.mask, ";");
  out.Line("static constexpr bool kCausal = ", Truth(warps_.is_causal),
           ", kKept = ", Truth(warps_.is_kept), ", kHalf = ", Truth(IsHalf()), ";");
  out.Line("static constexpr int kAtOnce = 1;");
  out.Line("static constexpr bool kShort = true, kWhole = false, kRagged = false, ",
           "kByBlocks = ", Truth(waits_), ", kWholeSteps = false;");
  out.Line("};");
  return out.text();
}

// A KHeads.
std::string WarpsPrinter::HeadsText(size_t window) {
  const bool of_keys = window == kKey || window == kValue;
  const std::string buffer = names_.Buffer(attend_.windows[window].buffer);
  return StrCat("{", buffer, " + ", Expr(First(window)), ", ", Expr(Along(window, *loops_[0])),
                ", ", Expr(HeadStride(window, of_keys)), ", ",
                Expr(attend_.sizes[kStrides + window]), "}");
}

absl::StatusOr<EmittedKernel> WarpsPrinter::Print() {
  KILN_RETURN_IF_ERROR(Begin());
  const Sizes sizes = FindSizes(/*fewest_together=*/1);
  const std::string of_call = Text(sizes);
  const std::string operands = absl::StrJoin(
      {HeadsText(kQuery), HeadsText(kKey), HeadsText(kValue), HeadsText(kResult)}, ", ");
  EmittedKernel kernel;
  kernel.grid.blocks = {Tiles(sizes)};
  kernel.grid.threads = {ints_.Const(warps_.Threads())};
  kernel.grid.shared_bytes = ints_.Const(warps_.SharedBytes());
  kernel.waits = waits_;
  // Loads may not come before a wait for the kernel that makes what they load.
  const std::string parameters =
      ParametersText(module_, kernel, names_, waits_ ? "" : "__restrict ");
  Writer out;
  out.Line(kKernelMark, kSymbolPlaceholder);
  out.Line(kThreadsMark, warps_.Threads());
  out.Line(kResidentMark, warps_.blocks);
  out.AppendText(ShapeText());
  out.Line("extern \"C\" KILN_KERNEL void ", kSymbolPlaceholder, "(", parameters,
           "char* scratch, int* error_out) {");
  PrintSymbols(names_, index_type_, out);
  if (waits_) out.Line("KLetNextBegin();\nKWaitForPrevious();");
  out.Line("const KAttentionOperands operands = {", operands, "};");
  out.Line("const KAttentionSizes sizes = {", of_call, "};");
  out.Line("KAttentionByWarps<Shape>(operands, sizes, ", ArgumentsText(), ");");
  out.Line("}");

  SetText(ints_, names_, out, kernel);
  return kernel;
}

const Micro* FindAttend(const schedule::Tree& tree) {
  const Micro* const of_tile = FindMicro(tree, schedule::MicroKind::kAttendTile);
  return of_tile != nullptr ? of_tile : FindMicro(tree, schedule::MicroKind::kAttendWarps);
}

}  // namespace

bool IsAttention(const schedule::Tree& tree) {
  return FindAttend(tree) != nullptr;
}

absl::StatusOr<EmittedKernel> PrintAttention(ir::Module& module, const schedule::Tree& tree,
                                             int compute_units, bool waits) {
  const Micro& attend = *FindAttend(tree);
  if (attend.kind == schedule::MicroKind::kAttendTile) {
    return TilePrinter(module, tree, attend, compute_units).Print();
  }
  return WarpsPrinter(module, tree, attend, waits).Print();
}

}  // namespace kiln::codegen::ptx
