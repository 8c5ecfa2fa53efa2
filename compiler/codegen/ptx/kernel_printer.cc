#include "compiler/codegen/ptx/kernel_printer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/ptx/kernel_launch.h"
#include "compiler/codegen/ptx/machine_functions.h"
#include "compiler/codegen/source/tree_printer.h"
#include "compiler/schedule/nest.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using ir::IntExpr;
using schedule::Alloc;
using schedule::AllocId;
using schedule::Binding;
using schedule::For;
using schedule::Node;
using source::CppType;
using source::Writer;

constexpr int kWarp = 32;
constexpr int kBlock = 256;          // threads, where teams share a block
constexpr int kFewBlocks = 512;      // which fill a GPU
constexpr int kSlotBytes = 32 * 16;  // what KAcrossTeam exchanges between warps
// Threads of a multiprocessor at least where each takes rows of columns: up to 128 registers each.
constexpr int kResidentThreads = 512;

// Memory of the kernel that nodes access, by buffer (from 0 on) or alloc (from -1 down).
struct Accesses {
  absl::flat_hash_set<int> loads, stores;
};
int MemoryOf(const schedule::Compute& compute) {
  return compute.alloc >= 0 ? -1 - compute.alloc : compute.inst.buffer;
}

// Whether lanes of a loop, which are columns then, walk through a loop of their own.
bool HasLoopsInLanes(const schedule::Block& block) {
  bool has = false;
  ForEachNode(block, [&](const Node& node) {
    const auto* lanes = std::get_if<For>(&node.value);
    if (lanes == nullptr || !HasLanes(lanes->binding)) return;
    ForEachNode(lanes->body,
                [&](const Node& inner) { has |= std::holds_alternative<For>(inner.value); });
  });
  return has;
}

class KernelPrinter : public source::TreePrinter {
 public:
  KernelPrinter(ir::Module& module, const schedule::Tree& tree, bool waits)
      : TreePrinter(module, tree), waits_(waits), team_(tree.team) {
    team_bytes_ = ints_.Const(0);
    first_lane_ = ints_.NewVar(ints_.Const(INT64_MAX));
    turn_ = ints_.NewVar(ints_.Const(INT32_MAX));
    names_.NameVar(turn_, "turn");
    FindOwnRows(tree.body, nullptr, false);
    if (IndicesFitInt(tree)) index_type_ = "int";
  }

  absl::StatusOr<TaskText> Print();
  source::Names& names() { return names_; }

 private:
  // What one array's accesses have in common.
  struct Row {
    int width = 0;
    bool own = true;  // each thread reads only what it stored itself
    int turns = 0;    // that a thread takes of every loop at most, where that is known; else 0
  };

  void FindOwnRows(const schedule::Block& block, const For* lanes, bool in_group);
  int TurnsOf(const For& loop) const;
  bool IsOneTurn(const For& loop) const;
  // A thread's part of such a row lies in its registers, one element after another.
  bool IsInRegisters(AllocId id) const;
  void AddAccesses(const Node& node, Accesses& out) const;
  void SyncBefore(const Node& node, Function& f);
  void PrintNode(const Node& node, Function& f) override;
  void PrintCompute(const schedule::Compute& compute, Function& f) override;
  void PrintVectorLoop(const For& loop, Function& f) override;
  void PrintGroupLoop(const For& loop, Function& f) override;
  void PrintArray(AllocId id, Function& f) override;
  void PrintMicro(const schedule::Micro&, Function&) override { Unknown("a micro-kernel"); }
  std::string InnermostHint(const For& loop, const Function& f) const override;
  int64_t LanesOfThread(const Alloc& alloc) const override {
    return std::max<int64_t>(1, alloc.size.value() / team_);
  }
  // Of an array in registers.
  int64_t LanesInRegisters(AllocId id) const {
    const Row& row = rows_.at(id);
    return static_cast<int64_t>(row.turns) * row.width / tree_.team;
  }
  std::string AcrossThreads(const Accumulator& acc, const std::string& type,
                            std::string value) override;
  void PrintTask(const source::Grid& grid, IntExpr chunks, Function& f);
  void Unknown(absl::string_view what) {
    if (problem_.empty())
      problem_ = StrCat("kernel @", tree_.name, ": target ptx does not print ", what);
  }

