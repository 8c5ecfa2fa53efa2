// The order in memory of what kernels hand to each other. Eager hands it on from operator to
// operator: one transposed operand, and every sum that follows is transposed. Here each temporary
// buffer that kernels alone see gets the order in which most of those kernels walk along memory
// that is fixed: inputs, outputs, what library steps see.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "compiler/fusion/passes.h"
#include "compiler/fusion/strides.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;

namespace {

// An access whose neighbours lie apart takes a piece of memory for each element: so many times the
// bytes, on the processor's lines and the GPU's sectors alike.
constexpr double kApart = 8;
constexpr double kMinBytes = 64 << 10;  // what is smaller is near in any order

using Steps = std::vector<int64_t>;  // by dimension of a buffer

struct Access {
  BufferId buffer = -1;
  bool is_store = false;
  std::vector<Steps> steps;  // by loop of the kernel: how far one iteration goes
};

// A phase of a kernel.
struct Walk {
  int id = 0;              // of the operation
  size_t loops = 0;        // the kernel's outer ones, then the phase's
  size_t outer_loops = 0;  // of these
  std::vector<Access> accesses;
  std::vector<bool> taps;       // by loop: those of windows, where no lanes run; else none
  std::optional<size_t> along;  // the loop that goes through memory
};

class Layouts {
 public:
  explicit Layouts(FusionGraph& graph)
      : graph_(graph), ints_(graph.ints()), uses_(graph.module().buffers.size()) {
    for (size_t b = 0; b < buffers().size(); ++b) {
      strides_.push_back(AtHints(buffers()[b].strides));
      free_.push_back(IsFree(static_cast<BufferId>(b)));
    }
    for (int id : graph.order()) {
      if (!graph.op(id).alive) continue;
      const auto* kernel = std::get_if<Kernel>(&graph.op(id).operation);
      if (kernel == nullptr) continue;
      for (const Phase& phase : kernel->phases) AddWalk(id, *kernel, phase);
    }
  }

  void Run() {
    bool has_free = std::find(free_.begin(), free_.end(), true) != free_.end();
    if (!has_free) return;
    const std::vector<Steps> before = strides_;
    const std::vector<absl::Span<Walk>> kernels = WalksByKernel();
    for (const bool counts_free : {false, true}) {
      for (Walk& walk : walks_) {
        if (!walk.along) walk.along = LoopAlong(walk, counts_free);
      }
      for (absl::Span<Walk> phases : kernels) {
        for (Walk& walk : phases) {
          if (!walk.along) walk.along = LoopAlongOfAnotherPhase(walk, phases);
        }
      }
      for (size_t b = 0; b < buffers().size(); ++b) {
        if (free_[b]) Choose(static_cast<BufferId>(b));
      }
    }
    for (absl::Span<Walk> phases : kernels) OrderLoops(phases, before);
  }

 private:
  std::vector<ir::Buffer>& buffers() { return graph_.module().buffers; }

  Steps AtHints(const std::vector<IntExpr>& exprs) {
    Steps values;
    for (IntExpr expr : exprs) values.push_back(ints_.EvaluateAtHints(expr));
    return values;
  }

  // Whether kernels alone see the buffer's memory, which one of them may lay out, and it has an
  // order of more than one dimension.
  bool IsFree(BufferId id) {
    const ir::Buffer& buffer = buffers()[id];
    const int producer = graph_.ProducerOf(id);
    if (graph_.IsKept(id) || producer < 0 || graph_.Changeable(producer) == nullptr) return false;
    if (BufferBytes(graph_.module(), id) < kMinBytes) return false;
    const auto counts = [](IntExpr size) { return !size.is_const(1); };
    if (std::count_if(buffer.sizes.begin(), buffer.sizes.end(), counts) < 2) return false;
    return buffer.strides == StridesOf(id, OrderOf(id));
  }

  // Its dimensions from the outermost in memory to the innermost.
  std::vector<size_t> OrderOf(BufferId id) {
    std::vector<size_t> order(buffers()[id].sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return strides_[id][a] > strides_[id][b]; });
    return order;
  }

