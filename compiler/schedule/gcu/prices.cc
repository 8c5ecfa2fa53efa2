#include "compiler/schedule/gcu/prices.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/tiles.h"

namespace kiln::schedule::gcu {

double SecondsOf(ir::Module& module, ir::Kernel kernel, const InL2& in_l2, const Machine& machine) {
  const absl::StatusOr<Form> form = MakeForm(module, std::move(kernel));
  if (!form.ok()) return std::numeric_limits<double>::infinity();
  const Tiling tiling = ChooseTiling(module, *form, in_l2, machine, machine.TileBytes());
  return CostOf(module, *form, tiling, in_l2, machine).seconds;
}

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
  const auto [known, added] = known_.try_emplace(key, 0);
  if (!added) return known->second;
  ir::Kernel kernel = of;
  if (loop >= 0) {
    std::rotate(kernel.outer.begin(), kernel.outer.begin() + loop, kernel.outer.begin() + loop + 1);
    const ir::IntExpr extent = kernel.outer[0].extent();
    const ir::IntExpr first = module_.ints->NewVar(extent);
    kernel = ForTile(module_, kernel, TileAt(*module_.ints, first, extent, step), {}, first);
  }
  return known->second = SecondsOf(module_, std::move(kernel), in_l2, machine_);
}

}  // namespace kiln::schedule::gcu
