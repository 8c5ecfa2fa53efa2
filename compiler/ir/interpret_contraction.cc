// Contractions as blocked matrix products over doubles.
//
// Each outer variable goes by which operand uses it: both, a batch; b only, a column; else a row.
// For a batch, the operands' rows fill dense matrices A [rows, depth] and, in panels of
// kTileColumns columns, B. Products are summed over depth from first to last, unfused: so the
// result is bit for bit that of the plain loops, whatever the blocks, the threads and the
// processor.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret_impl.h"
#include "compiler/ir/interpret_operand.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

constexpr int kTileRows = 6;  // with kTileColumns: what AVX2's 16 registers hold
constexpr int kTileColumns = 8;
constexpr int64_t kBlockElements = 1 << 20;      // of A and of B that a thread holds at a time
constexpr int64_t kTaskLength = 96;              // rows or columns of a task, whole tiles
constexpr int64_t kLeastTaskProducts = 1 << 20;  // fewer in all are not worth a second thread

using Vec = double __attribute__((vector_size(sizeof(double) * kTileColumns)));

// tile[r][c] = sum over k of a[r * depth + k] * panel[k * kTileColumns + c]
__attribute__((always_inline)) inline void MultiplyTileHere(const double* a, const double* panel,
                                                            int64_t depth, double* tile) {
#pragma clang fp contract(off)
  Vec acc[kTileRows] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vec b;
    std::memcpy(&b, panel + k * kTileColumns, sizeof(b));
    for (int r = 0; r < kTileRows; ++r) acc[r] += a[r * depth + k] * b;
  }
  std::memcpy(tile, acc, sizeof(acc));
}

void MultiplyTileBaseline(const double* a, const double* panel, int64_t depth, double* tile) {
  MultiplyTileHere(a, panel, depth, tile);
}
using MultiplyTile = decltype(&MultiplyTileBaseline);

#ifdef __x86_64__
__attribute__((target("avx2"))) void MultiplyTileAvx2(const double* a, const double* panel,
                                                      int64_t depth, double* tile) {
  MultiplyTileHere(a, panel, depth, tile);
}
__attribute__((target("avx512f"))) void MultiplyTileAvx512(const double* a, const double* panel,
                                                           int64_t depth, double* tile) {
  MultiplyTileHere(a, panel, depth, tile);
}
#endif

MultiplyTile ChooseMultiplyTile() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return MultiplyTileAvx512;
  if (__builtin_cpu_supports("avx2")) return MultiplyTileAvx2;
#endif
  return MultiplyTileBaseline;
}

int64_t RoundUp(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}
int64_t DivideUp(int64_t n, int64_t by) {
  return (n + by - 1) / by;
}

// The product's shape and how it is cut. A task is a batch's block along the longer of rows and
// columns; within it the other dimension is cut only where a thread could not hold it.
struct Shape {
  Axes batch, rows, columns, inner;
  int64_t batches, num_rows, num_columns, depth;
  int64_t row_block, column_block;

  void Cut() {
    batches = batch.Points();
    num_rows = rows.Points();
    num_columns = columns.Points();
    depth = inner.Points();
    const int64_t limit = std::max<int64_t>(kBlockElements / std::max<int64_t>(depth, 1), 1);
    row_block = std::min(RoundUp(limit, kTileRows), num_rows);
    column_block = std::min(RoundUp(limit, kTileColumns), num_columns);
    int64_t& cut = num_rows > num_columns ? row_block : column_block;
    cut = std::min(cut, kTaskLength);
  }
  bool cuts_rows() const { return num_rows > num_columns; }
  int64_t row_blocks() const { return DivideUp(num_rows, row_block); }
  int64_t column_blocks() const { return DivideUp(num_columns, column_block); }
  int64_t blocks() const { return cuts_rows() ? row_blocks() : column_blocks(); }
  int64_t tasks() const { return SaturatingMul(batches, blocks()); }
  int64_t ScratchElements() const {  // of a thread
    return SaturatingMul(RoundUp(row_block, kTileRows) + 2 * RoundUp(column_block, kTileColumns),
                         depth);
  }
};