  std::vector<IntExpr> StridesOf(BufferId id, const std::vector<size_t>& order) {
    const ir::Buffer& buffer = buffers()[id];
    std::vector<IntExpr> strides(order.size());
    IntExpr stride = ints_.Const(1);
    for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
      strides[*dim] = stride;
      stride = ints_.Mul(stride, buffer.sizes[*dim]);
    }
    return strides;
  }

  void AddWalk(int id, const Kernel& kernel, const Phase& phase) {
    std::vector<IntExpr> loops = kernel.outer;
    loops.insert(loops.end(), phase.inner.begin(), phase.inner.end());
    Walk walk{id, loops.size(), kernel.outer.size(), {}, {}, {}};
    for (const Inst& inst : phase.body) {
      if (inst.op != ScalarOp::kLoad && inst.op != ScalarOp::kStore) continue;
      Access access{inst.buffer, inst.op == ScalarOp::kStore, {}};
      for (IntExpr loop : loops) access.steps.push_back(StepsAlong(ints_, inst, loop));
      uses_[inst.buffer].emplace_back(walks_.size(), walk.accesses.size());
      walk.accesses.push_back(std::move(access));
    }
    if (graph_.lanes_beside_windows() && kernel.schedule == ir::Schedule::kLoops) FindTaps(walk);
    walks_.push_back(std::move(walk));
  }

  // The inner loops that move an access along the same dimension as an outer loop does.
  static void FindTaps(Walk& walk) {
    std::vector<bool> taps(walk.loops, false);
    for (const Access& access : walk.accesses) {
      const size_t dims = access.steps.empty() ? 0 : access.steps[0].size();
      for (size_t d = 0; d < dims; ++d) {
        const auto moves = [&](size_t loop) { return access.steps[loop][d] != 0; };
        bool is_window = false;
        for (size_t loop = 0; loop < walk.outer_loops; ++loop) is_window |= moves(loop);
        for (size_t loop = walk.outer_loops; is_window && loop < walk.loops; ++loop) {
          if (moves(loop)) taps[loop] = true;
        }
      }
    }
    if (std::find(taps.begin(), taps.end(), true) != taps.end()) walk.taps = std::move(taps);
  }

  int64_t Stride(const Access& access, size_t loop, const Steps& strides) const {
    const Steps& steps = access.steps[loop];
    return std::abs(std::inner_product(steps.begin(), steps.end(), strides.begin(), int64_t{0}));
  }

  // The loop whose iterations are neighbours in most bytes that the kernel accesses.
  std::optional<size_t> LoopAlong(const Walk& walk, bool counts_free) {
    std::vector<double> bytes(walk.loops, 0);
    for (const Access& access : walk.accesses) {
      if (free_[access.buffer] && !counts_free) continue;
      for (size_t loop = 0; loop < walk.loops; ++loop) {
        if (!walk.taps.empty() && walk.taps[loop]) continue;
        if (Stride(access, loop, strides_[access.buffer]) != 1) continue;
        bytes[loop] += Bytes(access);
      }
    }
    const auto most = std::max_element(bytes.begin(), bytes.end());
    if (most == bytes.end() || *most == 0) return std::nullopt;
    return most - bytes.begin();
  }

  std::vector<absl::Span<Walk>> WalksByKernel() {
    std::vector<absl::Span<Walk>> kernels;
    for (size_t first = 0, at = 1; at <= walks_.size(); ++at) {
      if (at < walks_.size() && walks_[at].id == walks_[first].id) continue;
      kernels.push_back(absl::MakeSpan(walks_).subspan(first, at - first));
      first = at;
    }
    return kernels;
  }

  // A phase that sees no fixed memory goes over its rows as others of its kernel do over theirs; so
  // does one of windows, along an outer loop.
  static std::optional<size_t> LoopAlongOfAnotherPhase(const Walk& walk,
                                                       absl::Span<const Walk> phases) {
    for (const Walk& other : phases) {
      if (!other.along) continue;
      const bool is_outer = !walk.taps.empty() && *other.along < walk.outer_loops;
      if (other.loops == walk.loops || is_outer) return other.along;
    }
    return std::nullopt;
  }

  double Cost(BufferId id, const Steps& strides) {
    double cost = 0;
    for (const auto& [walk, access] : uses_[id]) {
      if (!walks_[walk].along) continue;
      const int64_t stride = Stride(walks_[walk].accesses[access], *walks_[walk].along, strides);
      cost += stride <= 1 ? 1 : kApart;
    }
    return cost;
  }

  // Moves the dimension that kernels walk along to the end, where that makes the buffer cheaper.
  void Choose(BufferId id) {
    double best = Cost(id, strides_[id]);
    const std::vector<size_t> order = OrderOf(id);
    for (size_t dim : order) {
      std::vector<size_t> moved = order;
      std::erase(moved, dim);
      moved.push_back(dim);
      std::vector<IntExpr> strides = StridesOf(id, moved);
      Steps values = AtHints(strides);
      const double cost = Cost(id, values);
      if (cost >= best) continue;
      best = cost;
      buffers()[id].strides = std::move(strides);
      strides_[id] = std::move(values);
    }
  }

  // Puts the outer loops of a kernel that sees a changed buffer in the order in which its last
  // large store has them in memory. `phases` are the kernel's.
  void OrderLoops(absl::Span<const Walk> phases, const std::vector<Steps>& before) {
    const Access* largest = nullptr;
    bool is_touched = false;
    for (const Walk& walk : phases) {
      for (const Access& access : walk.accesses) {
        is_touched |= strides_[access.buffer] != before[access.buffer];
        if (!access.is_store) continue;
        if (largest == nullptr || Bytes(access) >= Bytes(*largest)) largest = &access;
      }
    }
    Kernel* kernel = graph_.Fusible(phases[0].id);
    if (!is_touched || kernel == nullptr || kernel->schedule != ir::Schedule::kLoops) return;
    std::vector<std::pair<int64_t, IntExpr>> loops;
    for (size_t i = 0; i < kernel->outer.size(); ++i) {
      loops.emplace_back(Stride(*largest, i, strides_[largest->buffer]), kernel->outer[i]);
    }
    std::stable_sort(loops.begin(), loops.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (size_t i = 0; i < loops.size(); ++i) kernel->outer[i] = loops[i].second;
  }

  double Bytes(const Access& access) { return BufferBytes(graph_.module(), access.buffer); }

  FusionGraph& graph_;
  IntContext& ints_;
  std::vector<Steps> strides_;                                // by buffer, at the symbols' hints
  std::vector<bool> free_;                                    // by buffer
  std::vector<Walk> walks_;                                   // a kernel's stand together
  std::vector<std::vector<std::pair<size_t, size_t>>> uses_;  // by buffer: walk, and its access
};

}  // namespace

void ChooseLayouts(FusionGraph& graph) {
  Layouts(graph).Run();
}

}  // namespace kiln::fusion
