#include "compiler/codegen/cpp/kernel_printer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/cpp/body.h"
#include "compiler/codegen/cpp/cost_text.h"
#include "compiler/codegen/cpp/cpp_target.h"
#include "compiler/codegen/cpp/kernel_text.h"
#include "compiler/codegen/cpp/reduce_text.h"
#include "compiler/schedule/micro.h"
#include "compiler/schedule/multiples.h"
#include "compiler/schedule/nest.h"

namespace kiln::codegen::cpp {
namespace {

using absl::StrAppend;
using absl::StrCat;
using ir::IntExpr;
using schedule::Alloc;
using schedule::AllocId;
using schedule::Binding;
using schedule::Block;
using schedule::For;
using schedule::Node;
using schedule::Space;

constexpr int64_t kScratchAlignment = 64;
constexpr int kCostOfTask = 16384;  // scalar operations, at least

// A part of the tree that runs as one grid of tasks: the loops of kTask one in another are its
// rows, those of kTaskVector its lanes. It becomes a function of its own.
struct Grid {
  absl::Span<const Node> nodes;
  std::vector<const For*> rows;   // outermost first
  std::vector<const For*> lanes;  // beside each other
};

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

class KernelPrinter {
 public:
  KernelPrinter(ir::Module& module, const schedule::Tree& tree)
      : module_(module), ints_(*module.ints), tree_(tree) {
    if (tree.threads) names_.NameVar(tree.threads, "args.context->threads");
    for (IntExpr* bytes : {&launch_bytes_, &thread_bytes_}) *bytes = ints_.Const(0);
  }

  EmittedKernel Print();

 private:
  // A function's body under way.
  struct Function {
    Function(ir::IntContext& ints, int num_values, Names& names)
        : out(1), body(ints, num_values, names, out) {}
    Writer out;
    Body body;
    bool streams = false;  // some stores go past the caches
  };
  struct Accumulator {
    std::string vector;  // "float, 16": element and lanes
    ReduceText text;
    bool one_a_lane;  // of a vector loop inside of which it is used, not opened
  };

  void PrintGrid(const Grid& grid, Writer& out);
  void PrintRows(const Grid& grid, Function& f);
  void PrintBlock(absl::Span<const Node> nodes, Function& f);
  void PrintFor(const For& loop, Function& f);
  void PrintVectorLoop(const For& loop, Function& f);
  void PrintIf(const schedule::If& branch, Function& f);
  void PrintOpen(AllocId id, Function& f);
  void PrintAccumulator(AllocId id, Function& f);
  void PrintUpdate(const schedule::Update& update, Function& f);
  void PrintFold(const schedule::Fold& fold, Function& f);
  void PrintCombine(const schedule::Combine& combine, Function& f);
  void PrintMicro(const schedule::Micro& micro, Function& f);
  // A call of a routine, which the kernel is to be linked to.
  template <typename... Parts>
  std::string Routine(const Parts&... parts) {
    const std::string name = StrCat(parts...);
    routines_.insert(name);
    return StrCat(name, "::Run(");
  }
  std::string WindowText(const schedule::Window& window);
  std::string NewVar(IntExpr var, char prefix);
  std::string Expr(IntExpr expr) { return names_.Expr(expr); }
  std::string PointerType(ir::BufferId buffer) const {
    return StrCat(names_.IsStored(buffer) ? "" : "const ", CppType(module_.buffers[buffer].dtype),
                  "*");
  }
  void DeclareUsed(const Names::Used& used, bool from_args, Writer& out);
  // Room for `alloc` at the end of a kind of scratch memory; returns where it begins.
  IntExpr Reserve(const Alloc& alloc, IntExpr& bytes);

