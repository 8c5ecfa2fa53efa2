#include "compiler/schedule/ptx/few_queries.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/ptx/team_plan.h"

namespace kiln::schedule::ptx {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::ScalarOp;

namespace {

constexpr int64_t kKeys = 64;          // of a step
constexpr int64_t kLineElements = 64;  // of 128 bytes, which a box has of each key
constexpr int64_t kUnit = 8;           // elements that begin lines
constexpr int64_t kLeastWidth = 64, kMostWidth = 256, kWidthUnit = 16;
constexpr int64_t kMostShared = 227 << 10;  // of a block, and of all blocks of a multiprocessor
constexpr int kWarps = 4;

bool IsHalf(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16;
}

// "load cast store / ..." of all kernels and their phases.
std::string Operators(const std::vector<const Kernel*>& kernels) {
  std::string out;
  for (const Kernel* kernel : kernels) {
    for (const ir::Phase& phase : kernel->phases) {
      for (const Inst& inst : phase.body) {
        const bool folds = inst.op == ScalarOp::kReduce;
        absl::StrAppend(&out, Info(inst.op).name, folds ? "." : "",
                        folds ? ir::ReduceKindName(inst.reduce_kind) : "", " ");
      }
      absl::StrAppend(&out, "/ ");
    }
  }
  return out;
}

// What lowering makes of an attention: products of queries and keys, scores, weights and their
// rows' factors, products with values, results.
bool IsAttention(const std::vector<const Kernel*>& kernels, bool has_mask, bool narrows) {
  const std::string product = "load cast load cast mul reduce.sum / store / ";
  const std::string none = "load const mul const store / ";
  const std::string first = "load reduce.max / ", more = has_mask ? "const const eq select / " : "";
  const std::string weights =
      absl::StrCat("load sub exp ", narrows ? "cast " : "", "store reduce.sum / ");
  const std::string factor =
      absl::StrCat("const div log add ", has_mask ? "eq select select " : "", "store / ");
  const std::string sums =
      absl::StrCat("load ", narrows ? "cast " : "", "load cast mul reduce.sum / store / ");
  const std::string rest =
      absl::StrCat(first, more, weights, factor, sums, "load load mul cast store / ");
  const std::string found = Operators(kernels);
  if (!has_mask) return found == absl::StrCat(product, none, rest);
  for (const char* mask : {"load select ", "load add ", "load cast add "}) {
    if (found == absl::StrCat(product, "load const mul const ", mask, "store / ", rest)) {
      return true;
    }
  }
  return false;
}

std::vector<const Inst*> AllOf(const Kernel& kernel, ScalarOp op) {
  std::vector<const Inst*> out;
  ForEachInst(kernel, [&](const Inst& inst) {
    if (inst.op == op) out.push_back(&inst);
  });
  return out;
}

// Variables of an attention as FewQueries has it: 0 where there is one.
struct Points {
  IntExpr batch, head, group, query, key, lane;
  IntExpr all_heads;  // number of a query's head
};

class Finder {
 public:
  Finder(ir::Module& module, const std::vector<const Kernel*>& kernels)
      : module_(module), ints_(*module.ints), kernels_(kernels) {}

  std::optional<FewQueries> Run() {
    if (kernels_.size() != 5) return std::nullopt;
    const std::vector<const Inst*> scores = AllOf(*kernels_[1], ScalarOp::kLoad);
    const std::vector<const Inst*> products = AllOf(*kernels_[0], ScalarOp::kLoad);
    if (scores.empty() || scores.size() > 2 || products.size() != 2) return std::nullopt;
    const bool has_mask = scores.size() == 2;
    const DType dtype = DTypeOf(*products[0]);
    if (!IsHalf(dtype) || DTypeOf(*products[1]) != dtype ||
        !IsAttention(kernels_, has_mask, dtype == DType::kBF16) || !AreConnected()) {
      return std::nullopt;
    }
    const Inst& product = *AllOf(*kernels_[0], ScalarOp::kStore)[0];
    const std::vector<IntExpr>& sizes = module_.buffers[product.buffer].sizes;
    const Inst& value = *AllOf(*kernels_[3], ScalarOp::kLoad)[1];
    const Inst& result = *AllOf(*kernels_[4], ScalarOp::kStore)[0];
    if (kernels_[0]->phases[0].inner.size() != 1 || kernels_[3]->phases[0].inner.size() != 1 ||
        sizes.size() != 4 || !sizes[1].is_const() || !sizes[2].is_const() ||
        DTypeOf(value) != dtype || DTypeOf(result) != dtype) {
      return std::nullopt;
    }
    const IntExpr width = kernels_[0]->phases[0].inner[0].extent();
    const IntExpr value_width =
        module_.buffers[AllOf(*kernels_[3], ScalarOp::kStore)[0]->buffer].sizes.back();
    if (!width.is_const() || width != value_width || width.value() % kWidthUnit != 0 ||
        width.value() < kLeastWidth || width.value() > kMostWidth) {
      return std::nullopt;
    }
    FewQueries out;
    out.batches = sizes[0];
    out.keys = sizes[3];
    out.queries = sizes[2].value();
    out.width = width.value();
    const std::vector<const Inst*> constants = AllOf(*kernels_[1], ScalarOp::kConst);
    out.scale = constants[0]->immediate_float;
    const int64_t all_heads = sizes[1].value();
    // As few heads of keys as there are.
    for (out.groups = all_heads; out.groups >= 1; --out.groups) {
      if (all_heads % out.groups != 0) continue;
      out.heads = all_heads / out.groups;
      const Points points = MakePoints(out);
      const auto key = OperandOf(*products[1], points, AtProducts(points));
      const auto values = OperandOf(value, points, AtSums(points));
      if (!key || !values || !key->by_group.is_const(0) || !values->by_group.is_const(0)) continue;
      const auto query = OperandOf(*products[0], points, AtProducts(points));
      const auto to = OperandOf(result, points, AtResult(points));
      if (!query || !to) return std::nullopt;
      out.query = *query;
      out.key = *key;
      out.value = *values;
      out.out = *to;
      if (has_mask) {
        out.mask = OperandOf(*scores[1], points, AtScores(points));
        if (!out.mask) return std::nullopt;
      }
      return IsTaken(out) ? std::optional(out) : std::nullopt;
    }
    return std::nullopt;
  }