  const bool waits_;
  int team_;  // threads that share the lanes of a loop here
  absl::flat_hash_map<IntExpr, IntExpr> lets_;
  absl::flat_hash_map<AllocId, Row> rows_;
  Accesses pending_;              // since the team's threads last met
  bool meets_ = false;            // they do
  bool has_few_threads_ = false;  // a warp a multiprocessor or hardly more
  IntExpr team_bytes_;
  IntExpr first_lane_, turn_;  // of the vector loop under way: the same as its variable; its turns
  std::string problem_;
};

// The greatest absolute value that `e` or anything on the way to it may have.
double Bound(IntExpr e) {
  const auto of_range = [](ir::IntRange range) {
    return std::max(std::abs(static_cast<double>(range.min)),
                    std::abs(static_cast<double>(range.max)));
  };
  double bound = e.kind() == ir::IntKind::kMul ? 1 : 0;
  switch (e.kind()) {
    case ir::IntKind::kConst:
    case ir::IntKind::kSymbol:
    case ir::IntKind::kVar:
    case ir::IntKind::kIndirect:
      return of_range(e.range());
    default:
      break;
  }
  for (const IntExpr operand : e.operands()) {
    const double part = Bound(operand);
    if (e.kind() == ir::IntKind::kAdd) {
      bound += part;
    } else if (e.kind() == ir::IntKind::kMul) {
      bound *= std::max(1.0, part);
    } else {
      bound = std::max(bound, part);
    }
  }
  return bound;
}

// Of arrays that are accessed at a vector loop's own variable only, by loops of one width that all
// of the team runs.
void KernelPrinter::FindOwnRows(const schedule::Block& block, const For* lanes, bool in_group) {
  for (const Node& node : block) {
    if (const auto* loop = std::get_if<For>(&node.value)) {
      FindOwnRows(loop->body, HasLanes(loop->binding) ? loop : lanes,
                  in_group || loop->binding == Binding::kGroup);
    } else if (const auto* branch = std::get_if<schedule::If>(&node.value)) {
      FindOwnRows(branch->then, lanes, in_group);
      FindOwnRows(branch->otherwise, lanes, in_group);
    } else if (const auto* compute = std::get_if<schedule::Compute>(&node.value)) {
      if (compute->alloc < 0) continue;
      Row& row = rows_[compute->alloc];
      const int width = lanes == nullptr ? 0 : lanes->width;
      const int turns = lanes == nullptr ? 0 : TurnsOf(*lanes);
      row.own &= !in_group && width > 0 && (row.width == 0 || row.width == width) &&
                 compute->inst.indices[0] == lanes->var;
      row.turns = row.width == 0 || row.turns == turns ? turns : 0;
      row.width = width;
    }
  }
}

// How many turns of a loop a thread takes at most, where they are few enough to be unrolled; else
// 0.
int KernelPrinter::TurnsOf(const For& loop) const {
  constexpr int64_t kMostTurns = 64, kMostLanes = 128;
  const IntExpr length = ints_.Sub(loop.end, loop.begin);
  if (loop.binding != Binding::kVector || !length.is_const()) return 0;
  const int64_t turns = (length.value() + loop.width - 1) / loop.width;
  const int64_t lanes = turns * std::max(1, loop.width / team_);
  return turns <= kMostTurns && lanes <= kMostLanes ? static_cast<int>(turns) : 0;
}

// Whether no thread takes more than one turn: the loop ends at the latest `width` after it begins.
bool KernelPrinter::IsOneTurn(const For& loop) const {
  const auto let = lets_.find(loop.end);
  const IntExpr end = let == lets_.end() ? loop.end : let->second;
  const auto is_near = [&](IntExpr e) {
    const IntExpr length = ints_.Sub(e, loop.begin);
    return length.is_const() && length.value() <= loop.width;
  };
  return end.kind() == ir::IntKind::kMin ? absl::c_any_of(end.operands(), is_near) : is_near(end);
}

