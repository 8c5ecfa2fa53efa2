#include "compiler/codegen/cpp/contraction.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/codegen/cpp/body.h"
#include "compiler/codegen/cpp/contraction_plan.h"
#include "compiler/codegen/cpp/kernel_text.h"
#include "compiler/codegen/cpp/loops.h"
#include "compiler/codegen/cpp/nest.h"
#include "compiler/codegen/cpp/shell.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen::cpp {
namespace {

using absl::StrCat;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

// The text of a contraction is four functions over `t`, the batch:
//   PackPanel  one panel of the panel operand: out[k][lane], empty lanes zero
//   PackRows   MR rows of the row operand: out[row][k]; absent where it is read in place
//   Finish     the later phases on one tile of sums
//   Block      a range of rows times a range of panels: micro kernels, then Finish
class ContractionEmitter {
 public:
  ContractionEmitter(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                     ContractionPlan plan, int64_t l2_bytes)
      : module_(module),
        kernel_(kernel),
        ints_(*module.ints),
        nest_(nest),
        plan_(std::move(plan)),
        l2_bytes_(l2_bytes) {}

  EmittedKernel Emit();

 private:
  void NameLoops();
  void Decode(Writer& out, const std::string& flat, const std::vector<IntExpr>& vars);
  void OpenRuns(Writer& out, const std::string& flat, const std::string& begin,
                const std::string& end, const std::vector<IntExpr>& vars);
  void CloseRuns(Writer& out, const std::string& flat, const std::vector<IntExpr>& vars);
  void EmitLoops(Body& body, const std::vector<const Step*>& steps,
                 const std::vector<IntExpr>& loops, size_t level, std::vector<int>& levels,
                 const std::string& begin, const std::string& end,
                 const std::function<void()>& innermost);
  void EmitVectorised(Body& body, const std::vector<const Step*>& steps,
                      const std::vector<IntExpr>& loops, const std::string& begin,
                      const std::string& end, const std::function<void()>& innermost);
  IntExpr FlatIndex(const std::vector<IntExpr>& vars);
  std::string PackPanel();
  std::string PackRows();
  std::string Finish();
  std::string Block();
  std::string Origin(const Step& load, const std::vector<IntExpr>& vars);
  std::string RowPointers();
  std::string PanelGroup();
  void AddTasks(Shell& shell);
  std::string Text(IntExpr e) { return names_.Expr(e); }
  std::string Type() const { return std::string(CppType(plan_.type)); }

