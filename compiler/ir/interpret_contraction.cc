// Contractions as blocked matrix products over doubles.
//
// Each outer variable goes by which operand uses it: both, a batch; b only, a column; else a row.
// For a batch, the operands' own instructions fill dense matrices A [rows, depth] and, in panels of
// kTile columns, B; so prologues, masks and views of any kind need no case here.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

constexpr int kTile = 4;
constexpr int64_t kBlockElements = 4 << 20;  // of A and of B that are held at a time

// One operand of the product: its instructions and the loop variables they use.
struct Side {
  std::vector<const Inst*> insts;
  absl::flat_hash_set<IntExpr> vars;
  ValueId value;
};

Side FindSide(const std::vector<Inst>& body, ValueId value) {
  absl::flat_hash_set<ValueId> needed = {value};
  Side side{.value = value};
  for (size_t i = body.size(); i-- > 0;) {
    const Inst& inst = body[i];
    if (!needed.contains(inst.result)) continue;
    side.insts.push_back(&inst);
    needed.insert(inst.operands.begin(), inst.operands.end());
    for (IntExpr index : inst.indices) {
      ForEachLeaf(index, [&](IntExpr leaf) {
        if (leaf.kind() == IntKind::kVar) side.vars.insert(leaf);
      });
    }
  }
  std::reverse(side.insts.begin(), side.insts.end());
  return side;
}

// Outer variables of one class, with their strides in the result.
struct Axes {
  std::vector<IntExpr> vars;
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;

  int64_t Points() const {
    int64_t points = 1;
    for (int64_t e : extents) points = SaturatingMul(points, e);
    return points;
  }
  // The values of the variables at a point in row-major order.
  std::vector<int64_t> At(int64_t point) const {
    std::vector<int64_t> at(extents.size());
    for (size_t i = extents.size(); i-- > 0; point /= extents[i]) at[i] = point % extents[i];
    return at;
  }
  int64_t Offset(int64_t point) const {
    const std::vector<int64_t> at = At(point);
    int64_t offset = 0;
    for (size_t i = 0; i < at.size(); ++i) offset += at[i] * strides[i];
    return offset;
  }
};

// Fills rows of the matrix of one operand.
class Gather {
 public:
  Gather(const Module& module, absl::Span<const int64_t> symbols, const Side& side,
         const Axes& batch, const Axes& rows, const std::vector<IntExpr>& inner,
         std::vector<Storage>& storage)
      : program_(Build(module, symbols, side, batch, rows, inner, &reg_)),
        runner_(program_, storage) {}

  void SetBatch(const std::vector<int64_t>& at) {
    for (size_t i = 0; i < at.size(); ++i) runner_.SetPoint(static_cast<int>(i), at[i]);
    runner_.RunUniform(program_.nests[0]);
  }
  absl::Status Rows(int64_t first, int64_t count, int64_t depth, double* out) {
    return runner_.RunRange(program_.nests[0], first * depth, (first + count) * depth, reg_, out);
  }

 private:
  static KernelProgram Build(const Module& module, absl::Span<const int64_t> symbols,
                             const Side& side, const Axes& batch, const Axes& rows,
                             const std::vector<IntExpr>& inner, int* reg) {
    ProgramBuilder builder(module, symbols);
    builder.AddPointLoops(batch.vars);
    std::vector<IntExpr> vars = rows.vars;
    vars.insert(vars.end(), inner.begin(), inner.end());
    builder.BeginNest(vars);
    for (const Inst* inst : side.insts) builder.AddInst(*inst);
    builder.EndNest(false);
    *reg = builder.RegisterOf(side.value);
    return builder.Finish();
  }

  int reg_ = -1;
  KernelProgram program_;
  ProgramRunner runner_;
};

// tile[r][c] = sum over k of a[r * depth + k] * panel[k * kTile + c]
void MultiplyTile(const double* __restrict a, const double* __restrict panel, int64_t depth,
                  double (&tile)[kTile][kTile]) {
  double acc[kTile][kTile] = {};
  for (int64_t k = 0; k < depth; ++k) {
    for (int r = 0; r < kTile; ++r) {
      const double x = a[r * depth + k];
      for (int c = 0; c < kTile; ++c) acc[r][c] += x * panel[k * kTile + c];
    }
  }
  std::copy_n(&acc[0][0], kTile * kTile, &tile[0][0]);
}

int64_t RoundUp(int64_t n) {
  return (n + kTile - 1) / kTile * kTile;
}

// Rows of B [count, depth] as panels [count / kTile][depth][kTile], zeros past the end.
void PackPanels(const double* rows, int64_t count, int64_t depth, double* panels) {
  for (int64_t n = 0; n < RoundUp(count); ++n) {
    double* panel = panels + n / kTile * kTile * depth + n % kTile;
    for (int64_t k = 0; k < depth; ++k) panel[k * kTile] = n < count ? rows[n * depth + k] : 0;
  }
}

struct Block {
  int64_t first;
  int64_t count;
};

