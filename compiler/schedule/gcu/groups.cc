#include "compiler/schedule/gcu/groups.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/ir/identity.h"
#include "compiler/schedule/gcu/buckets.h"
#include "compiler/schedule/gcu/chain_prices.h"
#include "compiler/schedule/gcu/chains.h"
#include "compiler/schedule/gcu/handed_on.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/layout.h"
#include "compiler/schedule/gcu/preload.h"
#include "compiler/schedule/gcu/prices.h"
#include "compiler/schedule/gcu/shared_loops.h"
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
constexpr int64_t kAlignment = 512;  // of places in L2
// Of a group's time: less is not looked at.
constexpr double kWorthTrying = 0.02;
constexpr double kNever = std::numeric_limits<double>::infinity();

class Analyzer {
 public:
  Analyzer(ir::Module& module, const Machine& machine, const std::vector<std::string>& without,
           const Trial& trial)
      : module_(module),
        ints_(*module.ints),
        machine_(machine),
        afe_(!absl::c_linear_search(without, "afe")),
        tlf_(!absl::c_linear_search(without, "tlf")),
        dafe_(!absl::c_linear_search(without, "dafe")),
        trial_(trial),
        uses_(module),
        own_(OwnBuffers(module, uses_)),
        handing_(module, uses_, own_),
        identities_(ir::Identify(module)),
        prices_(module, machine, identities_),
        chain_prices_(module, machine, uses_, handing_, prices_) {}

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
    for (auto& [begin, group] : made_) {
      while (next < begin) operations.push_back(std::move(module_.operations[next++]));
      operations.emplace_back(std::move(group.repeat));
      next = group.end;
    }
    while (next < count) operations.push_back(std::move(module_.operations[next++]));
    module_.operations = std::move(operations);
  }

 private:
  // How a group runs in one bucket.
  struct Way {
    double seconds = kNever;
    int64_t step = 0;            // iterations of a tile; 0: everything is one
    std::vector<int64_t> loops;  // the tiled loop of each kernel
    // What of it each kernel runs for a tile; empty: the tile itself.
    std::vector<ir::TileWindow> windows;
    std::vector<BufferId> kept;  // buffers in L2
  };
  struct Choice {
    size_t begin = 0, end = 0;
    double cost = kNever;   // in all buckets: seconds beside those of the kernels on their own
    std::vector<Way> ways;  // by bucket
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
    SetBuckets(begin, end);
    FindChains(begin, end);
    std::vector<double> best(count + 1, kNever);
    std::vector<Choice> how(count + 1);
    best[0] = 0;
    for (size_t i = 0; i < count; ++i) {
      for (Choice& choice : From(begin + i, end)) {
        const size_t j = choice.end - begin;
        if (best[i] + choice.cost < best[j]) {
          best[j] = best[i] + choice.cost;
          how[j] = std::move(choice);
        }
      }
    }
    if (best[count] == kNever) return;
    std::vector<Choice> chosen;
    for (size_t j = count; j > 0; j = how[j].begin - begin) chosen.push_back(how[j]);
    absl::c_reverse(chosen);
    std::vector<std::pair<size_t, size_t>> again;
    for (const Choice& choice : chosen) {
      if (IsKernel(choice)) continue;
      if (std::optional<ir::Repeat> made = Make(choice)) {
        made_.emplace(choice.begin, Group{choice.end, *std::move(made)});
        continue;
      }
      if (choice.end - choice.begin == 1) continue;  // it stays as it is
      // The device cannot run them so: smaller groups, or other ways.
      for (const Way& way : choice.ways) refused_.insert(NameOf(choice.begin, choice.end, way));
      again.emplace_back(choice.begin, choice.end);
    }
    for (const auto& [first, last] : again) Split(first, last);  // which plans for other sizes
  }

  // Whether it is a kernel that stays as it is.
  static bool IsKernel(const Choice& choice) {
    return choice.end - choice.begin == 1 && choice.ways.size() == 1 && choice.ways[0].step == 0;
  }

  // A way to run these kernels, but for the length of tiles.
  using WayName = std::tuple<size_t, size_t, std::vector<int64_t>, bool>;
  static WayName NameOf(size_t begin, size_t end, const Way& way) {
    return {begin, end, way.loops, way.windows.empty()};
  }

  // The sizes that these kernels are planned for, one after another.
  void SetBuckets(size_t begin, size_t end) {
    symbols_.clear();
    std::vector<std::vector<int64_t>> limits;
    if (dafe_) {
      std::vector<Kernel> kernels;
      for (size_t k = begin; k < end; ++k) kernels.push_back(KernelAt(k));
      symbols_ = SymbolsOf(module_, kernels);
    }
    if (!symbols_.empty()) {
      const std::vector<BufferId> handed_on = handing_.Of(begin, end);
      limits = ChooseLimits(ints_, symbols_, [&](const Bucket& bucket) {
        return Fits(handed_on, begin, end, BytesOf(handed_on, SizesIn(bucket, handed_on)));
      });
    }
    buckets_ = BucketsOf(ints_, symbols_, limits);
    sizes_.clear();
    apart_.clear();
    for (bucket_ = 0; bucket_ < buckets_.size(); ++bucket_) {
      const AtTypicalSizes sizes(ints_, symbols_, buckets_[bucket_]);
      prices_.SetSizes(symbols_, buckets_[bucket_]);
      sizes_.push_back(SizesIn(buckets_[bucket_], handing_.Of(begin, end)));
      const std::vector<bool> nothing(module_.buffers.size());
      double apart = 0;
      for (size_t k = begin; k < end; ++k) apart += Launch() + Seconds(k, -1, 0, nothing);
      apart_.push_back(apart);
    }
  }

  using Sizes = absl::flat_hash_map<BufferId, std::vector<int64_t>>;  // of dimensions, at most

  Sizes SizesIn(const Bucket& bucket, const std::vector<BufferId>& buffers) const {
    Sizes sizes;
    for (BufferId id : buffers) {
      sizes[id] = MostOf(ints_, symbols_, bucket, module_.buffers[id].sizes);
    }
    return sizes;
  }

  // In the buffers' order.
  std::vector<int64_t> BytesOf(const std::vector<BufferId>& buffers, const Sizes& sizes) const {
    std::vector<int64_t> bytes;
    for (BufferId id : buffers) bytes.push_back(Bytes(sizes.at(id), module_.buffers[id].dtype));
    return bytes;
  }

  // Of L2, but for what first fit leaves between buffers.
  int64_t Room() const { return machine_.l2_bytes - machine_.l2_bytes / 16; }

  bool Fits(const std::vector<BufferId>& kept, size_t begin, size_t end,
            const std::vector<int64_t>& bytes) const {
    return handing_.PeakOf(kept, begin, end, bytes).bytes <= Room();
  }

  // Whether all that these hand on fits L2 as it is, for the sizes of that bucket.
  bool FitsWhole(size_t begin, size_t end, size_t bucket) const {
    const std::vector<BufferId> kept = handing_.Of(begin, end);
    return Fits(kept, begin, end, BytesOf(kept, sizes_[bucket]));
  }

  double Launch() const { return static_cast<double>(machine_.launch_ns) * 1e-9; }

  // Groups that begin with that kernel, and run in all buckets.
  std::vector<Choice> From(size_t begin, size_t end) {
    std::vector<Choice> choices;
    for (size_t j = begin + 1; j <= end; ++j) {
      choices.push_back({.begin = begin, .end = j, .cost = 0, .ways = {}});
    }
    for (bucket_ = 0; bucket_ < buckets_.size(); ++bucket_) {
      const AtTypicalSizes sizes(ints_, symbols_, buckets_[bucket_]);
      prices_.SetSizes(symbols_, buckets_[bucket_]);
      std::vector<Way> ways(choices.size());  // by end
      AddWhole(begin, ways);
      for (size_t l = 0; tlf_ && l < KernelAt(begin).outer.size(); ++l) {
        AddTiled(begin, end, static_cast<int>(l), buckets_.size() == 1, ways);
      }
      for (const Chain& chain : chains_) {
        if (chain.begin == begin) AddChain(chain, ways[chain.end - begin - 1]);
      }
      for (size_t i = 0; i < choices.size(); ++i) {
        choices[i].cost += ways[i].seconds / apart_[bucket_];
        choices[i].ways.push_back(std::move(ways[i]));
      }
    }
    if (tlf_ && buckets_.size() > 1) AddSums(begin, end, choices);
    return choices;
  }

  // Groups that sum over tiles, which run in the same way in all buckets: the best one for the
  // hints. It needs as much of L2 as the last bucket, which is without limits.
  void AddSums(size_t begin, size_t end, std::vector<Choice>& choices) {
    const auto in_use = absl::c_find_if(buckets_, [&](const Bucket& bucket) {
      for (size_t i = 0; i < bucket.most.size(); ++i) {
        if (ints_.symbols()[symbols_[i].id()].hint > bucket.most[i]) return false;
      }
      return true;
    });
    bucket_ = buckets_.size() - 1;
    std::vector<Way> ways(end - begin);
    {
      const AtTypicalSizes sizes(ints_, symbols_, *in_use);
      prices_.SetSizes(symbols_, *in_use);
      for (size_t l = 0; l < KernelAt(begin).outer.size(); ++l) {
        AddTiled(begin, end, static_cast<int>(l), true, ways);
      }
    }
    for (size_t i = 0; i < ways.size(); ++i) {
      bool sums = false;
      for (size_t k = 0; k < ways[i].loops.size(); ++k) {
        sums = sums || SummedLoop(KernelAt(begin + k), ways[i].loops[k]).has_value();
      }
      if (!sums) continue;
      const std::vector<bool> in_l2 = AsSet(ways[i].kept);
      const IntExpr extent = KernelAt(begin).outer[ways[i].loops[0]].extent();
      Choice choice{.begin = begin, .end = begin + i + 1, .cost = 0, .ways = {}};
      for (size_t b = 0; b < buckets_.size(); ++b) {
        const AtTypicalSizes sizes(ints_, symbols_, buckets_[b]);
        prices_.SetSizes(symbols_, buckets_[b]);
        const int64_t all = std::max<int64_t>(TypicalOf(ints_, extent), 1);
        Way way = ways[i];
        way.step = std::min(way.step, all);
        const auto tiles = static_cast<double>((all + way.step - 1) / way.step);
        choice.cost += TiledSeconds(begin, way, tiles, in_l2, Launch(), kNever) / apart_[b];
        choice.ways.push_back(ways[i]);
      }
      choices.push_back(std::move(choice));
    }
  }

  void Improve(size_t begin, size_t end, Way& way, Way other) const {
    if (other.seconds >= way.seconds || refused_.contains(NameOf(begin, end, other))) return;
    way = std::move(other);
  }

  void AddWhole(size_t begin, std::vector<Way>& ways) {
    for (size_t i = 0; i < (afe_ ? ways.size() : 1); ++i) {
      const size_t end = begin + i + 1;
      Way way;
      std::vector<BufferId> handed_on = handing_.Of(begin, end);
      std::vector<int64_t> bytes = BytesOf(handed_on, sizes_[bucket_]);
      way.kept = handing_.Keep(std::move(handed_on), begin, end, std::move(bytes), Room());
      way.seconds = Launch();
      const std::vector<bool> in_l2 = AsSet(way.kept);
      for (size_t k = begin; k < end; ++k) way.seconds += Seconds(k, -1, 0, in_l2);
      Improve(begin, end, ways[i], std::move(way));
    }
  }

  std::vector<bool> AsSet(const std::vector<BufferId>& ids) const {
    std::vector<bool> set(module_.buffers.size());
    for (BufferId id : ids) set[id] = true;
    return set;
  }

  // Groups whose kernels run tile by tile of the first one's loop `loop`. `may_sum`: whether
  // kernels may sum over it; where there are several versions, these have the same kernels.
  void AddTiled(size_t begin, size_t end, int loop, bool may_sum, std::vector<Way>& ways) {
    const IntExpr extent = KernelAt(begin).outer[loop].extent();
    if (extent.is_const(1)) return;
    const int64_t all = TypicalOf(ints_, extent);
    SharedLoops shared(KernelAt(begin), loop, may_sum);
    if (!shared.ok()) return;
    // Where all that is handed on fits, sums are better made at once, and weights come to L2
    // without tiles as well, ahead, which has no price here.
    const bool fits_whole = afe_ && FitsWhole(begin, end, bucket_);
    TileLoads loads;
    loads.Add(KernelAt(begin), KernelAt(begin).outer[loop]);
    int64_t sums = 0;  // bytes, which stay in L2
    for (size_t j = begin + 1; j < end; ++j) {
      if (!shared.Add(KernelAt(j))) return;
      const std::optional<size_t> summed = SummedLoop(KernelAt(j), shared.loops().back());
      if (summed && fits_whole) return;
      if (summed) sums += SumBytes(j);
      loads.Add(KernelAt(j), summed ? KernelAt(j).phases[0].inner[*summed]
                                    : KernelAt(j).outer[shared.loops().back()]);
      // Buffers that kernels after the group load as well stay in L3, whole.
      Way way{.step = 1, .loops = shared.loops(), .kept = handing_.Of(begin, j + 1)};
      const auto peak = [&](int64_t step) {
        const std::vector<int64_t> bytes = TileBytes(way.kept, shared, step);
        return handing_.PeakOf(way.kept, begin, j + 1, bytes).bytes + sums;
      };
      if (peak(1) > Room()) return;
      std::vector<int64_t> steps;
      for (int64_t step = 1; step < all; step = step < 4 ? step + 1 : step + step / 2) {
        const int64_t tiles = (all + step - 1) / step;
        steps.push_back((all + tiles - 1) / tiles);
      }
      for (int64_t step : steps) {
        const int64_t bytes = peak(step);
        if (bytes > Room()) break;
        way.step = step;
        const double tiles = static_cast<double>((all + step - 1) / step);
        std::vector<bool> in_l2 = AsSet(way.kept);
        Way& best = ways[j - begin];
        way.seconds = TiledSeconds(begin, way, tiles, in_l2, Launch(), best.seconds);
        // The same where weights that all tiles load stay, if that may be worth it.
        const std::vector<Resident> residents = loads.Residents(module_, RoomFor(machine_) - bytes);
        for (const Resident& resident : residents) in_l2[resident.buffer] = true;
        const double once = SecondsOf(residents, machine_);
        if (!fits_whole && once * (tiles - 1) > kWorthTrying * best.seconds) {
          const double most = std::min(way.seconds, best.seconds);
          way.seconds =
              std::min(way.seconds, TiledSeconds(begin, way, tiles, in_l2, Launch() + once, most));
        }
        Improve(begin, j + 1, best, way);
      }
    }
  }

  // `seconds`, and those of all tiles of the kernels from `begin` on; kNever where that is not less
  // than `most`.
  double TiledSeconds(size_t begin, const Way& way, double tiles, const std::vector<bool>& in_l2,
                      double seconds, double most) {
    for (size_t k = begin; k < begin + way.loops.size(); ++k) {
      if (seconds >= most) return kNever;
      const int64_t loop = way.loops[k - begin];
      if (const std::optional<size_t> summed = SummedLoop(KernelAt(k), loop)) {
        const Prices::OfSums price = prices_.SumsOf(k, *summed, way.step, in_l2);
        seconds += tiles * price.tile + price.once;
      } else {
        seconds += tiles * Seconds(k, loop, way.step, in_l2);
      }
    }
    return seconds;
  }

  // Of what a kernel sums up, tile by tile.
  int64_t SumBytes(size_t k) const {
    int64_t bytes = 0;
    std::vector<IntExpr> extents;
    for (IntExpr var : KernelAt(k).outer) extents.push_back(var.extent());
    const std::vector<int64_t> sizes = MostOf(ints_, symbols_, buckets_[bucket_], extents);
    for (const Inst& inst : KernelAt(k).phases[0].body) {
      if (inst.op == ScalarOp::kReduce) bytes += Bytes(sizes, inst.dtype) + kAlignment;
    }
    return bytes;
  }

  // Chains of kernels whose tiles overlap, where sizes are known and not all that is handed on
  // fits.
  void FindChains(size_t begin, size_t end) {
    chains_.clear();
    if (!tlf_ || !symbols_.empty()) return;
    for (size_t last = begin; last < end; ++last) {
      for (Chain& chain : ChainsTo(module_, uses_, begin, last)) {
        if (!(afe_ && FitsWhole(chain.begin, chain.end, 0))) chains_.push_back(std::move(chain));
      }
    }
  }

  void AddChain(const Chain& chain, Way& best) {
    Way way{.loops = chain.loops, .kept = handing_.Of(chain.begin, chain.end)};
    for (const Overlap& kernel : chain.twice) way.windows.push_back(kernel.window);
    const auto price = chain_prices_.Best(chain, way.kept, Room());
    if (!price) return;
    way.seconds = Launch() + price->seconds;
    way.step = price->step;
    Improve(chain.begin, chain.end, best, std::move(way));
  }

  // Where the tiled dimension has `step` elements.
  std::vector<int64_t> TileBytes(const std::vector<BufferId>& kept, const SharedLoops& shared,
                                 int64_t step) const {
    std::vector<int64_t> bytes;
    for (BufferId id : kept) {
      std::vector<int64_t> sizes = sizes_[bucket_].at(id);
      int64_t& tiled = sizes[shared.DimOf(id)];
      tiled = std::min(tiled, step);
      bytes.push_back(Bytes(sizes, module_.buffers[id].dtype));
    }
    return bytes;
  }

  double Seconds(size_t k, int64_t loop, int64_t step, const std::vector<bool>& in_l2) {
    return prices_.Of(k, loop, step, in_l2);
  }

  // Nothing where it turns out that the device cannot run them so.
  std::optional<ir::Repeat> Make(const Choice& choice) {
    ir::Repeat repeat;
    repeat.name = KernelAt(choice.begin).name;
    for (size_t k = choice.begin; k < choice.end; ++k) repeat.kernels.push_back(KernelAt(k));
    // What every version keeps never lies in memory.
    std::vector<BufferId> tiles = choice.ways[0].kept;
    for (size_t b = 0; b < choice.ways.size(); ++b) {
      const Way& way = choice.ways[b];
      std::erase_if(tiles, [&](BufferId id) { return !absl::c_linear_search(way.kept, id); });
      const bool goes_on = !repeat.versions.empty() && way.step > 0 &&
                           repeat.versions.back().step == way.step &&
                           repeat.versions.back().loops == way.loops;
      if (!goes_on) repeat.versions.emplace_back();  // else tiles are the same
      repeat.versions.back() = {
          .most = buckets_[b].most, .step = way.step, .loops = way.loops, .keeps = way.kept};
    }
    const size_t buffers = module_.buffers.size();
    if (repeat.versions.size() == 1) {
      const ir::RepeatVersion version = std::move(repeat.versions[0]);
      repeat.versions.clear();
      if (version.step > 0) {
        repeat.steps = {version.step};
        PutFirst(module_, version.loops, repeat);
      }
      for (const ir::TileWindow& window : choice.ways[0].windows) {
        repeat.windows.push_back({window});
      }
    } else {
      repeat.by = symbols_;
    }
    for (BufferId id : tiles) module_.buffers[id].kind = BufferKind::kTile;
    if (trial_(repeat).ok()) return repeat;
    for (BufferId id : tiles) module_.buffers[id].kind = BufferKind::kTemp;
    module_.buffers.resize(buffers);
    return std::nullopt;
  }

  ir::Module& module_;
  ir::IntContext& ints_;
  const Machine& machine_;
  const bool afe_, tlf_, dafe_;
  const Trial& trial_;
  const BufferUses uses_;
  const std::vector<bool> own_;
  const Handing handing_;
  const std::vector<ir::Identity> identities_;
  Prices prices_;
  ChainPrices chain_prices_;
  struct Group {
    size_t end;
    ir::Repeat repeat;
  };
  std::map<size_t, Group> made_;  // by first operation
  std::set<WayName> refused_;     // ways that the device cannot run

  // Of the kernels that are being cut:
  std::vector<IntExpr> symbols_;
  std::vector<Bucket> buckets_;
  std::vector<Chain> chains_;
  size_t bucket_ = 0;          // that is being planned for
  std::vector<Sizes> sizes_;   // by bucket: of what is handed on
  std::vector<double> apart_;  // by bucket: seconds as launches of their own
};

}  // namespace

void Group(ir::Module& module, const Machine& machine, const std::vector<std::string>& without,
           const Trial& trial) {
  LayOut(module);
  Analyzer(module, machine, without, trial).Run();
}

}  // namespace kiln::schedule::gcu
