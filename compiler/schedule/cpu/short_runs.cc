#include "compiler/schedule/cpu/short_runs.h"

#include "compiler/schedule/cpu/contraction_plan.h"

namespace kiln::schedule::cpu {
namespace {

using ir::IntExpr;

// Shorter ones are as well gathered.
constexpr int64_t kShortestRun = 4;

}  // namespace

std::optional<ShortRuns> FindShortRuns(ir::IntContext& ints, const std::vector<const Step*>& steps,
                                       const std::vector<IntExpr>& lanes,
                                       const std::vector<IntExpr>& k, DType type) {
  const Step* load = PlainLoad(steps);
  if (load == nullptr || load->inst->dtype != type || lanes.empty()) return std::nullopt;
  ShortRuns out;
  out.load = load;
  out.lane_stride = FlatStride(ints, load->index, lanes);
  if (!out.lane_stride || !out.lane_stride.is_const() || out.lane_stride.value() < kShortestRun) {
    return std::nullopt;
  }
  const auto is_run = [&](const std::vector<IntExpr>& loops) {
    const IntExpr stride = FlatStride(ints, load->index, loops);
    return stride && stride.is_const(1);
  };
  IntExpr after = ints.Const(1);  // points of the loops inside of the run
  size_t end = k.size();
  while (end > 0 && !is_run({k[end - 1]})) after = ints.Mul(after, Extent(ints, k[--end]));
  size_t begin = end;
  while (begin > 0 && is_run({k.begin() + static_cast<ptrdiff_t>(begin) - 1,
                              k.begin() + static_cast<ptrdiff_t>(end)})) {
    --begin;
  }
  out.run.assign(k.begin() + static_cast<ptrdiff_t>(begin),
                 k.begin() + static_cast<ptrdiff_t>(end));
  out.others.assign(k.begin(), k.begin() + static_cast<ptrdiff_t>(begin));
  out.others.insert(out.others.end(), k.begin() + static_cast<ptrdiff_t>(end), k.end());
  out.run_stride = after;
  const IntExpr length = NumPoints(ints, out.run);
  if (!length.is_const() || length.value() < kShortestRun) return std::nullopt;
  return out;
}

}  // namespace kiln::schedule::cpu
