#include "compiler/codegen/gcu/launch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/gcu/code.h"
#include "compiler/codegen/gcu/launch_arguments.h"
#include "compiler/codegen/gcu/launch_copies.h"
#include "compiler/codegen/gcu/stage.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/preload.h"
#include "compiler/schedule/gcu/prices.h"
#include "compiler/schedule/gcu/tiles.h"
#include "compiler/schedule/gcu/tiling.h"
#include "proto/base/status_macros.h"
#include "proto/gcu/instructions.inc.h"

namespace kiln::codegen::gcu {
namespace {

using ir::BufferId;
using ir::IntExpr;
using schedule::gcu::Form;
using schedule::gcu::Machine;
using schedule::gcu::TileRun;
using schedule::gcu::Tiling;
using schedule::gcu::Version;

constexpr double kWorthIt = 0.95;  // of the time without preloads
// What keeps weights in L2 may take that much longer: L3 has less to do.
constexpr double kForFewerBytes = 1.02;

class LaunchMaker {
 public:
  LaunchMaker(ir::Module& module, const ir::Operation& operation, const Machine& machine)
      : module_(module), ints_(*module.ints), operation_(operation), machine_(machine) {}

  absl::StatusOr<Launch> Run() {
    KILN_ASSIGN_OR_RETURN(std::vector<Version> versions,
                          schedule::gcu::VersionsOf(module_, operation_));
    const std::vector<IntExpr> symbols = schedule::gcu::SymbolsOf(operation_);
    AddBuffers(module_, operation_, versions, launch_, in_l3_, loaded_only_);
    code_.SetFirstSymbol(static_cast<int>(launch_.buffers.size()));
    for (Version& version : versions) {
      const schedule::gcu::AtTypicalSizes sizes(ints_, symbols, version.bucket);
      std::vector<Version> ways;
      if (!version.overlaps.empty()) {
        auto carrying = schedule::gcu::Carrying(module_, std::get<ir::Repeat>(operation_), version);
        if (carrying) ways.push_back(*std::move(carrying));
      }
      ways.push_back(std::move(version));
      for (size_t i = ways.size(); i-- > 0;) {
        if (auto resident = WithResidents(symbols, ways[i])) ways.push_back(*std::move(resident));
      }
      KILN_RETURN_IF_ERROR(AddBest(symbols, std::move(ways)));
    }
    KILN_RETURN_IF_ERROR(code_.status());
    launch_.kernel.instructions = code_.Finish();
    AddSymbols(launch_);
    launch_.kernel.l1_bytes = static_cast<uint32_t>(machine_.l1_bytes);
    for (const LaunchVersion& version : launch_.versions) {
      const auto bytes = static_cast<uint32_t>(version.l2.bytes);
      launch_.kernel.l2_bytes = std::max(launch_.kernel.l2_bytes, bytes);
    }
    return std::move(launch_);
  }

 private:
  // The way of these that takes the least time.
  absl::Status AddBest(const std::vector<IntExpr>& symbols, std::vector<Version> ways) {
    const Code before = code_;
    std::optional<Code> best;
    absl::Status last;
    for (Version& way : ways) {
      code_ = before;
      LaunchVersion made;
      made.plan = std::move(way);
      if (last = AddVersion(symbols, made); !last.ok()) continue;
      const double margin = residents_.empty() ? 1 : kForFewerBytes;
      if (best && made.seconds >= launch_.versions.back().seconds * margin) continue;
      if (best) launch_.versions.pop_back();
      launch_.versions.push_back(std::move(made));
      best = code_;
    }
    if (!best) return last;
    code_ = *std::move(best);
    return absl::OkStatus();
  }

  // The same with weights that stay in L2 from the first tile to the last, where there are such.
  std::optional<Version> WithResidents(const std::vector<IntExpr>& symbols,
                                       const Version& version) const {
    const auto plan = schedule::gcu::PlanL2(module_, symbols, version);
    if (!plan.ok()) return std::nullopt;
    const auto residents = schedule::gcu::ResidentsOf(module_, version, *plan, machine_);
    if (residents.empty()) return std::nullopt;
    Version with = version;
    for (const auto& resident : residents) with.keeps[resident.buffer] = true;
    return with;
  }

