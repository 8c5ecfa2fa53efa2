// The proof that a plan is right. It shares no code with the planner but for what an index's check
// proves (checked_index.h): it walks the operations and
// keeps the set of buffers whose contents are still there; a write takes out every buffer that it
// may overlap, and a read of a buffer that is not there is the error.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/memory/checked_index.h"
#include "compiler/memory/plan_memory.h"
#include "proto/base/status_macros.h"

namespace kiln::memory {
namespace {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;

// Reads and writes of planned buffers by one operation, each buffer once.
struct Access {
  std::string operation;
  absl::Span<const Kernel> kernels;
  std::vector<BufferId> reads, writes;
};

void AddOnce(std::vector<BufferId>& list, BufferId buffer) {
  if (std::find(list.begin(), list.end(), buffer) == list.end()) list.push_back(buffer);
}

void CollectWindows(const ir::LibraryArgs& args, std::vector<BufferId>& reads) {
  for (const ir::LibraryArg& arg : args) {
    if (std::holds_alternative<ir::BufferWindow>(arg.value)) {
      AddOnce(reads, std::get<ir::BufferWindow>(arg.value).buffer);
    } else if (std::holds_alternative<ir::LibraryArgs>(arg.value)) {
      CollectWindows(std::get<ir::LibraryArgs>(arg.value), reads);
    }
  }
}

Access CollectAccess(const ir::Operation& operation) {
  Access access;
  if (const auto* library = std::get_if<ir::Library>(&operation)) {
    access.operation = absl::StrCat("library ", library->op, " of ", library->origin);
    CollectWindows(library->args, access.reads);
    for (BufferId result : library->results) AddOnce(access.writes, result);
  } else {
    access.operation = absl::StrCat("kernel @", NameOf(operation));
    access.kernels = KernelsOf(operation);
    ForEachInst(operation, [&](const Inst& inst) {
      if (inst.op == ir::ScalarOp::kStore) AddOnce(access.writes, inst.buffer);
      if (inst.op == ir::ScalarOp::kLoad) AddOnce(access.reads, inst.buffer);
    });
  }
  return access;
}

// Bytes [begin, end) of a buffer in the workspace; `empty` for a buffer of no bytes.
struct Extent {
  IntExpr begin, end;
  bool empty = false;
  int region = -1;  // of the plan's
};

class Checker {
 public:
  Checker(const Module& module, const Plan& plan)
      : module_(module), plan_(plan), ints_(*module.ints) {}

  absl::Status Run() {
    KILN_RETURN_IF_ERROR(CheckShapes());
    FindPlanned();
    std::vector<Access> accesses;
    std::vector<bool> used(module_.buffers.size());
    for (const ir::Operation& operation : module_.operations) {
      accesses.push_back(CollectAccess(operation));
      const auto outside = [&](BufferId b) { return !planned_[b]; };
      std::erase_if(accesses.back().reads, outside);
      std::erase_if(accesses.back().writes, outside);
      for (BufferId b : accesses.back().reads) used[b] = true;
      for (BufferId b : accesses.back().writes) used[b] = true;
    }
    for (size_t b = 0; b < used.size(); ++b) {
      KILN_RETURN_IF_ERROR(CheckPlace(static_cast<BufferId>(b), used[b]));
    }
    KILN_RETURN_IF_ERROR(CheckPrepared());
    for (const Access& access : accesses) KILN_RETURN_IF_ERROR(Replay(access));
    KILN_RETURN_IF_ERROR(CheckFailures(accesses));
    for (const ir::ModuleOutput& output : module_.outputs) {
      const auto* window = std::get_if<ir::BufferWindow>(&output.value);
      if (window == nullptr || !planned_[window->buffer]) continue;
      KILN_RETURN_IF_ERROR(CheckPresent(window->buffer, "the module's output"));
    }
    return absl::OkStatus();
  }

 private:
  std::string Name(BufferId b) const { return absl::StrCat("@", module_.buffers[b].name); }

