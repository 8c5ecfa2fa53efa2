#include "compiler/schedule/ptx/product.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/builder.h"
#include "compiler/schedule/ptx/team_plan.h"

namespace kiln::schedule::ptx {

using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

namespace {

constexpr int kStep = 64;          // elements of k that one stage of the ring holds
constexpr int64_t kUnit = 8;       // elements of 16 bits in 16 bytes
constexpr int kMultipliers = 256;  // threads
// Of a thread and of a group of threads that finish a row's part together.
constexpr int kLanes = 8, kGroupLanes = 64;
constexpr int64_t kSharedBytes = 227 << 10;  // of a block, of all that sm_90a has
constexpr int64_t kOtherBytes = 2048;        // barriers, alignment
constexpr int64_t kMostStages = 8;
constexpr int64_t kMostElements = int64_t{1} << 31;  // along a side: coordinates are int

struct TileShape {
  int rows, columns;
  bool turns;  // each multiplying warpgroup has tiles of its own; else both share one
  // Of time = start + waves * (steps of k * step + store), microseconds.
  double step, store, start;
};
// Fitted to measurements on an H200 (132 multiprocessors): with 37 shapes fitted so, the choice was
// the best one or within 4 % of it for all of 19 products.
constexpr std::array<TileShape, 11> kShapes = {{
    {128, 256, false, .62, 3.1, 1.5},
    {256, 128, false, .62, 3.0, 1.4},
    {128, 192, true, .47, .8, 4.2},
    {128, 192, false, .47, 2.3, 2.1},
    {128, 144, true, .37, 1.0, 3.2},
    {128, 128, true, .32, 1.2, 2.6},
    {128, 96, true, .27, .9, 2.2},
    {128, 64, true, .24, .8, 1.6},
    {64, 192, true, .27, 1.3, 2.6},
    {64, 128, true, .21, 1.0, 2.0},
    {64, 64, true, .16, .3, 2.5},
}};

// What these kernels take beside the fit, whose kernels did less with their sums and shared loads
// among blocks: measured on an H100 with bias and both forms of gelu (tests/gpu/RESULTS.md).
constexpr double kOwnOverFit = 1.1;
constexpr double kFinish = 4.5 / (128 * 192);  // microseconds an element of a wave's tile
constexpr double kUnevenPitch = 1.4;           // of steps, where rows are no whole lines
constexpr int64_t kLine = 64;                  // elements of 16 bits

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

double Waves(const TileShape& shape, const Product& p, int units) {
  const int64_t tiles = CeilDiv(p.num_rows, shape.rows) * CeilDiv(p.num_columns, shape.columns);
  return static_cast<double>(CeilDiv(tiles, units));
}

double StepsMicroseconds(const TileShape& shape, const Product& p) {
  return static_cast<double>(CeilDiv(p.num_k, kStep)) * shape.step;
}

double Microseconds(const TileShape& shape, const Product& p, int units) {
  return shape.start + Waves(shape, p, units) * (StepsMicroseconds(shape, p) + shape.store);
}

double OwnMicroseconds(const TileShape& shape, const Product& p, int units) {
  const auto is_uneven = [](const ProductOperand& operand) {
    return (operand.is_turned() ? operand.k_stride : operand.side_stride) % kLine != 0;
  };
  const double pitch = is_uneven(p.a) || is_uneven(p.b) ? kUnevenPitch : 1;
  const double finish = kFinish * shape.rows * shape.columns;
  return kOwnOverFit *
         (shape.start +
          Waves(shape, p, units) * (StepsMicroseconds(shape, p) * pitch + shape.store + finish));
}

// What is contiguous along its side is loaded by 64 elements of that.
bool Fits(const TileShape& shape, const Product& product) {
  return !product.b.is_turned() || shape.columns % kStep == 0;
}

// The fastest shapes first.
std::vector<std::pair<double, const TileShape*>> Ranked(const Product& product, int units) {
  std::vector<std::pair<double, const TileShape*>> costs;
  for (const TileShape& shape : kShapes) {
    if (Fits(shape, product)) costs.emplace_back(Microseconds(shape, product, units), &shape);
  }
  std::stable_sort(costs.begin(), costs.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  return costs;
}

// Of a library's product and a kernel that reads its result and writes another one. On an H100
// cuBLAS took 0.9 to 1.2 times what the fit says of the same product, and eager's pointwise kernels
// moved 2.5 to 3 bytes a picosecond (tests/gpu/products.py, 15 products).
double LibraryMicroseconds(const Product& product, double fitted) {
  constexpr double kOverFit = 1.05, kBytesPerMicrosecond = 2.7e6, kLaunch = 1.5;
  const double bytes = 2 * 2.0 * static_cast<double>(product.num_rows * product.num_columns);
  return fitted * kOverFit + kLaunch + bytes / kBytesPerMicrosecond;
}

double RoundedMicroseconds(double microseconds) {
  return static_cast<double>(static_cast<int64_t>(microseconds * 10 + 0.5)) / 10;
}

std::string Describe(const TileShape& shape, double microseconds) {
  return absl::StrCat("tiles of ", shape.rows, " x ", shape.columns,
                      shape.turns ? " in turn" : " shared", " (", RoundedMicroseconds(microseconds),
                      " us expected)");
}

std::optional<ProductOperand> FindOperand(IntContext& ints, const Step& load, IntExpr side,
                                          IntExpr k) {
  const IntExpr zero = ints.Const(0);
  const IntExpr first = ints.Substitute(load.index, {{side, zero}, {k, zero}});
  const IntExpr by_side = ints.CoefficientOf(load.index, side);
  const IntExpr by_k = ints.CoefficientOf(load.index, k);
  if (!first.is_const() || !by_side || !by_k || !by_side.is_const() || !by_k.is_const()) {
    return std::nullopt;
  }
  const IntExpr linear = ints.Add(first, ints.Add(ints.Mul(side, by_side), ints.Mul(k, by_k)));
  if (linear != load.index) return std::nullopt;
  ProductOperand operand{load.inst->buffer, first.value(), by_side.value(), by_k.value()};
  if (operand.first < 0 || operand.first % kUnit != 0) return std::nullopt;
  const auto is_whole = [](int64_t stride) { return stride > 0 && stride % kUnit == 0; };
  if (operand.k_stride == 1 ? !is_whole(operand.side_stride)
                            : operand.side_stride != 1 || !is_whole(operand.k_stride)) {
    return std::nullopt;
  }
  return operand;
}

}  // namespace

std::optional<Product> FindProduct(IntContext& ints, const ir::Module& module, const Nest& nest,
                                   const DeviceInfo& device) {
  if (device.arch != "sm_90a" || nest.tile != nullptr || nest.outer.size() != 2)
    return std::nullopt;
  if (nest.phases.size() < 2 || nest.phases[0].inner.size() != 1) return std::nullopt;
  Product product;
  product.rows = nest.outer[0];
  product.columns = nest.outer[1];
  const IntExpr k = nest.phases[0].inner[0];
  for (const auto& [var, size] :
       {std::pair(product.rows, &product.num_rows),
        std::pair(product.columns, &product.num_columns), std::pair(k, &product.num_k)}) {
    const IntExpr extent = Extent(ints, var);
    if (!extent.is_const() || extent.value() < 1 || extent.value() >= kMostElements) {
      return std::nullopt;
    }
    *size = extent.value();
  }
  if (product.num_columns % kUnit != 0) return std::nullopt;

  // Two loads, each widened and one factor.
  absl::flat_hash_map<ValueId, const Step*> loads;
  ValueId factor = ir::kNoValue;
  const Step *a = nullptr, *b = nullptr;
  for (const Step& step : nest.phases[0].steps) {
    const ir::Inst& inst = *step.inst;
    switch (inst.op) {
      case ScalarOp::kLoad: {
        const DType dtype = module.buffers[inst.buffer].dtype;
        if (dtype != DType::kBF16 && dtype != DType::kF16) return std::nullopt;
        if (!inst.operands.empty() || inst.has_mask || !inst.checks.empty()) return std::nullopt;
        loads[inst.result] = &step;
        break;
      }
      case ScalarOp::kCast: {
        const auto load = loads.find(inst.operands[0]);
        if (load == loads.end() || inst.dtype != DType::kF32) return std::nullopt;
        const Step* const from = load->second;
        loads[inst.result] = from;
        break;
      }
      case ScalarOp::kMul: {
        const auto x = loads.find(inst.operands[0]), y = loads.find(inst.operands[1]);
        if (x == loads.end() || y == loads.end() || inst.dtype != DType::kF32) return std::nullopt;
        a = x->second;
        b = y->second;
        factor = inst.result;
        break;
      }
      case ScalarOp::kReduce:
        if (inst.reduce_kind != ir::ReduceKind::kSum || inst.operands[0] != factor ||
            inst.dtype != DType::kF32) {
          return std::nullopt;
        }
        product.sum = &inst;
        break;
      default:
        return std::nullopt;
    }
  }
  if (a == nullptr || product.sum == nullptr || a->inst->dtype != b->inst->dtype) {
    return std::nullopt;
  }
  if (!ContainsVar(a->index, product.rows)) std::swap(a, b);
  const auto of_a = FindOperand(ints, *a, product.rows, k);
  const auto of_b = FindOperand(ints, *b, product.columns, k);
  if (!of_a || !of_b) return std::nullopt;
  product.a = *of_a;
  product.b = *of_b;
  for (const Step* step : LaterSteps(nest)) {
    const ScalarOp op = step->inst->op;
    if (op == ScalarOp::kReduce || op == ScalarOp::kScan || op == ScalarOp::kSort ||
        ir::IsScatter(*step->inst)) {
      return std::nullopt;
    }
  }
  return product;
}

bool IsFasterThanLibraries(const Product& product, const DeviceInfo& device) {
  constexpr int64_t kFewestRows = 128, kFewestColumns = 128, kLeastDepth = 128;
  if (product.num_rows < kFewestRows || product.num_columns < kFewestColumns ||
      product.num_k < kLeastDepth) {
    return false;
  }
  const auto [fitted, shape] = Ranked(product, ComputeUnits(device))[0];
  return OwnMicroseconds(*shape, product, ComputeUnits(device)) <
         LibraryMicroseconds(product, fitted);
}

Tree ScheduleProduct(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                     const Product& product, const DeviceInfo& device) {
  IntContext& ints = *module.ints;
  Builder builder(module, kernel, nest);
  Tree& tree = builder.tree();
  const auto costs = Ranked(product, ComputeUnits(device));
  const TileShape& shape = *costs[0].second;
  const int64_t stage_bytes = int64_t{shape.rows + shape.columns} * kStep * 2;
  const auto stages =
      static_cast<int>(std::min(kMostStages, (kSharedBytes - kOtherBytes) / stage_bytes));
  tree.reasons.push_back(absl::StrCat("a product on the tensor cores, in ",
                                      Describe(shape, costs[0].first), ", ", stages, " stages"));
  tree.reasons.push_back(absl::StrCat(
      "a library and a kernel for the rest: ",
      RoundedMicroseconds(LibraryMicroseconds(product, costs[0].first)), " us expected"));
  tree.reasons.push_back(absl::StrCat("next best: ", Describe(*costs[1].second, costs[1].first)));
  tree.team = kMultipliers;

  const IntExpr zero = ints.Const(0);
  Block root;
  Block* at = &root;
  const auto add_tiles = [&](IntExpr& begin, int64_t size, int side) {
    const IntExpr extent = ints.Const(size);
    at = &builder.AddSteps(begin, extent, zero, extent, ints.Const(side), Binding::kTask, *at);
    const IntExpr end = ints.Add(begin, side);
    return size % side == 0 ? end : builder.Let(ints.Min(end, extent), extent, *at);
  };
  IntExpr row, column;
  const IntExpr row_end = add_tiles(row, product.num_rows, shape.rows);
  const IntExpr column_end = add_tiles(column, product.num_columns, shape.columns);
  const AllocId tile = builder.Open(
      {DType::kF32, ints.Const(int64_t{shape.rows} * shape.columns), Space::kRegister, {}, false},
      *at);
  const auto window = [&](const ProductOperand& operand, IntExpr side) {
    return Window{operand.buffer, -1, ints.Add(ints.Mul(side, operand.side_stride), operand.first)};
  };
  at->push_back(
      {Micro{MicroKind::kMultiplyTile,
             {shape.rows, shape.columns, stages, shape.turns ? 1 : 0},
             {Window{-1, tile, zero}, window(product.a, row), window(product.b, column)},
             {ints.Sub(row_end, row), ints.Sub(column_end, column), ints.Const(product.num_k),
              ints.Const(product.a.side_stride), ints.Const(product.a.k_stride),
              ints.Const(product.b.side_stride), ints.Const(product.b.k_stride)}}});
  at = &builder.AddLoop({product.rows, row, row_end, Binding::kGroup, kGroupLanes / kLanes}, *at);
  at = &builder.AddLoop({product.columns, column, column_end, Binding::kVector, kGroupLanes}, *at);
  const IntExpr place = ints.Add(ints.Mul(ints.Sub(product.rows, row), shape.columns),
                                 ints.Sub(product.columns, column));
  builder.AddLoad(product.sum->result, DType::kF32, tile, place, *at);
  for (const Step* step : LaterSteps(nest)) builder.AddStep(*step, *at);
  tree.body = std::move(root);
  return std::move(tree);
}

}  // namespace kiln::schedule::ptx