  // Weights that stay, before the first tile.
  void LoadResidents() {
    std::vector<schedule::gcu::Resident> residents;
    int64_t bytes = 0;
    for (const BufferId buffer : residents_) {
      residents.push_back({buffer, *schedule::gcu::DenseBytes(module_.buffers[buffer])});
      bytes += residents.back().bytes;
    }
    AppendWholeCopies(residents_, module_, in_l3_, placements_, machine_.cores, code_);
    code_.Emit(Op::kBarrier);
    const double seconds = schedule::gcu::SecondsOf(residents, machine_);
    version_->seconds += seconds;
    version_->reasons.push_back(absl::StrCat(residents_.size(), " weights, ", bytes >> 10,
                                             " KiB, come to L2 once and stay: predicted ",
                                             seconds * 1e6, " us"));
  }

  // What runs where no size is above the version's, and then ends.
  absl::Status AddVersion(const std::vector<IntExpr>& symbols, LaunchVersion& version) {
    KILN_ASSIGN_OR_RETURN(version.l2, schedule::gcu::PlanL2(module_, symbols, version.plan));
    if (version.l2.bytes > machine_.l2_bytes) {
      return absl::UnimplementedError(absl::StrCat("the group needs ", version.l2.bytes,
                                                   " bytes of L2, which has ", machine_.l2_bytes));
    }
    version_ = &version;
    version.stages.resize(version.plan.kernels.size());
    repetitions_ = 1;
    explains_ = true;
    fixed_ = loaded_only_;
    placements_ = in_l3_;
    residents_.clear();
    for (schedule::gcu::L2Buffer& buffer : version.l2.buffers) {
      placements_[buffer.buffer] = InL2(buffer);
      if (buffer.stored_by) continue;
      buffer.is_placed = true;
      residents_.push_back(buffer.buffer);
    }
    const Label next = code_.NewLabel();
    const Version& plan = version.plan;
    for (size_t i = 0; i < plan.bucket.most.size(); ++i) {
      const int scope = code_.mark();
      code_.JumpIf(Op::kJumpLess, Known(plan.bucket.most[i]), code_.Evaluate(symbols[i]), next);
      code_.Release(scope);
    }
    if (plan.step > 0) {
      if (!residents_.empty()) LoadResidents();
      KILN_RETURN_IF_ERROR(AddTiles(plan));
    } else {
      std::vector<Stage> stages;
      for (size_t k = 0; k < plan.kernels.size(); ++k) stages.push_back({plan.kernels[k], k});
      KILN_RETURN_IF_ERROR(AddStages(stages));
    }
    code_.Emit(Op::kHalt);
    code_.Bind(next);
    version.seconds += static_cast<double>(machine_.launch_ns) * 1e-9;
    return code_.status();
  }

  struct Step {
    std::shared_ptr<const Form> form;  // which has pointers into itself
    Tiling tiling;
    schedule::gcu::Cost cost;
    StageBytes bytes;
    std::vector<BesideCopy> copies;  // all by one core
  };

  // What runs between two barriers, for the plan's kernel of that number.
  struct Stage {
    ir::Kernel kernel;
    size_t number = 0;
  };