  // Temporary buffers, and inputs that some buffer overwrites: those hold data from the start.
  void FindPlanned() {
    planned_.resize(module_.buffers.size());
    for (size_t b = 0; b < planned_.size(); ++b) {
      planned_[b] = planned_[b] || module_.buffers[b].kind == BufferKind::kTemp || IsPrepared(b);
      const BufferId from = plan_.in_place_of[b];
      if (!IsInput(from) || planned_[from]) continue;
      planned_[from] = true;
      present_.push_back(from);
    }
  }

  bool IsPrepared(size_t b) const { return module_.buffers[b].kind == BufferKind::kPrepared; }

  bool IsInput(BufferId b) const { return b >= 0 && module_.buffers[b].kind == BufferKind::kInput; }

  // The input in whose memory a buffer lies, or -1.
  BufferId InputOf(BufferId b) const {
    return IsInput(b) ? b : IsInput(plan_.in_place_of[b]) ? plan_.in_place_of[b] : -1;
  }

  absl::Status CheckShapes() const {
    size_t n = module_.buffers.size();
    if (plan_.offsets.size() != n || plan_.in_place_of.size() != n) {
      return absl::InternalError(
          absl::StrCat("memory plan: ", plan_.offsets.size(), " offsets for ", n, " buffers"));
    }
    KILN_RETURN_IF_ERROR(CheckRegions());
    for (BufferId from : plan_.in_place_of) {
      if (from < -1 || from >= static_cast<BufferId>(n)) {
        return absl::InternalError("memory plan: in place of a buffer that does not exist");
      }
    }
    return absl::OkStatus();
  }

  // They cover the workspace, and none has less than no bytes: so none reaches into another.
  absl::Status CheckRegions() const {
    if (!plan_.workspace_bytes) return absl::InternalError("memory plan: no workspace size");
    IntExpr end = ints_.Const(0);
    for (size_t r = 0; r < plan_.regions.size(); ++r) {
      const Plan::Region& region = plan_.regions[r];
      if (region.begin != end) {
        return absl::InternalError(
            absl::StrCat("memory plan: region ", r, " begins elsewhere than the last one ends"));
      }
      if (!ints_.ProvablyLessEqual(ints_.Const(0), region.size)) {
        return absl::InternalError(
            absl::StrCat("memory plan: region ", r, " may have a negative size"));
      }
      end = ints_.Add(end, region.size);
    }
    if (end != plan_.workspace_bytes) {
      return absl::InternalError("memory plan: the regions are not the workspace");
    }
    return absl::OkStatus();
  }

  // The region that holds these bytes, or -1.
  int RegionOf(IntExpr offset, IntExpr bytes) const {
    for (size_t r = 0; r < plan_.regions.size(); ++r) {
      const Plan::Region& region = plan_.regions[r];
      const IntExpr within = ints_.Sub(offset, region.begin);
      if (!within.is_const() || within.value() < 0) continue;
      // Rounding up is the one step that needs no proof, which long expressions may evade.
      const bool fits = (within.is_const(0) && region.size == RoundUp(ints_, bytes)) ||
                        ints_.ProvablyLessEqual(ints_.Add(within, bytes), region.size);
      if (fits) return static_cast<int>(r);
    }
    return -1;
  }

