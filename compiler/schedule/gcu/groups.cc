#include "compiler/schedule/gcu/groups.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/identity.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/tiling.h"
#include "compiler/schedule/tileable.h"

namespace kiln::schedule::gcu {
namespace {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::ScalarOp;

constexpr size_t kMostKernels = 96;  // of a group: planning takes the square of it
constexpr double kNever = std::numeric_limits<double>::infinity();

bool IsAccess(const Inst& inst) {
  return inst.op == ScalarOp::kLoad || inst.op == ScalarOp::kStore;
}

// Temporary buffers that nobody but kernels sees, and one of them stores.
std::vector<bool> OwnBuffers(const ir::Module& module, const BufferUses& uses) {
  std::vector<bool> own(module.buffers.size());
  for (size_t b = 0; b < own.size(); ++b) {
    const auto id = static_cast<BufferId>(b);
    own[b] = module.buffers[b].kind == BufferKind::kTemp && uses.StorerOf(id) &&
             !uses.LoadersOf(id).empty();
  }
  return own;
}

// Whether every index is a loop's variable of its own, or a number; the loop by dimension, -1.
std::optional<std::vector<int>> PlainLoops(const Form& form, const Access& access) {
  std::vector<int> loops;
  for (const Affine& index : access.indices) {
    int loop = -1;
    for (size_t l = 0; l < form.loops.size(); ++l) {
      if (index.coefficients[l] == 0) continue;
      if (index.coefficients[l] != 1 || loop >= 0) return std::nullopt;
      loop = static_cast<int>(l);
    }
    loops.push_back(loop);
  }
  return loops;
}

void LayOutStores(ir::Module& module, const std::vector<bool>& own, const Kernel& kernel) {
  const absl::StatusOr<Form> form = MakeForm(module, kernel);
  if (!form.ok()) return;
  const std::optional<MatrixRoles> roles = RolesOf(module, *form);
  for (const Access& access : form->accesses) {
    const BufferId id = access.inst->buffer;
    if (access.inst->op != ScalarOp::kStore || !own[id]) continue;
    const std::optional<std::vector<int>> loops = PlainLoops(*form, access);
    if (!loops) continue;
    std::vector<int64_t> weights;
    if (roles) {
      for (int l : *loops) {
        const bool column = absl::c_linear_search(roles->columns, l);
        weights.push_back(l < 0 ? 1000 : column ? -1 - l : 900 - l);
      }
    } else {
      // As the largest buffer that it is made of lies.
      const Access* from = nullptr;
      int64_t most = 0;
      for (const Access& load : form->accesses) {
        if (load.inst->op != ScalarOp::kLoad) continue;
        const ir::Buffer& buffer = module.buffers[load.inst->buffer];
        const int64_t size = TypicalOf(*module.ints, ir::NumElements(*module.ints, buffer));
        if (size > most) {
          most = size;
          from = &load;
        }
      }
      if (from == nullptr) continue;
      const ir::Buffer& buffer = module.buffers[from->inst->buffer];
      bool all = true;
      for (int l : *loops) {
        int64_t stride = 0;
        for (size_t d = 0; l >= 0 && d < from->indices.size(); ++d) {
          stride += std::abs(from->indices[d].coefficients[l]) *
                    TypicalOf(*module.ints, buffer.strides[d]);
        }
        all = all && (l < 0 || stride != 0 || form->loops[l].extent.is_const(1));
        weights.push_back(l < 0 ? int64_t{1} << 60 : stride);
      }
      if (!all) continue;
    }
    ir::Buffer& stored = module.buffers[id];
    stored.strides = PackedStrides(*module.ints, stored.sizes, weights);
  }
}

class Analyzer {
 public:
  Analyzer(ir::Module& module, const Machine& machine, const std::vector<std::string>& without,
           const Trial& trial)
      : module_(module),
        ints_(*module.ints),
        machine_(machine),
        afe_(!absl::c_linear_search(without, "afe")),
        tlf_(!absl::c_linear_search(without, "tlf")),
        trial_(trial),
        uses_(module),
        own_(OwnBuffers(module, uses_)),
        identities_(ir::Identify(module)) {}