  ir::Module& module_;
  const ir::Kernel& kernel_;
  ir::IntContext& ints_;
  const Nest& nest_;
  ContractionPlan plan_;
  int64_t l2_bytes_;
  Names names_;
};

void ContractionEmitter::NameLoops() {
  auto name = [&](const std::vector<IntExpr>& vars, absl::string_view prefix) {
    for (size_t i = 0; i < vars.size(); ++i) names_.NameVar(vars[i], StrCat(prefix, i));
  };
  name(plan_.batch, "t");
  name(plan_.rows, "i");
  name(plan_.lanes, "j");
  name(plan_.k, "k");
  for (const NestPhase& phase : nest_.phases) {
    for (const Step& step : phase.steps) {
      if (step.inst->op == ScalarOp::kStore) names_.MarkStored(step.inst->buffer);
    }
  }
}

// Constants for each of `vars` from a flat, row-major number.
void ContractionEmitter::Decode(Writer& out, const std::string& flat,
                                const std::vector<IntExpr>& vars) {
  std::string rest = flat;
  for (size_t i = vars.size(); i-- > 0;) {
    const std::string extent = Text(Extent(ints_, vars[i]));
    out.Line("const long ", names_.Leaf(vars[i]), " = ",
             i == 0 ? rest : StrCat("KRem(", rest, ", ", extent, ")"), ";");
    rest = StrCat("KDiv(", rest, ", ", extent, ")");
  }
}

// A loop over [begin, end) of the flat number `flat` of `vars`, in runs within which only the last
// of them moves, from `run_begin` to `run_end`.
void ContractionEmitter::OpenRuns(Writer& out, const std::string& flat, const std::string& begin,
                                  const std::string& end, const std::vector<IntExpr>& vars) {
  if (vars.size() == 1) {
    out.Line("const long run_begin = ", begin, ", run_end = ", end, ", ", flat, " = ", begin, ";");
    return;
  }
  const std::string extent = Text(Extent(ints_, vars.back()));
  out.Line("KILN_ROLLED for (long ", flat, " = ", begin, ", run; ", flat, " < ", end, "; ", flat,
           " += run) {");
  out.Line("const long run_begin = KRem(", flat, ", ", extent, ");");
  out.Line("run = KMinIndex(", extent, " - run_begin, ", end, " - ", flat, ");");
  out.Line("const long run_end = run_begin + run;");
  Decode(out, StrCat("KDiv(", flat, ", ", extent, ")"),
         std::vector<IntExpr>(vars.begin(), vars.end() - 1));
}

void ContractionEmitter::CloseRuns(Writer& out, const std::string& flat,
                                   const std::vector<IntExpr>& vars) {
  if (vars.size() > 1) out.Line("}");
}

IntExpr ContractionEmitter::FlatIndex(const std::vector<IntExpr>& vars) {
  IntExpr flat = ints_.Const(0);
  for (IntExpr var : vars) flat = ints_.Add(ints_.Mul(flat, Extent(ints_, var)), var);
  return flat;
}

// Each step in the outermost loop that it does not change in; the last loop is the lanes.
void ContractionEmitter::EmitLoops(Body& body, const std::vector<const Step*>& steps,
                                   const std::vector<IntExpr>& loops, size_t level,
                                   std::vector<int>& levels, const std::string& begin,
                                   const std::string& end, const std::function<void()>& innermost) {
  Writer& out = body.out();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (levels[i] == static_cast<int>(level)) body.Emit(*steps[i]);
  }
  if (level == loops.size()) {
    innermost();
    return;
  }
  const std::string name = names_.Leaf(loops[level]);
  if (level + 1 < loops.size()) {
    out.Line("KILN_ROLLED for (long ", name, " = 0; ", name, " < ",
             Text(Extent(ints_, loops[level])), "; ++", name, ") {");
    EmitLoops(body, steps, loops, level + 1, levels, begin, end, innermost);
    out.Line("}");
    return;
  }
  const std::string lambda = body.NewName("body");
  out.Line("auto ", lambda, " = [&]<bool kTail>(long ", name, ", long n) KILN_INLINE {");
  EmitLoops(body, steps, loops, level + 1, levels, begin, end, innermost);
  out.Line("};");
  out.Line("KVectorLoop<", body.width(), ", false>(", begin, ", ", end, ", ", lambda, ");");
}

void ContractionEmitter::EmitVectorised(Body& body, const std::vector<const Step*>& steps,
                                        const std::vector<IntExpr>& loops, const std::string& begin,
                                        const std::string& end,
                                        const std::function<void()>& innermost) {
  const int deepest = static_cast<int>(loops.size());
  std::vector<int> value_level(kernel_.num_values, 0);
  value_level[plan_.sum] = deepest;
  std::vector<int> levels;
  for (const Step* step : steps) {
    int level = 0;
    for (ValueId id : step->inst->operands) level = std::max(level, value_level[id]);
    for (int i = 0; i < deepest; ++i) {
      if (step->index && ContainsVar(step->index, loops[i])) level = std::max(level, i + 1);
    }
    const bool reloads = step->inst->op == ScalarOp::kLoad && names_.IsStored(step->inst->buffer);
    if (step->inst->op == ScalarOp::kStore || reloads) level = deepest;
    levels.push_back(level);
    if (step->inst->result >= 0) value_level[step->inst->result] = level;
  }
  EmitLoops(body, steps, loops, 0, levels, begin, end, innermost);
}

