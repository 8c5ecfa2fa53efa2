#include "compiler/codegen/gcu/launch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/gcu/code.h"
#include "compiler/codegen/gcu/stage.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/tiling.h"
#include "proto/base/status_macros.h"

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
    fixed_.assign(module_.buffers.size(), false);
    for (const auto& [buffer, how] : access) fixed_[buffer] = (how & kiln::gcu::kWritten) == 0;
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
    placements_ = in_l3_;
    for (const schedule::gcu::L2Buffer& buffer : version.l2.buffers) {
      placements_[buffer.buffer] = {.space = Space::kL2,
                                    .argument = -1,
                                    .offset = buffer.offset,
                                    .sizes = buffer.sizes,
                                    .strides = buffer.strides};
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

  struct Step {
    Form form;
    Tiling tiling;
    schedule::gcu::Cost cost;
    StageBytes bytes;
  };

  // The kernels one after another, with a barrier behind each.
  absl::Status AddStages(std::vector<ir::Kernel> kernels) {
    std::vector<Step> steps;
    for (ir::Kernel& kernel : kernels) {
      KILN_ASSIGN_OR_RETURN(Step step, Plan(std::move(kernel)));
      steps.push_back(std::move(step));
    }
    bool prefetched = false;
    for (size_t i = 0; i < steps.size(); ++i) {
      StageOptions options{.odd = i % 2 == 1, .fixed = &fixed_, .prefetched = prefetched};
      // In what this one leaves of L1, the next one's first loads.
      prefetched = i + 1 < steps.size() && steps[i + 1].bytes.fixed > 0 &&
                   steps[i].bytes.all + steps[i + 1].bytes.fixed <= machine_.l1_bytes;
      const StageOptions next{.odd = i % 2 == 0, .fixed = &fixed_};
      if (prefetched) {
        options.at_last = [&](Code& code) {
          AppendPrefetch(module_, steps[i + 1].form, steps[i + 1].tiling, placements_, machine_,
                         next, code);
        };
      }
      KILN_RETURN_IF_ERROR(AppendStage(module_, steps[i].form, steps[i].tiling, placements_,
                                       machine_, options, code_)
                               .status());
      code_.Emit(Op::kBarrier);
      AddReason(steps[i]);
    }
    return absl::OkStatus();
  }

  // How the kernel runs: a tile that turns out too large is made smaller.
  absl::StatusOr<Step> Plan(ir::Kernel kernel) {
    Step step;
    KILN_ASSIGN_OR_RETURN(step.form, schedule::gcu::MakeForm(module_, std::move(kernel)));
    absl::Status last;
    for (int64_t l1 = machine_.l1_bytes * 3 / 4; l1 > machine_.l1_bytes / 32; l1 = l1 * 2 / 3) {
      step.tiling =
          schedule::gcu::ChooseTiling(module_, step.form, version_->plan.keeps, machine_, l1);
      Code attempt = code_.Empty();
      const absl::StatusOr<StageBytes> bytes = AppendStage(
          module_, step.form, step.tiling, placements_, machine_, {.fixed = &fixed_}, attempt);
      if (bytes.ok()) {
        step.bytes = *bytes;
        step.cost =
            schedule::gcu::CostOf(module_, step.form, step.tiling, version_->plan.keeps, machine_);
        return step;
      }
      last = bytes.status();
    }
    return last;
  }

  void AddReason(const Step& step) {
    const auto& [form, tiling, cost, bytes] = step;
    version_->seconds += cost.seconds * repetitions_;
    version_->stage_seconds.push_back(cost.seconds * repetitions_);
    std::vector<std::string> tiles;
    for (size_t l = 0; l < form.loops.size(); ++l) {
      tiles.push_back(absl::StrCat(tiling.tile[l], "/",
                                   schedule::gcu::TypicalOf(ints_, form.loops[l].extent),
                                   static_cast<int>(l) == tiling.blocked ? " in steps"
                                   : tiling.serial[l]                    ? " serial"
                                                                         : ""));
    }
    version_->reasons.push_back(absl::StrCat(
        form.kernel.name, ": ", tiling.matrix ? "matrix" : "vector", ", tile (",
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
    KILN_RETURN_IF_ERROR(AddStages(std::move(kernels)));
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
  // Of the version that is being added:
  LaunchVersion* version_ = nullptr;
  std::vector<Placement> placements_;
  std::vector<bool> fixed_;  // by buffer: in L3, and the launch only loads it
  double repetitions_ = 1;   // of the stages
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