class Product {
 public:
  Product(const Axes& rows, const Axes& columns, int64_t depth, std::vector<double>& result)
      : depth_(depth), result_(result) {
    for (int64_t i = 0; i < rows.Points(); ++i) row_offsets_.push_back(rows.Offset(i));
    for (int64_t i = 0; i < columns.Points(); ++i) column_offsets_.push_back(columns.Offset(i));
    const int64_t limit = std::max<int64_t>(kBlockElements / depth / kTile * kTile, kTile);
    row_block_ = std::min<int64_t>(limit, row_offsets_.size());
    column_block_ = std::min<int64_t>(limit, column_offsets_.size());
    a_.resize(RoundUp(row_block_) * depth);
    b_.resize(column_block_ * depth);
    panels_.resize(RoundUp(column_block_) * depth);
  }

  absl::Status Run(Gather& a, Gather& b, int64_t batch_offset) {
    const auto rows = static_cast<int64_t>(row_offsets_.size());
    const auto columns = static_cast<int64_t>(column_offsets_.size());
    for (int64_t n = 0; n < columns; n += column_block_) {
      const Block column{n, std::min(column_block_, columns - n)};
      KILN_RETURN_IF_ERROR(b.Rows(column.first, column.count, depth_, b_.data()));
      PackPanels(b_.data(), column.count, depth_, panels_.data());
      for (int64_t m = 0; m < rows; m += row_block_) {
        const Block row{m, std::min(row_block_, rows - m)};
        KILN_RETURN_IF_ERROR(a.Rows(row.first, row.count, depth_, a_.data()));
        MultiplyBlock(row, column, batch_offset);
      }
    }
    return absl::OkStatus();
  }

 private:
  void MultiplyBlock(Block row, Block column, int64_t batch_offset) {
    double tile[kTile][kTile];
    for (int64_t n = 0; n < column.count; n += kTile) {
      for (int64_t m = 0; m < row.count; m += kTile) {
        MultiplyTile(&a_[m * depth_], &panels_[n * depth_], depth_, tile);
        for (int64_t r = 0; r < std::min<int64_t>(kTile, row.count - m); ++r) {
          for (int64_t c = 0; c < std::min<int64_t>(kTile, column.count - n); ++c) {
            result_[batch_offset + row_offsets_[row.first + m + r] +
                    column_offsets_[column.first + n + c]] = tile[r][c];
          }
        }
      }
    }
  }

  const int64_t depth_;
  std::vector<double>& result_;
  std::vector<int64_t> row_offsets_, column_offsets_;
  int64_t row_block_ = 0, column_block_ = 0;
  std::vector<double> a_, b_, panels_;
};

}  // namespace

absl::StatusOr<bool> InterpretContraction(const Module& module, const Kernel& kernel,
                                          absl::Span<const int64_t> symbols,
                                          std::vector<Storage>& storage, int64_t free_bytes,
                                          std::vector<double>& result) {
  const Phase& phase = kernel.phases[0];
  const Inst& product = phase.body[phase.body.size() - 2];
  if (!IsFloat(product.dtype)) return false;
  const Side a = FindSide(phase.body, product.operands[0]);
  const Side b = FindSide(phase.body, product.operands[1]);
  const ProgramBuilder sizes(module, symbols);
  Axes batch, rows, columns;
  int64_t stride = 1;
  for (size_t i = kernel.outer.size(); i-- > 0;) {
    const IntExpr var = kernel.outer[i];
    const bool in_a = a.vars.contains(var), in_b = b.vars.contains(var);
    Axes& axes = in_a && in_b ? batch : in_b ? columns : rows;
    axes.vars.insert(axes.vars.begin(), var);
    axes.extents.insert(axes.extents.begin(), std::max<int64_t>(sizes.Evaluate(var.extent()), 0));
    axes.strides.insert(axes.strides.begin(), stride);
    stride = SaturatingMul(stride, axes.extents.front());
  }
  int64_t depth = 1;
  for (IntExpr var : phase.inner) {
    depth = SaturatingMul(depth, std::max<int64_t>(sizes.Evaluate(var.extent()), 0));
  }
  // A product of few elements a batch is not worth the packing.
  if (depth == 0 || SaturatingMul(rows.Points(), columns.Points()) < kTile) return false;
  const int64_t block = std::max(kBlockElements, SaturatingMul(kTile, depth));
  const int64_t scratch_bytes =
      SaturatingMul(std::max(stride, block), 4 * static_cast<int64_t>(sizeof(double)));
  if (scratch_bytes > free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a contraction needs ", scratch_bytes, " bytes of memory"));
  }
  result.resize(stride);
  Gather gather_a(module, symbols, a, batch, rows, phase.inner, storage);
  Gather gather_b(module, symbols, b, batch, columns, phase.inner, storage);
  Product matrices(rows, columns, depth, result);
  for (int64_t i = 0; i < batch.Points(); ++i) {
    gather_a.SetBatch(batch.At(i));
    gather_b.SetBatch(batch.At(i));
    KILN_RETURN_IF_ERROR(matrices.Run(gather_a, gather_b, batch.Offset(i)));
  }
  return true;
}

}  // namespace kiln::ir
