#include "compiler/codegen/source/tree_printer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/nest.h"

namespace kiln::codegen::source {

using absl::StrAppend;
using absl::StrCat;
using ir::IntExpr;
using schedule::Alloc;
using schedule::AllocId;
using schedule::Binding;
using schedule::Block;
using schedule::For;
using schedule::Node;

namespace {

constexpr int64_t kScratchAlignment = 64;

void FindTaskLoops(absl::Span<const Node> nodes, Grid& grid) {
  for (const Node& node : nodes) {
    if (const auto* loop = std::get_if<For>(&node.value)) {
      if (loop->binding == Binding::kTaskVector) {
        grid.lanes.push_back(loop);
      } else if (loop->binding == Binding::kTask) {
        grid.rows.push_back(loop);
        FindTaskLoops(loop->body, grid);
      }
    } else if (const auto* branch = std::get_if<schedule::If>(&node.value)) {
      FindTaskLoops(branch->then, grid);
      FindTaskLoops(branch->otherwise, grid);
    }
  }
}

bool HasLoop(const Block& block) {
  bool has = false;
  ForEachNode(block, [&](const Node& node) { has |= std::holds_alternative<For>(node.value); });
  return has;
}

}  // namespace

// One grid for each loop of tasks in the root, or one for all of the root where there is one such
// loop at most.
std::vector<Grid> FindGrids(const Block& root) {
  const auto is_task = [](const Node& node) {
    const auto* loop = std::get_if<For>(&node.value);
    return loop != nullptr && loop->binding == Binding::kTask;
  };
  std::vector<Grid> grids;
  for (size_t i = 0; i < root.size(); ++i) {
    if (is_task(root[i])) grids.push_back({absl::MakeSpan(&root[i], 1), {}, {}});
  }
  if (grids.size() < 2) grids = {{root, {}, {}}};
  for (Grid& grid : grids) FindTaskLoops(grid.nodes, grid);
  return grids;
}

// Each loop gets a name of its own, so that equal trees have equal text.
std::string TreePrinter::NewVar(IntExpr var, char prefix) {
  std::string name = StrCat(std::string(1, prefix), var_count_[prefix]++);
  names_.NameVar(var, name);
  return name;
}

IntExpr TreePrinter::Reserve(const Alloc& alloc, IntExpr& bytes) {
  const IntExpr begin = bytes;
  const IntExpr size = ints_.Mul(alloc.size, DTypeSize(alloc.dtype));
  bytes = ints_.Add(
      begin, ints_.Mul(ints_.CeilDiv(size, ints_.Const(kScratchAlignment)), kScratchAlignment));
  return begin;
}

void TreePrinter::PrintFor(const For& loop, Function& f) {
  multiples_.Enter(loop);
  if (HasLanes(loop.binding)) return PrintVectorLoop(loop, f);
  // The rows of a grid are one loop around all, which PrintRows makes.
  if (loop.binding == Binding::kTask) return PrintBlock(loop.body, f);
  if (loop.binding == Binding::kGroup) return PrintGroupLoop(loop, f);
  PrintSerialLoop(loop, f);
}

void TreePrinter::PrintSerialLoop(const For& loop, Function& f) {
  const std::string begin = Expr(loop.begin), end = Expr(loop.end), step = Expr(loop.step);
  const std::string name = NewVar(loop.var, 'r');
  f.out.Line(HasLoop(loop.body) ? "KILN_ROLLED " : InnermostHint(loop, f), "for (", index_type_,
             " ", name, " = ", begin, ", ", name, "_end = ", end, "; ", name, " < ", name, "_end; ",
             loop.step.is_const(1) ? StrCat("++", name) : StrCat(name, " += ", step), ") {");
  PrintBlock(loop.body, f);
  f.out.Line("}");
}

void TreePrinter::PrintIf(const schedule::If& branch, Function& f) {
  f.out.Line("if (", Expr(branch.less), " < ", Expr(branch.than), ") {");
  PrintBlock(branch.then, f);
  if (!branch.otherwise.empty()) {
    f.out.Line("} else {");
    PrintBlock(branch.otherwise, f);
  }
  f.out.Line("}");
}

void TreePrinter::PrintAccumulator(AllocId id, Function& f) {
  const Alloc& alloc = tree_.allocs[id];
  const DType type = ComputeType(alloc.dtype);
  const bool in_lanes = static_cast<bool>(f.body.lane_var());
  const int64_t width = in_lanes ? f.body.width() : LanesOfThread(alloc);
  const Accumulator& acc =
      accumulators_
          .insert_or_assign(id, Accumulator{StrCat(CppType(type), ", ", width),
                                            DescribeReduce(*alloc.reduce, type),
                                            !in_lanes && !alloc.size.is_const(1)})
          .first->second;
  const std::string name = names_.Alloc(id);
  if (alloc.cascade) {
    f.out.Line("KCascade<", acc.vector, "> ", name, ";");
  } else if (acc.text.functor.empty()) {
    if (alloc.narrow) {
      f.out.Line("KBest<", acc.vector, ", int> ", name, ";");
      return;
    }
    f.out.Line("KBest<", acc.vector, "> ", name, " = {KConst<", acc.vector, ">(", acc.text.identity,
               "), KConst<long, ", width, ">(0x7fffffffffffffffl)};");
  } else {
    f.out.Line("Vec<", acc.vector, "> ", name, " = KConst<", acc.vector, ">(", acc.text.identity,
               ");");
  }
}

void TreePrinter::PrintUpdate(const schedule::Update& update, Function& f) {
  const Accumulator& acc = accumulators_.at(update.alloc);
  const std::string name = names_.Alloc(update.alloc);
  const int width = f.body.width();
  const std::string operand = f.body.UseComputed(update.value, width > 1);
  // Lanes past the end would count in an accumulator that outlives them.
  const bool tail_counts = acc.one_a_lane && width > 1;
  if (!acc.text.functor.empty()) {
    const std::string type(CppType(ComputeType(tree_.allocs[update.alloc].dtype)));
    f.out.Line(name, " = ", acc.text.functor, "()(", name, ", ",
               tail_counts ? StrCat("KActiveOr<kTail, ", type, ">(", operand, ", n, ",
                                    acc.text.identity, ")")
                           : operand,
               ");");
    return;
  }
  if (tree_.allocs[update.alloc].narrow) {
    const std::string number = StrCat("KConst<int, ", width, ">(", Expr(update.number), ")");
    if (update.order == schedule::UpdateOrder::kFirst) {
      f.out.Line(name, " = {", operand, ", ", number, "};");
    } else {
      f.out.Line("KUpdateBestLater<", acc.text.greatest ? "true" : "false", ">(", name, ", ",
                 operand, ", ", number, ");");
    }
    return;
  }
  const IntExpr stride =
      tail_counts ? ints_.CoefficientOf(update.number, f.body.lane_var()) : ints_.Const(0);
  const std::string number =
      StrCat("KIota<", width, ">(", Expr(update.number), ", ", Expr(stride), ")");
  const std::string all = StrCat("KConst<bool, ", width, ">(true)");
  f.out.Line("KUpdateBest<", acc.text.greatest ? "true" : "false", ">(", name, ", ", operand, ", ",
             number, ", ", tail_counts ? StrCat("kTail ? KActive<", width, ">(n) : ", all) : all,
             ");");
}

void TreePrinter::PrintFold(const schedule::Fold& fold, Function& f) {
  const std::string into = names_.Alloc(fold.into), from = names_.Alloc(fold.from);
  if (tree_.allocs[fold.into].cascade) {
    f.out.Line(into, ".Add(", from, ");");
  } else {
    f.out.Line(into, " = ", accumulators_.at(fold.into).text.functor, "()(", into, ", ", from,
               ");");
  }
}

void TreePrinter::PrintCombine(const schedule::Combine& combine, Function& f) {
  const Accumulator& acc = accumulators_.at(combine.from);
  const Alloc& alloc = tree_.allocs[combine.from];
  const std::string type(CppType(ComputeType(alloc.dtype)));
  std::string value = names_.Alloc(combine.from);
  if (alloc.cascade) StrAppend(&value, ".Total()");
  if (acc.text.functor.empty()) {
    if (acc.one_a_lane) {
      value = StrCat("KFoldBest<", acc.text.greatest ? "true" : "false", ">(", value, ")");
      value = AcrossThreads(acc, type, std::move(value));
    }
    StrAppend(&value, combine.best ? ".value" : ".number");
    if (alloc.narrow && !combine.best) value = StrCat("KCast<long>(", value, ")");
  } else {
    if (acc.one_a_lane) {
      value = StrCat("KFold<", acc.text.functor, ", ", type, ">(", value, ")");
      value = AcrossThreads(acc, type, std::move(value));
    }
    if (type != CppType(combine.dtype)) {
      value = StrCat("KCast<", CppType(combine.dtype), ">(", value, ")");
    }
  }
  const bool varying = f.body.width() > 1;
  const std::string name = f.body.NewName("v");
  f.out.Line("const Vec<", CppType(combine.dtype), ", ", f.body.width(), "> ", name, " = ", value,
             ";");
  f.body.Define(combine.result, combine.dtype, varying, name);
}

void TreePrinter::PrintBlock(absl::Span<const Node> nodes, Function& f) {
  for (const Node& node : nodes) PrintNode(node, f);
}

void TreePrinter::PrintNode(const Node& node, Function& f) {
  if (const auto* compute = std::get_if<schedule::Compute>(&node.value)) {
    f.streams |= compute->stream;
    PrintCompute(*compute, f);
  } else if (const auto* loop = std::get_if<For>(&node.value)) {
    PrintFor(*loop, f);
  } else if (const auto* branch = std::get_if<schedule::If>(&node.value)) {
    PrintIf(*branch, f);
  } else if (const auto* let = std::get_if<schedule::Let>(&node.value)) {
    const std::string value = Expr(let->value);
    multiples_.Enter(*let);
    f.out.Line("const ", index_type_, " ", NewVar(let->var, 'i'), " = ", value, ";");
  } else if (const auto* open = std::get_if<schedule::Open>(&node.value)) {
    if (tree_.allocs[open->alloc].reduce) {
      PrintAccumulator(open->alloc, f);
    } else {
      PrintArray(open->alloc, f);
    }
  } else if (const auto* update = std::get_if<schedule::Update>(&node.value)) {
    PrintUpdate(*update, f);
  } else if (const auto* fold = std::get_if<schedule::Fold>(&node.value)) {
    PrintFold(*fold, f);
  } else if (const auto* combine = std::get_if<schedule::Combine>(&node.value)) {
    PrintCombine(*combine, f);
  } else if (const auto* ahead = std::get_if<schedule::Prefetch>(&node.value)) {
    f.out.Line("KPrefetch<", ahead->count, ">(", names_.Buffer(ahead->buffer), " + ",
               Expr(ahead->index), ");");
  } else {
    PrintMicro(std::get<schedule::Micro>(node.value), f);
  }
}

}  // namespace kiln::codegen::source