  // One after another, with a barrier behind each.
  absl::Status AddStages(const std::vector<Stage>& stages) {
    KILN_ASSIGN_OR_RETURN(const std::vector<Step> steps, PlanSteps(stages));
    bool prefetched = false;
    for (size_t i = 0; i < steps.size(); ++i) {
      StageOptions options{.odd = i % 2 == 1, .fixed = &fixed_, .prefetched = prefetched};
      // In what this one leaves of L1, the next one's first loads.
      prefetched = i + 1 < steps.size() && steps[i + 1].bytes.fixed > 0 &&
                   steps[i].bytes.all + steps[i + 1].bytes.fixed <= machine_.l1_bytes;
      const StageOptions next{.odd = i % 2 == 0, .fixed = &fixed_};
      if (prefetched) {
        options.at_last = [&](Code& code) {
          AppendPrefetch(module_, *steps[i + 1].form, steps[i + 1].tiling, placements_, machine_,
                         next, code);
        };
      }
      if (!steps[i].copies.empty()) {
        options.at_step = [&](Code& code, int next_step) {
          AppendBesideCopies(steps[i].copies, next_step, in_l3_, placements_, code);
        };
      }
      KILN_RETURN_IF_ERROR(AppendStage(module_, *steps[i].form, steps[i].tiling, placements_,
                                       machine_, options, code_)
                               .status());
      for (const BesideCopy& copy : steps[i].copies) code_.Wait(copy.token);
      code_.Emit(Op::kBarrier);
      AddReason(steps[i], stages[i].number);
    }
    return absl::OkStatus();
  }

  // How each kernel runs, and what is copied beside it for those after it. It may plan L2 anew.
  absl::StatusOr<std::vector<Step>> PlanSteps(const std::vector<Stage>& stages) {
    in_l2_ = version_->plan.keeps;
    std::vector<Step> alone;
    for (const Stage& stage : stages) {
      KILN_ASSIGN_OR_RETURN(Step step, Plan(stage.kernel));
      alone.push_back(std::move(step));
    }
    // What stays in L2 from tile to tile must not be placed anew: that of tiles that overlap, and
    // sums of several.
    std::vector<schedule::gcu::PreloadCandidate> candidates;
    if (version_->plan.overlaps.empty() && stages.size() == version_->plan.kernels.size()) {
      candidates = schedule::gcu::PreloadCandidates(module_, version_->plan);
    }
    if (candidates.empty()) return alone;
    std::vector<Step> steps = alone;
    const auto set = [&](const schedule::gcu::PreloadCandidate& candidate, bool in_l2) {
      in_l2_[candidate.buffer] = in_l2;
      fixed_[candidate.buffer] = !in_l2;
    };
    for (const auto& candidate : candidates) set(candidate, true);
    std::vector<schedule::gcu::StageTimes> times;
    for (size_t k = 0; k < stages.size(); ++k) {
      const bool changes = absl::c_any_of(candidates, [&](const auto& candidate) {
        return candidate.first_use <= k && k <= candidate.last_use;
      });
      if (changes) {
        KILN_ASSIGN_OR_RETURN(steps[k], Plan(stages[k].kernel));
      }
      times.push_back(
          {.seconds = steps[k].cost.seconds,
           .alone = alone[k].cost.seconds,
           .compute = steps[k].cost.compute,
           .l3 = steps[k].cost.l3,
           .loads = BusiestCore(*steps[k].form, steps[k].tiling, machine_).has_value()});
    }
    schedule::gcu::L2Plan l2 = version_->l2;
    const std::vector<schedule::gcu::Preload> preloads =
        schedule::gcu::PlanPreloads(module_, candidates, times, machine_, l2);
    for (const schedule::gcu::PreloadCandidate& candidate : candidates) {
      const bool joins = absl::c_any_of(
          preloads, [&](const auto& preload) { return preload.buffer == candidate.buffer; });
      if (joins) continue;
      set(candidate, false);
      for (size_t k = candidate.first_use; k <= candidate.last_use; ++k) {
        KILN_ASSIGN_OR_RETURN(steps[k], Plan(stages[k].kernel));
      }
    }
    for (const schedule::gcu::Preload& preload : preloads) AddCopies(preload, steps);
    const auto seconds = [](const std::vector<Step>& of) {
      double sum = 0;
      for (const Step& step : of) sum += step.cost.seconds;
      return sum;
    };
    // What is loaded twice on its way pays where it is worth more than the model may be wrong.
    if (seconds(steps) > seconds(alone) * kWorthIt) {
      for (const auto& candidate : candidates) set(candidate, false);
      return alone;
    }
    version_->l2 = std::move(l2);
    for (const schedule::gcu::L2Buffer& buffer : version_->l2.buffers) {
      placements_[buffer.buffer] = InL2(buffer);
    }
    return steps;
  }

