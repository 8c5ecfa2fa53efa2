#include "compiler/codegen/ptx/product_printer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/ptx/kernel_launch.h"
#include "compiler/codegen/ptx/kernel_printer.h"
#include "compiler/codegen/ptx/machine_functions.h"
#include "compiler/codegen/ptx/product_shapes.h"
#include "compiler/codegen/ptx/sums_work.h"
#include "compiler/codegen/source/tree_printer.h"
#include "compiler/schedule/micro.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/ptx/few_rows.h"
#include "compiler/schedule/ptx/product.h"
#include "compiler/schedule/ptx/warp_tiles.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using ir::IntExpr;
using ir::IntKind;
using ir::ScalarOp;
using schedule::For;
using schedule::Micro;
using schedule::MicroKind;
using schedule::Node;
using schedule::ptx::kProductStep;
using schedule::ptx::RowsShape;
using schedule::ptx::WarpTiles;
using source::CppType;
using source::Writer;

constexpr int kThreads = 384;    // two warpgroups that multiply, one that loads
constexpr int kLineBytes = 128;  // of a box along what is contiguous
constexpr int kPair = 2;         // columns, whose sums a thread has
constexpr int kOctet = 8;        // columns that it finishes at a time
constexpr int kRagged = 1;       // the same where those of a row are no octets
constexpr int kBarrierBytes = 1024, kAlignment = 1024;
constexpr int kPieceBytes = 8 * 16 * 128;  // of results, of all multiplying warps

class ProductPrinter : public source::TreePrinter {
 public:
  ProductPrinter(ir::Module& module, const schedule::Tree& tree, int compute_units, bool waits)
      : TreePrinter(module, tree), compute_units_(compute_units), waits_(waits) {
    if (IndicesFitInt(tree)) index_type_ = "int";
  }
  absl::StatusOr<EmittedKernel> Print();

 private:
  void Find(const schedule::Block& block);
  void PrintVectorLoop(const For&, Function&) override { problem_ = "loops of lanes in others"; }
  void PrintArray(schedule::AllocId, Function&) override { problem_ = "memory of its own"; }
  void PrintMicro(const Micro&, Function&) override { problem_ = "several micro-kernels"; }
  void PrintCompute(const schedule::Compute& compute, Function& f) override;
  void SetLanes(int lanes, Function& f);
  void PrintLoads(absl::string_view name, absl::string_view parameters, int lanes,
                  std::vector<const schedule::Compute*>& steps, Function& f);
  void PrintBegin(Function& f);
  void PrintFinish(Function& f);
  EmittedGrid Grid();
  std::string CallText();
  EmittedTensorMap MapOf(size_t window, IntExpr extent, int side) const;
  bool MayHaveAnySizes() const;
  void MakeForAnySizes(EmittedKernel& kernel);
  IntExpr StrideAtLaunch(int64_t stride, EmittedKernel& kernel);
  IntExpr IndexAtLaunch(IntExpr index, EmittedKernel& kernel);
  bool AreResultsShort() const;
  int AtOnce() const;
  bool IsWhole() const;
  ProductShape Shape() const;
  std::string OperandText(size_t window);
  std::vector<EmittedTensorMap> PackedMaps() const;
  bool WaitsShort() const { return work_.waiting != ir::kNoValue; }
  bool IsRagged() const { return !multiples_.Is(ints_, tiles_[1]->end, kOctet); }
  int lanes() const { return IsRagged() ? kRagged : kOctet; }
  bool HasFewRows() const { return product_->kind == MicroKind::kMultiplyRows; }
  bool IsByWarps() const { return product_->kind == MicroKind::kMultiplyWarps; }
  int threads() const {
    return IsByWarps() ? warp_tiles().Threads() : HasFewRows() ? rows_shape().Threads() : kThreads;
  }
  bool IsPacked() const { return HasFewRows() && rows_shape().inner > 0; }
  int WeightBits() const { return schedule::ptx::WeightBits(DTypeOf(2)); }
  RowsShape rows_shape() const { return RowsShape::FromConstants(product_->constants); }
  WarpTiles warp_tiles() const { return WarpTiles::FromConstants(product_->constants); }
  DType DTypeOf(size_t window) const {
    return module_.buffers[product_->windows[window].buffer].dtype;
  }
  bool IsTurned(size_t window) const { return !product_->sizes[2 * window + 2].is_const(1); }
  bool IsWhole(size_t window) const {
    const IntExpr extent = IsTurned(window) ? tiles_[window - 1]->end : product_->sizes[2];
    return multiples_.Is(ints_, extent, kOctet);
  }
  bool HasManySums() const {
    if (IsByWarps()) return false;
    const std::vector<int>& c = product_->constants;
    return schedule::ptx::SumsOfThread(c[0], c[1], is_in_turn()) >= schedule::ptx::kManySums;
  }
  bool is_in_turn() const { return product_->constants[3] == 1; }
  int cluster() const {
    return IsByWarps() ? 1 : HasFewRows() ? rows_shape().cluster : product_->constants[4];
  }