  void Run() {
    const size_t count = module_.operations.size();
    std::vector<bool> runs(count), on_device(count);
    for (size_t i = 0; i < count; ++i) {
      const auto* kernel = std::get_if<Kernel>(&module_.operations[i]);
      if (kernel == nullptr) continue;
      const size_t first = identities_[i].first;
      runs[i] = first < i ? runs[first] : trial_(*kernel).ok();
      on_device[i] = runs[i] && MayGroup(i);
    }
    for (size_t begin = 0; begin < count;) {
      if (!on_device[begin]) {
        ++begin;
        continue;
      }
      size_t end = begin;
      while (end < count && on_device[end] && end - begin < kMostKernels) ++end;
      Split(begin, end);
      begin = end;
    }
    std::vector<ir::Operation> operations;
    size_t next = 0;
    for (const Choice& choice : chosen_) {
      while (next < choice.begin) operations.push_back(std::move(module_.operations[next++]));
      std::optional<ir::Operation> made = Make(choice);
      if (!made) continue;  // its kernels stay apart
      operations.push_back(*std::move(made));
      next = choice.end;
    }
    while (next < count) operations.push_back(std::move(module_.operations[next++]));
    module_.operations = std::move(operations);
  }

 private:
  struct Choice {
    size_t begin = 0, end = 0;
    double seconds = kNever;
    int64_t step = 0;            // iterations of a tile; 0: everything is one
    std::vector<int> loops;      // the tiled loop of each kernel
    std::vector<BufferId> kept;  // buffers in L2
  };

  const Kernel& KernelAt(size_t i) const { return std::get<Kernel>(module_.operations[i]); }

  // Not what stores to inputs, or to what others have loaded: repeats do not.
  bool MayGroup(size_t i) const {
    bool may = true;
    absl::flat_hash_set<BufferId> loaded;
    ir::ForEachInst(KernelAt(i), [&](const Inst& inst) {
      if (inst.op == ScalarOp::kLoad) loaded.insert(inst.buffer);
      if (inst.op != ScalarOp::kStore) return;
      const ir::Buffer& buffer = module_.buffers[inst.buffer];
      may = may && buffer.kind != BufferKind::kInput && buffer.kind != BufferKind::kPrepared &&
            !loaded.contains(inst.buffer);
      // Several kernels that store parts of one buffer stay apart from its readers.
      may = may && (uses_.StorerOf(inst.buffer) == i);
    });
    return may;
  }

  // The cheapest way to cut the kernels from `begin` to `end` into launches.
  void Split(size_t begin, size_t end) {
    const size_t count = end - begin;
    std::vector<double> best(count + 1, kNever);
    std::vector<Choice> how(count + 1);
    best[0] = 0;
    for (size_t i = 0; i < count; ++i) {
      std::vector<Choice> choices = From(begin + i, end);
      for (Choice& choice : choices) {
        const size_t j = choice.end - begin;
        if (best[i] + choice.seconds < best[j]) {
          best[j] = best[i] + choice.seconds;
          how[j] = std::move(choice);
        }
      }
    }
    std::vector<Choice> chosen;
    for (size_t j = count; j > 0; j = how[j].begin - begin) chosen.push_back(how[j]);
    for (auto choice = chosen.rbegin(); choice != chosen.rend(); ++choice) {
      if (choice->end - choice->begin > 1 || choice->step > 0) chosen_.push_back(*choice);
    }
  }

  // Of L2, but for what first fit leaves between buffers.
  int64_t Room() const { return machine_.l2_bytes - machine_.l2_bytes / 16; }

  double Launch() const { return static_cast<double>(machine_.launch_ns) * 1e-9; }

  // Groups that begin with that kernel.
  std::vector<Choice> From(size_t begin, size_t end) {
    std::vector<Choice> out;
    Choice whole{.begin = begin, .end = begin + 1};
    for (size_t j = begin + 1; j <= end && (afe_ || j == begin + 1); ++j) {
      whole.end = j;
      whole.kept = Keep(begin, j);
      whole.seconds = Launch();
      const std::vector<bool> in_l2 = AsSet(whole.kept);
      for (size_t k = begin; k < j; ++k) whole.seconds += Seconds(k, -1, 0, in_l2);
      out.push_back(whole);
    }
    if (!tlf_) return out;
    for (size_t l = 0; l < KernelAt(begin).outer.size(); ++l) {
      AddTiled(begin, end, static_cast<int>(l), out);
    }
    return out;
  }

  std::vector<bool> AsSet(const std::vector<BufferId>& ids) const {
    std::vector<bool> set(module_.buffers.size());
    for (BufferId id : ids) set[id] = true;
    return set;
  }

  // Buffers that the kernels hand on among themselves alone.
  std::vector<BufferId> HandedOn(size_t begin, size_t end) const {
    std::vector<BufferId> out;
    for (size_t k = begin; k < end; ++k) {
      ir::ForEachInst(KernelAt(k), [&](const Inst& inst) {
        if (inst.op != ScalarOp::kStore || !own_[inst.buffer]) return;
        if (uses_.LoadersOf(inst.buffer).back() >= end) return;
        if (!absl::c_linear_search(out, inst.buffer)) out.push_back(inst.buffer);
      });
    }
    return out;
  }

