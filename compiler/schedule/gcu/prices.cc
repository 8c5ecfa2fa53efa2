#include "compiler/schedule/gcu/prices.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/tiles.h"

namespace kiln::schedule::gcu {

void Prices::SetSizes(const std::vector<ir::IntExpr>& symbols, const Bucket& bucket) {
  sizes_.clear();
  for (size_t i = 0; i < symbols.size(); ++i) {
    absl::StrAppend(&sizes_, symbols[i].id(), "=", bucket.typical[i], ",");
  }
}

double Prices::Of(size_t operation, int64_t loop, int64_t step, const InL2& in_l2) {
  const auto& of = std::get<ir::Kernel>(module_.operations[operation]);
  std::string key = absl::StrCat(identities_[operation].first, ",", loop, ",", step, ":", sizes_);
  ir::ForEachInst(of, [&](const ir::Inst& inst) {
    const bool is_access = inst.op == ir::ScalarOp::kLoad || inst.op == ir::ScalarOp::kStore;
    if (is_access) key += in_l2[inst.buffer] ? '1' : '0';
  });
  const auto [known, added] = known_.try_emplace(key, std::numeric_limits<double>::infinity());
  if (!added) return known->second;
  ir::Kernel kernel = of;
  if (loop >= 0) {
    std::rotate(kernel.outer.begin(), kernel.outer.begin() + loop, kernel.outer.begin() + loop + 1);
    const ir::IntExpr extent = kernel.outer[0].extent();
    const ir::IntExpr first = module_.ints->NewVar(extent);
    kernel = ForTile(module_, kernel, TileAt(*module_.ints, first, extent, step), {}, first);
  }
  const absl::StatusOr<Form> form = MakeForm(module_, std::move(kernel));
  if (!form.ok()) return known->second;
  // As much as launches give a tile at first.
  const int64_t l1_bytes = machine_.l1_bytes * 3 / 4;
  const Tiling tiling = ChooseTiling(module_, *form, in_l2, machine_, l1_bytes);
  return known->second = CostOf(module_, *form, tiling, in_l2, machine_).seconds;
}

}  // namespace kiln::schedule::gcu
