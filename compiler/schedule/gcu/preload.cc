#include "compiler/schedule/gcu/preload.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "compiler/schedule/gcu/tiles.h"

namespace kiln::schedule::gcu {
namespace {

using ir::BufferId;
using ir::Inst;
using ir::ScalarOp;

constexpr int64_t kLeast = 32 << 10;       // bytes of a buffer that is worth a place
constexpr int64_t kAlignment = 512;        // of places
constexpr int64_t kPartBytes = 64;         // parts are multiples of it
constexpr double kShare = 0.9;             // of a kernel's time that copies may take beside it
constexpr double kMostOwn = 0.25;          // of its time that a kernel's own copies may take
constexpr int64_t kMostBytes = 256 << 20;  // of a buffer; far above any L2
constexpr double kFirstLoad = 1e-6;        // seconds until a copy's first bytes come, and a barrier

int64_t PlaceOf(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// One of the plans that are compared: loads as late as they can be, from the last kernel's on.
class Planner {
 public:
  // `ahead`: how many kernels before its use a buffer may take a place. `forced`: whether what
  // finds no time there takes it from the kernels, or stays out.
  Planner(const std::vector<StageTimes>& times, const Machine& machine, const L2Plan& plan,
          size_t ahead, bool forced)
      : times_(times),
        rate_(std::min(static_cast<double>(machine.l3_rate), machine.EngineRate())),
        most_(RoomFor(machine)),
        ahead_(ahead),
        forced_(forced),
        live_(times.size(), 0),
        copied_(times.size(), 0),
        alone_(times.size(), false) {
    for (const L2Buffer& buffer : plan.buffers) {
      for (size_t k = buffer.first; k <= buffer.last; ++k) live_[k] += buffer.bytes + kAlignment;
    }
  }

  std::optional<Preload> Add(const PreloadCandidate& candidate) {
    const auto& [id, bytes, first, last] = candidate;
    const int64_t place = PlaceOf(bytes) + kAlignment;
    bool fits = times_[first - 1].loads;
    for (size_t k = first - 1; k <= last; ++k) fits = fits && live_[k] + place <= most_;
    Preload preload{.buffer = id, .parts = {}};
    int64_t left = bytes;
    size_t k = first;
    while (fits && left > 0 && k > 0 && first - k < ahead_ && live_[k - 1] + place <= most_) {
      --k;
      const int64_t part = std::min(left, Room(k));
      if (part < std::min(left, kLeast)) continue;
      left -= part;
      preload.parts.push_back({.kernel = k, .begin = left, .bytes = part});
    }
    if (left > 0 && (!forced_ || k == first)) {
      // The kernels load it themselves, each time.
      for (size_t at = first; at <= last; ++at) {
        copied_[at] += bytes;
        alone_[at] = true;
      }
      return std::nullopt;
    }
    if (left > 0 && (preload.parts.empty() || preload.parts.back().kernel != k)) {
      preload.parts.push_back({.kernel = k, .begin = 0, .bytes = left});
    } else if (left > 0) {
      preload.parts.back().begin = 0;
      preload.parts.back().bytes += left;
    }
    for (const PreloadPart& part : preload.parts) copied_[part.kernel] += part.bytes;
    for (size_t at = k; at <= last; ++at) live_[at] += place;
    absl::c_reverse(preload.parts);
    return preload;
  }

  // Of all kernels with the copies beside them.
  double Seconds() const {
    double seconds = 0;
    for (size_t k = 0; k < times_.size(); ++k) {
      seconds += std::max(alone_[k] ? times_[k].alone : times_[k].seconds,
                          times_[k].l3 + static_cast<double>(copied_[k]) / rate_);
    }
    return seconds;
  }

 private:
  // Bytes that can be copied while the kernel runs, and it takes no longer.
  int64_t Room(size_t k) const {
    if (!times_[k].loads || times_[k].l3 > times_[k].compute * kMostOwn) return 0;
    const auto bytes =
        static_cast<int64_t>((times_[k].compute * kShare - times_[k].l3) * rate_) - copied_[k];
    return std::max<int64_t>(bytes, 0) / kPartBytes * kPartBytes;
  }

  const std::vector<StageTimes>& times_;
  const double rate_;  // of copies, all by one core
  const int64_t most_;
  const size_t ahead_;
  const bool forced_;
  std::vector<int64_t> live_;    // bytes of L2, by kernel
  std::vector<int64_t> copied_;  // bytes of candidates from L3, by kernel
  std::vector<bool> alone_;      // by kernel: whether it loads some itself
};

}  // namespace

std::optional<int64_t> DenseBytes(const ir::Buffer& buffer) {
  int64_t elements = 1, reach = 1;
  for (size_t d = 0; d < buffer.sizes.size(); ++d) {
    if (!buffer.sizes[d].is_const() || !buffer.strides[d].is_const()) return std::nullopt;
    const int64_t size = buffer.sizes[d].value(), stride = buffer.strides[d].value();
    if (size <= 0 || stride < 0 || size > kMostBytes / elements) return std::nullopt;
    if (stride > kMostBytes) return std::nullopt;
    elements *= size;
    reach += (size - 1) * stride;
  }
  if (reach != elements) return std::nullopt;
  return elements * DTypeSize(buffer.dtype);
}

void TileLoads::Add(const ir::Kernel& kernel, ir::IntExpr loop) {
  ir::ForEachInst(kernel, [&](const Inst& inst) {
    if (inst.op != ScalarOp::kLoad && inst.op != ScalarOp::kStore) return;
    bool& same = same_.try_emplace(inst.buffer, true).first->second;
    same = same && inst.op == ScalarOp::kLoad &&
           !absl::c_any_of(inst.indices, [&](ir::IntExpr i) { return ir::ContainsVar(i, loop); });
  });
}

std::vector<Resident> TileLoads::Residents(const ir::Module& module, int64_t room) const {
  std::vector<Resident> found;
  for (const auto& [buffer, same] : same_) {
    if (!same) continue;
    const std::optional<int64_t> bytes = DenseBytes(module.buffers[buffer]);
    if (bytes && *bytes >= kLeast) found.push_back({.buffer = buffer, .bytes = *bytes});
  }
  absl::c_sort(found, [](const Resident& a, const Resident& b) {
    return std::pair(a.bytes, a.buffer) < std::pair(b.bytes, b.buffer);
  });
  std::erase_if(found, [&](const Resident& resident) {
    const int64_t place = PlaceOf(resident.bytes) + kAlignment;
    if (place > room) return true;
    room -= place;
    return false;
  });
  return found;
}

int64_t RoomFor(const Machine& machine) {
  return machine.l2_bytes - machine.l2_bytes / 32;
}

double SecondsOf(const std::vector<Resident>& residents, const Machine& machine) {
  int64_t bytes = 0;
  for (const Resident& resident : residents) bytes += resident.bytes;
  return static_cast<double>(bytes) / static_cast<double>(machine.l3_rate) + kFirstLoad;
}

std::vector<Resident> ResidentsOf(const ir::Module& module, const Version& version,
                                  const L2Plan& plan, const Machine& machine) {
  TileLoads loads;
  for (size_t k = 0; k < version.kernels.size() && version.step > 0; ++k) {
    if (const ir::IntExpr loop = TiledLoopOf(version, k)) loads.Add(version.kernels[k], loop);
  }
  return loads.Residents(module, RoomFor(machine) - plan.bytes);
}

std::vector<PreloadCandidate> PreloadCandidates(const ir::Module& module, const Version& version) {
  std::vector<PreloadCandidate> candidates;
  std::vector<bool> stored(module.buffers.size());
  absl::flat_hash_map<BufferId, size_t> known;
  for (size_t k = 0; k < version.kernels.size(); ++k) {
    ir::ForEachInst(version.kernels[k], [&](const Inst& inst) {
      if (inst.op != ScalarOp::kLoad && inst.op != ScalarOp::kStore) return;
      if (version.keeps[inst.buffer]) return;
      if (inst.op == ScalarOp::kStore) stored[inst.buffer] = true;
      const auto [at, added] = known.try_emplace(inst.buffer, candidates.size());
      if (added) candidates.push_back({.buffer = inst.buffer, .first_use = k, .last_use = k});
      candidates[at->second].last_use = k;
    });
  }
  std::erase_if(candidates, [&](PreloadCandidate& candidate) {
    const std::optional<int64_t> bytes = DenseBytes(module.buffers[candidate.buffer]);
    candidate.bytes = bytes.value_or(0);
    return stored[candidate.buffer] || candidate.first_use == 0 || candidate.bytes < kLeast;
  });
  return candidates;
}

std::vector<Preload> PlanPreloads(const ir::Module& module,
                                  std::vector<PreloadCandidate> candidates,
                                  const std::vector<StageTimes>& times, const Machine& machine,
                                  L2Plan& plan) {
  absl::c_stable_sort(candidates, [](const PreloadCandidate& a, const PreloadCandidate& b) {
    return a.first_use > b.first_use;
  });
  std::vector<Preload> best;
  L2Plan best_plan = plan;
  double least = std::numeric_limits<double>::infinity();
  for (const size_t ahead : {0, 1, 2, 3, 4, 6, 8}) {
    for (const bool forced : {false, true}) {
      Planner planner(times, machine, plan, ahead, forced);
      L2Plan with = plan;
      std::vector<Preload> preloads;
      for (const PreloadCandidate& candidate : candidates) {
        std::optional<Preload> preload = planner.Add(candidate);
        if (!preload) continue;
        const ir::Buffer& buffer = module.buffers[candidate.buffer];
        with.buffers.push_back({.buffer = candidate.buffer,
                                .sizes = buffer.sizes,
                                .strides = buffer.strides,
                                .bytes = PlaceOf(candidate.bytes),
                                .first = preload->parts.front().kernel,
                                .last = candidate.last_use,
                                .offset = 0});
        preloads.push_back(*std::move(preload));
      }
      Place(with);
      if (with.bytes > machine.l2_bytes || planner.Seconds() >= least) continue;
      least = planner.Seconds();
      best = std::move(preloads);
      best_plan = std::move(with);
    }
  }
  plan = std::move(best_plan);
  return best;
}

}  // namespace kiln::schedule::gcu