  const int compute_units_;
  const bool waits_;
  const Micro* product_ = nullptr;
  std::vector<const For*> tiles_;  // of rows, of columns
  const For *rows_ = nullptr, *columns_ = nullptr;
  IntExpr num_rows_, num_columns_, depth_;
  SumsWork work_;
  std::vector<schedule::Compute> steps_;  // of work_, where sizes are numbers of the launch
  absl::flat_hash_map<int64_t, IntExpr> strides_;  // of results: what stands for them
  std::string problem_;
};

void ProductPrinter::Find(const schedule::Block& block) {
  for (const Node& node : block) {
    if (const auto* micro = std::get_if<Micro>(&node.value)) product_ = micro;
    if (const auto* loop = std::get_if<For>(&node.value)) {
      if (HasTasks(loop->binding)) tiles_.push_back(loop);
      if (loop->binding == schedule::Binding::kGroup) rows_ = loop;
      if (loop->binding == schedule::Binding::kVector) columns_ = loop;
      Find(loop->body);
    }
  }
}

void ProductPrinter::PrintCompute(const schedule::Compute& compute, Function& f) {
  if (compute.alloc < 0) return TreePrinter::PrintCompute(compute, f);
  if (compute.inst.op != ScalarOp::kLoad) {
    problem_ = "stores to a tile";
    return;
  }
  f.body.Define(compute.inst.result, DType::kF32, /*varying=*/true, "sums");
}

// Whether all that leaves the kernel has 16 bits.
bool ProductPrinter::AreResultsShort() const {
  return absl::c_all_of(work_.steps, [&](const schedule::Compute* step) {
    return step->inst.op != ScalarOp::kStore || IsHalf(module_.buffers[step->inst.buffer].dtype);
  });
}

void ProductPrinter::SetLanes(int lanes, Function& f) {
  f.out.Line("constexpr bool kTail = false;");
  f.out.Line("constexpr long n = ", lanes, ";");
  f.body.SetLanes(columns_->var, lanes, /*aligned=*/true);
  f.body.SetAlignment([this, lanes](IntExpr index) {
    const IntExpr first = ints_.Substitute(index, {{columns_->var, ints_.Const(0)}});
    int alignment = lanes;
    while (alignment > 1 && !multiples_.Is(ints_, first, alignment)) alignment /= 2;
    return alignment;
  });
}