  static Placement InL2(const schedule::gcu::L2Buffer& buffer) {
    return {.space = Space::kL2,
            .argument = -1,
            .offset = buffer.offset,
            .sizes = buffer.sizes,
            .strides = buffer.strides};
  }

  // One core copies the parts of a preload, a piece in each of its steps.
  void AddCopies(const schedule::gcu::Preload& preload, std::vector<Step>& steps) {
    for (const schedule::gcu::PreloadPart& part : preload.parts) {
      Step& step = steps[part.kernel];
      const std::optional<CoreSteps> core = BusiestCore(*step.form, step.tiling, machine_);
      BesideCopy copy{.by = *core, .buffer = preload.buffer, .part = part};
      copy.piece_bytes = ((part.bytes + core->count - 1) / core->count + 511) / 512 * 512;
      copy.token =
          kStageTokens + static_cast<int>(step.copies.size()) % (KILN_GCU_TOKENS - kStageTokens);
      schedule::gcu::Cost& cost = step.cost;
      const double around = cost.seconds - std::max({cost.compute, cost.l3, cost.l2});
      // One core's engine may move less than L3 gives.
      cost.l3 += static_cast<double>(part.bytes) /
                 std::min(static_cast<double>(machine_.l3_rate), machine_.EngineRate());
      cost.seconds = std::max(cost.seconds, cost.l3 + around);
      step.copies.push_back(copy);
    }
  }

  // A window may reach beyond its dimension, where nothing was stored: so masks must keep copies
  // from there.
  absl::Status CheckWindows(const Form& form) const {
    if (version_->plan.overlaps.empty()) return absl::OkStatus();
    for (const schedule::gcu::Access& access : form.accesses) {
      if (version_->plan.keeps[access.inst->buffer] && access.inst->has_mask &&
          !access.mask_is_clip) {
        return schedule::gcu::Lacks("mask of a window that is no range of indices");
      }
    }
    return absl::OkStatus();
  }

  // How the kernel runs: a tile that turns out too large is made smaller.
  absl::StatusOr<Step> Plan(ir::Kernel kernel) {
    Step step;
    KILN_ASSIGN_OR_RETURN(Form form, schedule::gcu::MakeForm(module_, std::move(kernel)));
    KILN_RETURN_IF_ERROR(CheckWindows(form));
    step.form = std::make_shared<const Form>(std::move(form));
    absl::Status last;
    for (int64_t l1 = machine_.TileBytes(); l1 > machine_.l1_bytes / 32; l1 = l1 * 2 / 3) {
      step.tiling = schedule::gcu::ChooseTiling(module_, *step.form, in_l2_, machine_, l1);
      Code attempt = code_.Empty();
      const absl::StatusOr<StageBytes> bytes = AppendStage(
          module_, *step.form, step.tiling, placements_, machine_, {.fixed = &fixed_}, attempt);
      if (bytes.ok()) {
        step.bytes = *bytes;
        step.cost = schedule::gcu::CostOf(module_, *step.form, step.tiling, in_l2_, machine_);
        return step;
      }
      last = bytes.status();
    }
    return last;
  }