// One thread's share of a product.
class Product {
 public:
  Product(const Shape& shape, Gather& a, Gather& b, std::vector<double>& result)
      : shape_(shape), gather_a_(a), gather_b_(b), result_(result) {
    a_.resize(RoundUp(shape.row_block, kTileRows) * shape.depth);
    b_.resize(shape.column_block * shape.depth);
    panels_.resize(RoundUp(shape.column_block, kTileColumns) * shape.depth);
  }

  absl::Status RunTask(int64_t task) {
    const int64_t batch = task / shape_.blocks(), block = task % shape_.blocks();
    if (batch != batch_) {
      gather_a_.SetBatch(batch);
      gather_b_.SetBatch(batch);
      batch_ = batch;
      held_rows_ = held_columns_ = -1;
    }
    const int64_t others = shape_.cuts_rows() ? shape_.column_blocks() : shape_.row_blocks();
    for (int64_t other = 0; other < others; ++other) {
      KILN_RETURN_IF_ERROR(shape_.cuts_rows() ? RunBlock(block, other) : RunBlock(other, block));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status RunBlock(int64_t row_block, int64_t column_block) {
    const int64_t first_row = row_block * shape_.row_block;
    const int64_t rows = std::min(shape_.row_block, shape_.num_rows - first_row);
    const int64_t first_column = column_block * shape_.column_block;
    const int64_t columns = std::min(shape_.column_block, shape_.num_columns - first_column);
    if (held_rows_ != row_block) {
      KILN_RETURN_IF_ERROR(gather_a_.Rows(first_row, rows, a_.data()));
      held_rows_ = row_block;
    }
    if (held_columns_ != column_block) {
      KILN_RETURN_IF_ERROR(gather_b_.Rows(first_column, columns, b_.data()));
      PackPanels(columns);
      held_columns_ = column_block;
    }
    Multiply(first_row, rows, first_column, columns);
    return absl::OkStatus();
  }

  // Rows of B [count, depth] as panels [count / kTileColumns][depth][kTileColumns], zeros past the
  // end.
  void PackPanels(int64_t count) {
    const int64_t depth = shape_.depth;
    for (int64_t n = 0; n < RoundUp(count, kTileColumns); n += kTileColumns) {
      double* panel = &panels_[n * depth];
      const int64_t width = std::min<int64_t>(kTileColumns, count - n);
      if (width < kTileColumns) std::fill_n(panel, depth * kTileColumns, 0.0);
      const double* rows = &b_[n * depth];
      for (int64_t k = 0; k < depth; ++k) {
        for (int64_t c = 0; c < width; ++c) panel[k * kTileColumns + c] = rows[c * depth + k];
      }
    }
  }

  void Multiply(int64_t first_row, int64_t rows, int64_t first_column, int64_t columns) {
    static const MultiplyTile multiply_tile = ChooseMultiplyTile();
    const int64_t batch_offset = shape_.batch.Offset(batch_);
    std::vector<int64_t> column_offsets(columns);
    for (int64_t c = 0; c < columns; ++c) {
      column_offsets[c] = shape_.columns.Offset(first_column + c);
    }
    for (int64_t m = 0; m < rows; m += kTileRows) {
      int64_t row_offsets[kTileRows] = {};
      const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - m);
      for (int64_t r = 0; r < tile_rows; ++r) {
        row_offsets[r] = batch_offset + shape_.rows.Offset(first_row + m + r);
      }
      for (int64_t n = 0; n < columns; n += kTileColumns) {
        double tile[kTileRows * kTileColumns];
        multiply_tile(&a_[m * shape_.depth], &panels_[n * shape_.depth], shape_.depth, tile);
        const int64_t tile_columns = std::min<int64_t>(kTileColumns, columns - n);
        for (int64_t r = 0; r < tile_rows; ++r) {
          for (int64_t c = 0; c < tile_columns; ++c) {
            result_[row_offsets[r] + column_offsets[n + c]] = tile[r * kTileColumns + c];
          }
        }
      }
    }
  }

  const Shape& shape_;
  Gather& gather_a_;
  Gather& gather_b_;
  std::vector<double>& result_;
  std::vector<double> a_, b_, panels_;
  int64_t batch_ = -1, held_rows_ = -1, held_columns_ = -1;
};

// Runs tasks from 0 on until none is left or one fails. Returns the error of the first task in
// order that has one: those before it were all begun, so it is the same at any number of threads.
class TaskQueue {
 public:
  explicit TaskQueue(int64_t tasks) : tasks_(tasks), failed_task_(tasks) {}