  // Inside the workspace, aligned, and only for buffers that live there.
  absl::Status CheckPlace(BufferId b, bool used) {
    IntExpr offset = plan_.offsets[b];
    bool expected =
        used && module_.buffers[b].kind == BufferKind::kTemp && !IsInput(plan_.in_place_of[b]);
    extents_.emplace_back();
    if (IsPrepared(static_cast<size_t>(b))) return absl::OkStatus();
    if (static_cast<bool>(offset) != expected) {
      return absl::InternalError(
          absl::StrCat("memory plan: ", Name(b),
                       expected ? " is used and has no offset" : " has an offset and needs none"));
    }
    if (!expected) return absl::OkStatus();
    IntExpr bytes = SizeBytes(ints_, module_.buffers[b]);
    const int region = RegionOf(offset, bytes);
    extents_.back() = {offset, ints_.Add(offset, bytes), bytes.is_const(0), region};
    if (region < 0) {
      return absl::InternalError(
          absl::StrCat("memory plan: ", Name(b), " is not inside one region of the workspace"));
    }
    if (!ints_.Mod(offset, kAlignment).is_const(0)) {
      return absl::InternalError(absl::StrCat("memory plan: ", Name(b), " is not aligned"));
    }
    return absl::OkStatus();
  }

  // Each has a place of its own in their block.
  absl::Status CheckPrepared() const {
    std::vector<std::pair<int64_t, int64_t>> places;  // begin, end
    for (size_t b = 0; b < module_.buffers.size(); ++b) {
      if (!IsPrepared(b)) continue;
      const IntExpr bytes = SizeBytes(ints_, module_.buffers[b]);
      if (!plan_.offsets[b] || !plan_.offsets[b].is_const() || !bytes.is_const() ||
          plan_.offsets[b].value() % kAlignment != 0) {
        return absl::InternalError(
            absl::StrCat("memory plan: ", Name(static_cast<BufferId>(b)), " has no fixed place"));
      }
      const int64_t begin = plan_.offsets[b].value();
      places.emplace_back(begin, begin + bytes.value());
    }
    std::sort(places.begin(), places.end());
    int64_t end = 0;
    for (const auto& [begin, next] : places) {
      if (begin < end) return absl::InternalError("memory plan: prepared buffers share memory");
      end = std::max(end, next);
    }
    if (end <= plan_.prepared_bytes) return absl::OkStatus();
    return absl::InternalError("memory plan: prepared buffers reach beyond their block");
  }

  bool ProvablyApart(BufferId a, BufferId b) {
    if (IsPrepared(static_cast<size_t>(a)) || IsPrepared(static_cast<size_t>(b))) return a != b;
    if (InputOf(a) >= 0 || InputOf(b) >= 0) return InputOf(a) != InputOf(b);
    const Extent &x = extents_[a], &y = extents_[b];
    if (x.empty || y.empty || x.region != y.region) return true;
    return ints_.ProvablyLessEqual(x.end, y.begin) || ints_.ProvablyLessEqual(y.end, x.begin);
  }

  absl::Status CheckPresent(BufferId b, const std::string& reader) {
    if (std::find(present_.begin(), present_.end(), b) != present_.end()) return absl::OkStatus();
    auto it = overwritten_by_.find(b);
    return absl::InternalError(
        it == overwritten_by_.end()
            ? absl::StrCat("memory plan: ", reader, " reads ", Name(b), " before it is written")
            : absl::StrCat("memory plan: ", reader, " reads ", Name(b), ", which ",
                           Name(it->second), " has overwritten"));
  }

  absl::Status Replay(const Access& access) {
    for (BufferId b : access.reads) {
      // What the kernel stores itself, it may load in a later phase.
      bool own = std::find(access.writes.begin(), access.writes.end(), b) != access.writes.end();
      if (!own) KILN_RETURN_IF_ERROR(CheckPresent(b, access.operation));
    }
    for (size_t i = 0; i < access.writes.size(); ++i) {
      BufferId to = access.writes[i];
      BufferId from = plan_.in_place_of[to];
      if (from >= 0) KILN_RETURN_IF_ERROR(CheckInPlace(access, to, from));
      for (BufferId b : access.reads) {
        if (b != to && b != from && !ProvablyApart(to, b)) return Clash(access, to, b);
      }
      for (size_t j = 0; j < i; ++j) {
        if (!ProvablyApart(to, access.writes[j])) return Clash(access, to, access.writes[j]);
      }
    }
    for (BufferId to : access.writes) {
      std::erase_if(present_, [&](BufferId b) {
        if (b == to || ProvablyApart(to, b)) return false;
        overwritten_by_[b] = to;
        return true;
      });
      AddOnce(present_, to);
    }
    return absl::OkStatus();
  }

