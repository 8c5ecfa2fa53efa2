#include "compiler/codegen/ptx/queries_printer.h"

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/ptx/kernel_launch.h"
#include "compiler/codegen/ptx/kernel_printer.h"
#include "compiler/codegen/ptx/product_printer.h"
#include "compiler/codegen/source/tree_printer.h"
#include "compiler/schedule/micro.h"
#include "compiler/schedule/ptx/few_queries.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using ir::IntExpr;
using schedule::For;
using schedule::Micro;
using schedule::Node;
using source::CppType;
using source::Writer;

constexpr int kKeys = 64;          // of a step
constexpr int kLineElements = 64;  // of a box along a head
constexpr int kLoaders = 32;       // threads beside the team

class QueriesPrinter : public source::TreePrinter {
 public:
  QueriesPrinter(ir::Module& module, const schedule::Tree& tree) : TreePrinter(module, tree) {}
  absl::StatusOr<EmittedKernel> Print();

 private:
  void Find(const schedule::Block& block);
  void PrintVectorLoop(const For&, Function&) override {}
  void PrintArray(schedule::AllocId, Function&) override {}
  void PrintMicro(const Micro&, Function&) override {}

  bool has_mask() const { return micro_->kind == schedule::MicroKind::kAttendMasked; }
  DType DTypeOf(size_t window) const {
    return module_.buffers[micro_->windows[window].buffer].dtype;
  }
  int64_t mask_rows() const {
    if (!has_mask()) return 0;
    return micro_->sizes[10].is_const(0) && micro_->sizes[11].is_const(0) ? 1 : rows_;
  }
  bool AreReadEarly() const;
  // The address of an element in row `row`, `more` behind the row's first one.
  std::string PlaceOf(size_t window, size_t strides, IntExpr more);
  EmittedTensorMap MapOf(size_t window, IntExpr by_key);

  const Micro* micro_ = nullptr;
  std::vector<const For*> tasks_;  // of batches, of heads
  int64_t rows_ = 0;
  IntExpr row_;
};

void QueriesPrinter::Find(const schedule::Block& block) {
  for (const Node& node : block) {
    if (const auto* micro = std::get_if<Micro>(&node.value)) micro_ = micro;
    if (const auto* loop = std::get_if<For>(&node.value)) {
      tasks_.push_back(loop);
      Find(loop->body);
    }
  }
}

// Whether no operation of the module writes keys and values: the client looks at all steps again.
bool QueriesPrinter::AreReadEarly() const {
  return absl::c_all_of(std::vector<size_t>{2, 3}, [&](size_t window) {
    const ir::BufferId buffer = micro_->windows[window].buffer;
    const ir::BufferKind kind = module_.buffers[buffer].kind;
    if (kind != ir::BufferKind::kInput && kind != ir::BufferKind::kConstant) return false;
    return absl::c_none_of(module_.operations, [&](const ir::Operation& operation) {
      bool stores = false;
      ForEachInst(operation, [&](const ir::Inst& inst) {
        stores |= inst.op == ir::ScalarOp::kStore && inst.buffer == buffer;
      });
      return stores;
    });
  });
}

std::string QueriesPrinter::PlaceOf(size_t window, size_t strides, IntExpr more) {
  const IntExpr queries = micro_->sizes[1];
  const IntExpr index =
      ints_.Add(ints_.Add(micro_->windows[window].index, more),
                ints_.Add(ints_.Mul(ints_.FloorDiv(row_, queries), micro_->sizes[strides]),
                          ints_.Mul(ints_.Mod(row_, queries), micro_->sizes[strides + 1])));
  return StrCat("(", names_.Buffer(micro_->windows[window].buffer), " + ", Expr(index), ")");
}

// Of keys or values: elements along a head, keys, heads, sequences.
EmittedTensorMap QueriesPrinter::MapOf(size_t window, IntExpr by_key) {
  const schedule::Window& of = micro_->windows[window];
  const IntExpr batch = tasks_[0]->var, head = tasks_[1]->var, zero = ints_.Const(0);
  EmittedTensorMap map;
  map.buffer = of.buffer;
  map.offset = ints_.Substitute(of.index, {{batch, zero}, {head, zero}});
  map.sizes = {micro_->sizes[3], micro_->sizes[2], tasks_[1]->end, tasks_[0]->end};
  // Of what there is one of any will do.
  const auto stride = [&](IntExpr var) {
    const IntExpr by = ints_.CoefficientOf(of.index, var);
    return by.is_const(0) ? micro_->sizes[3] : by;
  };
  map.strides = {by_key, stride(head), stride(batch)};
  map.box = {kLineElements, kKeys, 1, 1};
  return map;
}

