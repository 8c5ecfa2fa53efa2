#include "compiler/codegen/gcu/launch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/gcu/code.h"
#include "compiler/codegen/gcu/stage.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/preload.h"
#include "compiler/schedule/gcu/tiling.h"
#include "proto/base/status_macros.h"
#include "proto/gcu/instructions.inc.h"

namespace kiln::codegen::gcu {
namespace {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::IntExpr;
using ir::ScalarOp;
using schedule::gcu::Form;
using schedule::gcu::Machine;
using schedule::gcu::Tiling;
using schedule::gcu::Version;

constexpr double kWorthIt = 0.95;  // of the time without preloads

class LaunchMaker {
 public:
  LaunchMaker(ir::Module& module, const ir::Operation& operation, const Machine& machine)
      : module_(module), ints_(*module.ints), operation_(operation), machine_(machine) {}

  absl::StatusOr<Launch> Run() {
    KILN_ASSIGN_OR_RETURN(std::vector<Version> versions,
                          schedule::gcu::VersionsOf(module_, operation_));
    const std::vector<IntExpr> symbols = schedule::gcu::SymbolsOf(operation_);
    FindBuffers(versions);
    code_.SetFirstSymbol(static_cast<int>(launch_.buffers.size()));
    for (Version& version : versions) {
      const schedule::gcu::AtTypicalSizes sizes(ints_, symbols, version.bucket);
      LaunchVersion& out = launch_.versions.emplace_back();
      KILN_ASSIGN_OR_RETURN(out.l2, schedule::gcu::PlanL2(module_, symbols, version));
      if (out.l2.bytes > machine_.l2_bytes) {
        return absl::UnimplementedError(absl::StrCat(
            "the group needs ", out.l2.bytes, " bytes of L2, which has ", machine_.l2_bytes));
      }
      out.plan = std::move(version);
      KILN_RETURN_IF_ERROR(AddVersion(symbols, out));
    }
    KILN_RETURN_IF_ERROR(code_.status());
    launch_.kernel.instructions = code_.Finish();
    AddSymbols();
    launch_.kernel.l1_bytes = static_cast<uint32_t>(machine_.l1_bytes);
    for (const LaunchVersion& version : launch_.versions) {
      const auto bytes = static_cast<uint32_t>(version.l2.bytes);
      launch_.kernel.l2_bytes = std::max(launch_.kernel.l2_bytes, bytes);
    }
    return std::move(launch_);
  }

 private:
  // The launch's first arguments: buffers in L3, at least in one version, in order of first use.
  void FindBuffers(const std::vector<Version>& versions) {
    in_l3_.resize(module_.buffers.size());
    std::map<BufferId, uint8_t> access;
    for (const ir::Kernel& kernel : KernelsOf(operation_)) {
      ir::ForEachInst(kernel, [&](const Inst& inst) {
        if (inst.op != ScalarOp::kLoad && inst.op != ScalarOp::kStore) return;
        const ir::Buffer& buffer = module_.buffers[inst.buffer];
        if (absl::c_all_of(versions, [&](const Version& v) { return v.keeps[inst.buffer]; })) {
          return;
        }
        if (!access.contains(inst.buffer)) {
          in_l3_[inst.buffer] = {.space = Space::kL3,
                                 .argument = static_cast<int>(launch_.buffers.size()),
                                 .offset = 0,
                                 .sizes = buffer.sizes,
                                 .strides = buffer.strides};
          launch_.buffers.push_back(inst.buffer);
        }
        access[inst.buffer] |= inst.op == ScalarOp::kLoad ? kiln::gcu::kRead : kiln::gcu::kWritten;
      });
    }
    loaded_only_.assign(module_.buffers.size(), false);
    for (const auto& [buffer, how] : access)
      loaded_only_[buffer] = (how & kiln::gcu::kWritten) == 0;
    for (size_t i = 0; i < launch_.buffers.size(); ++i) {
      launch_.kernel.arguments.push_back({.name = absl::StrCat("b", i),
                                          .kind = kiln::gcu::ArgumentKind::kL3Pointer,
                                          .access = access[launch_.buffers[i]]});
    }
  }