  // A run that fails leaves its inputs as they were.
  absl::Status CheckFailures(const std::vector<Access>& accesses) {
    const std::string* written = nullptr;
    for (const Access& access : accesses) {
      const auto in_input = [&](BufferId b) { return InputOf(b) >= 0; };
      if (std::any_of(access.writes.begin(), access.writes.end(), in_input)) {
        written = &access.operation;
      }
      if (written == nullptr) {
        CollectChecks(access.kernels);
      } else if (MayFail(access.kernels)) {
        return absl::InternalError(absl::StrCat("memory plan: ", *written, " writes an input, and ",
                                                access.operation, " may fail after it"));
      }
    }
    return absl::OkStatus();
  }

  // What cannot be out of range any more once they have run.
  void CollectChecks(absl::Span<const Kernel> kernels) {
    for (const Kernel& kernel : kernels) {
      ForEachInst(kernel, [&](const Inst& inst) {
        if (inst.has_mask) return;
        const auto indices = CheckedIndices(module_, kernel, inst);
        if (!indices) return;
        checked_.insert(checked_.end(), indices->begin(), indices->end());
      });
    }
  }

  bool MayFail(absl::Span<const Kernel> kernels) {
    if (kernels.empty()) return true;  // a library step
    bool may = false;
    for (const Kernel& kernel : kernels) {
      ForEachInst(kernel, [&](const Inst& inst) {
        const auto indices = CheckedIndices(module_, kernel, inst);
        may |= !indices;
        if (!indices) return;
        for (const CheckedIndex& index : *indices) {
          may |= std::none_of(checked_.begin(), checked_.end(),
                              [&](const CheckedIndex& known) { return known.Same(index); });
        }
      });
    }
    return may;
  }

  absl::Status Clash(const Access& access, BufferId a, BufferId b) const {
    return absl::InternalError(absl::StrCat("memory plan: ", access.operation, " uses ", Name(a),
                                            " and ", Name(b), ", which share storage"));
  }

  // Each element of `from` must be read, for the last time, by the iteration that overwrites it.
  absl::Status CheckInPlace(const Access& access, BufferId to, BufferId from) {
    auto wrong = [&](absl::string_view why) {
      return absl::InternalError(absl::StrCat("memory plan: ", access.operation, " writes ",
                                              Name(to), " in place of ", Name(from), ": ", why));
    };
    const ir::Buffer &a = module_.buffers[from], &b = module_.buffers[to];
    if (access.kernels.size() != 1) return wrong("it is not one kernel");
    if (SizeBytes(ints_, b).is_const(0)) return absl::OkStatus();
    if (plan_.offsets[from] != plan_.offsets[to]) return wrong("their offsets differ");
    if (a.sizes != b.sizes || a.strides != b.strides || DTypeSize(a.dtype) != DTypeSize(b.dtype)) {
      return wrong("their layouts differ");
    }
    if (std::find(access.writes.begin(), access.writes.end(), from) != access.writes.end()) {
      return wrong("the kernel writes both");
    }
    // It stores to some elements of an input, and the others keep their values.
    const bool reads =
        std::find(access.reads.begin(), access.reads.end(), from) != access.reads.end();
    if (IsInput(from) && !reads) return absl::OkStatus();
    const Inst* store = nullptr;
    size_t store_phase = 0;
    bool stored = false;
    const Kernel& kernel = access.kernels[0];
    for (size_t p = 0; p < kernel.phases.size(); ++p) {
      for (const Inst& inst : kernel.phases[p].body) {
        if (inst.op == ir::ScalarOp::kStore && inst.buffer == to) {
          if (store != nullptr) return wrong("it is stored twice");
          store = &inst;
          store_phase = p;
        }
      }
    }
    if (kernel.schedule == ir::Schedule::kContraction && store_phase == 0) {
      return wrong("the contraction itself stores it");
    }
    if (!EveryPointHasItsElement(kernel, store_phase, *store)) {
      return wrong("several iterations store one element");
    }
    for (size_t p = 0; p < kernel.phases.size(); ++p) {
      for (const Inst& inst : kernel.phases[p].body) {
        if (&inst == store) stored = true;
        if (inst.op != ir::ScalarOp::kLoad || inst.buffer != from) continue;
        if (stored) return wrong("it is loaded after the store");
        if (kernel.schedule == ir::Schedule::kContraction && p == 0) {
          return wrong("the contraction reads it");
        }
        if (ElementOf(kernel, p, store_phase, inst) != LinearIndex(ints_, b, store->indices)) {
          return wrong("a load reads another element than the store writes");
        }
      }
    }
    return absl::OkStatus();
  }