  int64_t Bytes(BufferId id) const {
    const IntExpr bytes = ir::SizeBytes(ints_, module_.buffers[id]);
    const int64_t most = bytes.range().max;
    return most == ir::IntRange::kMaxInt ? int64_t{1} << 50 : most;
  }

  size_t LastUse(BufferId id) const { return uses_.LoadersOf(id).back(); }

  // Of those the ones that stay in L2: where together they do not fit, those go that take the most
  // room for the longest time beside how often they are used.
  std::vector<BufferId> Keep(size_t begin, size_t end) const {
    std::vector<BufferId> kept = HandedOn(begin, end);
    std::erase_if(kept, [&](BufferId id) { return Bytes(id) > machine_.l2_bytes; });
    while (true) {
      int64_t peak = 0;
      size_t at = begin;
      for (size_t k = begin; k < end; ++k) {
        int64_t live = 0;
        for (BufferId id : kept) {
          if (*uses_.StorerOf(id) <= k && k <= LastUse(id)) live += Bytes(id) + 512;
        }
        if (live > peak) {
          peak = live;
          at = k;
        }
      }
      if (peak <= Room()) return kept;
      double worst = -1;
      BufferId out = -1;
      for (BufferId id : kept) {
        const size_t first = *uses_.StorerOf(id);
        if (first > at || LastUse(id) < at) continue;
        const double room = static_cast<double>(LastUse(id) - first + 1);
        const double score = room / static_cast<double>(1 + uses_.LoadersOf(id).size());
        if (score > worst) {
          worst = score;
          out = id;
        }
      }
      std::erase(kept, out);
    }
  }

  // Groups whose kernels run tile by tile of the first one's loop `loop`.
  void AddTiled(size_t begin, size_t end, int loop, std::vector<Choice>& out) {
    const IntExpr extent = KernelAt(begin).outer[loop].extent();
    if (extent.is_const(1)) return;
    const int64_t all = TypicalOf(ints_, extent);
    std::vector<int> loops = {loop};
    absl::flat_hash_map<BufferId, size_t> dims;  // of what is handed on: the tiled dimension
    if (!AddStores(begin, loop, dims)) return;
    for (size_t j = begin + 1; j < end; ++j) {
      const std::optional<int> next = LoopOf(j, extent, dims);
      if (!next || !AddStores(j, *next, dims)) return;
      loops.push_back(*next);
      Choice choice{.begin = begin, .end = j + 1, .step = 1, .loops = loops};
      choice.kept = HandedOn(begin, j + 1);
      // Buffers that kernels after the group load as well stay in L3, whole.
      const int64_t one = Peak(choice, 1, extent);
      if (one > Room()) return;
      std::vector<int64_t> steps;
      for (int64_t step = 1; step < all; step = step < 4 ? step + 1 : step + step / 2) {
        const int64_t tiles = (all + step - 1) / step;
        steps.push_back((all + tiles - 1) / tiles);
      }
      for (int64_t step : steps) {
        if (Peak(choice, step, extent) > Room()) break;
        choice.step = step;
        choice.seconds = Launch();
        const std::vector<bool> in_l2 = AsSet(choice.kept);
        const double tiles = static_cast<double>((all + step - 1) / step);
        for (size_t k = begin; k <= j; ++k) {
          choice.seconds += tiles * Seconds(k, loops[k - begin], step, in_l2);
        }
        out.push_back(choice);
      }
    }
  }

  // Whether the kernel stores each buffer at its tiled loop, in one dimension, which is noted.
  bool AddStores(size_t k, int loop, absl::flat_hash_map<BufferId, size_t>& dims) const {
    const Kernel& kernel = KernelAt(k);
    bool plain = true;
    ir::ForEachInst(kernel, [&](const Inst& inst) {
      if (inst.op != ScalarOp::kStore) return;
      const auto at = absl::c_find(inst.indices, kernel.outer[loop]);
      if (at == inst.indices.end()) {
        plain = false;
        return;
      }
      const auto dim = static_cast<size_t>(at - inst.indices.begin());
      plain = plain && dims.try_emplace(inst.buffer, dim).first->second == dim;
    });
    return plain;
  }