  ir::Module& module_;
  ir::IntContext& ints_;
  const schedule::Tree& tree_;
  Names names_;
  std::vector<std::pair<std::string, Names::Used>> functions_;  // text, what it uses
  absl::btree_set<std::string> routines_;
  Writer entry_{1};
  IntExpr launch_bytes_, thread_bytes_;
  absl::flat_hash_map<AllocId, IntExpr> offsets_;  // of those in scratch memory
  absl::flat_hash_map<AllocId, Accumulator> accumulators_;
  absl::flat_hash_map<char, int> var_count_;
  schedule::Multiples multiples_;
};

// Each loop gets a name of its own, so that equal trees have equal text.
std::string KernelPrinter::NewVar(IntExpr var, char prefix) {
  std::string name = StrCat(std::string(1, prefix), var_count_[prefix]++);
  names_.NameVar(var, name);
  return name;
}

IntExpr KernelPrinter::Reserve(const Alloc& alloc, IntExpr& bytes) {
  const IntExpr begin = bytes;
  const IntExpr size = ints_.Mul(alloc.size, DTypeSize(alloc.dtype));
  bytes = ints_.Add(
      begin, ints_.Mul(ints_.CeilDiv(size, ints_.Const(kScratchAlignment)), kScratchAlignment));
  return begin;
}

std::string KernelPrinter::WindowText(const schedule::Window& window) {
  const std::string base =
      window.alloc >= 0 ? names_.Alloc(window.alloc) : names_.Buffer(window.buffer);
  return window.index.is_const(0) ? base : StrCat(base, " + ", Expr(window.index));
}

void KernelPrinter::PrintBlock(absl::Span<const Node> nodes, Function& f) {
  for (const Node& node : nodes) {
    if (const auto* compute = std::get_if<schedule::Compute>(&node.value)) {
      f.streams |= compute->stream;
      f.body.Emit(*compute);
    } else if (const auto* loop = std::get_if<For>(&node.value)) {
      PrintFor(*loop, f);
    } else if (const auto* branch = std::get_if<schedule::If>(&node.value)) {
      PrintIf(*branch, f);
    } else if (const auto* let = std::get_if<schedule::Let>(&node.value)) {
      const std::string value = Expr(let->value);
      multiples_.Enter(*let);
      f.out.Line("const long ", NewVar(let->var, 'i'), " = ", value, ";");
    } else if (const auto* open = std::get_if<schedule::Open>(&node.value)) {
      PrintOpen(open->alloc, f);
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
}

bool HasLoop(const Block& block) {
  bool has = false;
  ForEachNode(block, [&](const Node& node) { has |= std::holds_alternative<For>(node.value); });
  return has;
}

void KernelPrinter::PrintFor(const For& loop, Function& f) {
  multiples_.Enter(loop);
  if (HasLanes(loop.binding)) return PrintVectorLoop(loop, f);
  // The rows of a grid are one loop around all, which PrintRows makes.
  if (loop.binding == Binding::kTask) return PrintBlock(loop.body, f);
  const std::string begin = Expr(loop.begin), end = Expr(loop.end), step = Expr(loop.step);
  const std::string name = NewVar(loop.var, 'r');
  f.out.Line(HasLoop(loop.body) ? "KILN_ROLLED " : "", "for (long ", name, " = ", begin, ", ", name,
             "_end = ", end, "; ", name, " < ", name, "_end; ",
             loop.step.is_const(1) ? StrCat("++", name) : StrCat(name, " += ", step), ") {");
  PrintBlock(loop.body, f);
  f.out.Line("}");
}

void KernelPrinter::PrintVectorLoop(const For& loop, Function& f) {
  const auto is_multiple = [&](IntExpr e) { return multiples_.Is(ints_, e, loop.width); };
  const bool aligned = is_multiple(loop.begin);
  bool exact = is_multiple(ints_.Sub(loop.end, loop.begin));
  std::string begin = Expr(loop.begin), end = Expr(loop.end);
  if (loop.binding == Binding::kTaskVector) {
    // A task's lanes begin at multiples of the width.
    exact = aligned && is_multiple(loop.end);
    begin = loop.begin.is_const(0) ? "lane_begin" : StrCat("KMaxIndex(lane_begin, ", begin, ")");
    end = loop.end == schedule::Extent(ints_, loop.var) ? "lane_end"
                                                        : StrCat("KMinIndex(lane_end, ", end, ")");
  }
  const std::string lambda = f.body.NewName("body");
  const std::string name = NewVar(loop.var, 'x');
  f.out.Line("auto ", lambda, " = [&]<bool kTail>(long ", name, ", long n) KILN_INLINE {");
  f.body.SetLanes(loop.var, loop.width, aligned);
  PrintBlock(loop.body, f);
  f.body.SetLanes(IntExpr(), 1);
  f.out.Line("};");
  f.out.Line("KVectorLoop<", loop.width, ", ", exact ? "true" : "false", ">(", begin, ", ", end,
             ", ", lambda, ");");
}

void KernelPrinter::PrintIf(const schedule::If& branch, Function& f) {
  f.out.Line("if (", Expr(branch.less), " < ", Expr(branch.than), ") {");
  PrintBlock(branch.then, f);
  if (!branch.otherwise.empty()) {
    f.out.Line("} else {");
    PrintBlock(branch.otherwise, f);
  }
  f.out.Line("}");
}

void KernelPrinter::PrintOpen(AllocId id, Function& f) {
  const Alloc& alloc = tree_.allocs[id];
  if (alloc.reduce) return PrintAccumulator(id, f);
  const absl::string_view type = CppType(alloc.dtype);
  switch (alloc.space) {
    case Space::kRegister:
    case Space::kL1:
      f.out.Line("alignas(64) ", type, " ", names_.Alloc(id), "[", alloc.size.value(), "];");
      break;
    case Space::kL2:
      offsets_[id] = Reserve(alloc, thread_bytes_);
      f.out.Line(type, "* const ", names_.Alloc(id), " = (", type,
                 "*)(args.context->thread_scratch + thread * "
                 "args.context->thread_scratch_bytes + ",
                 Expr(offsets_[id]), ");");
      break;
    case Space::kGlobal:
      // Print() made room for it, and each function declares what it uses.
      break;
  }
}

void KernelPrinter::PrintAccumulator(AllocId id, Function& f) {
  const Alloc& alloc = tree_.allocs[id];
  const DType type = ComputeType(alloc.dtype);
  const bool in_lanes = f.body.width() > 1;
  const int64_t width = in_lanes ? f.body.width() : alloc.size.value();
  const Accumulator& acc =
      accumulators_
          .insert_or_assign(
              id, Accumulator{StrCat(CppType(type), ", ", width),
                              DescribeReduce(*alloc.reduce, type), !in_lanes && width > 1})
          .first->second;
  const std::string name = names_.Alloc(id);
  if (alloc.cascade) {
    f.out.Line("KCascade<", acc.vector, "> ", name, ";");
  } else if (acc.text.functor.empty()) {
    f.out.Line("KBest<", acc.vector, "> ", name, " = {KConst<", acc.vector, ">(", acc.text.identity,
               "), KConst<long, ", width, ">(0x7fffffffffffffffl)};");
  } else {
    f.out.Line("Vec<", acc.vector, "> ", name, " = KConst<", acc.vector, ">(", acc.text.identity,
               ");");
  }
}

void KernelPrinter::PrintUpdate(const schedule::Update& update, Function& f) {
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
  const IntExpr stride =
      tail_counts ? ints_.CoefficientOf(update.number, f.body.lane_var()) : ints_.Const(0);
  const std::string number =
      StrCat("KIota<", width, ">(", Expr(update.number), ", ", Expr(stride), ")");
  const std::string all = StrCat("KConst<bool, ", width, ">(true)");
  f.out.Line("KUpdateBest<", acc.text.greatest ? "true" : "false", ">(", name, ", ", operand, ", ",
             number, ", ", tail_counts ? StrCat("kTail ? KActive<", width, ">(n) : ", all) : all,
             ");");
}

void KernelPrinter::PrintFold(const schedule::Fold& fold, Function& f) {
  const std::string into = names_.Alloc(fold.into), from = names_.Alloc(fold.from);
  if (tree_.allocs[fold.into].cascade) {
    f.out.Line(into, ".Add(", from, ");");
  } else {
    f.out.Line(into, " = ", accumulators_.at(fold.into).text.functor, "()(", into, ", ", from,
               ");");
  }
}

void KernelPrinter::PrintCombine(const schedule::Combine& combine, Function& f) {
  const Accumulator& acc = accumulators_.at(combine.from);
  const Alloc& alloc = tree_.allocs[combine.from];
  const std::string type(CppType(ComputeType(alloc.dtype)));
  std::string value = names_.Alloc(combine.from);
  if (alloc.cascade) StrAppend(&value, ".Total()");
  if (acc.text.functor.empty()) {
    if (acc.one_a_lane) {
      value = StrCat("KFoldBest<", acc.text.greatest ? "true" : "false", ">(", value, ")");
    }
    StrAppend(&value, ".number");
  } else {
    if (acc.one_a_lane) value = StrCat("KFold<", acc.text.functor, ", ", type, ">(", value, ")");
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

void KernelPrinter::PrintMicro(const schedule::Micro& micro, Function& f) {
  std::vector<std::string> w, s;
  for (const schedule::Window& window : micro.windows) w.push_back(WindowText(window));
  for (IntExpr size : micro.sizes) s.push_back(Expr(size));
  const std::vector<int>& c = micro.constants;
  const schedule::Window& to = micro.windows[0];
  const auto type_of = [&](const schedule::Window& window) {
    return std::string(CppType(window.alloc >= 0 ? tree_.allocs[window.alloc].dtype
                                                 : module_.buffers[window.buffer].dtype));
  };
  const std::string type = type_of(to);
  if (to.alloc < 0) names_.MarkStored(to.buffer);
  switch (micro.kind) {
    case schedule::MicroKind::kZero:
      f.out.Line("__builtin_memset(", w[0], ", 0, ", s[0], " * sizeof(", type, "));");
      break;
    case schedule::MicroKind::kSort:
      f.out.Line(Routine("KSort<", type, ">"), w[0], ", ", w[1], ", ", s[0], ");");
      break;
    case schedule::MicroKind::kSelect:
      f.out.Line(Routine("KSelectLeast<", type, ">"), w[0], ", ", w[1], ", ", s[0], ", ", s[1],
                 ");");
      break;
    case schedule::MicroKind::kCopyRows:
      f.out.Line(Routine("KCopyRows<", c[0], ", ", type, ">"), w[1], ", ", s[0], ", ", s[1], ", ",
                 s[2], ", ", s[3], ", ", w[0], ");");
      break;
    case schedule::MicroKind::kPackTransposed:
      f.out.Line(Routine("KPackTransposed<", c[0], ", ", type, ">"), w[1], ", ", s[0], ", ", s[1],
                 ", ", s[2], ", ", w[0], ");");
      break;
    case schedule::MicroKind::kPackPairs:
      Routine("KPackTransposed<", c[0], ", int>");
      f.out.Line("KPackPairs<", c[0], ">(", w[1], ", ", s[0], ", ", s[1], ", ", s[2], ", ", w[0],
                 ");");
      break;
    case schedule::MicroKind::kInterleave:
      f.out.Line(Routine("KInterleave<", c[0], ">"), w[1], ", ", s[0], ", ", s[1], ", ", s[2], ", ",
                 w[0], ");");
      break;
    case schedule::MicroKind::kMultiplyPairs:
      f.out.Line(Routine("KMicroKernelPairs<", c[0], ", ", c[1], ", ", c[2], ">"), s[0], ", ", w[1],
                 ", ", s[1], ", ", w[2], ", ", w[0], ");");
      break;
    case schedule::MicroKind::kTranspose:
      f.out.Line(Routine("KTransposeTile<", c[0], ", ", c[1], ", ", type, ">"), w[1], ", ", w[0],
                 ");");
      break;
    case schedule::MicroKind::kMultiply:
      f.out.Line(Routine("KMicroKernel<", type, ", ", type_of(micro.windows[2]), ", ", c[0], ", ",
                         c[1], ", ", c[2], ">"),
                 s[0], ", ", w[1], ", ", s[1], ", ", s[2], ", ", w[2], ", ", w[0], ");");
      break;
  }
}

// Rows [row_begin, row_end) of the grid, counted like an odometer.
void KernelPrinter::PrintRows(const Grid& grid, Function& f) {
  const std::vector<const For*>& rows = grid.rows;
  if (rows.empty()) return PrintBlock(grid.nodes, f);
  std::vector<std::string> names, extents;
  for (const For* loop : rows) {
    extents.push_back(Expr(loop->end));
    names.push_back(NewVar(loop->var, 'd'));
  }
  const auto steps = [&](size_t i) {
    const For& loop = *rows[i];
    return Expr(ints_.CeilDiv(loop.end, loop.step));
  };
  std::string rest = "row_begin";
  for (size_t i = rows.size(); i-- > 0;) {
    const std::string number = i == 0 ? rest : StrCat("KRem(", rest, ", ", steps(i), ")");
    f.out.Line("long ", names[i], " = ", number,
               rows[i]->step.is_const(1) ? "" : StrCat(" * ", Expr(rows[i]->step)), ";");
    if (i > 0) rest = StrCat("KDiv(", rest, ", ", steps(i), ")");
  }
  f.out.Line("KILN_ROLLED for (long row = row_begin; row < row_end; ++row) {");
  PrintBlock(grid.nodes, f);
  for (size_t i = rows.size(); i-- > 0;) {
    const std::string step = rows[i]->step.is_const(1)
                                 ? StrCat("++", names[i])
                                 : StrCat("(", names[i], " += ", Expr(rows[i]->step), ")");
    if (i == 0) {
      f.out.Line(step, ";");
    } else {
      f.out.Line("if (", step, " < ", extents[i], ") continue;");
      f.out.Line(names[i], " = 0;");
    }
  }
  f.out.Line("}");
}

// Declares buffers, symbols and scratch memory as a function or the entry sees them.
void KernelPrinter::DeclareUsed(const Names::Used& used, bool from_args, Writer& out) {
  if (from_args) {
    for (int i : used.buffers) {
      out.Line(PointerType(names_.buffers()[i]), " const b", i, " = args.b", i, ";");
    }
  }
  for (int i : used.symbols) {
    out.Line("const long s", i, " = ", from_args ? StrCat("args.s", i) : StrCat("symbols[", i, "]"),
             ";");
  }
  for (AllocId id : used.allocs) {
    if (tree_.allocs[id].space != Space::kGlobal) continue;
    const absl::string_view type = CppType(tree_.allocs[id].dtype);
    out.Line(type, "* const ", names_.Alloc(id), " = (", type, "*)(args.context->scratch + ",
             Expr(offsets_.at(id)), ");");
  }
}

void KernelPrinter::PrintGrid(const Grid& grid, Writer& out) {
  Function f(ints_, tree_.num_values, names_);
  PrintRows(grid, f);
  if (f.streams) f.out.Line("KStreamEnd();");
  const bool checks = f.body.TakeChecks();
  Names::Used used = names_.TakeUsed();
  // Where scratch memory begins may depend on symbols.
  for (AllocId id : used.allocs) {
    if (tree_.allocs[id].space == Space::kGlobal) Expr(offsets_.at(id));
  }
  const Names::Used more = names_.TakeUsed();
  used.symbols.insert(more.symbols.begin(), more.symbols.end());

  const std::string name = StrCat("Run", functions_.size());
  Writer text;
  text.Line(
      "void ", name,
      "(void* closure, long row_begin, long row_end, long lane_begin, long lane_end, int thread) "
      "{");
  text.Line("Args& args = *(Args*)closure;");
  DeclareUsed(used, true, text);
  if (checks) text.Line("int error = 0;");
  text.AppendText(f.out.text());
  if (checks) text.Line("if (error) __atomic_store_n(&args.error, 1, __ATOMIC_RELAXED);");
  text.Line("}");
  names_.TakeUsed();
  functions_.emplace_back(text.text(), used);

  IntExpr rows = ints_.Const(1), lanes = ints_.Const(1);
  for (const For* loop : grid.rows) rows = ints_.Mul(rows, ints_.CeilDiv(loop->end, loop->step));
  int step = 1;
  if (!grid.lanes.empty()) {
    lanes = schedule::Extent(ints_, grid.lanes[0]->var);
    step = grid.lanes[0]->width;
  }
  out.Line(Routine("KRunGrid<", kCostOfTask, ">"), "context, KGrid{&args, ", name, ", ", Expr(rows),
           ", ", Expr(lanes), ", ", step, ", 1, 1}, ", CostText(ints_, tree_, grid.nodes, names_),
           ");");
}

EmittedKernel KernelPrinter::Print() {
  // Scratch memory of the launch first: every grid may use it.
  for (const Node& node : tree_.body) {
    const auto* open = std::get_if<schedule::Open>(&node.value);
    if (open == nullptr || tree_.allocs[open->alloc].space != Space::kGlobal) continue;
    offsets_[open->alloc] = Reserve(tree_.allocs[open->alloc], launch_bytes_);
  }
  for (const Grid& grid : FindGrids(tree_.body)) PrintGrid(grid, entry_);
  const Names::Used entry_used = names_.TakeUsed();

  Writer out;
  out.Line("namespace {");
  out.Line("struct Args {");
  std::string initializers = "context, ";
  out.Line("const KilnCpuContext* context;");
  for (size_t i = 0; i < names_.buffers().size(); ++i) {
    const std::string type = PointerType(names_.buffers()[i]);
    out.Line(type, " b", i, ";");
    StrAppend(&initializers, "(", type, ")buffers[", i, "], ");
  }
  for (size_t i = 0; i < names_.symbols().size(); ++i) {
    out.Line("long s", i, ";");
    StrAppend(&initializers, "symbols[", i, "], ");
  }
  out.Line("int error;");
  out.Line("};");
  for (const auto& [text, used] : functions_) out.AppendText(text);
  out.Line("}  // namespace");
  out.Line("");
  out.Line("extern \"C\" __attribute__((visibility(\"default\"))) int ", kSymbolPlaceholder,
           "(const KilnCpuContext* context, void* const* buffers, const long* symbols) {");
  DeclareUsed(entry_used, false, out);
  out.Line("Args args = {", initializers, "0};");
  out.AppendText(entry_.text());
  out.Line("return args.error ? KILN_CPU_INDEX_OUT_OF_RANGE : KILN_CPU_OK;");
  out.Line("}");

  EmittedKernel kernel;
  kernel.source = out.text();
  for (const std::string& name : routines_) {
    kernel.routines.push_back(
        {.name = name, .source = StrCat(CppRoutines(), "\ntemplate struct ", name, ";\n")});
  }
  kernel.buffers = names_.buffers();
  kernel.symbols = names_.symbols();
  kernel.scratch_bytes = launch_bytes_;
  kernel.thread_scratch_bytes = thread_bytes_;
  return kernel;
}

}  // namespace

EmittedKernel PrintKernel(ir::Module& module, const schedule::Tree& tree) {
  return KernelPrinter(module, tree).Print();
}

}  // namespace kiln::codegen::cpp