 private:
  DType DTypeOf(const Inst& access) const { return module_.buffers[access.buffer].dtype; }

  // Whether each kernel reads what those before it make.
  bool AreConnected() const {
    const auto loads = [&](size_t k, size_t i) {
      return AllOf(*kernels_[k], ScalarOp::kLoad)[i]->buffer;
    };
    const auto stores = [&](size_t k, size_t i) {
      return AllOf(*kernels_[k], ScalarOp::kStore)[i]->buffer;
    };
    return loads(1, 0) == stores(0, 0) && loads(2, 0) == stores(1, 0) &&
           loads(2, 1) == stores(1, 0) && loads(3, 0) == stores(2, 0) &&
           loads(4, 0) == stores(2, 1) && loads(4, 1) == stores(3, 0);
  }

  Points MakePoints(const FewQueries& of) {
    const auto var = [&](IntExpr extent) {
      return extent.is_const(1) ? ints_.Const(0) : ints_.NewVar(extent);
    };
    Points p;
    p.batch = var(of.batches);
    p.head = var(ints_.Const(of.heads));
    p.group = var(ints_.Const(of.groups));
    p.query = var(ints_.Const(of.queries));
    p.key = var(of.keys);
    p.lane = ints_.NewVar(ints_.Const(of.width));
    p.all_heads = ints_.Add(ints_.Mul(p.head, of.groups), p.group);
    return p;
  }

  // Which point a kernel's loops are at, by where it accesses a tensor of [batch, head, query, key
  // or lane].
  using Map = IntContext::VarMap;
  static Map AtAccess(const Inst& access, const Points& p, IntExpr last) {
    Map map;
    const IntExpr points[] = {p.batch, p.all_heads, p.query, last};
    for (size_t i = 0; i < 4; ++i) {
      if (!access.indices[i].is_const()) map[access.indices[i]] = points[i];
    }
    return map;
  }
  Map AtProducts(const Points& p) const {
    Map map = AtAccess(*AllOf(*kernels_[0], ScalarOp::kStore)[0], p, p.key);
    map[kernels_[0]->phases[0].inner[0]] = p.lane;
    return map;
  }
  Map AtScores(const Points& p) const {
    return AtAccess(*AllOf(*kernels_[1], ScalarOp::kStore)[0], p, p.key);
  }
  Map AtSums(const Points& p) const {
    Map map = AtAccess(*AllOf(*kernels_[3], ScalarOp::kStore)[0], p, p.lane);
    map[kernels_[3]->phases[0].inner[0]] = p.key;
    return map;
  }
  Map AtResult(const Points& p) const {
    return AtAccess(*AllOf(*kernels_[4], ScalarOp::kLoad)[1], p, p.lane);
  }