// Prints what is loaded of `steps` whatever the sums are, as a function of a place: `parameters`.
// For the others it is in `of`.
void ProductPrinter::PrintLoads(absl::string_view name, absl::string_view parameters, int lanes,
                                std::vector<const schedule::Compute*>& steps, Function& f) {
  f.out.Line("const auto ", name, " = [&](", parameters, ") KILN_INLINE {");
  SetLanes(lanes, f);
  std::string members, values;
  std::vector<const schedule::Compute*> others;
  std::vector<std::pair<const ir::Inst*, std::string>> loaded;
  for (const schedule::Compute* step : steps) {
    const ir::Inst& inst = step->inst;
    if (!IsPlainLoad(*step)) {
      others.push_back(step);
      continue;
    }
    PrintCompute(*step, f);
    const bool varies = f.body.IsVarying(inst.result);
    const std::string value = f.body.Use(inst.result, varies);
    StrAppend(&members, "Vec<", CppType(inst.dtype), ", ", varies ? lanes : 1, "> ", value, "; ");
    StrAppend(&values, values.empty() ? "" : ", ", value);
    loaded.emplace_back(&inst, value);
  }
  f.out.Line("struct Loaded { ", members, "};");
  f.out.Line("return Loaded{", values, "};");
  f.out.Line("};");
  for (const auto& [inst, value] : loaded) {
    f.body.Define(inst->result, inst->dtype, f.body.IsVarying(inst->result), StrCat("of.", value));
  }
  steps = std::move(others);
}

// What of two columns' sums waits for finish.
void ProductPrinter::PrintBegin(Function& f) {
  const std::string column = NewVar(columns_->var, 'x');
  const std::string of_column = StrCat(index_type_, " ", column);
  std::vector<const schedule::Compute*> steps = work_.StepsOfWaiting();
  PrintLoads("of_columns", of_column, kPair, steps, f);
  f.out.Line("const auto begin = [&](const auto& of, Vec<float, 2> sums) KILN_INLINE {");
  if (AreResultsShort()) f.out.Line("#pragma clang fp contract(fast)");
  SetLanes(kPair, f);
  for (const schedule::Compute* step : steps) PrintCompute(*step, f);
  f.out.Line("return ",
             WaitsShort()
                 ? StrCat("__builtin_bit_cast(unsigned, ", f.body.Use(work_.waiting, true), ")")
                 : "sums",
             ";");
  f.out.Line("};");
}

// What is done with eight columns of a row, or one where a row ends anywhere, up to a function that
// stores them.
void ProductPrinter::PrintFinish(Function& f) {
  const std::string of_place = StrCat(index_type_, " ", NewVar(rows_->var, 'd'), ", ", index_type_,
                                      " ", NewVar(columns_->var, 'x'));
  std::vector<const schedule::Compute*> stores;
  for (const schedule::Compute* step : work_.steps) {
    const ir::Inst& inst = step->inst;
    if (inst.op == ScalarOp::kStore) stores.push_back(step);
    if (inst.op != ScalarOp::kLoad || step->alloc >= 0) continue;
    if (absl::c_any_of(stores,
                       [&](const auto* store) { return store->inst.buffer == inst.buffer; })) {
      problem_ = "loads of what it has stored";
    }
  }
  std::vector<const schedule::Compute*> steps = work_.StepsOfStores();
  PrintLoads("of_place", of_place, lanes(), steps, f);
  const std::string of_sums = StrCat("Vec<float, ", lanes(), ">");
  const std::string type = !WaitsShort() ? of_sums : IsRagged() ? "unsigned short" : "KOctet";
  f.out.Line("const auto finish = [&](const auto& of, ", of_place, ", bool inside, ", type,
             " sums) KILN_INLINE {");
  if (AreResultsShort()) f.out.Line("#pragma clang fp contract(fast)");
  SetLanes(lanes(), f);
  for (const schedule::Compute* step : steps) {
    const ir::Inst& inst = step->inst;
    if (inst.op == ScalarOp::kStore) continue;
    if (inst.result == work_.waiting) {
      f.body.Define(
          work_.waiting, inst.dtype, /*varying=*/true,
          StrCat("__builtin_bit_cast(Vec<", CppType(inst.dtype), ", ", lanes(), ">, sums)"));
    } else {
      PrintCompute(*step, f);
    }
  }
  f.out.Line("return [=]() KILN_INLINE {");
  f.out.Line("if (!inside) return;");
  for (const schedule::Compute* store : stores) PrintCompute(*store, f);
  f.out.Line("};");
  f.out.Line("};");
  f.body.SetLanes(IntExpr(), 1);
}