  void AddReason(const Step& step, size_t number) {
    const auto& [form, tiling, cost, bytes, copies] = step;
    version_->seconds += cost.seconds * repetitions_;
    schedule::gcu::Cost& all = version_->stages[number];
    all.seconds += cost.seconds * repetitions_;
    all.compute += cost.compute * repetitions_;
    all.l3 += cost.l3 * repetitions_;
    all.l2 += cost.l2 * repetitions_;
    all.l3_bytes = std::max(all.l3_bytes, cost.l3_bytes);
    all.l2_bytes = std::max(all.l2_bytes, cost.l2_bytes);
    all.l1_bytes = std::max(all.l1_bytes, cost.l1_bytes);
    if (!explains_) return;
    std::vector<std::string> tiles;
    for (size_t l = 0; l < form->loops.size(); ++l) {
      tiles.push_back(absl::StrCat(tiling.tile[l], "/",
                                   schedule::gcu::TypicalOf(ints_, form->loops[l].extent),
                                   static_cast<int>(l) == tiling.blocked ? " in steps"
                                   : tiling.serial[l]                    ? " serial"
                                                                         : ""));
    }
    version_->reasons.push_back(absl::StrCat(
        form->kernel.name, ": ", tiling.matrix ? "matrix" : "vector", ", tile (",
        absl::StrJoin(tiles, ", "), "), predicted ", cost.seconds * 1e6, " us: compute ",
        cost.compute * 1e6, ", L3 ", cost.l3 * 1e6, ", L2 ", cost.l2 * 1e6));
  }

  // All kernels on one tile of their first loops, then on the next.
  absl::Status AddTiles(const Version& plan) {
    const schedule::gcu::TiledDims kept = schedule::gcu::TiledDimsOf(plan);
    if (plan.overlaps.empty()) return AddSameTiles(plan, kept);
    const std::vector<TileRun> runs = schedule::gcu::RunsOf(plan.overlaps, plan.step);
    const auto longest = absl::c_max_element(
        runs, [](const TileRun& a, const TileRun& b) { return a.tiles < b.tiles; });
    for (auto run = runs.begin(); run != runs.end(); ++run) {
      explains_ = run == longest;
      const IntExpr end = ints_.Const(run->first + run->tiles * plan.step);
      KILN_RETURN_IF_ERROR(AddLoop(ints_.Const(run->first), end, plan.step, [&](IntExpr first) {
        return StagesOf(plan, *run, kept, first);
      }));
    }
    return absl::OkStatus();
  }

  // Where every kernel runs the tile itself, and some may run before and after all of them.
  absl::Status AddSameTiles(const Version& plan, const schedule::gcu::TiledDims& kept) {
    const IntExpr extent = schedule::gcu::TileLoop(plan).extent();
    const size_t end = plan.kernels.size() - plan.after;
    const auto once = [&](size_t begin, size_t until) -> absl::Status {
      if (begin == until) return absl::OkStatus();
      repetitions_ = 1;
      std::vector<Stage> stages;
      for (size_t k = begin; k < until; ++k) stages.push_back({plan.kernels[k], k});
      return AddStages(stages);
    };
    const auto tile = [&](IntExpr first, const schedule::gcu::Part& part) {
      std::vector<Stage> stages;
      for (size_t k = plan.before; k < end; ++k) {
        stages.push_back({schedule::gcu::ForTile(module_, plan.kernels[k], part, kept, first), k});
      }
      return stages;
    };
    KILN_RETURN_IF_ERROR(once(0, plan.before));
    // With sums a shorter last tile has code of its own: matrix instructions need to know of how
    // much a sum is.
    const bool apart = plan.before + plan.after > 0;
    const IntExpr whole = apart ? ints_.Sub(extent, ints_.Mod(extent, plan.step)) : extent;
    KILN_RETURN_IF_ERROR(AddLoop(ints_.Const(0), whole, plan.step, [&](IntExpr first) {
      return tile(first, apart ? schedule::gcu::Part{first, ints_.Const(plan.step)}
                               : schedule::gcu::TileAt(ints_, first, whole, plan.step));
    }));
    if (whole != extent) {
      explains_ = false;
      KILN_RETURN_IF_ERROR(AddLoop(whole, extent, plan.step, [&](IntExpr first) {
        return tile(first, schedule::gcu::TileAt(ints_, first, extent, plan.step));
      }));
      explains_ = true;
    }
    return once(end, plan.kernels.size());
  }