  // Nothing where it moves other than by equal strides.
  std::optional<QueriesOperand> OperandOf(const Inst& access, const Points& p, const Map& at) {
    if (access.has_mask || !access.checks.empty() || ir::IsScatter(access)) return std::nullopt;
    const IntExpr index = ints_.Substitute(
        ir::LinearIndex(ints_, module_.buffers[access.buffer], access.indices), at);
    QueriesOperand operand;
    operand.buffer = access.buffer;
    const std::pair<IntExpr, IntExpr*> strides[] = {
        {p.batch, &operand.by_batch}, {p.head, &operand.by_head}, {p.group, &operand.by_group},
        {p.query, &operand.by_query}, {p.key, &operand.by_key},   {p.lane, &operand.by_lane}};
    Map zeros;
    IntExpr sum = ints_.Const(0);
    for (const auto& [var, by] : strides) {
      *by = var.is_const() ? ints_.Const(0) : ints_.CoefficientOf(index, var);
      if (!*by) return std::nullopt;
      if (!var.is_const()) zeros[var] = ints_.Const(0);
      sum = ints_.Add(sum, ints_.Mul(var, *by));
    }
    operand.first = ints_.Substitute(index, zeros);
    return ints_.Add(operand.first, sum) == index ? std::optional(operand) : std::nullopt;
  }

  bool IsMultiple(IntExpr e, int64_t of) { return ints_.Mod(e, of).is_const(0); }

  // Of keys or values: lines that the tensor memory accelerator takes. What there is one of has any
  // stride.
  bool HasLines(const FewQueries& of, QueriesOperand& operand) {
    if (of.batches.is_const(1)) operand.by_batch = ints_.Const(of.width);
    if (of.heads == 1) operand.by_head = ints_.Const(of.width);
    const auto is_stride = [&](IntExpr by) { return by.range().min > 0 && IsMultiple(by, kUnit); };
    return operand.by_lane.is_const(1) && IsMultiple(operand.first, kUnit) &&
           is_stride(operand.by_key) && is_stride(operand.by_head) && is_stride(operand.by_batch);
  }
  bool HasRows(const QueriesOperand& operand, int64_t unit) {
    return operand.by_lane.is_const(1) && IsMultiple(operand.first, unit) &&
           IsMultiple(operand.by_batch, unit) && IsMultiple(operand.by_head, unit) &&
           IsMultiple(operand.by_group, unit) && IsMultiple(operand.by_query, unit);
  }

  bool IsTaken(FewQueries& of) {
    constexpr int64_t kOfQuery = 2, kOfResult = 4;  // elements that are read and stored at a time
    if (of.rows() > kMostFewQueries || of.keys.is_const(1) || !(of.scale > 0)) return false;
    if (of.mask) {
      const DType dtype = module_.buffers[of.mask->buffer].dtype;
      if (dtype != DType::kBool && !IsHalf(dtype) && dtype != DType::kF32) return false;
    }
    return HasLines(of, of.key) && HasLines(of, of.value) && HasRows(of.query, kOfQuery) &&
           HasRows(of.out, kOfResult);
  }