std::string ContractionEmitter::PackPanel() {
  Writer out;
  Body body(module_, kernel_, names_, out);
  const int width = plan_.panel_width();
  out.Line("const long lane_begin = panel * ", width, ";");
  out.Line("const long lane_end = KMinIndex(lane_begin + ", width, ", ", Text(plan_.num_lanes),
           ");");
  Decode(out, "t", plan_.batch);
  out.Line("if (lane_end - lane_begin < ", width, ") __builtin_memset(out, 0, ", Text(plan_.num_k),
           " * ", width, " * sizeof(", Type(), "));");
  if (plan_.panel_load != nullptr) {
    out.Line("KPackTransposed<", width, ">(", Origin(*plan_.panel_load, plan_.lanes),
             " + lane_begin * ", Text(plan_.lane_stride), ", ", Text(plan_.lane_stride),
             ", lane_end - lane_begin, ", Text(plan_.num_k), ", out);");
    return out.text();
  }
  OpenRuns(out, "lane", "lane_begin", "lane_end", plan_.lanes);
  out.Line(Type(), "* const to = out + (lane - lane_begin - run_begin);");
  std::vector<IntExpr> loops = plan_.k;
  loops.push_back(plan_.lanes.back());
  body.SetLanes(loops.back(), plan_.vector_lanes);
  body.SetAligned(false);
  const std::string to = Text(ints_.Add(ints_.Mul(FlatIndex(plan_.k), width), loops.back()));
  EmitVectorised(
      body, Closure(nest_.phases[0], plan_.panel_value), loops, "run_begin", "run_end", [&] {
        out.Line("KStore<kTail>(to + ", to, ", n, ", body.Use(plan_.panel_value, true), ");");
      });
  CloseRuns(out, "lane", plan_.lanes);
  return out.text();
}

std::string ContractionEmitter::PackRows() {
  Writer out;
  Body body(module_, kernel_, names_, out);
  Decode(out, "t", plan_.batch);
  out.Line("KILN_ROLLED for (long r = 0; r < ", plan_.tile_rows, "; ++r) {");
  out.Line("const long row = KMinIndex(row_begin + r, ", Text(plan_.num_rows), " - 1);");
  Decode(out, "row", plan_.rows);
  out.Line(Type(), "* const to = out + r * ", Text(plan_.num_k), ";");
  body.SetLanes(plan_.k.back(), plan_.vector_lanes);
  const std::string to = Text(FlatIndex(plan_.k));
  EmitVectorised(
      body, Closure(nest_.phases[0], plan_.row_value), plan_.k, "0",
      Text(Extent(ints_, plan_.k.back())),
      [&] { out.Line("KStore<kTail>(to + ", to, ", n, ", body.Use(plan_.row_value, true), ");"); });
  out.Line("}");
  return out.text();
}

// Evaluates the later phases on tile[row][lane], vectors along the direction in which the result is
// contiguous.
std::string ContractionEmitter::Finish() {
  Writer out;
  Body body(module_, kernel_, names_, out);
  const bool along_rows = plan_.store_along_rows;
  const int pitch = along_rows ? plan_.block_rows() : plan_.panel_width();
  const std::vector<IntExpr>& slow = along_rows ? plan_.lanes : plan_.rows;
  const std::vector<IntExpr>& fast = along_rows ? plan_.rows : plan_.lanes;
  const std::string slow_name = along_rows ? "lane" : "row",
                    fast_name = along_rows ? "row" : "lane";
  Decode(out, "t", plan_.batch);
  out.Line("KILN_ROLLED for (long ", slow_name, " = ", slow_name, "_begin; ", slow_name, " < ",
           slow_name, "_end; ++", slow_name, ") {");
  Decode(out, slow_name, slow);
  OpenRuns(out, fast_name, fast_name + "_begin", fast_name + "_end", fast);
  out.Line("const ", Type(), "* const from = tile + (", slow_name, " - ", slow_name, "_begin) * ",
           pitch, " + (", fast_name, " - ", fast_name, "_begin) - run_begin;");
  body.SetLanes(fast.back(), plan_.vector_lanes);
  body.SetAligned(false);
  body.Define(
      plan_.sum, plan_.type, true,
      StrCat("KLoad<", plan_.vector_lanes, ", kTail>(from + ", names_.Leaf(fast.back()), ", n)"));
  std::vector<const Step*> steps;
  for (size_t i = 1; i < nest_.phases.size(); ++i) {
    for (const Step& step : nest_.phases[i].steps) steps.push_back(&step);
  }
  EmitVectorised(body, steps, {fast.back()}, "run_begin", "run_end", [] {});
  CloseRuns(out, fast_name, fast);
  out.Line("}");
  return out.text();
}