// The operand in window 1 or 2, `extent` long along the result's side, of whose tiles a box has as
// many as `side`.
EmittedTensorMap ProductPrinter::MapOf(size_t window, IntExpr extent, int side) const {
  const schedule::Window& of = product_->windows[window];
  const IntExpr along_side = product_->sizes[2 * window + 1],
                along_k = product_->sizes[2 * window + 2];
  const IntExpr k = product_->sizes[2];
  EmittedTensorMap map;
  map.buffer = of.buffer;
  map.offset = ints_.Substitute(of.index, {{tiles_[window - 1]->var, ints_.Const(0)}});
  if (IsTurned(window)) {
    map.sizes = {extent, k};
    map.strides = {along_k};
    map.box = {kProductStep, kProductStep};
  } else {
    map.sizes = {k, extent};
    map.strides = {along_side};
    map.box = {kLineBytes / static_cast<int>(DTypeSize(DTypeOf(window))), side};
  }
  if (window == 2 && !HasFewRows() && cluster() > 1)
    map.box[1] /= cluster();  // each block loads a part
  return map;
}

// Of an operand of packed weights, whose steps are one box, and of these: lines of 128 bytes, those
// of eight columns, and all columns'; and lines of 32 columns' scales, for each group.
std::vector<EmittedTensorMap> ProductPrinter::PackedMaps() const {
  constexpr int kWords = 32, kLine = 64, kEight = 8;  // of a line
  const RowsShape shape = rows_shape();
  const int depth = shape.Depth(WeightBits());
  const IntExpr rows = tiles_[0]->end, columns = tiles_[1]->end, k = product_->sizes[2];
  const auto number = [&](int value) { return ints_.Const(value); };
  EmittedTensorMap operand = MapOf(1, rows, shape.rows);
  operand.sizes = {number(kLine), rows, ints_.FloorDiv(k, kLine)};
  operand.strides.push_back(number(kLine));
  operand.box.push_back(depth / kLine);
  EmittedTensorMap words;
  words.buffer = product_->windows[2].buffer;
  words.offset = number(0);
  words.sizes = {number(kWords), ints_.FloorDiv(k, kWords), ints_.FloorDiv(columns, kEight)};
  words.strides = {number(kWords), ints_.Mul(product_->sizes[5], kEight)};
  words.box = {kWords, depth / kWords, shape.columns / kEight};
  EmittedTensorMap scales;
  scales.buffer = product_->windows[3].buffer;
  scales.offset = number(0);
  scales.sizes = {ints_.Mul(columns, 2), ints_.CeilDiv(k, number(shape.group))};
  scales.strides = {product_->sizes[6]};
  scales.box = {kLine, std::max(1, depth / shape.group)};
  return {operand, words, scales};
}

// Octets of columns that a lane finishes at a time: what is loaded for them takes registers beside
// the sums, and the places of what is gathered do, too.
int ProductPrinter::AtOnce() const {
  constexpr int kMost = 4;
  const bool has_indices = absl::c_any_of(work_.steps, [](const schedule::Compute* step) {
    return step->inst.op == ScalarOp::kLoad && schedule::NumIndirect(step->inst) > 0;
  });
  return !HasManySums() && !has_indices ? kMost : WaitsShort() ? kMost / 2 : kMost / 4;
}

// Whether a tile ends nowhere beyond the result.
bool ProductPrinter::IsWhole() const {
  const auto is = [this](const For& tiles, int by) {
    return tiles.step.is_const() && multiples_.Is(ints_, tiles.end, tiles.step.value() * by);
  };
  return is(*tiles_[0], cluster()) && is(*tiles_[1], 1);
}