bool KernelPrinter::IsInRegisters(AllocId id) const {
  constexpr int64_t kMostBytes = 192;  // of 1020 that a thread may have at most
  const auto row = rows_.find(id);
  return row != rows_.end() && row->second.own && row->second.turns > 0 &&
         LanesInRegisters(id) * DTypeSize(tree_.allocs[id].dtype) <= kMostBytes;
}

void KernelPrinter::AddAccesses(const Node& node, Accesses& out) const {
  const auto add = [&](const Node& n) {
    const auto* compute = std::get_if<schedule::Compute>(&n.value);
    if (compute == nullptr) return;
    const bool stores = compute->inst.op == ir::ScalarOp::kStore;
    if (!stores && compute->inst.op != ir::ScalarOp::kLoad) return;
    if (compute->alloc >= 0 && rows_.at(compute->alloc).own) return;
    (stores ? out.stores : out.loads).insert(MemoryOf(*compute));
    if (stores && compute->inst.accumulates) out.loads.insert(MemoryOf(*compute));
  };
  add(node);
  if (const auto* loop = std::get_if<For>(&node.value)) ForEachNode(loop->body, add);
  if (const auto* branch = std::get_if<schedule::If>(&node.value)) {
    ForEachNode(branch->then, add);
    ForEachNode(branch->otherwise, add);
  }
}

// Lets the threads of a team meet where one may access what another has stored, or store what
// another has read. Instructions of a loop around vector loops may do so in its next iteration.
void KernelPrinter::SyncBefore(const Node& node, Function& f) {
  Accesses next;
  AddAccesses(node, next);
  const auto meets = [](const absl::flat_hash_set<int>& a, const absl::flat_hash_set<int>& b) {
    return std::any_of(a.begin(), a.end(), [&](int id) { return b.contains(id); });
  };
  const auto conflict = [&](const Accesses& a, const Accesses& b) {
    return meets(a.stores, b.loads) || meets(a.loads, b.stores) || meets(a.stores, b.stores);
  };
  const auto* loop = std::get_if<For>(&node.value);
  const bool repeats = loop != nullptr && loop->binding == Binding::kSerial;
  if (conflict(pending_, next)) {
    f.out.Line("KTeamSync<kTeam>();");
    meets_ = true;
    pending_ = {};
  }
  if (repeats && conflict(next, next)) {
    // Its own body starts with one.
    pending_ = next;
    return;
  }
  // The iterations that groups run touch nothing of each other's.
  const bool is_leaf =
      loop == nullptr || HasLanes(loop->binding) || loop->binding == Binding::kGroup;
  if (!is_leaf || std::holds_alternative<schedule::If>(node.value)) return;  // what is inside adds
  pending_.loads.insert(next.loads.begin(), next.loads.end());
  pending_.stores.insert(next.stores.begin(), next.stores.end());
}

void KernelPrinter::PrintNode(const Node& node, Function& f) {
  if (tree_.team == 1 || f.body.lane_var()) return TreePrinter::PrintNode(node, f);
  if (const auto* let = std::get_if<schedule::Let>(&node.value)) lets_[let->var] = let->value;
  SyncBefore(node, f);
  const Accesses before = pending_;
  TreePrinter::PrintNode(node, f);
  // The threads may have met in a part that does not run each time.
  pending_.loads.insert(before.loads.begin(), before.loads.end());
  pending_.stores.insert(before.stores.begin(), before.stores.end());
}