// A pointer to what `load` reads for the first of `vars` and k.
std::string ContractionEmitter::Origin(const Step& load, const std::vector<IntExpr>& vars) {
  ir::IntContext::VarMap origin;
  for (IntExpr var : vars) origin[var] = ints_.Const(0);
  for (IntExpr var : plan_.k) origin[var] = ints_.Const(0);
  IntExpr index = ints_.Substitute(load.index, origin);
  const std::string buffer = names_.Buffer(load.inst->buffer);
  return index.is_const(0) ? buffer : StrCat(buffer, " + ", Text(index));
}

// Lines that set `a`, `row_stride` and `k_stride` for micro kernel number g of a block.
std::string ContractionEmitter::RowPointers() {
  Writer out;
  const int rows = plan_.tile_rows;
  const std::string k = Text(plan_.num_k);
  if (plan_.row_load == nullptr) {
    out.Line("PackRows(args, t, first, rows_scratch + g * ", rows, " * ", k, ");");
    out.Line("a[g] = rows_scratch + g * ", rows, " * ", k, ";");
    out.Line("row_stride[g] = ", k, ";");
    out.Line("k_stride[g] = 1;");
    return out.text();
  }
  out.Line("a[g] = ", Origin(*plan_.row_load, plan_.rows), " + first * ", Text(plan_.row_stride),
           ";");
  out.Line("row_stride[g] = ", Text(plan_.row_stride), ";");
  out.Line("k_stride[g] = ", Text(plan_.k_stride), ";");
  out.Line("if (row_end - first < ", rows, ") {");
  out.Line("KCopyRows<", rows, ">(a[g], row_end - first, row_stride[g], k_stride[g], ", k,
           ", rows_scratch);");
  out.Line("a[g] = rows_scratch;");
  out.Line("row_stride[g] = ", k, ";");
  out.Line("k_stride[g] = 1;");
  out.Line("}");
  return out.text();
}

