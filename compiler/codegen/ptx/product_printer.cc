#include "compiler/codegen/ptx/product_printer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/ptx/kernel_printer.h"
#include "compiler/codegen/source/tree_printer.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using ir::IntExpr;
using ir::ScalarOp;
using schedule::For;
using schedule::Micro;
using schedule::Node;
using source::CppType;
using source::Writer;

constexpr int kThreads = 384;  // two warpgroups that multiply, one that loads
constexpr int kStep = 64;      // elements of k in a stage, and of a box along what is contiguous
constexpr int kLanes = 8;      // columns that a thread finishes at a time
constexpr int kBarrierBytes = 1024, kAlignment = 1024;
// Of 65536 that three warpgroups share, those that a thread of a multiplying one has at most; from
// so many sums on the loading one gives up more of its own.
constexpr int kManySums = 160;

class ProductPrinter : public source::TreePrinter {
 public:
  ProductPrinter(ir::Module& module, const schedule::Tree& tree, int compute_units)
      : TreePrinter(module, tree), compute_units_(compute_units) {
    if (IndicesFitInt(tree)) index_type_ = "int";
  }
  absl::StatusOr<EmittedKernel> Print();

 private:
  void Find(const schedule::Block& block);
  void PrintVectorLoop(const For&, Function&) override { problem_ = "loops of lanes in others"; }
  void PrintArray(schedule::AllocId, Function&) override { problem_ = "memory of its own"; }
  void PrintMicro(const Micro&, Function&) override { problem_ = "several micro-kernels"; }
  void PrintCompute(const schedule::Compute& compute, Function& f) override;
  void PrintFinish(Function& f);
  std::string InstructionText() const;
  EmittedTensorMap MapOf(size_t window, IntExpr extent, int side) const;
  bool AreResultsShort() const;
  bool IsTurned(size_t window) const { return !product_->sizes[2 * window + 2].is_const(1); }
  int sums() const {  // of a thread
    return product_->constants[0] * product_->constants[1] / (is_in_turn() ? 128 : 256);
  }
  bool is_in_turn() const { return product_->constants[3] == 1; }

  const int compute_units_;
  const Micro* product_ = nullptr;
  std::vector<const For*> tiles_;  // of rows, of columns
  const For *rows_ = nullptr, *columns_ = nullptr;
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
  return absl::c_all_of(columns_->body, [&](const Node& node) {
    const auto* compute = std::get_if<schedule::Compute>(&node.value);
    if (compute == nullptr) return false;
    if (compute->inst.op != ScalarOp::kStore) return true;
    const DType dtype = module_.buffers[compute->inst.buffer].dtype;
    return dtype == DType::kBF16 || dtype == DType::kF16;
  });
}

// What is done with 8 columns of a row.
void ProductPrinter::PrintFinish(Function& f) {
  const std::string row = NewVar(rows_->var, 'd'), column = NewVar(columns_->var, 'x');
  f.out.Line("const auto finish = [&](", index_type_, " ", row, ", ", index_type_, " ", column,
             ", Vec<float, ", kLanes, "> sums) KILN_INLINE {");
  f.out.Line("constexpr bool kTail = false;");
  f.out.Line("constexpr long n = ", kLanes, ";");
  if (AreResultsShort()) {
    f.out.Line("const auto KTanh = [](auto x) KILN_INLINE { return KShortTanh(x); };");
  }
  f.body.SetLanes(columns_->var, kLanes, /*aligned=*/true);
  f.body.SetAlignment([this](IntExpr index) {
    const IntExpr first = ints_.Substitute(index, {{columns_->var, ints_.Const(0)}});
    int alignment = kLanes;
    while (alignment > 1 && !multiples_.Is(ints_, first, alignment)) alignment /= 2;
    return alignment;
  });
  PrintBlock(columns_->body, f);
  f.body.SetLanes(IntExpr(), 1);
  f.out.Line("};");
}

// wgmma of 64 rows: every sum is an operand, and of the wait for it too, so that none moves.
std::string ProductPrinter::InstructionText() const {
  const int columns = product_->constants[1], count = columns / 2;
  const DType dtype = module_.buffers[product_->windows[1].buffer].dtype;
  const absl::string_view type = dtype == DType::kF16 ? "f16" : "bf16";
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
    map.box = {kStep, kStep};
  } else {
    map.sizes = {k, extent};
    map.strides = {along_side};
    map.box = {kStep, side};
  }
  return map;
}