void KernelPrinter::PrintCompute(const schedule::Compute& compute, Function& f) {
  const bool once = tree_.team > 1 && !f.body.lane_var() && compute.inst.op == ir::ScalarOp::kStore;
  if (compute.alloc >= 0 && IsInRegisters(compute.alloc)) {
    // Of this turn of the loop: the lanes' variable stands for itself less its first one.
    schedule::Compute mine = compute;
    const IntExpr turn = ints_.Mul(turn_, f.body.width());
    mine.inst.indices[0] = ints_.Add(ints_.Sub(f.body.lane_var(), first_lane_), turn);
    return TreePrinter::PrintCompute(mine, f);
  }
  if (once) f.out.Line("if (lane == 0) {");
  TreePrinter::PrintCompute(compute, f);
  if (once) f.out.Line("}");
}

// Several accesses under way at a time: the more the less each brings, and the fewer threads wait.
std::string KernelPrinter::InnermostHint(const For& loop, const Function& f) const {
  constexpr size_t kSmallBody = 4, kBodyOfOneLoad = 8;
  constexpr int kLeast = 8;
  const int lanes_under_way = has_few_threads_ ? 64 : 32;
  const auto loads = absl::c_count_if(loop.body, [](const Node& node) {
    const auto* compute = std::get_if<schedule::Compute>(&node.value);
    return compute != nullptr && compute->inst.op == ir::ScalarOp::kLoad;
  });
  const bool is_small =
      f.body.lane_var() && loop.body.size() <= (loads == 1 ? kBodyOfOneLoad : kSmallBody);
  const int times = is_small ? std::max(kLeast, lanes_under_way / f.body.width()) : kLeast;
  return StrCat("KILN_UNROLLED(", times, ") ");
}

void KernelPrinter::PrintVectorLoop(const For& loop, Function& f) {
  const int lanes = loop.width / team_;
  const IntExpr length = ints_.Sub(loop.end, loop.begin);
  const bool exact = multiples_.Is(ints_, length, lanes);
  const std::string begin = Expr(loop.begin), end = Expr(loop.end);
  const std::string lambda = f.body.NewName("body");
  const std::string name = NewVar(loop.var, 'x');
  f.out.Line("auto ", lambda, " = [&]<bool kTail>(", index_type_, " ", name,
             ", long n, int turn) KILN_INLINE {");
  names_.NameVar(first_lane_, name);
  const bool aligned = multiples_.Is(ints_, loop.begin, lanes);
  f.body.SetLanes(loop.var, lanes, aligned);
  f.body.SetAlignment([this, &loop, lanes, aligned](IntExpr index) {
    // In a row of the thread's own (PrintCompute) lanes count from the turn's first.
    const IntExpr first =
        ints_.Substitute(index, {{loop.var, ints_.Const(0)}, {first_lane_, ints_.Const(0)}});
    int alignment = aligned ? lanes : 1;
    while (alignment > 1 && !multiples_.Is(ints_, first, alignment)) alignment /= 2;
    return alignment;
  });
  PrintBlock(loop.body, f);
  f.body.SetLanes(IntExpr(), 1);
  f.out.Line("};");
  if (loop.binding == Binding::kTaskVector) {
    if (!loop.begin.is_const(0)) Unknown("tasks of lanes that begin elsewhere");
    f.out.Line("KTaskLanes<", index_type_, ", kTeam, ", lanes, ", ", exact ? "true" : "false",
               ">(lane, chunk, ", end, ", ", lambda, ");");
    return;
  }
  const int turns = IsOneTurn(loop) ? 1 : TurnsOf(loop);
  const bool whole = !length.is_const(0) && multiples_.Is(ints_, length, loop.width);
  f.out.Line("KTeamLoop<", index_type_, ", kTeam, ", lanes, ", ", exact ? "true" : "false", ", ",
             turns, ", ", whole ? "true" : "false", ">(lane, ", begin, ", ", end, ", ", lambda,
             ");");
}