ProductShape ProductPrinter::Shape() const {
  return {.micro = *product_,
          .is_half = DTypeOf(1) == DType::kF16,
          .weight_bits = WeightBits(),
          .waits_short = WaitsShort(),
          .at_once = AtOnce(),
          .is_whole = IsWhole(),
          .is_ragged = IsRagged(),
          .is_turned_a = IsTurned(1),
          .is_turned_b = IsTurned(2),
          .is_whole_a = IsWhole(1),
          .is_whole_b = IsWhole(2),
          .has_many_sums = HasManySums(),
          .stores_matrices = waits_};
}

// Blocks, their threads and shared memory.
EmittedGrid ProductPrinter::Grid() {
  const std::vector<int>& c = product_->constants;
  // Of a cluster, whose blocks have a tile each, or of few rows share one.
  const int below = HasFewRows() ? 1 : cluster();
  const IntExpr tiles =
      ints_.Mul(ints_.CeilDiv(tiles_[0]->end, ints_.Mul(tiles_[0]->step, ints_.Const(below))),
                ints_.CeilDiv(tiles_[1]->end, tiles_[1]->step));
  const bool is_one_tile = IsByWarps() || (HasFewRows() && cluster() > 1);
  const IntExpr clusters =
      is_one_tile ? tiles : ints_.Min(tiles, ints_.Const(compute_units_ / cluster()));
  EmittedGrid grid;
  grid.blocks = {ints_.Mul(clusters, ints_.Const(cluster()))};
  grid.threads = {ints_.Const(threads())};
  grid.shared_bytes =
      ints_.Const(IsByWarps()    ? warp_tiles().SharedBytes()
                  : HasFewRows() ? rows_shape().SharedBytes(WeightBits())
                                 : int64_t{c[2]} * (c[0] + c[1]) * kProductStep * 2 + kPieceBytes +
                                       kBarrierBytes + kAlignment);
  return grid;
}

// Where the operand in window 1 or 2 begins.
std::string ProductPrinter::OperandText(size_t window) {
  const schedule::Window& of = product_->windows[window];
  const IntExpr first = ints_.Substitute(of.index, {{tiles_[window - 1]->var, ints_.Const(0)}});
  return StrCat(names_.Buffer(of.buffer), " + ", Expr(first));
}

// The template that multiplies, and its arguments up to the sizes.
std::string ProductPrinter::CallText() {
  const std::string sizes =
      StrCat(Expr(num_rows_), ", ", Expr(num_columns_), ", ", Expr(depth_), ", work);");
  if (IsByWarps()) {
    const auto pitch = [&](size_t window) {
      return Expr(product_->sizes[2 * window + (IsTurned(window) ? 2 : 1)]);
    };
    return StrCat("KProductByWarps<Shape>(", OperandText(1), ", ", OperandText(2), ", ", pitch(1),
                  ", ", pitch(2), ", ", sizes);
  }
  if (!HasFewRows()) return StrCat("KProduct<Shape>(map_a, map_b, ", sizes);
  return StrCat("KProductOfRows<Shape>(map_a, ",
                IsPacked() ? "KPackedWeights{map_b, map_scales}" : "KPlainWeights{map_b}", ", ",
                sizes);
}

// Of the products that are all of a model's: others are rare, or what they take from constant sizes
// is more than what a kernel for all sizes saves, or columns that end anywhere or many sums in a
// cluster leave no register.
bool ProductPrinter::MayHaveAnySizes() const {
  return product_->kind == MicroKind::kMultiplyTile && !IsRagged() &&
         (cluster() == 1 || !HasManySums()) && num_rows_.is_const() && num_columns_.is_const() &&
         depth_.is_const();
}

// Of rows of results or of what they are made with; the number of columns mostly is one.
IntExpr ProductPrinter::StrideAtLaunch(int64_t stride, EmittedKernel& kernel) {
  IntExpr& symbol = strides_[stride];
  if (!symbol) {
    const int64_t unit = stride % kOctet == 0 ? kOctet : 1;  // shows what is aligned
    symbol = ints_.Mul(AtLaunch(ints_, ints_.Const(stride / unit), 0, INT32_MAX, kernel), unit);
  }
  return symbol;
}

