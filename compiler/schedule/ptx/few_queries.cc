#include "compiler/schedule/ptx/few_queries.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/ptx/attention_form.h"
#include "compiler/schedule/ptx/cost.h"
#include "compiler/schedule/ptx/team_plan.h"

namespace kiln::schedule::ptx {

using ir::IntContext;
using ir::IntExpr;

namespace {

constexpr int64_t kKeys = 64;          // of a step
constexpr int64_t kLineElements = 64;  // of 128 bytes, which a box has of each key
constexpr int64_t kUnit = 8;           // elements that begin lines
constexpr int64_t kLeastWidth = 64, kMostWidth = 256, kWidthUnit = 16;
constexpr int kWarps = 4;

// Makes an attention of few queries of `found`, and says whether it is one.
class Chooser {
 public:
  Chooser(const ir::Module& module, const Attention& found)
      : module_(module), ints_(*module.ints), found_(found) {}

  std::optional<FewQueries> Run() {
    if (found_.is_causal || found_.log_sums || !found_.heads.is_const() ||
        !found_.queries.is_const() || found_.width != found_.value_width ||
        found_.width % kWidthUnit != 0 || found_.width < kLeastWidth || found_.width > kMostWidth) {
      return std::nullopt;
    }
    const DType dtype = DTypeOf(found_.query);
    if (!IsHalf(dtype) || DTypeOf(found_.key) != dtype || DTypeOf(found_.value) != dtype ||
        DTypeOf(found_.result) != dtype) {
      return std::nullopt;
    }
    of_.batches = found_.batches;
    of_.keys = found_.keys;
    of_.groups = found_.of_key;
    of_.heads = found_.heads.value() / of_.groups;
    of_.queries = found_.queries.value();
    of_.width = found_.width;
    of_.scale = found_.scale;
    of_.query = OfQueries(found_.query);
    of_.out = OfQueries(found_.result);
    of_.key = OfKeys(found_.key);
    of_.value = OfKeys(found_.value);
    if (found_.mask) {
      of_.mask = OfQueries(*found_.mask);
      std::swap(of_.mask->by_key, of_.mask->by_lane);
    }
    return IsTaken() ? std::optional(of_) : std::nullopt;
  }

 private:
  DType DTypeOf(const AttentionOperand& operand) const {
    return module_.buffers[operand.buffer].dtype;
  }
  IntExpr UnlessOne(int64_t count, IntExpr stride) { return count == 1 ? ints_.Const(0) : stride; }

  QueriesOperand OfQueries(const AttentionOperand& operand) {
    return {operand.buffer,
            operand.first,
            operand.by_batch,
            UnlessOne(of_.heads, ints_.Mul(operand.by_head, of_.groups)),
            UnlessOne(of_.groups, operand.by_head),
            operand.by_row,
            ints_.Const(0),
            operand.by_lane};
  }
  QueriesOperand OfKeys(const AttentionOperand& operand) {
    const IntExpr zero = ints_.Const(0);
    return {operand.buffer, operand.first, operand.by_batch, operand.by_head,
            zero,           zero,          operand.by_row,   operand.by_lane};
  }

  bool IsMultiple(IntExpr e, int64_t of) { return ints_.Mod(e, of).is_const(0); }

  // Of keys or values: lines that the tensor memory accelerator takes. What there is one of has any
  // stride.
  bool HasLines(QueriesOperand& operand) {
    if (of_.batches.is_const(1)) operand.by_batch = ints_.Const(of_.width);
    if (of_.heads == 1) operand.by_head = ints_.Const(of_.width);
    const auto is_stride = [&](IntExpr by) { return by.range().min > 0 && IsMultiple(by, kUnit); };
    return operand.by_lane.is_const(1) && IsMultiple(operand.first, kUnit) &&
           is_stride(operand.by_key) && is_stride(operand.by_head) && is_stride(operand.by_batch);
  }
  bool HasRows(const QueriesOperand& operand, int64_t unit) {
    return operand.by_lane.is_const(1) && IsMultiple(operand.first, unit) &&
           IsMultiple(operand.by_batch, unit) && IsMultiple(operand.by_head, unit) &&
           IsMultiple(operand.by_group, unit) && IsMultiple(operand.by_query, unit);
  }

  bool IsTaken() {
    constexpr int64_t kOfQuery = 2, kOfResult = 4;  // elements that are read and stored at a time
    if (of_.rows() > kMostFewQueries || of_.keys.is_const(1) || !(of_.scale > 0)) return false;
    if (of_.mask) {
      const DType dtype = module_.buffers[of_.mask->buffer].dtype;
      if (dtype != DType::kBool && !IsHalf(dtype) && dtype != DType::kF32) return false;
    }
    return HasLines(of_.key) && HasLines(of_.value) && HasRows(of_.query, kOfQuery) &&
           HasRows(of_.out, kOfResult);
  }

  const ir::Module& module_;
  IntContext& ints_;
  const Attention& found_;
  FewQueries of_;
};

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

std::string Describe(const Choice& choice) {
  return absl::StrCat(choice.shape.cluster, " blocks for a head's keys (",
                      ExpectedText(choice.microseconds), ")");
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

std::optional<FewQueries> AsFewQueries(const ir::Module& module, const Attention& attention,
                                       const DeviceInfo& device) {
  if (device.arch != "sm_90a") return std::nullopt;
  return Chooser(module, attention).Run();
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
  const Choice& chosen = choices[std::min<size_t>(device.rank, choices.size() - 1)];
  const QueriesShape& shape = chosen.shape;
  Tree tree;
  tree.name = repeat.name;
  tree.origins = repeat.kernels[0].origins;
  tree.team = 32 * kWarps;
  tree.reasons.push_back(absl::StrCat("attention of few queries on the tensor cores, by ",
                                      Describe(chosen), ", ", shape.stages, " stages"));
  if (choices.size() > 1) {
    tree.reasons.push_back(absl::StrCat("next best: ", Describe(choices[1])));
  }
  tree.reasons.push_back(
      absl::StrCat("a library: ", ExpectedText(LibraryMicroseconds(ints, attention))));

  Block* at = &tree.body;
  const IntExpr batch = AddTasks(ints, attention.batches, 1, at);
  const IntExpr head = AddTasks(ints, ints.Const(attention.heads), 1, at);
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