std::string ContractionEmitter::Block() {
  Writer out;
  const int width = plan_.panel_width(), rows = plan_.tile_rows, groups = plan_.row_groups;
  const std::string type = Type();
  Decode(out, "t", plan_.batch);
  out.Line("KILN_ROLLED for (long row_begin = begin; row_begin < end; row_begin += ",
           plan_.block_rows(), ") {");
  out.Line("const long row_end = KMinIndex(row_begin + ", plan_.block_rows(), ", end);");
  out.Line("const ", type, "* a[", groups, "];");
  out.Line("long row_stride[", groups, "], k_stride[", groups, "];");
  out.Line("const long groups = (row_end - row_begin + ", rows - 1, ") / ", rows, ";");
  out.Line("KILN_ROLLED for (long g = 0; g < groups; ++g) {");
  out.Line("const long first = row_begin + g * ", rows, ";");
  const std::string pointers = RowPointers();
  for (absl::string_view line : absl::StrSplit(pointers, '\n', absl::SkipEmpty())) {
    out.Line(absl::StripLeadingAsciiWhitespace(line));
  }
  out.Line("}");
  out.Line("KILN_ROLLED for (long panel = panel_begin; panel < panel_end; ++panel) {");
  out.Line("const ", type, "* const b = panels + (panel - panel_begin) * ", Text(plan_.num_k),
           " * ", width, ";");
  out.Line("alignas(64) ", type, " tile[", plan_.block_rows() * width, "];");
  out.Line("KILN_ROLLED for (long g = 0; g < groups; ++g) {");
  out.Line("KMicroKernel<", type, ", ", plan_.vector_lanes, ", ", rows, ", ", plan_.tile_vectors,
           ">(", Text(plan_.num_k), ", a[g], row_stride[g], k_stride[g], b, tile + g * ",
           rows * width, ");");
  out.Line("}");
  out.Line("const long lane_begin = panel * ", width, ";");
  out.Line("const long lane_end = KMinIndex(lane_begin + ", width, ", ", Text(plan_.num_lanes),
           ");");
  std::string finished = "tile";
  if (plan_.store_along_rows) {
    out.Line("alignas(64) ", type, " turned[", plan_.block_rows() * width, "];");
    out.Line("KTransposeTile<", plan_.block_rows(), ", ", width, ">((const ", type, "*)tile, (",
             type, "*)turned);");
    finished = "turned";
  }
  out.Line("Finish(args, t, row_begin, row_end, lane_begin, lane_end, ", finished, ");");
  out.Line("}");
  out.Line("}");
  return out.text();
}

// Panels that together take half of the second-level cache.
std::string ContractionEmitter::PanelGroup() {
  const int64_t elements = l2_bytes_ / 2 / DTypeSize(plan_.type) / plan_.panel_width();
  return Text(ints_.Max(ints_.Const(1), ints_.FloorDiv(ints_.Const(elements),
                                                       ints_.Max(plan_.num_k, ints_.Const(1)))));
}

void ContractionEmitter::AddTasks(Shell& shell) {
  const std::string type = Type();
  const std::string k = Text(plan_.num_k);
  const std::string panel_size = StrCat(k, " * ", plan_.panel_width());
  shell.AddMember("const KilnCpuContext* context", "context");
  shell.AddMember("long panels",
                  Text(ints_.CeilDiv(plan_.num_lanes, ints_.Const(plan_.panel_width()))));
  shell.AddMember("long row_tasks", "1");
  const std::string scratch = StrCat(type, "* const scratch = (", type,
                                     "*)(args.context->thread_scratch + thread * "
                                     "args.context->thread_scratch_bytes);\n");
  if (plan_.shared_panels) {
    shell.AddFunction("PackTask", "long task, int thread",
                      StrCat("PackPanel(args, task / args.panels, task % args.panels, (", type,
                             "*)args.context->scratch + task * ", panel_size, ");\n"));
    const std::string blocks = Text(ints_.CeilDiv(plan_.num_rows, ints_.Const(plan_.block_rows())));
    shell.AddFunction(
        "ComputeTask", "long task, int thread",
        StrCat(scratch, "const long t = task / args.row_tasks, part = task % args.row_tasks;\n",
               "const long blocks = ", blocks, ";\n",
               "const long begin = blocks * part / args.row_tasks * ", plan_.block_rows(), ";\n",
               "const long end = KMinIndex(blocks * (part + 1) / args.row_tasks * ",
               plan_.block_rows(), ", ", Text(plan_.num_rows), ");\n", "const long group = ",
               PanelGroup(), ";  // panels that the second-level cache keeps\n",
               "KILN_ROLLED for (long first = 0; first < args.panels; first += group) {\n",
               "Block(args, t, begin, end, first, KMinIndex(first + group, args.panels), (", type,
               "*)args.context->scratch + (t * args.panels + first) * ", panel_size,
               ", scratch);\n}\n"));
    return;
  }
  shell.AddFunction(
      "ComputeTask", "long task, int thread",
      StrCat(scratch, "const long t = task / args.panels, panel = task % args.panels;\n", type,
             "* const rows_scratch = scratch + ", panel_size, ";\n",
             "PackPanel(args, t, panel, scratch);\n", "Block(args, t, 0, ", Text(plan_.num_rows),
             ", panel, panel + 1, scratch, rows_scratch);\n"));
}