  ir::Module& module_;
  IntContext& ints_;
  const std::vector<const Kernel*>& kernels_;
};

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Choice {
  QueriesShape shape;
  double microseconds;
};

// Of keys and values.
double Bytes(IntContext& ints, const FewQueries& of) {
  return 2.0 * 2 * static_cast<double>(of.width * of.heads) *
         static_cast<double>(ints.EvaluateAtHints(of.keys) * ints.EvaluateAtHints(of.batches));
}

double LibraryMicroseconds(IntContext& ints, const FewQueries& of) {
  constexpr double kStart = 7, kBytes = 3.06e6;  // a microsecond
  return kStart + Bytes(ints, of) / kBytes;
}

// The fastest first. More blocks for a head's keys read faster, until all multiprocessors are busy;
// where there are more blocks than those, two share one, so that one reads while another begins.
std::vector<Choice> Ranked(IntContext& ints, const FewQueries& of, int units) {
  constexpr double kStart = 2, kOfCluster = .3, kAll = 2.95e6, kOfBlock = 45e3;  // bytes
  constexpr int kMostStages = 16, kFewestStages = 2;
  const int64_t tasks = ints.EvaluateAtHints(of.batches) * of.heads;
  const int64_t steps = CeilDiv(ints.EvaluateAtHints(of.keys), kKeys);
  std::vector<Choice> out;
  for (const int cluster : {1, 2, 4, 8}) {
    if (cluster > 1 && cluster > steps) break;
    const int64_t blocks = tasks * cluster;
    const int resident = blocks > units ? 2 : 1;
    const auto bytes_of = [&](int stages) {
      return QueriesShape::SharedBytes(stages, of.mask_rows(), of.width);
    };
    int stages = kMostStages;
    while (stages > kFewestStages && bytes_of(stages) * resident > kMostShared) --stages;
    if (bytes_of(stages) > kMostShared) continue;
    const int64_t waves = CeilDiv(blocks, int64_t{units} * resident);
    const double of_block = Bytes(ints, of) / static_cast<double>(tasks) *
                            static_cast<double>(CeilDiv(steps, cluster)) /
                            static_cast<double>(steps);
    const double reading = std::max(
        Bytes(ints, of) / kAll,
        of_block *
            static_cast<double>(waves * std::min<int64_t>(resident, CeilDiv(blocks, units))) /
            kOfBlock);
    out.push_back({{stages, cluster}, kStart + (cluster > 1 ? kOfCluster : 0) + reading});
  }
  std::stable_sort(out.begin(), out.end(), [](const Choice& a, const Choice& b) {
    return a.microseconds < b.microseconds;
  });
  return out;
}

std::string Rounded(double microseconds) {
  const auto tenths = static_cast<int64_t>(microseconds * 10 + 0.5);
  return absl::StrCat(tenths / 10, ".", tenths % 10, " us expected");
}

std::string Describe(const Choice& choice) {
  return absl::StrCat(choice.shape.cluster, " blocks for a head's keys (",
                      Rounded(choice.microseconds), ")");
}

}  // namespace

int64_t QueriesShape::SharedBytes(int stages, int64_t mask_rows, int64_t width) {
  constexpr int64_t kLine = 128, kAlignment = 1024, kOfStage = 4 + 16;  // a number, barriers
  constexpr int64_t kOthers = 16;
  const int64_t boxes = 2 * CeilDiv(width, kLineElements);
  const int64_t stage = boxes * kKeys * kLine + mask_rows * kKeys * 4 + kOfStage;
  return stages * stage + kOthers + kAlignment;
}

int64_t FewQueries::mask_rows() const {
  if (!mask) return 0;
  return mask->by_group.is_const(0) && mask->by_query.is_const(0) ? 1 : rows();
}

std::optional<FewQueries> FindFewQueries(ir::Module& module,
                                         const std::vector<const Kernel*>& kernels,
                                         const DeviceInfo& device) {
  if (device.arch != "sm_90a") return std::nullopt;
  return Finder(module, kernels).Run();
}

bool IsFasterThanLibraries(IntContext& ints, const FewQueries& attention,
                           const DeviceInfo& device) {
  const std::vector<Choice> choices = Ranked(ints, attention, ComputeUnits(device));
  return !choices.empty() && choices[0].microseconds < LibraryMicroseconds(ints, attention);
}

Tree ScheduleFewQueries(ir::Module& module, const ir::Repeat& repeat, const FewQueries& attention,
                        const DeviceInfo& device) {
  IntContext& ints = *module.ints;
  const std::vector<Choice> choices = Ranked(ints, attention, ComputeUnits(device));
  const QueriesShape& shape = choices[0].shape;
  Tree tree;
  tree.name = repeat.name;
  tree.origins = repeat.kernels[0].origins;
  tree.team = 32 * kWarps;
  tree.reasons.push_back(absl::StrCat("attention of few queries on the tensor cores, by ",
                                      Describe(choices[0]), ", ", shape.stages, " stages"));
  if (choices.size() > 1) {
    tree.reasons.push_back(absl::StrCat("next best: ", Describe(choices[1])));
  }
  tree.reasons.push_back(
      absl::StrCat("a library: ", Rounded(LibraryMicroseconds(ints, attention))));

  Block* at = &tree.body;
  const auto add_tasks = [&](IntExpr extent) {
    const IntExpr var = ints.NewVar(extent);
    at->push_back({For{var, ints.Const(0), extent, ints.Const(1), Binding::kTask, 1, {}}});
    at = &std::get<For>(at->back().value).body;
    return var;
  };
  const IntExpr batch = add_tasks(attention.batches);
  const IntExpr head = add_tasks(ints.Const(attention.heads));
  const auto window = [&](const QueriesOperand& operand) {
    return Window{operand.buffer, -1,
                  ints.Add(operand.first, ints.Add(ints.Mul(batch, operand.by_batch),
                                                   ints.Mul(head, operand.by_head)))};
  };
  const QueriesOperand &query = attention.query, &out = attention.out;
  Micro micro;
  micro.kind = attention.mask ? MicroKind::kAttendMasked : MicroKind::kAttend;
  micro.constants = {shape.stages, shape.cluster,
                     std::bit_cast<int>(static_cast<float>(attention.scale))};
  micro.windows = {window(out), window(query), window(attention.key), window(attention.value)};
  micro.sizes = {ints.Const(attention.groups),
                 ints.Const(attention.queries),
                 attention.keys,
                 ints.Const(attention.width),
                 out.by_group,
                 out.by_query,
                 query.by_group,
                 query.by_query,
                 attention.key.by_key,
                 attention.value.by_key};
  if (attention.mask) {
    micro.windows.push_back(window(*attention.mask));
    for (const IntExpr by :
         {attention.mask->by_group, attention.mask->by_query, attention.mask->by_key}) {
      micro.sizes.push_back(by);
    }
  }
  at->push_back({std::move(micro)});
  return tree;
}

}  // namespace kiln::schedule::ptx