// Inside of it the team is a group.
void KernelPrinter::PrintGroupLoop(const For& loop, Function& f) {
  const Accesses before = std::exchange(pending_, {});
  team_ = loop.width;
  const int groups = tree_.team / team_;
  const std::string begin = Expr(loop.begin), end = Expr(loop.end), step = Expr(loop.step);
  const std::string name = NewVar(loop.var, 'g');
  const std::string group = StrCat("KThread() % ", tree_.team, " / ", team_);
  const IntExpr count = ints_.CeilDiv(ints_.Sub(loop.end, loop.begin), loop.step);
  if (count.is_const() && count.value() % groups == 0) {
    // All groups have as many iterations.
    f.out.Line("KILN_ALL_UNROLLED for (int turn = 0; turn < ", count.value() / groups,
               "; ++turn) {");
    f.out.Line("const ", index_type_, " ", name, " = ", begin, " + (turn * ", groups, " + ", group,
               ") * ", step, ";");
  } else {
    f.out.Line("KILN_UNROLLED(8) for (", index_type_, " ", name, " = ", begin, " + ", group, " * ",
               step, ", ", name, "_end = ", end, "; ", name, " < ", name, "_end; ", name,
               " += ", groups, " * ", step, ") {");
  }
  f.out.Line("constexpr int kTeam = ", team_, ";");
  f.out.Line("const int lane = KThread() % kTeam;");
  PrintBlock(loop.body, f);
  f.out.Line("}");
  team_ = tree_.team;
  pending_ = before;
}

void KernelPrinter::PrintArray(AllocId id, Function& f) {
  const Alloc& alloc = tree_.allocs[id];
  const std::string type(CppType(alloc.dtype)), name = names_.Alloc(id);
  if (alloc.space != schedule::Space::kRegister && alloc.space != schedule::Space::kL1) {
    return Unknown("scratch memory");
  }
  if (f.body.lane_var() || IsInRegisters(id)) {
    const int64_t size = f.body.lane_var() ? alloc.size.value() : LanesInRegisters(id);
    f.out.Line("alignas(16) ", type, " ", name, "[", size, "];");
    return;
  }
  const IntExpr offset = Reserve(alloc, team_bytes_);
  f.out.Line(type, "* const ", name, " = (", type, "*)(of_team + ", offset.value(), ");");
}

std::string KernelPrinter::AcrossThreads(const Accumulator& acc, const std::string& type,
                                         std::string value) {
  if (tree_.team == 1) return value;
  meets_ = true;
  if (acc.text.functor.empty()) {
    return StrCat("KFoldBestTeam<", acc.text.greatest ? "true" : "false", ", ", type, ", kTeam>(",
                  value, ", slots)");
  }
  return StrCat("KFoldTeam<", acc.text.functor, ", ", type, ", kTeam>(", value, ", slots)");
}

// The task's rows by its number, from the innermost on, then its nodes.
void KernelPrinter::PrintTask(const source::Grid& grid, IntExpr chunks, Function& f) {
  std::string rest = "task";
  if (!grid.lanes.empty()) {
    const bool only = grid.rows.empty();
    f.out.Line("const ", index_type_,
               " chunk = ", only ? rest : StrCat("KRem(task, ", Expr(chunks), ")"), ";");
    rest = StrCat("KDiv(task, ", Expr(chunks), ")");
  }
  for (size_t i = grid.rows.size(); i-- > 0;) {
    const For& loop = *grid.rows[i];
    const std::string steps = Expr(ints_.CeilDiv(loop.end, loop.step));
    std::string number = i == 0 ? rest : StrCat("KRem(", rest, ", ", steps, ")");
    if (!loop.step.is_const(1)) number = StrCat(number, " * ", Expr(loop.step));
    if (i > 0) rest = StrCat("KDiv(", rest, ", ", steps, ")");
    f.out.Line("const ", index_type_, " ", NewVar(loop.var, 'd'), " = ", number, ";");
  }
  PrintBlock(grid.nodes, f);
}