  // What runs where no size is above the version's, and then ends.
  absl::Status AddVersion(const std::vector<IntExpr>& symbols, LaunchVersion& version) {
    version_ = &version;
    repetitions_ = 1;
    fixed_ = loaded_only_;
    placements_ = in_l3_;
    for (const schedule::gcu::L2Buffer& buffer : version.l2.buffers) {
      placements_[buffer.buffer] = InL2(buffer);
    }
    const Label next = code_.NewLabel();
    const Version& plan = version.plan;
    for (size_t i = 0; i < plan.bucket.most.size(); ++i) {
      const int scope = code_.mark();
      code_.JumpIf(Op::kJumpLess, Known(plan.bucket.most[i]), code_.Evaluate(symbols[i]), next);
      code_.Release(scope);
    }
    KILN_RETURN_IF_ERROR(plan.step > 0 ? AddTiles(plan) : AddStages(plan.kernels));
    code_.Emit(Op::kHalt);
    code_.Bind(next);
    version.seconds += static_cast<double>(machine_.launch_ns) * 1e-9;
    return absl::OkStatus();
  }

  // Symbols that the program reads become arguments, behind the buffers.
  void AddSymbols() {
    const auto first = static_cast<int64_t>(launch_.buffers.size());
    for (kiln::gcu::Instruction& instruction : launch_.kernel.instructions) {
      if (instruction.op != Op::kLoadArgument || instruction.immediate < first) continue;
      const auto id = static_cast<int>(instruction.immediate - first);
      auto at = absl::c_find(launch_.symbols, id);
      if (at == launch_.symbols.end()) {
        launch_.kernel.arguments.push_back({.name = absl::StrCat("s", launch_.symbols.size()),
                                            .kind = kiln::gcu::ArgumentKind::kInteger,
                                            .access = 0});
        at = launch_.symbols.insert(at, id);
      }
      instruction.immediate = first + (at - launch_.symbols.begin());
    }
  }

  // A part of a buffer that one core copies to L2 while a stage runs.
  struct BesideCopy {
    CoreSteps by;
    BufferId buffer = -1;
    schedule::gcu::PreloadPart part;
    int64_t piece_bytes = 0;  // in each step
    int token = 0;
  };
  struct Step {
    std::shared_ptr<const Form> form;  // which has pointers into itself
    Tiling tiling;
    schedule::gcu::Cost cost;
    StageBytes bytes;
    std::vector<BesideCopy> copies;  // all by one core
  };