  // The loop of the kernel that is tiled where its operands are: nothing where it is none.
  std::optional<int> LoopOf(size_t k, IntExpr extent,
                            const absl::flat_hash_map<BufferId, size_t>& dims) const {
    const Kernel& kernel = KernelAt(k);
    std::optional<int> found;
    bool fits = true;
    ir::ForEachInst(kernel, [&](const Inst& inst) {
      if (inst.op != ScalarOp::kLoad) return;
      const auto dim = dims.find(inst.buffer);
      if (dim == dims.end()) return;
      const auto at = absl::c_find(kernel.outer, inst.indices[dim->second]);
      const auto loop = static_cast<int>(at - kernel.outer.begin());
      if (at == kernel.outer.end() || at->extent() != extent || (found && *found != loop)) {
        fits = false;
      }
      found = loop;
    });
    if (!fits) return std::nullopt;
    if (found) return found;
    // It reads nothing of the group: any loop of that length, the first.
    for (size_t l = 0; l < kernel.outer.size(); ++l) {
      if (kernel.outer[l].extent() == extent) return static_cast<int>(l);
    }
    return std::nullopt;
  }

  // Bytes of L2 that the choice takes at most, for tiles of `step`.
  int64_t Peak(const Choice& choice, int64_t step, IntExpr extent) const {
    int64_t peak = 0;
    const int64_t most = std::max<int64_t>(1, TypicalOf(ints_, extent));
    for (size_t k = choice.begin; k < choice.end; ++k) {
      int64_t live = 0;
      for (BufferId id : choice.kept) {
        if (*uses_.StorerOf(id) > k || LastUse(id) < k) continue;
        const int64_t bytes = extent.is_const()
                                  ? Bytes(id)
                                  : TypicalOf(ints_, ir::SizeBytes(ints_, module_.buffers[id]));
        live += (bytes + most - 1) / most * step + 512;
      }
      peak = std::max(peak, live);
    }
    return peak;
  }

  // What the kernel takes: all of it, or one tile of its loop.
  double Seconds(size_t k, int loop, int64_t step, const std::vector<bool>& in_l2) {
    std::string key = absl::StrCat(identities_[k].first, ",", loop, ",", step, ":");
    ir::ForEachInst(KernelAt(k), [&](const Inst& inst) {
      if (IsAccess(inst)) key += in_l2[inst.buffer] ? '1' : '0';
    });
    const auto [known, added] = seconds_.try_emplace(key, 0);
    if (!added) return known->second;
    Kernel kernel = KernelAt(k);
    if (loop >= 0) {
      std::rotate(kernel.outer.begin(), kernel.outer.begin() + loop,
                  kernel.outer.begin() + loop + 1);
      const IntExpr extent = kernel.outer[0].extent();
      kernel = ForTile(module_, kernel, ints_.NewVar(extent), extent, step);
    }
    const absl::StatusOr<Form> form = MakeForm(module_, std::move(kernel));
    double& seconds = seconds_[key];
    if (!form.ok()) return seconds = kNever;
    const Tiling tiling = ChooseTiling(module_, *form, in_l2, machine_, machine_.l1_bytes);
    return seconds = CostOf(module_, *form, tiling, in_l2, machine_).seconds;
  }

  // Nothing where it turns out that the device cannot run it so.
  std::optional<ir::Operation> Make(const Choice& choice) {
    ir::Repeat repeat;
    repeat.name = KernelAt(choice.begin).name;
    if (choice.step > 0) repeat.steps = {choice.step};
    for (size_t k = choice.begin; k < choice.end; ++k) {
      Kernel kernel = KernelAt(k);
      if (choice.step > 0) {
        const int loop = choice.loops[k - choice.begin];
        std::rotate(kernel.outer.begin(), kernel.outer.begin() + loop,
                    kernel.outer.begin() + loop + 1);
      }
      repeat.kernels.push_back(std::move(kernel));
    }
    for (BufferId id : choice.kept) module_.buffers[id].kind = BufferKind::kTile;
    ir::Operation operation = std::move(repeat);
    if (trial_(operation).ok()) return operation;
    for (BufferId id : choice.kept) module_.buffers[id].kind = BufferKind::kTemp;
    return std::nullopt;
  }

  ir::Module& module_;
  ir::IntContext& ints_;
  const Machine& machine_;
  const bool afe_, tlf_;
  const Trial& trial_;
  const BufferUses uses_;
  const std::vector<bool> own_;
  const std::vector<ir::Identity> identities_;  // equal kernels cost the same
  std::vector<Choice> chosen_;
  absl::flat_hash_map<std::string, double> seconds_;
};

}  // namespace

void LayOut(ir::Module& module) {
  const std::vector<bool> own = OwnBuffers(module, BufferUses(module));
  for (const ir::Operation& operation : module.operations) {
    if (const auto* kernel = std::get_if<Kernel>(&operation)) LayOutStores(module, own, *kernel);
  }
}

void Group(ir::Module& module, const Machine& machine, const std::vector<std::string>& without,
           const Trial& trial) {
  LayOut(module);
  Analyzer(module, machine, without, trial).Run();
}

}  // namespace kiln::schedule::gcu
