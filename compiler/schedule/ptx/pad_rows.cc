#include "compiler/schedule/ptx/pad_rows.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace kiln::schedule::ptx {
namespace {

using ir::Buffer;
using ir::BufferId;
using ir::BufferWindow;
using ir::IntExpr;

constexpr int64_t kUnit = 8;                          // elements of 16 bits in 16 bytes
constexpr int64_t kLeastElements = int64_t{1} << 20;  // fewer are copied in no time

// Without factors.
bool IsProduct(const ir::Library& step) {
  return (step.op == "aten.mm.default" && step.args.size() == 2) ||
         (step.op == "aten.addmm.default" && step.args.size() == 3);
}

// Length of the rows of a buffer that may get longer ones.
std::optional<int64_t> RowToPad(ir::Module& module, const Buffer& buffer) {
  if (buffer.kind != ir::BufferKind::kTemp || !IsHalf(buffer.dtype) || buffer.sizes.size() < 2)
    return {};
  int64_t elements = 1;
  for (const IntExpr size : buffer.sizes) {
    if (!size.is_const()) return {};
    elements *= size.value();
  }
  const int64_t row = buffer.sizes.back().value();
  if (elements < kLeastElements || row % kUnit == 0) return {};
  if (buffer.strides != module.ContiguousStrides(buffer.sizes)) return {};
  return row;
}

// Which of a matrix' dimensions its rows are along.
size_t AlongOf(const BufferWindow& window) {
  return window.strides[1].is_const(1) ? 1 : 0;
}

// Whether the window is a matrix of whole rows, as they lie or turned.
bool IsOfRows(const BufferWindow& window, int64_t row) {
  if (window.sizes.size() != 2) return false;
  const auto is_whole = [&](IntExpr e) { return e.is_const() && e.value() % row == 0; };
  const size_t along = AlongOf(window);
  return window.strides[along].is_const(1) && window.sizes[along].is_const(row) &&
         is_whole(window.strides[1 - along]) && is_whole(window.offset);
}

}  // namespace

void PadRows(ir::Module& module) {
  absl::flat_hash_map<BufferId, int64_t> rows;  // by buffer that products take, its rows' length
  absl::flat_hash_set<BufferId> others;         // what else has
  for (ir::Operation& operation : module.operations) {
    if (auto* step = std::get_if<ir::Library>(&operation)) {
      ForEachWindow(step->args, [&](const BufferWindow& window) {
        const std::optional<int64_t> row = RowToPad(module, module.buffers[window.buffer]);
        if (row && IsProduct(*step) && IsOfRows(window, *row)) {
          rows[window.buffer] = *row;
        } else {
          others.insert(window.buffer);
        }
      });
    } else if (std::holds_alternative<ir::Repeat>(operation)) {
      ir::ForEachInst(operation, [&](const ir::Inst& inst) { others.insert(inst.buffer); });
    }
  }
  for (const ir::ModuleOutput& output : module.outputs) {
    if (const auto* window = std::get_if<BufferWindow>(&output.value))
      others.insert(window->buffer);
  }
  absl::erase_if(rows, [&](const auto& entry) { return others.contains(entry.first); });

  ir::IntContext& ints = *module.ints;
  const auto padded = [](int64_t row) { return (row + kUnit - 1) / kUnit * kUnit; };
  for (const auto& [id, row] : rows) {
    Buffer& buffer = module.buffers[id];
    buffer.sizes.back() = ints.Const(padded(row));
    buffer.strides = module.ContiguousStrides(buffer.sizes);
  }
  for (ir::Operation& operation : module.operations) {
    auto* step = std::get_if<ir::Library>(&operation);
    if (step == nullptr) continue;
    ForEachWindow(step->args, [&](BufferWindow& window) {
      const auto found = rows.find(window.buffer);
      if (found == rows.end()) return;
      const int64_t row = found->second;
      const auto longer = [&](IntExpr e) {
        return e.is_const(1) ? e : ints.Const(e.value() / row * padded(row));
      };
      window.sizes[AlongOf(window)] = ints.Const(padded(row));
      for (IntExpr& stride : window.strides) stride = longer(stride);
      window.offset = longer(window.offset);
      window.row_padding = padded(row) - row;
    });
  }
}

}  // namespace kiln::schedule::ptx
