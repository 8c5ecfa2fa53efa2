#include "compiler/fusion/fusion_graph.h"

#include <algorithm>
#include <functional>
#include <set>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "compiler/ir/fixed_values.h"
#include "compiler/ir/verify.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Library;
using ir::Phase;
using ir::ScalarOp;

namespace {

void SortUnique(std::vector<BufferId>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

void CollectAccesses(Op& op) {
  op.reads.clear();
  op.writes.clear();
  if (auto* library = std::get_if<Library>(&op.operation)) {
    ForEachWindow(library->args, [&](ir::BufferWindow& w) { op.reads.push_back(w.buffer); });
    op.writes = library->results;
  } else {
    ForEachInst(op.operation, [&](const Inst& inst) {
      if (inst.op == ScalarOp::kLoad) op.reads.push_back(inst.buffer);
      if (inst.op == ScalarOp::kStore) op.writes.push_back(inst.buffer);
    });
  }
  const bool stores_once =
      std::set<BufferId>(op.writes.begin(), op.writes.end()).size() == op.writes.size();
  const auto* kernel = std::get_if<Kernel>(&op.operation);
  op.scatters = kernel != nullptr && ir::HasScatter(*kernel);
  if (!stores_once && !op.scatters) op.pinned = true;
  SortUnique(op.reads);
  SortUnique(op.writes);
  std::vector<BufferId> others;
  std::set_difference(op.reads.begin(), op.reads.end(), op.writes.begin(), op.writes.end(),
                      std::back_inserter(others));
  op.reads = std::move(others);
}

// Calls `visit` wherever the operation names a buffer.
void ForEachBuffer(ir::Operation& operation, const std::function<void(BufferId&)>& visit) {
  if (auto* library = std::get_if<Library>(&operation)) {
    ForEachWindow(library->args, [&](ir::BufferWindow& w) { visit(w.buffer); });
    for (BufferId& result : library->results) visit(result);
    return;
  }
  auto* repeat = std::get_if<ir::Repeat>(&operation);
  for (Kernel& kernel : repeat != nullptr ? absl::MakeSpan(repeat->kernels)
                                          : absl::MakeSpan(&std::get<Kernel>(operation), 1)) {
    for (Phase& phase : kernel.phases) {
      for (Inst& inst : phase.body) {
        if (inst.op == ScalarOp::kLoad || inst.op == ScalarOp::kStore) visit(inst.buffer);
      }
    }
  }
}

}  // namespace

FusionGraph::FusionGraph(ir::Module& module, std::vector<Decision>* decisions)
    : module_(module),
      decisions_(decisions),
      producer_(module.buffers.size(), -1),
      readers_(module.buffers.size()),
      kept_(module.buffers.size(), false) {
  for (size_t b = 0; b < module.buffers.size(); ++b) {
    kept_[b] = module.buffers[b].kind != BufferKind::kTemp;
  }
  for (const ir::ModuleOutput& output : module.outputs) {
    const auto* window = std::get_if<ir::BufferWindow>(&output.value);
    if (window != nullptr) kept_[window->buffer] = true;
  }
  const auto is_input = [&](BufferId b) { return module.buffers[b].kind == BufferKind::kInput; };
  bool mutates = false;  // an operation so far stores into an input
  for (ir::Operation& operation : module.operations) {
    const int id = size();
    Op& op = ops_.emplace_back();
    op.operation = std::move(operation);
    const auto* kernel = std::get_if<Kernel>(&op.operation);
    op.pinned = kernel == nullptr || kernel->schedule == ir::Schedule::kPacking ||
                kernel->schedule == ir::Schedule::kSorting;
    op.position = id;
    order_.push_back(id);
    CollectAccesses(op);
    mutates |= std::any_of(op.writes.begin(), op.writes.end(), is_input);
    op.pinned |= mutates;
    for (BufferId b : op.writes) {
      if (!is_input(b)) producer_[b] = id;
    }
    for (BufferId b : op.reads) {
      readers_[b].push_back(id);
      if (kernel == nullptr) kept_[b] = true;
    }
  }
  module.operations.clear();
  PinPrepared();
}

// What depends on parameters alone is not drawn into what runs in every call, where it is costly
// itself or by what would be drawn into it.
void FusionGraph::PinPrepared() {
  std::vector<bool> fixed;
  for (const ir::Buffer& buffer : module_.buffers) fixed.push_back(IsFixed(buffer));
  const auto is_fixed = [&](BufferId b) { return fixed[b]; };
  std::vector<bool> costly(module_.buffers.size(), false);
  if (std::find(fixed.begin(), fixed.end(), true) == fixed.end()) return;
  for (Op& op : ops_) {
    const auto* kernel = std::get_if<Kernel>(&op.operation);
    if (kernel == nullptr || op.pinned || !IsFixed(*kernel, is_fixed)) continue;
    const bool is_costly = IsCostly(*kernel) || std::any_of(op.reads.begin(), op.reads.end(),
                                                            [&](BufferId b) { return costly[b]; });
    op.pinned = is_costly && !op.reads.empty() &&
                std::any_of(op.writes.begin(), op.writes.end(),
                            [&](BufferId b) { return !readers_[b].empty(); });
    for (BufferId b : op.writes) {
      fixed[b] = true;
      costly[b] = is_costly && !op.pinned;
    }
  }
}

Kernel* FusionGraph::Changeable(int id) {
  Op& op = ops_[id];
  return op.alive && !op.pinned ? std::get_if<Kernel>(&op.operation) : nullptr;
}

Kernel* FusionGraph::Fusible(int id) {
  return ops_[id].scatters ? nullptr : Changeable(id);
}

std::string FusionGraph::NameOf(int id) const {
  return std::string(ir::NameOf(ops_[id].operation));
}

std::vector<int> FusionGraph::ReadersOf(BufferId buffer) const {
  std::vector<int> readers = readers_[buffer];
  std::sort(readers.begin(), readers.end(),
            [&](int a, int b) { return ops_[a].position < ops_[b].position; });
  return readers;
}

bool FusionGraph::IsPrivateTo(int id, BufferId buffer) const {
  if (kept_[buffer] || producer_[buffer] != id) return false;
  const std::vector<int>& readers = readers_[buffer];
  return std::all_of(readers.begin(), readers.end(), [&](int reader) { return reader == id; });
}

void FusionGraph::Update(int id) {
  Op& op = ops_[id];
  for (BufferId b : op.reads) std::erase(readers_[b], id);
  for (BufferId b : op.writes) {
    if (producer_[b] == id) producer_[b] = -1;
  }
  CollectAccesses(op);
  for (BufferId b : op.reads) readers_[b].push_back(id);
  for (BufferId b : op.writes) {
    if (module_.buffers[b].kind != BufferKind::kInput) producer_[b] = id;
  }
}

void FusionGraph::Remove(int id) {
  Op& op = ops_[id];
  op.alive = false;
  for (BufferId b : op.reads) std::erase(readers_[b], id);
  for (BufferId b : op.writes) {
    if (producer_[b] == id) producer_[b] = -1;
  }
}

void FusionGraph::Rename(BufferId from, BufferId to) {
  std::vector<int> users = readers_[from];
  if (producer_[from] >= 0) users.push_back(producer_[from]);
  for (const int id : users) {
    ForEachBuffer(ops_[id].operation, [&](BufferId& b) {
      if (b == from) b = to;
    });
    Update(id);
  }
  kept_[to] = kept_[to] || kept_[from];
}

int FusionGraph::InsertBefore(int before, Kernel kernel) {
  producer_.resize(module_.buffers.size(), -1);
  readers_.resize(module_.buffers.size());
  kept_.resize(module_.buffers.size(), false);
  const int id = size();
  Op& op = ops_.emplace_back();
  op.operation = std::move(kernel);
  const int position = ops_[before].position;
  order_.insert(order_.begin() + position, id);
  Renumber(position, order_.size());
  Update(id);
  return id;
}

bool FusionGraph::MarkBetween(int first, int second, std::vector<int>* dependent) const {
  absl::flat_hash_set<int> marked = {first};
  const auto depends = [&](int id, bool on_first) {
    for (BufferId b : ops_[id].reads) {
      const int producer = producer_[b];
      if (producer < 0 || (producer == first && !on_first)) continue;
      if (marked.contains(producer)) return true;
    }
    return false;
  };
  for (int at = ops_[first].position + 1; at < ops_[second].position; ++at) {
    const int id = order_[at];
    if (!ops_[id].alive || !depends(id, true)) continue;
    marked.insert(id);
    if (dependent != nullptr) dependent->push_back(id);
  }
  return depends(second, false);
}

bool FusionGraph::CanJoin(int first, int second) const {
  return !MarkBetween(first, second, nullptr);
}

void FusionGraph::Join(int first, int second, Kernel joined) {
  std::vector<int> dependent;
  MarkBetween(first, second, &dependent);
  const absl::flat_hash_set<int> after(dependent.begin(), dependent.end());
  const int from = ops_[first].position, to = ops_[second].position;
  std::vector<int> window;
  for (int at = from; at < to; ++at) {
    if (!after.contains(order_[at])) window.push_back(order_[at]);
  }
  window.push_back(second);
  window.insert(window.end(), dependent.begin(), dependent.end());
  std::copy(window.begin(), window.end(), order_.begin() + from);
  Renumber(from, to + 1);
  Remove(first);
  ops_[second].operation = std::move(joined);
  Update(second);
}

void FusionGraph::Renumber(size_t from, size_t to) {
  for (size_t at = from; at < to; ++at) ops_[order_[at]].position = static_cast<int>(at);
}

void FusionGraph::Record(int producer, int consumer, bool fused, absl::string_view reason) {
  if (decisions_ == nullptr) return;
  decisions_->push_back({.producer = NameOf(producer),
                         .consumer = NameOf(consumer),
                         .fused = fused,
                         .reason = std::string(reason)});
}

void FusionGraph::Finish() {
  for (int id : order_) {
    if (ops_[id].alive) module_.operations.push_back(std::move(ops_[id].operation));
  }
  CompactBuffers();
}

absl::Status FusionGraph::Verify() {
  std::vector<int> ids;
  for (int id : order_) {
    if (!ops_[id].alive) continue;
    ids.push_back(id);
    module_.operations.push_back(std::move(ops_[id].operation));
  }
  const absl::Status status = ir::Verify(module_);
  for (size_t i = 0; i < ids.size(); ++i) {
    ops_[ids[i]].operation = std::move(module_.operations[i]);
  }
  module_.operations.clear();
  return status;
}

// Drops temporary buffers that nothing mentions.
void FusionGraph::CompactBuffers() {
  std::vector<bool> used(module_.buffers.size(), false);
  const auto for_each_id = [&](const std::function<void(BufferId&)>& visit) {
    for (ir::Operation& operation : module_.operations) ForEachBuffer(operation, visit);
    for (ir::ModuleOutput& output : module_.outputs) {
      if (auto* window = std::get_if<ir::BufferWindow>(&output.value)) visit(window->buffer);
    }
  };
  for_each_id([&](BufferId& id) { used[id] = true; });
  std::vector<BufferId> renumbered(module_.buffers.size(), -1);
  std::vector<ir::Buffer> buffers;
  for (size_t b = 0; b < used.size(); ++b) {
    if (!used[b] && module_.buffers[b].kind == BufferKind::kTemp) continue;
    renumbered[b] = static_cast<BufferId>(buffers.size());
    buffers.push_back(std::move(module_.buffers[b]));
  }
  module_.buffers = std::move(buffers);
  for_each_id([&](BufferId& id) { id = renumbered[id]; });
}

double Points(const ir::IntContext& ints, const std::vector<IntExpr>& loops) {
  double points = 1;
  for (IntExpr var : loops) {
    points *= static_cast<double>(std::max<int64_t>(ints.EvaluateAtHints(var.extent()), 1));
  }
  return points;
}

double BufferBytes(ir::Module& module, BufferId buffer) {
  const ir::Buffer& b = module.buffers[buffer];
  double bytes = static_cast<double>(DTypeSize(b.dtype));
  for (IntExpr size : b.sizes) {
    bytes *= static_cast<double>(std::max<int64_t>(module.ints->EvaluateAtHints(size), 1));
  }
  return bytes;
}

bool IsPointwise(const Kernel& kernel) {
  return kernel.schedule == ir::Schedule::kLoops &&
         std::all_of(kernel.phases.begin(), kernel.phases.end(),
                     [](const Phase& phase) { return phase.inner.empty(); });
}

size_t NumInstructions(const Kernel& kernel) {
  size_t count = 0;
  for (const Phase& phase : kernel.phases) count += phase.body.size();
  return count;
}

bool FitsTogether(const Kernel& a, const Kernel& b) {
  return a.origins.size() + b.origins.size() <= kMaxOrigins &&
         NumInstructions(a) + NumInstructions(b) <= kMaxInstructions;
}

void AppendOrigins(const std::vector<std::string>& from, std::vector<std::string>& to) {
  for (const std::string& origin : from) {
    if (std::find(to.begin(), to.end(), origin) == to.end()) to.push_back(origin);
  }
}

size_t NumIndirect(const Inst& inst) {
  const size_t others = inst.op == ScalarOp::kStore || inst.has_mask ? 1 : 0;
  return inst.operands.size() - others;
}

}  // namespace kiln::fusion