// The tasks' code, and how they are spread over blocks.
absl::StatusOr<TaskText> KernelPrinter::Print() {
  const std::vector<source::Grid> grids = source::FindGrids(tree_.body);
  if (grids.size() != 1 || grids[0].lanes.size() > 1) Unknown("several grids");
  const source::Grid& grid = grids[0];

  IntExpr chunks = ints_.Const(1), tasks = ints_.Const(1);
  if (!grid.lanes.empty()) {
    const For& lanes = *grid.lanes[0];
    chunks = ints_.CeilDiv(schedule::Extent(ints_, lanes.var), ints_.Const(lanes.width));
  }
  for (const For* row : grid.rows) tasks = ints_.Mul(tasks, ints_.CeilDiv(row->end, row->step));
  tasks = ints_.Mul(tasks, chunks);

  has_few_threads_ = tasks.is_const() && tasks.value() * tree_.team <= kFewBlocks * kWarp;
  Function f(ints_, tree_.num_values, names_);
  f.body.SetFunctions([functions = MachineFunctions(module_, tree_, /*of_products=*/false)](
                          const ir::Inst& inst) { return functions.Of(inst); });
  PrintTask(grid, chunks, f);
  TaskText text{.index_type = std::string(index_type_), .waits = waits_, .team = tree_.team};
  text.team_bytes = team_bytes_.value();
  // A team that is more than a warp is a block, if its threads meet.
  const bool is_block = text.team > kWarp && (meets_ || text.team_bytes > 0);
  text.slot_bytes = is_block ? kSlotBytes : 0;
  text.threads = is_block ? text.team : std::max(text.team, kBlock);
  // Few tasks: more blocks, for more multiprocessors.
  while (tasks.is_const() && text.threads > std::max(kWarp, text.team) &&
         tasks.value() * text.team < text.threads * kFewBlocks) {
    text.threads /= 2;
  }
  text.blocks = ints_.CeilDiv(tasks, ints_.Const(text.threads / text.team));
  // Else ptxas has loads of a row wait for the row before, to take few registers.
  if (HasLoopsInLanes(tree_.body)) {
    text.resident = std::max(1, kResidentThreads / text.threads);
  }
  text.checks = f.body.TakeChecks();
  text.tasks = Expr(tasks);
  text.body = f.out.text();
  if (!problem_.empty()) return absl::InternalError(problem_);
  return text;
}

}  // namespace

bool IndicesFitInt(const schedule::Tree& tree) {
  double bound = 0;
  const auto add = [&](IntExpr e) {
    if (e) bound = std::max(bound, Bound(e));
  };
  double points = 1;
  ForEachNode(tree.body, [&](const Node& node) {
    if (const auto* loop = std::get_if<For>(&node.value)) {
      for (IntExpr e : {loop->begin, loop->end, loop->step, loop->var.extent()}) add(e);
      if (HasTasks(loop->binding)) points *= Bound(loop->end) + loop->width;
    } else if (const auto* let = std::get_if<schedule::Let>(&node.value)) {
      add(let->value);
    } else if (const auto* branch = std::get_if<schedule::If>(&node.value)) {
      add(branch->less);
      add(branch->than);
    } else if (const auto* compute = std::get_if<schedule::Compute>(&node.value)) {
      for (IntExpr e : compute->inst.indices) add(e);
    } else if (const auto* update = std::get_if<schedule::Update>(&node.value)) {
      add(update->number);
    }
  });
  // Some room for a turn of a loop past its end, and for the threads of the last block.
  return std::max(bound, points) < 1 << 30;
}

absl::StatusOr<EmittedKernel> PrintKernel(ir::Module& module, const schedule::Tree& tree,
                                          bool waits) {
  KernelPrinter printer(module, tree, waits);
  KILN_ASSIGN_OR_RETURN(const TaskText text, printer.Print());
  return PrintLaunch(module, text, printer.names());
}

absl::StatusOr<std::optional<EmittedKernel>> PrintKernels(ir::Module& module,
                                                          const schedule::Tree& tree, bool waits,
                                                          absl::Span<const BufferMap> copies) {
  KernelPrinter printer(module, tree, waits);
  KILN_ASSIGN_OR_RETURN(const TaskText text, printer.Print());
  return PrintLaunches(module, text, copies, printer.names());
}

}  // namespace kiln::codegen::ptx