  // What a tile of the run has: before each kernel what stays of its results is moved.
  std::vector<Stage> StagesOf(const Version& plan, const TileRun& run,
                              const schedule::gcu::TiledDims& kept, IntExpr first) {
    std::vector<Stage> stages;
    for (size_t k = 0; k < plan.kernels.size(); ++k) {
      const ir::Kernel& kernel = plan.kernels[k];
      for (const auto& buffer : version_->l2.buffers) {
        if (run.stays[k].count == 0 || buffer.stored_by != k) continue;
        stages.push_back({schedule::gcu::MoveRows(module_, kernel, buffer.buffer,
                                                  kept.at(buffer.buffer), run.stays[k], plan.step),
                          k});
      }
      const auto& [offset, count] = run.runs[k];
      if (count == 0) continue;
      const IntExpr begin =
          ints_.Add(ints_.Mul(first, plan.overlaps[k].window.scale), ints_.Const(offset));
      stages.push_back(
          {schedule::gcu::ForTile(module_, kernel, {begin, ints_.Const(count)}, kept, first), k});
    }
    return stages;
  }

  // The stages of a tile, which `make` makes for its first iteration, for all tiles from `begin` to
  // `end`.
  absl::Status AddLoop(IntExpr begin, IntExpr end, int64_t step,
                       const std::function<std::vector<Stage>(IntExpr first)>& make) {
    const auto all = static_cast<double>(schedule::gcu::TypicalOf(ints_, end) -
                                         schedule::gcu::TypicalOf(ints_, begin));
    repetitions_ = std::ceil(all / static_cast<double>(step));
    if (end.is_const() && begin.is_const() && end.value() <= begin.value() + step) {
      return AddStages(make(begin));
    }
    const IntExpr first = ints_.NewVar(end);
    const int scope = code_.mark(), at = code_.NewRegister();
    code_.Let(first, InRegister(at));
    const Label top = code_.NewLabel(), done = code_.NewLabel();
    code_.Set(at, code_.Evaluate(begin));
    if (!end.is_const()) {
      const int size = code_.mark();
      code_.JumpIf(Op::kJumpGreaterEqual, InRegister(at), code_.Evaluate(end), done);
      code_.Release(size);
    }
    code_.Bind(top);
    KILN_RETURN_IF_ERROR(AddStages(make(first)));
    code_.Emit(Op::kAddImmediate, {at, at}, step);
    code_.JumpIf(Op::kJumpLess, InRegister(at), code_.Evaluate(end), top);
    code_.Bind(done);
    code_.Release(scope);
    return absl::OkStatus();
  }

  ir::Module& module_;
  ir::IntContext& ints_;
  const ir::Operation& operation_;
  const Machine& machine_;
  Launch launch_;
  Code code_;
  std::vector<Placement> in_l3_;
  std::vector<bool> loaded_only_;  // by buffer: it is in L3, and no kernel stores it
  // Of the version that is being added:
  LaunchVersion* version_ = nullptr;
  std::vector<Placement> placements_;
  schedule::gcu::InL2 in_l2_;        // buffers that its kernels find there
  std::vector<bool> fixed_;          // by buffer: its kernels load it from where it is all the time
  double repetitions_ = 1;           // of the stages
  std::vector<BufferId> residents_;  // loaded before the first tile
  bool explains_ = true;             // whether it says how these stages run
};

}  // namespace

double UnfusedSeconds(ir::Module& module, const std::vector<IntExpr>& symbols,
                      const Version& version, const Machine& machine) {
  const schedule::gcu::AtTypicalSizes sizes(*module.ints, symbols, version.bucket);
  double seconds = 0;
  const schedule::gcu::InL2 nothing(module.buffers.size(), false);
  for (size_t k = version.before; k < version.kernels.size() - version.after; ++k) {
    seconds += static_cast<double>(machine.launch_ns) * 1e-9;
    const double alone = schedule::gcu::SecondsOf(module, version.kernels[k], nothing, machine);
    if (std::isfinite(alone)) seconds += alone;
  }
  return seconds;
}

absl::StatusOr<Launch> MakeLaunch(ir::Module& module, const ir::Operation& operation,
                                  const Machine& machine) {
  return LaunchMaker(module, operation, machine).Run();
}

}  // namespace kiln::codegen::gcu