  void Drain(Product& product) {
    for (int64_t task = next_++; task < tasks_; task = next_++) {
      absl::Status status = product.RunTask(task);
      if (status.ok()) continue;
      const std::lock_guard lock(mu_);
      if (task < failed_task_) {
        failed_task_ = task;
        status_ = std::move(status);
      }
      next_ = tasks_;
    }
  }
  // REQUIRES: every Drain has returned.
  const absl::Status& status() const { return status_; }

 private:
  const int64_t tasks_;
  std::atomic<int64_t> next_ = 0;
  std::mutex mu_;
  int64_t failed_task_;
  absl::Status status_;
};

// Calls `work(i)` for i below `count` at once; on fewer threads where the system gives no more.
template <typename Work>
void RunThreads(int count, const Work& work) {
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) {
    try {
      threads.emplace_back(work, i);
    } catch (const std::system_error&) {
      break;  // The first thread drains the queue alone.
    }
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

absl::StatusOr<bool> InterpretContraction(const Module& module, const Kernel& kernel,
                                          absl::Span<const int64_t> symbols,
                                          std::vector<Storage>& storage, const Resources& resources,
                                          std::vector<double>& result) {
  const Phase& phase = kernel.phases[0];
  const Inst& product = phase.body[phase.body.size() - 2];
  if (!IsFloat(product.dtype)) return false;
  const Side a = FindSide(phase.body, product.operands[0]);
  const Side b = FindSide(phase.body, product.operands[1]);
  const ProgramBuilder sizes(module, symbols);
  Shape shape;
  int64_t stride = 1;
  const auto add = [&](Axes& axes, IntExpr var) {
    axes.vars.insert(axes.vars.begin(), var);
    axes.extents.insert(axes.extents.begin(), std::max<int64_t>(sizes.Evaluate(var.extent()), 0));
    axes.strides.insert(axes.strides.begin(), stride);
    stride = SaturatingMul(stride, axes.extents.front());
  };
  for (size_t i = phase.inner.size(); i-- > 0;) add(shape.inner, phase.inner[i]);
  stride = 1;
  for (size_t i = kernel.outer.size(); i-- > 0;) {
    const IntExpr var = kernel.outer[i];
    const bool in_a = a.vars.contains(var), in_b = b.vars.contains(var);
    add(in_a && in_b ? shape.batch : in_b ? shape.columns : shape.rows, var);
  }
  shape.Cut();
  // A product of few elements a batch is not worth the packing.
  if (shape.depth == 0 || shape.num_rows == 0 || shape.num_columns == 0 || shape.batches == 0 ||
      SaturatingMul(shape.num_rows, shape.num_columns) < 4) {
    return false;
  }
  int threads = static_cast<int>(std::min<int64_t>(resources.threads, shape.tasks()));
  if (SaturatingMul(stride, shape.depth) < kLeastTaskProducts) threads = 1;
  const int64_t elements = SaturatingMul(shape.ScratchElements(), threads);
  const int64_t scratch_bytes =
      SaturatingMul(std::max(stride, elements), 2 * static_cast<int64_t>(sizeof(double)));
  if (scratch_bytes > resources.free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a contraction needs ", scratch_bytes, " bytes of memory"));
  }
  result.resize(stride);
  // The gathers of every thread are made here: simplifying an index is not thread-safe.
  struct Operands {
    Gather a, b;
  };
  std::vector<std::unique_ptr<Operands>> operands;
  for (int i = 0; i < threads; ++i) {
    operands.emplace_back(
        new Operands{{module, symbols, a, shape.batch, shape.rows, shape.inner, storage},
                     {module, symbols, b, shape.batch, shape.columns, shape.inner, storage}});
  }
  TaskQueue queue(shape.tasks());
  RunThreads(threads, [&](int i) {
    Product share(shape, operands[i]->a, operands[i]->b, result);
    queue.Drain(share);
  });
  if (!queue.status().ok()) return queue.status();
  return true;
}

}  // namespace kiln::ir