absl::StatusOr<EmittedKernel> ProductPrinter::Print() {
  Find(tree_.body);
  if (tiles_.size() != 2 || rows_ == nullptr || columns_ == nullptr) {
    return absl::InternalError(
        StrCat("kernel @", tree_.name, ": a product is no tiles of rows and columns"));
  }
  const std::vector<int>& c = product_->constants;
  const IntExpr num_rows = tiles_[0]->end, num_columns = tiles_[1]->end;
  const IntExpr tiles = ints_.Mul(ints_.CeilDiv(num_rows, tiles_[0]->step),
                                  ints_.CeilDiv(num_columns, tiles_[1]->step));
  for (size_t window : {1, 2}) names_.Buffer(product_->windows[window].buffer);
  Function f(ints_, tree_.num_values, names_);
  for (const For* loop : {tiles_[0], tiles_[1], rows_, columns_}) multiples_.Enter(*loop);
  PrintFinish(f);
  const bool checks = f.body.TakeChecks();
  const std::string rows_text = Expr(num_rows), columns_text = Expr(num_columns);
  const std::string k_text = Expr(product_->sizes[2]);
  if (!problem_.empty()) {
    return absl::InternalError(
        StrCat("kernel @", tree_.name, ": a product is not printed with ", problem_));
  }

  // No element is stored before all that depends on it is loaded: loads need not wait for stores.
  std::string parameters;
  for (size_t i = 0; i < names_.buffers().size(); ++i) {
    StrAppend(&parameters, PointerType(names_.buffers()[i]), " __restrict b", i, ", ");
  }
  for (size_t i = 0; i < names_.symbols().size(); ++i) StrAppend(&parameters, "long size", i, ", ");
  const size_t first_map = names_.buffers().size() + names_.symbols().size() + 2;
  const auto text = [](bool value) { return value ? "true" : "false"; };
  Writer out;
  out.Line(kKernelMark, kSymbolPlaceholder);
  out.Line(kThreadsMark, kThreads);
  out.AppendText(InstructionText());
  out.Line("struct Shape {");
  out.Line("static constexpr int kRows = ", c[0], ", kColumns = ", c[1], ", kStages = ", c[2], ";");
  out.Line("static constexpr bool kTurns = ", text(is_in_turn()),
           ", kTurnedA = ", text(IsTurned(1)), ", kTurnedB = ", text(IsTurned(2)), ";");
  out.Line("static constexpr bool kManyRegisters = ", text(sums() >= kManySums), ";");
  out.Line("using Mma = Instruction;");
  out.Line("};");
  out.Line("extern \"C\" KILN_KERNEL void ", kSymbolPlaceholder, "(", parameters,
           "char* scratch, int* error_out, KTensorMap of_a, KTensorMap of_b) {");
  PrintSymbols(names_, index_type_, out);
  // Where the parameters themselves lie: in C++ their addresses would be those of copies.
  out.Line("unsigned long map_a, map_b;");
  for (const size_t i : {0, 1}) {
    out.Line("asm(\"{.reg .b64 at; mov.b64 at, ", kSymbolPlaceholder, "_param_", first_map + i,
             "; cvta.param.u64 %0, at;}\" : \"=l\"(", i == 0 ? "map_a" : "map_b", "));");
  }
  if (checks) out.Line("int error = 0;");
  out.AppendText(f.out.text());
  out.Line("KProduct<Shape>(map_a, map_b, ", rows_text, ", ", columns_text, ", ", k_text,
           ", finish);");
  if (checks) out.Line("if (error) *error_out = 1;");
  out.Line("}");

  EmittedKernel kernel = KernelOf(ints_, names_, out);
  kernel.grid.blocks = {ints_.Min(tiles, ints_.Const(compute_units_))};
  kernel.grid.threads = {ints_.Const(kThreads)};
  kernel.grid.shared_bytes =
      ints_.Const(int64_t{c[2]} * (c[0] + c[1]) * kStep * 2 + kBarrierBytes + kAlignment);
  kernel.tensor_maps = {MapOf(1, num_rows, c[0]), MapOf(2, num_columns, c[1])};
  return kernel;
}

}  // namespace

bool IsProduct(const schedule::Tree& tree) {
  bool is = false;
  ForEachNode(tree.body, [&](const Node& node) {
    const auto* micro = std::get_if<Micro>(&node.value);
    is |= micro != nullptr && micro->kind == schedule::MicroKind::kMultiplyTile;
  });
  return is;
}

absl::StatusOr<EmittedKernel> PrintProduct(ir::Module& module, const schedule::Tree& tree,
                                           int compute_units) {
  return ProductPrinter(module, tree, compute_units).Print();
}

}  // namespace kiln::codegen::ptx
