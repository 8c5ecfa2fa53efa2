#include "compiler/codegen/cpp/kernel_printer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "compiler/codegen/cpp/cost_text.h"
#include "compiler/codegen/cpp/cpp_target.h"
#include "compiler/codegen/source/tree_printer.h"
#include "compiler/schedule/micro.h"
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
using source::CppType;
using source::Names;
using source::Writer;

constexpr int kCostOfTask = 16384;  // scalar operations, at least

class KernelPrinter : public source::TreePrinter {
 public:
  KernelPrinter(ir::Module& module, const schedule::Tree& tree) : TreePrinter(module, tree) {
    if (tree.threads) names_.NameVar(tree.threads, "args.context->threads");
    for (IntExpr* bytes : {&launch_bytes_, &thread_bytes_}) *bytes = ints_.Const(0);
  }

  EmittedKernel Print();

 private:
  void PrintGrid(const source::Grid& grid, Writer& out);
  void PrintRows(const source::Grid& grid, Function& f);
  void PrintVectorLoop(const For& loop, Function& f) override;
  void PrintArray(AllocId id, Function& f) override;
  void PrintMicro(const schedule::Micro& micro, Function& f) override;
  // A call of a routine, which the kernel is to be linked to.
  template <typename... Parts>
  std::string Routine(const Parts&... parts) {
    const std::string name = StrCat(parts...);
    routines_.insert(name);
    return StrCat(name, "::Run(");
  }
  std::string WindowText(const schedule::Window& window);
  void DeclareUsed(const Names::Used& used, bool from_args, Writer& out);

  std::vector<std::pair<std::string, Names::Used>> functions_;  // text, what it uses
  absl::btree_set<std::string> routines_;
  Writer entry_{1};
  IntExpr launch_bytes_, thread_bytes_;
  bool checks_divisors_ = false;
  bool takes_tiles_ = false;  // the grid at hand, those of matrix instructions
};

std::string KernelPrinter::WindowText(const schedule::Window& window) {
  const std::string base =
      window.alloc >= 0 ? names_.Alloc(window.alloc) : names_.Buffer(window.buffer);
  return window.index.is_const(0) ? base : StrCat(base, " + ", Expr(window.index));
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

void KernelPrinter::PrintArray(AllocId id, Function& f) {
  const Alloc& alloc = tree_.allocs[id];
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
      f.out.Line(Routine("KPackTransposed<", type, ">"), w[1], ", ", s[0], ", ", s[1], ", ", s[2],
                 ", ", w[0], ", ", s[3], ");");
      break;
    case schedule::MicroKind::kPackPairs:
      Routine("KPackTransposed<int>");
      f.out.Line("KPackPairs<", c[0], ">(", w[1], ", ", s[0], ", ", s[1], ", ", s[2], ", ", w[0],
                 ");");
      break;
    case schedule::MicroKind::kInterleave:
      f.out.Line(Routine("KInterleave<", c[0], ">"), w[1], ", ", s[0], ", ", s[1], ", ", s[2], ", ",
                 w[0], ");");
      break;
    case schedule::MicroKind::kMultiplyPairs:
      takes_tiles_ |= c[1] % schedule::kMatrixRows == 0;
      f.out.Line(Routine("KMicroKernelPairs<", c[0], ", ", c[1], ", ", c[2], ">"), s[0], ", ", w[1],
                 ", ", s[1], ", ", w[2], ", ", w[0], ");");
      break;
    case schedule::MicroKind::kMultiplyTile:
    case schedule::MicroKind::kMultiplyRows:
    case schedule::MicroKind::kMultiplyWarps:
    case schedule::MicroKind::kAttendTile:
    case schedule::MicroKind::kAttendWarps:
    case schedule::MicroKind::kAttend:
    case schedule::MicroKind::kAttendGradients:
    case schedule::MicroKind::kAttendMasked:
      f.out.Line("#error \"a product of whole tiles is for tensor cores\"");
      break;
    case schedule::MicroKind::kTranspose:
      f.out.Line(Routine("KTransposeTile<", c[0], ", ", c[1], ", ", type, ">"), w[1], ", ", w[0],
                 ");");
      break;
    case schedule::MicroKind::kWinogradImage:
      f.out.Line(Routine("KWinogradImage<", c[0], ", ", schedule::kMostTileColumns, ">"), w[1],
                 ", ", absl::StrJoin(s, ", "), ", ", w[0], ");");
      break;
    case schedule::MicroKind::kWinogradSums:
      f.out.Line(Routine("KWinogradSums<", c[0], ", ", c[1], ">"), w[1], ", ", s[0], ", ", s[1],
                 ", ", w[2], ", ", absl::StrJoin(absl::MakeConstSpan(s).subspan(2, 7), ", "), ", ",
                 w[3], ", ", s[9], ", ", s[10], ", ", w[0], ");");
      break;
    case schedule::MicroKind::kMultiply:
      f.out.Line(Routine("KMicroKernel<", type, ", ", type_of(micro.windows[2]), ", ", c[0], ", ",
                         c[1], ", ", c[2], ">"),
                 s[0], ", ", w[1], ", ", s[1], ", ", s[2], ", ", w[2], ", ", w[0], ");");
      break;
  }
}

// Rows [row_begin, row_end) of the grid, counted like an odometer.
void KernelPrinter::PrintRows(const source::Grid& grid, Function& f) {
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
      out.Line(PointerType(module_, names_, names_.buffers()[i]), " const b", i, " = args.b", i,
               ";");
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

void KernelPrinter::PrintGrid(const source::Grid& grid, Writer& out) {
  Function f(ints_, tree_.num_values, names_);
  PrintRows(grid, f);
  if (f.streams) f.out.Line("KStreamEnd();");
  const bool checks = f.body.TakeChecks(), divisors = f.body.TakeDivisors();
  checks_divisors_ |= divisors;
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
  if (std::exchange(takes_tiles_, false)) text.Line("[[maybe_unused]] const KTileRegisters tiles;");
  DeclareUsed(used, true, text);
  if (checks) text.Line("int error = 0;");
  if (divisors) text.Line("int by_zero = 0;");
  text.AppendText(f.out.text());
  if (checks) text.Line("if (error) __atomic_store_n(&args.error, 1, __ATOMIC_RELAXED);");
  if (divisors) {
    text.Line(
        "if (by_zero) __atomic_store_n(&args.error, KILN_CPU_DIVISION_BY_ZERO, "
        "__ATOMIC_RELAXED);");
  }
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
  for (const source::Grid& grid : source::FindGrids(tree_.body)) PrintGrid(grid, entry_);
  const Names::Used entry_used = names_.TakeUsed();

  Writer out;
  out.Line("namespace {");
  out.Line("struct Args {");
  std::string initializers = "context, ";
  out.Line("const KilnCpuContext* context;");
  for (size_t i = 0; i < names_.buffers().size(); ++i) {
    const std::string type = PointerType(module_, names_, names_.buffers()[i]);
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
  out.Line(checks_divisors_ ? "return args.error;"
                            : "return args.error ? KILN_CPU_INDEX_OUT_OF_RANGE : KILN_CPU_OK;");
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
