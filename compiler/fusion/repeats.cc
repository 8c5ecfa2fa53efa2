// Operations that a graph has twice, as the tables of each layer's rotary embedding: one of them
// serves the readers of both.
//
// They are found among kernels and not among the graph's nodes. A kernel is a function of what it
// loads: streams of random numbers and checks are in its instructions, views and layouts in its
// indices, and nothing reads an input behind a write to it; so no list of operators says which may
// be taken together. And here it is known what has a buffer at all: what is computed where it is
// used costs no launch, and would need memory if it were computed once.
#include <algorithm>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/fusion/passes.h"
#include "compiler/fusion/value_numbers.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::BufferKind;
using ir::Kernel;

namespace {

// Beside such a buffer a launch counts, and it stays in a cache until the next reader comes.
constexpr double kSmallBytes = 256 << 10;
// Iterations for each byte stored from which on it is better kept than made again, whatever that
// does to the memory traffic of its readers: 16 for an f32.
constexpr double kCostlyIterations = 4;
// Values that live longer than either of the two did may take so much more memory together: a share
// of what inputs, constants and outputs take, or so many bytes.
constexpr double kHeldShare = 1.0 / 32;
constexpr double kHeldBytes = 1 << 20;

class RepeatMerger {
 public:
  RepeatMerger(FusionGraph& graph, bool only_kept)
      : graph_(graph), only_kept_(only_kept), numbers_(graph) {
    double resident = 0;
    for (size_t b = 0; b < graph.module().buffers.size(); ++b) {
      is_visible_.push_back(graph.module().buffers[b].kind != BufferKind::kTemp);
      if (is_visible_[b]) resident += BufferBytes(graph.module(), static_cast<BufferId>(b));
    }
    for (const ir::ModuleOutput& output : graph.module().outputs) {
      const auto* window = std::get_if<ir::BufferWindow>(&output.value);
      if (window != nullptr) is_visible_[window->buffer] = true;
    }
    held_bytes_left_ = std::max(kHeldBytes, resident * kHeldShare);
  }

  void Run() {
    const std::vector<int> order = graph_.order();
    for (const int id : order) {
      const Op& op = graph_.op(id);
      if (!op.alive || std::holds_alternative<ir::Library>(op.operation)) continue;
      const auto kind_of = [&](BufferId b) { return graph_.module().buffers[b].kind; };
      // All that comes now writes the caller's memory.
      if (absl::c_any_of(op.writes, [&](BufferId b) { return kind_of(b) == BufferKind::kInput; })) {
        return;
      }
      const ValueNumbers::Same same = numbers_.Add(id);
      if (same.id >= 0) TryMerge(same, id);
    }
  }

 private:
  void TryMerge(const ValueNumbers::Same& same, int repeat) {
    const char* objection = Objection(same, repeat);
    graph_.Record(same.id, repeat, objection == nullptr,
                  objection == nullptr ? "both compute the same" : objection);
    if (objection != nullptr) return;
    graph_.Remove(repeat);
    for (const auto& [first, second] : same.stored) {
      if (is_visible_[second]) {
        graph_.Rename(first, second);
      } else {
        graph_.Rename(second, first);
      }
    }
  }

  // Why both stay; null where one does for both.
  const char* Objection(const ValueNumbers::Same& same, int repeat) {
    double held_bytes = 0;
    for (const auto& [first, second] : same.stored) {
      if (is_visible_[first] && is_visible_[second]) return "the user has both";
      if (is_visible_[first] || is_visible_[second] || held_.contains(first)) continue;
      const std::vector<int> readers = graph_.ReadersOf(first);
      const bool is_held =
          !readers.empty() && graph_.op(readers.back()).position < graph_.op(repeat).position;
      if (is_held) held_bytes += BufferBytes(graph_.module(), first);
    }
    if (only_kept_ && !IsBetterKept(graph_.op(repeat))) {
      return "each is perhaps computed where it is used";
    }
    if (held_bytes > held_bytes_left_) return "it would be in memory for too long";
    held_bytes_left_ -= held_bytes;
    if (held_bytes > 0) {
      for (const auto& [first, second] : same.stored) held_.insert(first);
    }
    return nullptr;
  }

  bool IsBetterKept(const Op& op) {
    if (op.pinned || op.scatters) return true;  // has a buffer of its own anyway
    const Kernel& kernel = std::get<Kernel>(op.operation);
    double bytes = 0, iterations = 0;
    for (BufferId b : op.writes) bytes += BufferBytes(graph_.module(), b);
    for (const ir::Phase& phase : kernel.phases) {
      if (!phase.inner.empty()) iterations += Points(graph_.ints(), phase.inner);
    }
    iterations *= Points(graph_.ints(), kernel.outer);
    return bytes <= kSmallBytes || iterations >= kCostlyIterations * bytes;
  }

  FusionGraph& graph_;
  const bool only_kept_;
  ValueNumbers numbers_;
  std::vector<bool> is_visible_;  // by BufferId: to those who called
  absl::flat_hash_set<BufferId> held_;
  double held_bytes_left_;
};

}  // namespace

void ShareResults(FusionGraph& graph) {
  RepeatMerger(graph, /*only_kept=*/true).Run();
}

void ShareRepeats(FusionGraph& graph) {
  RepeatMerger(graph, /*only_kept=*/false).Run();
}

}  // namespace kiln::fusion
