#include "compiler/schedule/gcu/prices.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/tiles.h"
#include "compiler/schedule/split_sums.h"

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

std::string Prices::KeyOf(size_t operation, int64_t loop, int64_t step, const InL2& in_l2) const {
  std::string key = absl::StrCat(identities_[operation].first, ",", loop, ",", step, ":", sizes_);
  ir::ForEachInst(module_.operations[operation], [&](const ir::Inst& inst) {
    const bool is_access = inst.op == ir::ScalarOp::kLoad || inst.op == ir::ScalarOp::kStore;
    if (is_access) key += in_l2[inst.buffer] ? '1' : '0';
  });
  return key;
}

double Prices::Of(size_t operation, int64_t loop, int64_t step, const InL2& in_l2) {
  const auto [known, added] = known_.try_emplace(KeyOf(operation, loop, step, in_l2), 0);
  if (!added) return known->second;
  ir::Kernel kernel = std::get<ir::Kernel>(module_.operations[operation]);
  if (loop >= 0) {
    std::rotate(kernel.outer.begin(), kernel.outer.begin() + loop, kernel.outer.begin() + loop + 1);
    const ir::IntExpr extent = kernel.outer[0].extent();
    const ir::IntExpr first = module_.ints->NewVar(extent);
    kernel = ForTile(module_, kernel, TileAt(*module_.ints, first, extent, step), {}, first);
  }
  return known->second = SecondsOf(module_, std::move(kernel), in_l2, machine_);
}

Prices::OfSums Prices::SumsOf(size_t operation, size_t inner, int64_t step, const InL2& in_l2) {
  const std::string key = KeyOf(operation, static_cast<int64_t>(inner), step, in_l2);
  const auto [known, added] = known_sums_.try_emplace(key);
  if (!added) return known->second;
  const size_t buffers = module_.buffers.size();
  SplitSums split = Split(module_, std::get<ir::Kernel>(module_.operations[operation]));
  InL2 with_sums = in_l2;
  with_sums.resize(module_.buffers.size(), true);
  std::vector<ir::IntExpr>& loops = split.adds.phases[0].inner;
  std::rotate(loops.begin(), loops.begin() + static_cast<ptrdiff_t>(inner),
              loops.begin() + static_cast<ptrdiff_t>(inner) + 1);
  const ir::IntExpr first = module_.ints->NewVar(loops[0].extent());
  split.adds = ForTile(module_, split.adds, {first, module_.ints->Const(step)}, {}, first);
  OfSums& price = known->second;
  price.tile = SecondsOf(module_, std::move(split.adds), with_sums, machine_);
  price.once = SecondsOf(module_, std::move(split.zeros), with_sums, machine_) +
               SecondsOf(module_, std::move(split.result), with_sums, machine_);
  module_.buffers.resize(buffers);
  return price;
}

}  // namespace kiln::schedule::gcu