// A sum of variables, each times a constant: constants above 1 stand for strides. Others stay.
IntExpr ProductPrinter::IndexAtLaunch(IntExpr index, EmittedKernel& kernel) {
  const IntExpr of_column = ints_.CoefficientOf(index, columns_->var);
  if (!of_column || !(of_column.is_const(0) || of_column.is_const(1))) return index;
  const auto of_part = [&](IntExpr part) {
    if (part.kind() != IntKind::kMul || part.operands().size() != 2) return part;
    const IntExpr leaf = part.operands()[0], stride = part.operands()[1];
    if (!stride.is_const() || stride.value() < 2 || stride.value() > INT32_MAX ||
        leaf.kind() == IntKind::kFloorDiv || leaf.kind() == IntKind::kMod) {
      return part;
    }
    return ints_.Mul(leaf, StrideAtLaunch(stride.value(), kernel));
  };
  if (index.kind() != IntKind::kAdd) return of_part(index);
  IntExpr sum = ints_.Const(0);
  for (const IntExpr part : index.operands()) sum = ints_.Add(sum, of_part(part));
  return sum;
}

// Whether tiles and rows of results end anywhere stays in the text.
void ProductPrinter::MakeForAnySizes(EmittedKernel& kernel) {
  kernel.grid.blocks = {AtLaunch(ints_, kernel.grid.blocks[0], 0, INT32_MAX, kernel)};
  num_rows_ = AtLaunch(ints_, num_rows_, 0, INT32_MAX, kernel);
  num_columns_ = StrideAtLaunch(num_columns_.value(), kernel);
  depth_ = AtLaunch(ints_, depth_, 0, INT32_MAX, kernel);
  for (size_t window = 1; window <= kernel.tensor_maps.size(); ++window) {
    EmittedTensorMap& map = kernel.tensor_maps[window - 1];
    map.sizes = {depth_, window == 1 ? num_rows_ : num_columns_};
    if (IsTurned(window)) std::swap(map.sizes[0], map.sizes[1]);
    PlaceAtLaunch(ints_, map, kernel);
  }
  const auto read_index = [&](IntExpr leaf) {
    const IntExpr extent = leaf.extent();
    if (!extent.is_const() || extent.value() > INT32_MAX) return leaf;
    return ints_.Indirect(leaf.id(), AtLaunch(ints_, extent, 0, INT32_MAX, kernel));
  };
  steps_.reserve(work_.steps.size());
  for (const schedule::Compute*& step : work_.steps) {
    steps_.push_back(*step);
    step = &steps_.back();
    for (IntExpr& index : steps_.back().inst.indices) {
      index = IndexAtLaunch(ints_.RemapIndirect(index, read_index), kernel);
    }
  }
}