EmittedKernel ContractionEmitter::Emit() {
  NameLoops();
  Shell shell(module_, names_);
  const std::string type = Type();
  const std::string pack_panel = PackPanel();
  shell.AddFunction("PackPanel", StrCat("long t, long panel, ", type, "* out"), pack_panel);
  if (plan_.row_load == nullptr) {
    shell.AddFunction("PackRows", StrCat("long t, long row_begin, ", type, "* out"), PackRows());
  }
  shell.AddFunction("Finish",
                    StrCat("long t, long row_begin, long row_end, long lane_begin, long lane_end, "
                           "const ",
                           type, "* tile"),
                    Finish());
  shell.AddFunction("Block",
                    StrCat("long t, long begin, long end, long panel_begin, long panel_end, const ",
                           type, "* panels, ", type, "* rows_scratch"),
                    Block());
  AddTasks(shell);

  Writer& out = shell.out();
  const std::string batches = Text(plan_.num_batches), rows = Text(plan_.num_rows);
  const std::string k = Text(plan_.num_k), lanes = Text(plan_.num_lanes);
  out.Line("if (", batches, " == 0 || ", rows, " == 0 || ", lanes, " == 0) return KILN_CPU_OK;");
  out.Line("const double work = (double)", batches, " * (double)", rows, " * (double)", lanes,
           " * (double)", k, ";");
  const std::string panels = StrCat(batches, " * args.panels");
  if (plan_.shared_panels) {
    const std::string blocks = Text(ints_.CeilDiv(plan_.num_rows, ints_.Const(plan_.block_rows())));
    out.Line("args.row_tasks = KMaxIndex(1, KMinIndex(", blocks, ", 8l * context->threads / ",
             batches, "));");
    out.Line(
        "KParallel(context, ", panels,
        ", work, [](void* args, long task, int thread) { PackTask(*(Args*)args, task, thread); "
        "}, &args);");
    out.Line("KParallel(context, ", batches,
             " * args.row_tasks, work, [](void* args, long task, int thread) { "
             "ComputeTask(*(Args*)args, task, thread); }, &args);");
  } else {
    out.Line("KParallel(context, ", panels,
             ", work, [](void* args, long task, int thread) { ComputeTask(*(Args*)args, task, "
             "thread); }, &args);");
  }

  const int64_t element = DTypeSize(plan_.type);
  IntExpr panel_bytes = ints_.Mul(plan_.num_k, plan_.panel_width() * element);
  IntExpr row_bytes = ints_.Mul(
      plan_.num_k, (plan_.row_load == nullptr ? plan_.block_rows() : plan_.tile_rows) * element);
  if (!plan_.shared_panels) {
    return shell.Finish(ints_.Const(0), ints_.Add(panel_bytes, row_bytes));
  }
  IntExpr panel_count = ints_.CeilDiv(plan_.num_lanes, ints_.Const(plan_.panel_width()));
  return shell.Finish(ints_.Mul(ints_.Mul(plan_.num_batches, panel_count), panel_bytes), row_bytes);
}

}  // namespace

absl::StatusOr<EmittedKernel> EmitContraction(ir::Module& module, const ir::Kernel& kernel,
                                              VectorIsa isa, const DeviceInfo& device) {
  KILN_ASSIGN_OR_RETURN(Nest nest, BuildNest(module, kernel, /*collapse=*/true));
  std::optional<ContractionPlan> plan = PlanContraction(*module.ints, nest, isa, device.l2_bytes);
  if (!plan) return cpp::EmitLoops(module, kernel, isa, device);
  return ContractionEmitter(module, kernel, nest, *std::move(plan), device.l2_bytes).Emit();
}

}  // namespace kiln::codegen::cpp
