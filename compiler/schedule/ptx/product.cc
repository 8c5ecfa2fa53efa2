#include "compiler/schedule/ptx/product.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/builder.h"
#include "compiler/schedule/ptx/cost.h"
#include "compiler/schedule/ptx/few_rows.h"
#include "compiler/schedule/ptx/team_plan.h"
#include "compiler/schedule/ptx/warp_machine.h"
#include "compiler/schedule/ptx/warp_tiles.h"

namespace kiln::schedule::ptx {

using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

namespace {

constexpr int64_t kUnitBytes = 16;
constexpr int kOctet = 8;  // columns, which a thread finishes at a time, or else one by one
constexpr int64_t kOtherBytes = 18 << 10;  // results on their way, barriers, alignment
constexpr int64_t kMostStages = 8;
constexpr int64_t kMostElements = int64_t{1} << 31;  // along a side: coordinates are int

struct TileShape {
  int rows, columns;
  bool turns;   // each multiplying warpgroup has tiles of its own; else both share one
  int cluster;  // blocks with tiles one below the other, that load what is the same for all once
  // Of time = start + waves * (steps of k * step + store), microseconds; `work`: more of `store`
  // for work on sums of kHeavyWork in place of kLightWork.
  double start, step, store, work;
};
// Fitted to measurements on two H100 (132 multiprocessors) of 34 products with bias and either form
// of gelu: of 68 choices 63 were the fastest of all shapes or within 4 % of it, all within 12 %.
constexpr std::array<TileShape, 23> kShapes = {{
    {128, 256, false, 1, .80, .749, 3.90, .89},  {256, 128, false, 1, .80, .735, 4.10, 1.25},
    {128, 192, false, 1, .80, .533, 3.34, .79},  {128, 144, false, 1, .80, .401, 2.75, .26},
    {128, 112, false, 1, 1.51, .345, 2.30, .10}, {128, 208, false, 1, .80, .638, 2.40, .63},
    {256, 160, false, 1, .80, .840, 5.14, 1.46}, {128, 208, false, 2, 1.17, .613, 3.86, .48},
    {128, 224, false, 2, .85, .627, 4.53, .60},  {128, 192, true, 2, 4.54, .540, 2.25, 1.22},
    {192, 128, true, 1, 3.61, .514, 2.23, 1.28}, {128, 192, true, 1, 2.11, .558, 1.94, 1.62},
    {128, 160, true, 1, 2.22, .475, 1.51, 1.14}, {128, 144, true, 1, 1.89, .408, 1.48, 1.17},
    {128, 128, true, 1, 2.74, .370, .94, 1.13},  {128, 96, true, 1, 3.15, .294, .62, 1.38},
    {128, 80, true, 1, 2.44, .291, .31, .70},    {128, 64, true, 1, 2.50, .185, 1.02, .98},
    {64, 192, true, 1, 3.33, .315, .46, .88},    {64, 128, true, 1, 1.70, .185, 1.88, .09},
    {64, 96, true, 1, 1.72, .171, .99, .52},     {64, 64, true, 1, 2.37, .152, .94, .44},
    {64, 48, true, 1, 2.36, .128, .76, .63},
}};
// Instructions for a sum, by WorkOf, of bias and gelu by tanh and by erf.
constexpr double kLightWork = 16, kHeavyWork = 25;
// For a sum that is stored alone.
constexpr double kRaggedWork = 8;
// Where rows of operands are no whole lines, and no whole sectors, a multiprocessor loads so many
// bytes a microsecond; fitted to the fastest tiles of six such products on an H200.
constexpr double kUnevenLoads = 63e3, kUnalignedLoads = 53e3;
constexpr int64_t kLine = 64, kSector = 16;  // elements of 16 bits

int SumsOf(const TileShape& shape) {
  return SumsOfThread(shape.rows, shape.columns, shape.turns);
}

bool IsRagged(const Product& product) {
  return product.num_columns % kOctet != 0;
}

// Elements from one of what is contiguous to the next.
int64_t Pitch(const ProductOperand& operand) {
  return operand.is_turned() ? operand.k_stride : operand.side_stride;
}

// Instructions, roughly, for what is done with a sum.
double WorkOf(const Nest& nest) {
  double work = 0;
  for (const Step* step : LaterSteps(nest)) {
    switch (step->inst->op) {
      case ScalarOp::kConst:
      case ScalarOp::kStore:
        break;
      case ScalarOp::kExp:
      case ScalarOp::kDiv:
      case ScalarOp::kSqrt:
      case ScalarOp::kRsqrt:
        work += 2;
        break;
      case ScalarOp::kSigmoid:
        work += 4;
        break;
      case ScalarOp::kTanh:
        work += 8;
        break;
      default:
        work += IsElementary(step->inst->op) ? 14 : 1;
    }
  }
  return work;
}

double StepMicroseconds(const TileShape& shape, const Product& p) {
  double loads = 0;  // bytes a microsecond
  for (const ProductOperand* operand : {&p.a, &p.b}) {
    if (Pitch(*operand) % kLine == 0) continue;
    const double found = Pitch(*operand) % kSector == 0 ? kUnevenLoads : kUnalignedLoads;
    loads = loads == 0 ? found : std::min(loads, found);
  }
  if (loads == 0) return shape.step;
  const double bytes = 2.0 * kProductStep * (shape.rows + shape.columns / shape.cluster);
  return std::max(shape.step, bytes / loads);
}

double Microseconds(const TileShape& shape, const Product& p, int units, double step) {
  const int64_t tiles = CeilDiv(p.num_rows, shape.rows * shape.cluster) *
                        CeilDiv(p.num_columns, shape.columns) * shape.cluster;
  const auto waves = static_cast<double>(CeilDiv(tiles, units));
  const double heavy = std::max(0.0, (p.work - kLightWork) / (kHeavyWork - kLightWork));
  return shape.start + waves * (static_cast<double>(CeilDiv(p.num_k, kProductStep)) * step +
                                shape.store + heavy * shape.work);
}

// What is contiguous along its side is loaded by 64 elements of that; results that do not go
// through shared memory, and what is gathered, take registers for places.
bool Fits(const TileShape& shape, const Product& product, int units) {
  if (shape.cluster > units) return false;
  if (product.has_places && SumsOf(shape) > kManySums) return false;
  return !product.b.is_turned() || (shape.columns % kProductStep == 0 && shape.cluster == 1);
}

// The fastest shapes first.
std::vector<std::pair<double, const TileShape*>> Ranked(const Product& product, int units) {
  std::vector<std::pair<double, const TileShape*>> costs;
  for (const TileShape& shape : kShapes) {
    if (!Fits(shape, product, units)) continue;
    costs.emplace_back(Microseconds(shape, product, units, StepMicroseconds(shape, product)),
                       &shape);
  }
  std::stable_sort(costs.begin(), costs.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  return costs;
}

// Of a library's product and a kernel that reads its result and writes another one. Beside the
// kernels of the fit cuBLAS took, without work on sums, 0.88 to 1.2 times what the fit says of the
// best of them (more for small ones of uneven pitch), and eager's kernel 1.5 to 2.5 us and its
// bytes' time.
double LibraryMicroseconds(const Product& product, int units) {
  constexpr double kOverFit = .95, kUneven = 1.08, kLaunch = 1.5;
  constexpr double kCached = 4.5e6, kNotCached = 2.9e6, kCacheBytes = 40e6;  // a microsecond
  // cuBLAS stores whole octets of columns, and torch copies them to rows of others.
  constexpr double kCopied = 1.6e6;
  Product light = product;
  light.work = 0;
  double fitted = 0;
  for (const TileShape& shape : kShapes) {
    if (!Fits(shape, product, units)) continue;
    const double found = Microseconds(shape, light, units, shape.step);
    if (fitted == 0 || found < fitted) fitted = found;
  }
  const bool is_uneven = Pitch(product.a) % kLine != 0 || Pitch(product.b) % kLine != 0;
  const double bytes = 2 * 2.0 * static_cast<double>(product.num_rows * product.num_columns);
  return fitted * kOverFit * (is_uneven ? kUneven : 1) + kLaunch +
         bytes / (IsRagged(product)     ? kCopied
                  : bytes < kCacheBytes ? kCached
                                        : kNotCached);
}

std::string Describe(const TileShape& shape, double microseconds) {
  return absl::StrCat(
      "tiles of ", shape.rows, " x ", shape.columns, shape.turns ? " in turn" : " shared",
      shape.cluster > 1 ? " in clusters of 2 (" : " (", ExpectedText(microseconds), ")");
}

std::optional<ProductOperand> FindOperand(IntContext& ints, const Step& load, IntExpr side,
                                          IntExpr k, DType dtype) {
  const int64_t unit = kUnitBytes / DTypeSize(dtype);
  const IntExpr zero = ints.Const(0);
  const IntExpr first = ints.Substitute(load.index, {{side, zero}, {k, zero}});
  const IntExpr by_side = ints.CoefficientOf(load.index, side);
  const IntExpr by_k = ints.CoefficientOf(load.index, k);
  if (!first.is_const() || !by_side || !by_k || !by_side.is_const() || !by_k.is_const()) {
    return std::nullopt;
  }
  const IntExpr linear = ints.Add(first, ints.Add(ints.Mul(side, by_side), ints.Mul(k, by_k)));
  if (linear != load.index) return std::nullopt;
  ProductOperand operand{load.inst->buffer, first.value(), by_side.value(), by_k.value(), dtype};
  // One row lies anywhere.
  if (Extent(ints, side).is_const(1) && operand.k_stride == 1) {
    operand.side_stride = CeilDiv(Extent(ints, k).value(), unit) * unit;
  }
  if (operand.first < 0 || operand.first % unit != 0) return std::nullopt;
  const auto is_whole = [=](int64_t stride) { return stride > 0 && stride % unit == 0; };
  if (operand.k_stride == 1 ? !is_whole(operand.side_stride)
                            : operand.side_stride != 1 || !is_whole(operand.k_stride)) {
    return std::nullopt;
  }
  return operand;
}

// Whether what comes after the sums takes them one by one.
bool AreSumsFinished(const Nest& nest) {
  return absl::c_none_of(LaterSteps(nest), [](const Step* step) {
    const ScalarOp op = step->inst->op;
    return op == ScalarOp::kReduce || op == ScalarOp::kScan || op == ScalarOp::kSort ||
           ir::IsScatter(*step->inst);
  });
}

// Sets the rest of a product whose weights are unpacked where they are multiplied. REQUIRES: sizes
// are set.
bool FindPackedProduct(IntContext& ints, const ir::Module& module, const Nest& nest, IntExpr k,
                       Product& product) {
  const std::vector<Step>& steps = nest.phases[0].steps;
  if (steps.size() < 3 || steps.back().inst->op != ScalarOp::kReduce) return false;
  std::vector<ir::Inst> body;
  for (const Step& step : steps) body.push_back(*step.inst);
  const ir::Inst& sum = body.back();
  const auto inst_of = [&](ValueId value) {
    return absl::c_find_if(steps, [&](const Step& s) { return s.inst->result == value; });
  };
  const auto factor = inst_of(sum.operands[0]);
  if (sum.reduce_kind != ir::ReduceKind::kSum || sum.dtype != DType::kF32 ||
      factor == steps.end() || factor->inst->op != ScalarOp::kMul) {
    return false;
  }
  std::vector<ValueId> factors = factor->inst->operands;
  for (int i = 0; i < 2 && !product.packed; ++i) {
    std::swap(factors[0], factors[1]);
    product.packed = ir::FindPackedWeights(ints, module, body, factors[1], product.columns, k);
  }
  // Boxes of the first operand are that deep.
  if (!product.packed || product.num_k % kProductStep != 0) return false;
  auto load = inst_of(factors[0]);
  if (load != steps.end() && load->inst->op == ScalarOp::kCast) {
    load = inst_of(load->inst->operands[0]);
  }
  const auto is_plain = [&](const ir::Inst& inst) {
    return inst.op == ScalarOp::kLoad && inst.operands.empty() && inst.checks.empty();
  };
  if (load == steps.end() || !is_plain(*load->inst) || !IsHalf(load->inst->dtype)) return false;
  const DType dtype = load->inst->dtype;
  const auto a = FindOperand(ints, *load, product.rows, k, dtype);
  if (!a || module.buffers[product.packed->scales].dtype != dtype) return false;
  product.a = *a;
  product.b = {product.packed->words, 0, product.num_k, 1, DType::kI32};
  product.sum = steps.back().inst;
  product.work = WorkOf(nest);
  return HasFewRows(product) && AreSumsFinished(nest);
}

// The tile, a micro-kernel, and what is done with its sums.
struct TileCode {
  MicroKind kind;
  int threads, rows, columns;
  std::vector<int> constants;
};

Tree ScheduleTiles(ir::Module& module, Builder& builder, const Nest& nest, const Product& product,
                   const TileCode& code) {
  IntContext& ints = *module.ints;
  Tree& tree = builder.tree();
  tree.team = code.threads;

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
  const IntExpr row_end = add_tiles(row, product.num_rows, code.rows);
  const IntExpr column_end = add_tiles(column, product.num_columns, code.columns);
  const AllocId tile = builder.Open(
      {DType::kF32, ints.Const(int64_t{code.rows} * code.columns), Space::kRegister, {}, false},
      *at);
  const auto window = [&](const ProductOperand& operand, IntExpr side) {
    return Window{operand.buffer, -1, ints.Add(ints.Mul(side, operand.side_stride), operand.first)};
  };
  Micro micro{code.kind,
              code.constants,
              {Window{-1, tile, zero}, window(product.a, row)},
              {ints.Sub(row_end, row), ints.Sub(column_end, column), ints.Const(product.num_k),
               ints.Const(product.a.side_stride), ints.Const(product.a.k_stride)}};
  if (product.packed) {
    constexpr int64_t kOfWord = 8;  // elements
    const int64_t words = product.num_k / kOfWord;
    micro.windows.push_back({product.packed->words, -1, ints.Mul(column, words)});
    micro.windows.push_back({product.packed->scales, -1, ints.Mul(column, 2)});
    micro.sizes.push_back(ints.Const(words));
    micro.sizes.push_back(ints.Const(2 * product.num_columns));
  } else {
    micro.windows.push_back(window(product.b, column));
    micro.sizes.push_back(ints.Const(product.b.side_stride));
    micro.sizes.push_back(ints.Const(product.b.k_stride));
  }
  at->push_back({std::move(micro)});
  at = &builder.AddLoop({product.rows, row, row_end, Binding::kGroup, 1}, *at);
  at = &builder.AddLoop({product.columns, column, column_end, Binding::kVector, kOctet}, *at);
  const IntExpr place = ints.Add(ints.Mul(ints.Sub(product.rows, row), code.columns),
                                 ints.Sub(product.columns, column));
  builder.AddLoad(product.sum->result, DType::kF32, tile, place, *at);
  for (const Step* step : LaterSteps(nest)) builder.AddStep(*step, *at);
  tree.body = std::move(root);
  return std::move(tree);
}

}  // namespace

std::optional<Product> FindProduct(IntContext& ints, const ir::Module& module, const Nest& nest,
                                   const DeviceInfo& device) {
  const bool by_warps = MultipliesByWarps(device);
  if ((device.arch != "sm_90a" && !by_warps) || nest.tile != nullptr) return std::nullopt;
  if (nest.outer.empty() || nest.outer.size() > 2) return std::nullopt;
  if (nest.phases.size() < 2 || nest.phases[0].inner.size() != 1) return std::nullopt;
  Product product;
  product.by_warps = by_warps;
  // The nest has no loop of a single row.
  product.rows = nest.outer.size() == 2 ? nest.outer[0] : ints.NewVar(ints.Const(1));
  product.columns = nest.outer.back();
  const IntExpr k = nest.phases[0].inner[0];
  for (const auto& [var, size] :
       {std::pair(product.rows, &product.num_rows),
        std::pair(product.columns, &product.num_columns), std::pair(k, &product.num_k)}) {
    const IntExpr extent = Extent(ints, var);
    // What warps copy ends some steps past the depth.
    const int64_t most = by_warps ? kMostElements / 2 : kMostElements;
    if (!extent.is_const() || extent.value() < 1 || extent.value() >= most) {
      return std::nullopt;
    }
    *size = extent.value();
  }
  if (!by_warps && FindPackedProduct(ints, module, nest, k, product)) return product;
  // Two loads, each widened and one factor.
  absl::flat_hash_map<ValueId, const Step*> loads;
  ValueId factor = ir::kNoValue;
  const Step *a = nullptr, *b = nullptr;
  for (const Step& step : nest.phases[0].steps) {
    const ir::Inst& inst = *step.inst;
    switch (inst.op) {
      case ScalarOp::kLoad: {
        const DType dtype = module.buffers[inst.buffer].dtype;
        if (!IsHalf(dtype) && dtype != DType::kI8) return std::nullopt;
        if (!inst.operands.empty() || inst.has_mask || !inst.checks.empty()) return std::nullopt;
        loads[inst.result] = &step;
        break;
      }
      case ScalarOp::kCast: {
        const auto load = loads.find(inst.operands[0]);
        if (load == loads.end()) return std::nullopt;
        // Any of these has all numbers of 8 bits.
        if (inst.dtype != DType::kF32 &&
            !(IsHalf(inst.dtype) && load->second->inst->dtype == DType::kI8)) {
          return std::nullopt;
        }
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
  if (a == nullptr || product.sum == nullptr) return std::nullopt;
  if (!ContainsVar(b->index, product.columns)) std::swap(a, b);
  const auto dtype_of = [&](const Step& load) { return module.buffers[load.inst->buffer].dtype; };
  const auto of_a = FindOperand(ints, *a, product.rows, k, dtype_of(*a));
  const auto of_b = FindOperand(ints, *b, product.columns, k, dtype_of(*b));
  if (!of_a || !of_b || !IsHalf(of_a->dtype)) return std::nullopt;
  product.a = *of_a;
  product.b = *of_b;
  if (IsRagged(product) && HasFewRows(product)) return std::nullopt;
  if (of_b->dtype != of_a->dtype && !(of_b->dtype == DType::kI8 && HasFewRows(product))) {
    return std::nullopt;
  }
  product.work = WorkOf(nest) + (IsRagged(product) ? kRaggedWork : 0);
  product.has_places = absl::c_any_of(LaterSteps(nest), [&](const Step* step) {
    const ir::Inst& inst = *step->inst;
    return (inst.op == ScalarOp::kStore && DTypeSize(module.buffers[inst.buffer].dtype) > 2) ||
           (inst.op == ScalarOp::kLoad && NumIndirect(inst) > 0);
  });
  if (!AreSumsFinished(nest)) return std::nullopt;
  return product;
}

bool IsFasterThanLibraries(const Product& product, bool goes_on, const DeviceInfo& device) {
  if (HasFewRows(product)) return AreFewRowsFaster(product, goes_on, ComputeUnits(device));
  if (!goes_on && !IsRagged(product)) return false;
  constexpr int64_t kFewestRows = 128, kFewestColumns = 128, kLeastDepth = 128;
  if (product.num_rows < kFewestRows || product.num_columns < kFewestColumns ||
      product.num_k < kLeastDepth) {
    return false;
  }
  if (product.by_warps) return AreWarpTilesFaster(product, device);
  const int units = ComputeUnits(device);
  return Ranked(product, units)[0].first < LibraryMicroseconds(product, units);
}

Tree ScheduleProduct(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                     const Product& product, const DeviceInfo& device) {
  Builder builder(module, kernel, nest);
  Tree& tree = builder.tree();
  const int units = ComputeUnits(device);
  if (product.by_warps) {
    const WarpTiles tiles = ChooseWarpTiles(product, device, tree.reasons);
    return ScheduleTiles(
        module, builder, nest, product,
        {MicroKind::kMultiplyWarps, tiles.Threads(), tiles.rows, tiles.columns, tiles.Constants()});
  }
  if (HasFewRows(product)) {
    const RowsShape shape = ChooseRowsShape(product, units, device.rank, tree.reasons);
    return ScheduleTiles(
        module, builder, nest, product,
        {MicroKind::kMultiplyRows, kMultipliers, shape.rows, shape.columns, shape.Constants()});
  }
  const auto costs = Ranked(product, units);
  const auto& [time, chosen] = costs[std::min<size_t>(device.rank, costs.size() - 1)];
  const TileShape& shape = *chosen;
  const int64_t stage_bytes = int64_t{shape.rows + shape.columns} * kProductStep * 2;
  const auto stages =
      static_cast<int>(std::min(kMostStages, (kMostShared - kOtherBytes) / stage_bytes));
  tree.reasons.push_back(absl::StrCat("a product on the tensor cores, in ", Describe(shape, time),
                                      ", ", stages, " stages"));
  tree.reasons.push_back(absl::StrCat("a library and a kernel for the rest: ",
                                      ExpectedText(LibraryMicroseconds(product, units))));
  tree.reasons.push_back(absl::StrCat("next best: ", Describe(*costs[1].second, costs[1].first)));
  return ScheduleTiles(module, builder, nest, product,
                       {MicroKind::kMultiplyTile,
                        kMultipliers,
                        shape.rows,
                        shape.columns,
                        {shape.rows, shape.columns, stages, shape.turns ? 1 : 0, shape.cluster}});
}

}  // namespace kiln::schedule::ptx