  // The element that a load reads, in the variables of the store's phase; null where the phases'
  // loops differ or the index is known at run time only.
  IntExpr ElementOf(const Kernel& kernel, size_t phase, size_t store_phase, const Inst& load) {
    IntExpr element = LinearIndex(ints_, module_.buffers[load.buffer], load.indices);
    if (ContainsKind(element, ir::IntKind::kIndirect)) return IntExpr();
    if (phase == store_phase) return element;
    const auto& from = kernel.phases[phase].inner;
    const auto& to = kernel.phases[store_phase].inner;
    if (from.size() != to.size()) return IntExpr();
    IntContext::VarMap map;
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].extent() != to[i].extent()) return IntExpr();
      map[from[i]] = to[i];
    }
    return ints_.Substitute(element, map);
  }

  // Whether each loop variable can be computed back from the element stored: by division, or
  // because all variables of smaller strides together reach no further than one step of it.
  bool EveryPointHasItsElement(const Kernel& kernel, size_t phase, const Inst& store) {
    IntExpr element = LinearIndex(ints_, module_.buffers[store.buffer], store.indices);
    if (ContainsKind(element, ir::IntKind::kIndirect)) return false;
    std::vector<IntExpr> vars = kernel.outer;
    vars.insert(vars.end(), kernel.phases[phase].inner.begin(), kernel.phases[phase].inner.end());
    std::vector<std::pair<IntExpr, IntExpr>> steps;  // stride, extent
    bool divides = true;
    for (IntExpr var : vars) {
      if (var.extent().is_const(1)) continue;
      IntExpr stride = ints_.CoefficientOf(element, var);
      if (!stride || stride.is_const(0)) return false;
      divides &= ints_.Mod(ints_.FloorDiv(element, stride), var.extent()) == var;
      steps.emplace_back(stride, var.extent());
    }
    if (divides) return true;
    const auto at_hint = [&](const auto& step) { return ints_.EvaluateAtHints(step.first); };
    absl::c_stable_sort(steps,
                        [&](const auto& x, const auto& y) { return at_hint(x) < at_hint(y); });
    IntExpr reach = ints_.Const(1);  // places up to the last one
    for (const auto& [stride, extent] : steps) {
      if (!ints_.ProvablyLessEqual(reach, stride)) return false;
      reach = ints_.Add(reach, ints_.Mul(stride, ints_.Add(extent, -1)));
    }
    return true;
  }

  const Module& module_;
  const Plan& plan_;
  IntContext& ints_;
  std::vector<bool> planned_;    // by BufferId
  std::vector<Extent> extents_;  // by BufferId
  std::vector<BufferId> present_;
  absl::flat_hash_map<BufferId, BufferId> overwritten_by_;
  std::vector<CheckedIndex> checked_;  // before the first kernel that writes an input
};

}  // namespace

absl::Status CheckPlan(const Module& module, const Plan& plan) {
  return Checker(module, plan).Run();
}

}  // namespace kiln::memory