  // The kernels one after another, with a barrier behind each.
  absl::Status AddStages(const std::vector<ir::Kernel>& kernels) {
    KILN_ASSIGN_OR_RETURN(const std::vector<Step> steps, PlanSteps(kernels));
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
          AppendCopies(steps[i].copies, next_step, code);
        };
      }
      KILN_RETURN_IF_ERROR(AppendStage(module_, *steps[i].form, steps[i].tiling, placements_,
                                       machine_, options, code_)
                               .status());
      for (const BesideCopy& copy : steps[i].copies) code_.Wait(copy.token);
      code_.Emit(Op::kBarrier);
      AddReason(steps[i]);
    }
    return absl::OkStatus();
  }

  // How each kernel runs, and what is copied beside it for those after it. It may plan L2 anew.
  absl::StatusOr<std::vector<Step>> PlanSteps(const std::vector<ir::Kernel>& kernels) {
    const std::vector<schedule::gcu::PreloadCandidate> candidates =
        schedule::gcu::PreloadCandidates(module_, version_->plan);
    in_l2_ = version_->plan.keeps;
    std::vector<Step> alone;
    for (const ir::Kernel& kernel : kernels) {
      KILN_ASSIGN_OR_RETURN(Step step, Plan(kernel));
      alone.push_back(std::move(step));
    }
    if (candidates.empty()) return alone;
    std::vector<Step> steps = alone;
    const auto set = [&](const schedule::gcu::PreloadCandidate& candidate, bool in_l2) {
      in_l2_[candidate.buffer] = in_l2;
      fixed_[candidate.buffer] = !in_l2;
    };
    for (const auto& candidate : candidates) set(candidate, true);
    std::vector<schedule::gcu::StageTimes> times;
    for (size_t k = 0; k < kernels.size(); ++k) {
      const bool changes = absl::c_any_of(candidates, [&](const auto& candidate) {
        return candidate.first_use <= k && k <= candidate.last_use;
      });
      if (changes) {
        KILN_ASSIGN_OR_RETURN(steps[k], Plan(kernels[k]));
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
        KILN_ASSIGN_OR_RETURN(steps[k], Plan(kernels[k]));
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
      cost.l3 += static_cast<double>(part.bytes) / static_cast<double>(machine_.l3_rate);
      cost.seconds = std::max(cost.seconds, cost.l3 + around);
      step.copies.push_back(copy);
    }
  }

  void AppendCopies(const std::vector<BesideCopy>& copies, int next_step, Code& code) const {
    const Label others = code.NewLabel();
    const int before = code.mark();
    const CoreSteps& by = copies[0].by;
    code.JumpIf(Op::kJumpNotEqual, InRegister(0), Known(by.core), others);
    const Scalar number = code.Add(InRegister(next_step), Known(-1 - by.first));
    for (const BesideCopy& copy : copies) {
      const int scope = code.mark();
      const Scalar done = code.Multiply(number, Known(copy.piece_bytes));
      const Scalar bytes = code.Max(
          Known(0), code.Min(Known(copy.piece_bytes), code.Subtract(Known(copy.part.bytes), done)));
      const Scalar at = code.Add(done, Known(copy.part.begin));
      Tile from, to;
      from.type = to.type = Type::kU8;
      from.space = Space::kL3;
      to.space = Space::kL2;
      from.dims = to.dims = {{bytes, Known(1)}};
      from.address = code.Add(code.Argument(in_l3_[copy.buffer].argument), at);
      to.address = code.Add(code.Add(InRegister(5), at), Known(placements_[copy.buffer].offset));
      code.Copy(to, from, copy.token);
      code.Release(scope);
    }
    code.Bind(others);
    code.Release(before);
  }

  // How the kernel runs: a tile that turns out too large is made smaller.
  absl::StatusOr<Step> Plan(ir::Kernel kernel) {
    Step step;
    KILN_ASSIGN_OR_RETURN(Form form, schedule::gcu::MakeForm(module_, std::move(kernel)));
    step.form = std::make_shared<const Form>(std::move(form));
    absl::Status last;
    for (int64_t l1 = machine_.l1_bytes * 3 / 4; l1 > machine_.l1_bytes / 32; l1 = l1 * 2 / 3) {
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

  void AddReason(const Step& step) {
    const auto& [form, tiling, cost, bytes, copies] = step;
    version_->seconds += cost.seconds * repetitions_;
    schedule::gcu::Cost all = cost;
    for (double* seconds : {&all.seconds, &all.compute, &all.l3, &all.l2}) *seconds *= repetitions_;
    version_->stages.push_back(all);
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

  // All kernels on one tile of the first loop, then on the next.
  absl::Status AddTiles(const Version& plan) {
    const int64_t step = plan.step;
    const IntExpr extent = plan.kernels[0].outer[0].extent();
    const IntExpr tile = ints_.NewVar(extent);
    const int at = code_.NewRegister();
    code_.Let(tile, InRegister(at));
    const Label top = code_.NewLabel(), end = code_.NewLabel();
    code_.Set(at, Known(0));
    if (!extent.is_const()) {
      const int scope = code_.mark();
      code_.JumpIf(Op::kJumpGreaterEqual, InRegister(at), code_.Evaluate(extent), end);
      code_.Release(scope);
    }
    code_.Bind(top);
    const auto all = static_cast<double>(schedule::gcu::TypicalOf(ints_, extent));
    repetitions_ = std::ceil(all / static_cast<double>(step));
    std::vector<ir::Kernel> kernels;
    for (const ir::Kernel& kernel : plan.kernels) {
      kernels.push_back(schedule::gcu::ForTile(module_, kernel, plan.keeps, tile, extent, step));
    }
    KILN_RETURN_IF_ERROR(AddStages(kernels));
    code_.Emit(Op::kAddImmediate, {at, at}, step);
    const int scope = code_.mark();
    code_.JumpIf(Op::kJumpLess, InRegister(at), code_.Evaluate(extent), top);
    code_.Release(scope);
    code_.Bind(end);
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
  schedule::gcu::InL2 in_l2_;  // buffers that its kernels find there
  std::vector<bool> fixed_;    // by buffer: its kernels load it from where it is all the time
  double repetitions_ = 1;     // of the stages
};

}  // namespace

double UnfusedSeconds(ir::Module& module, const std::vector<IntExpr>& symbols,
                      const Version& version, const Machine& machine) {
  const schedule::gcu::AtTypicalSizes sizes(*module.ints, symbols, version.bucket);
  double seconds = 0;
  const schedule::gcu::InL2 nothing(module.buffers.size(), false);
  for (const ir::Kernel& kernel : version.kernels) {
    seconds += static_cast<double>(machine.launch_ns) * 1e-9;
    const absl::StatusOr<Form> form = schedule::gcu::MakeForm(module, kernel);
    if (!form.ok()) continue;
    const Tiling tiling =
        schedule::gcu::ChooseTiling(module, *form, nothing, machine, machine.l1_bytes * 3 / 4);
    seconds += schedule::gcu::CostOf(module, *form, tiling, nothing, machine).seconds;
  }
  return seconds;
}

absl::StatusOr<Launch> MakeLaunch(ir::Module& module, const ir::Operation& operation,
                                  const Machine& machine) {
  return LaunchMaker(module, operation, machine).Run();
}

}  // namespace kiln::codegen::gcu