absl::StatusOr<EmittedKernel> QueriesPrinter::Print() {
  Find(tree_.body);
  if (tasks_.size() != 2 || micro_ == nullptr) {
    return absl::InternalError(
        StrCat("kernel @", tree_.name, ": an attention is no tasks by head"));
  }
  const std::vector<IntExpr>& s = micro_->sizes;
  rows_ = s[0].value() * s[1].value();
  row_ = ints_.NewVar(ints_.Const(rows_));
  const IntExpr column = ints_.NewVar(s[3]), key = ints_.NewVar(s[2]);
  names_.NameVar(tasks_[0]->var, "batch");
  names_.NameVar(tasks_[1]->var, "head");
  names_.NameVar(row_, "row");
  names_.NameVar(column, "column");
  names_.NameVar(key, "key");
  const int stages = micro_->constants[0], cluster = micro_->constants[1];
  const bool reads_early = AreReadEarly();
  const bool is_added = has_mask() && DTypeOf(4) != DType::kBool;
  const double scale = std::bit_cast<float>(micro_->constants[2]);

  Writer body(1);
  body.Line("const long batch = KBlock() / ", cluster * tasks_[1]->end.value(),
            ", head = KBlock() / ", cluster, " % ", tasks_[1]->end.value(), ";");
  body.Line("const auto query = [=](long row, long column) KILN_INLINE {");
  body.Line("return *(const unsigned*)", PlaceOf(1, 6, column), ";");
  body.Line("};");
  body.Line("const auto added = [=](long row, long key) KILN_INLINE -> float {");
  if (has_mask()) {
    body.Line("const auto mask = KLoadAll<1>", PlaceOf(4, 10, ints_.Mul(key, s[12])), ";");
    body.Line(is_added ? "return KAddedToScore(KCast<float>(mask)[0]);"
                       : "return mask[0] ? 0.0f : -__builtin_inff();");
  } else {
    body.Line("return 0;");
  }
  body.Line("};");
  names_.MarkStored(micro_->windows[0].buffer);
  body.Line("const auto store = [=](long row, long column, Vec<float, 4> four) KILN_INLINE {");
  body.Line("KStoreAligned<4>(", PlaceOf(0, 4, column), ", KCast<", CppType(DTypeOf(0)),
            ">(four));");
  body.Line("};");
  for (const size_t window : {2, 3}) names_.Buffer(micro_->windows[window].buffer);
  body.Line("KAttendQueries<Shape>(map_k, map_v, batch, head, ", Expr(s[2]), ", ",
            source::FloatLiteral(DType::kF32, scale * std::log2(std::exp(1.0))),
            ", query, added, store);");

  const int threads = tree_.team + kLoaders;
  EmittedKernel kernel;
  kernel.grid.blocks = {ints_.Mul(ints_.Mul(tasks_[0]->end, tasks_[1]->end), ints_.Const(cluster))};
  kernel.grid.threads = {ints_.Const(threads)};
  kernel.grid.shared_bytes =
      ints_.Const(schedule::ptx::QueriesShape::SharedBytes(stages, mask_rows(), s[3].value()));
  kernel.tensor_maps = {MapOf(2, s[8]), MapOf(3, s[9])};
  const std::string parameters = ParametersText(module_, kernel, names_);
  Writer out;
  out.Line(kKernelMark, kSymbolPlaceholder);
  out.Line(kThreadsMark, threads);
  out.Line(kClusterMark, cluster);
  out.Line("struct Shape {");
  out.Line("static constexpr int kRows = ", rows_, ", kWidth = ", s[3].value(),
           ", kStages = ", stages, ", kCluster = ", cluster, ", kMaskRows = ", mask_rows(), ";");
  out.Line("static constexpr bool kHalf = ", Truth(DTypeOf(1) == DType::kF16),
           ", kEarly = ", Truth(reads_early), ", kAdds = ", Truth(is_added), ";");
  out.Line("};");
  out.Line("extern \"C\" KILN_KERNEL void ", kSymbolPlaceholder, "(", parameters,
           "char* scratch, int* error_out, KTensorMap of_k, KTensorMap of_v) {");
  PrintSymbols(names_, index_type_, out);
  PrintMapAddresses(FirstMap(names_), {"map_k", "map_v"}, out);
  out.AppendText(body.text());
  out.Line("}");

  SetText(ints_, names_, out, kernel);
  kernel.waits = true;
  if (reads_early) {
    for (const size_t window : {2, 3}) {
      const ir::BufferId buffer = micro_->windows[window].buffer;
      if (!absl::c_linear_search(kernel.read_early, buffer)) kernel.read_early.push_back(buffer);
    }
  }
  return kernel;
}

}  // namespace

bool IsOfFewQueries(const schedule::Tree& tree) {
  bool is = false;
  ForEachNode(tree.body, [&](const Node& node) {
    const auto* micro = std::get_if<Micro>(&node.value);
    is |= micro != nullptr && schedule::IsOfFewQueries(micro->kind);
  });
  return is;
}

absl::StatusOr<EmittedKernel> PrintFewQueries(ir::Module& module, const schedule::Tree& tree) {
  return QueriesPrinter(module, tree).Print();
}

}  // namespace kiln::codegen::ptx