absl::StatusOr<EmittedKernel> ProductPrinter::Print() {
  Find(tree_.body);
  if (tiles_.size() != 2 || rows_ == nullptr || columns_ == nullptr) {
    return absl::InternalError(
        StrCat("kernel @", tree_.name, ": a product is no tiles of rows and columns"));
  }
  num_rows_ = tiles_[0]->end;
  num_columns_ = tiles_[1]->end;
  depth_ = product_->sizes[2];
  for (size_t window = 1; window < product_->windows.size(); ++window) {
    names_.Buffer(product_->windows[window].buffer);
  }
  Function f(ints_, tree_.num_values, names_);
  for (const For* loop : {tiles_[0], tiles_[1], rows_, columns_}) multiples_.Enter(*loop);
  std::optional<SumsWork> work = FindSumsWork(*columns_, rows_->var, IsRagged());
  if (!work) {
    return absl::InternalError(
        StrCat("kernel @", tree_.name, ": sums of a product go on in loops"));
  }
  work_ = *std::move(work);

  EmittedKernel kernel;
  kernel.grid = Grid();
  kernel.waits = waits_;
  const std::vector<int>& c = product_->constants;
  if (IsPacked()) {
    kernel.tensor_maps = PackedMaps();
  } else if (!IsByWarps()) {
    kernel.tensor_maps = {MapOf(1, num_rows_, c[0]), MapOf(2, num_columns_, c[1])};
  }
  const bool has_any_sizes = MayHaveAnySizes();
  if (has_any_sizes) MakeForAnySizes(kernel);
  f.body.SetFunctions([functions = MachineFunctions(module_, tree_, /*of_products=*/true)](
                          const ir::Inst& inst) { return functions.Of(inst); });
  PrintBegin(f);
  PrintFinish(f);
  const bool checks = f.body.TakeChecks();
  const std::string call = CallText();
  if (!problem_.empty()) {
    return absl::InternalError(
        StrCat("kernel @", tree_.name, ": a product is not printed with ", problem_));
  }

  // No element is stored before all that depends on it is loaded: loads need not wait for stores.
  // But they may not come before a wait for the kernel that makes what they load.
  const bool may_load_early = HasFewRows() || (IsByWarps() && waits_);
  if (has_any_sizes) {
    for (const ir::BufferId buffer : names_.buffers()) SetBytesAtLaunch(module_, buffer, kernel);
  }
  const std::string parameters =
      ParametersText(module_, kernel, names_, may_load_early ? "" : "__restrict ");
  Writer out;
  out.Line(kKernelMark, kSymbolPlaceholder);
  out.Line(kThreadsMark, threads());
  out.Line(kClusterMark, cluster());
  // All of its registers and shared memory, or so large a part.
  out.Line(kResidentMark, IsByWarps() ? warp_tiles().blocks : 1);
  out.AppendText(ShapeText(Shape()));
  out.Line("extern \"C\" KILN_KERNEL void ", kSymbolPlaceholder, "(", parameters,
           "char* scratch, int* error_out", IsByWarps() ? "" : ", KTensorMap of_a, KTensorMap of_b",
           IsPacked() ? ", KTensorMap of_scales" : "", ") {");
  PrintSymbols(names_, index_type_, out);
  if (IsByWarps()) {
    if (waits_) out.Line("KLetNextBegin();\nKWaitForPrevious();");
  } else {
    std::vector<absl::string_view> maps = {"map_a", "map_b"};
    if (IsPacked()) maps.push_back("map_scales");
    PrintMapAddresses(FirstMap(names_), maps, out);
  }
  if (checks) out.Line("int error = 0;");
  out.AppendText(f.out.text());
  out.Line("const KWork work = {of_columns, begin, of_place, finish};");
  out.Line(call);
  if (checks) out.Line("if (error) *error_out = 1;");
  out.Line("}");

  SetText(ints_, names_, out, kernel);
  if (IsByWarps()) return kernel;
  for (size_t i = 2; HasFewRows() && i < product_->windows.size(); ++i) {
    kernel.read_early.push_back(product_->windows[i].buffer);
  }
  return kernel;
}

}  // namespace

absl::string_view Truth(bool value) {
  return value ? "true" : "false";
}

// In C++ the addresses of parameters would be those of copies.
void PrintMapAddresses(size_t first, const std::vector<absl::string_view>& names,
                       source::Writer& out) {
  for (size_t i = 0; i < names.size(); ++i) {
    out.Line("unsigned long ", names[i], ";");
    out.Line("asm(\"{.reg .b64 at; mov.b64 at, ", kSymbolPlaceholder, "_param_", first + i,
             "; cvta.param.u64 %0, at;}\" : \"=l\"(", names[i], "));");
  }
}

bool IsProduct(const schedule::Tree& tree) {
  bool is = false;
  ForEachNode(tree.body, [&](const Node& node) {
    const auto* micro = std::get_if<Micro>(&node.value);
    is |= micro != nullptr && schedule::IsOfTensorCores(micro->kind);
  });
  return is;
}

absl::StatusOr<EmittedKernel> PrintProduct(ir::Module& module, const schedule::Tree& tree,
                                           int compute_units, bool waits) {
  return ProductPrinter(module, tree, compute_units, waits).Print();
}

}  // namespace kiln::codegen::ptx
