#include "compiler/schedule/split_sums.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kiln::schedule {
namespace {

using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;
using ir::ScalarOp;

// Copies of loops, and instructions for the copies.
class Copier {
 public:
  Copier(Module& module, const std::vector<IntExpr>& loops) : ints_(*module.ints) {
    for (IntExpr var : loops) {
      copies_.push_back(ints_.NewVar(var.extent()));
      map_[var] = copies_.back();
    }
  }

  const std::vector<IntExpr>& loops() const { return copies_; }
  Inst Copy(Inst inst) {
    for (IntExpr& index : inst.indices) index = ints_.Substitute(index, map_);
    for (IntExpr& check : inst.checks) check = ints_.Substitute(check, map_);
    return inst;
  }

 private:
  ir::IntContext& ints_;
  std::vector<IntExpr> copies_;
  ir::IntContext::VarMap map_;
};

// A load or store of the sums at these loops.
Inst Access(ScalarOp op, const Inst& sum, ir::BufferId sums, ir::ValueId value,
            const std::vector<IntExpr>& at) {
  Inst inst;
  inst.op = op;
  inst.dtype = sum.dtype;
  inst.buffer = sums;
  inst.indices = at;
  if (op == ScalarOp::kLoad) inst.result = value;
  if (op == ScalarOp::kStore) inst.operands = {value};
  return inst;
}

ir::BufferId AddSums(Module& module, const Kernel& kernel, const Inst& sum, size_t number) {
  ir::Buffer buffer;
  buffer.name = absl::StrCat(kernel.name, "_sums");
  if (number > 0) absl::StrAppend(&buffer.name, number);
  buffer.dtype = sum.dtype;
  buffer.kind = ir::BufferKind::kTile;
  for (IntExpr var : kernel.outer) buffer.sizes.push_back(var.extent());
  buffer.strides = module.ContiguousStrides(buffer.sizes);
  return module.AddBuffer(std::move(buffer));
}

}  // namespace

bool MaySplitSums(const Kernel& kernel) {
  if (kernel.phases.size() < 2 || kernel.phases[0].inner.empty()) return false;
  if (ir::IsOrdered(kernel.phases[0])) return false;
  bool reduces = false;
  for (const Inst& inst : kernel.phases[0].body) {
    if (inst.op == ScalarOp::kStore || inst.op == ScalarOp::kSort) return false;
    if (inst.op != ScalarOp::kReduce) continue;
    reduces = true;
    if (!ir::CombinerOf(inst.reduce_kind)) return false;
  }
  return reduces && std::all_of(kernel.phases.begin() + 1, kernel.phases.end(),
                                [](const ir::Phase& phase) { return phase.inner.empty(); });
}

SplitSums Split(Module& module, const Kernel& kernel) {
  SplitSums split;
  split.adds = kernel;
  split.adds.phases.resize(1);
  ir::Phase add;
  Copier zeros(module, kernel.outer), results(module, kernel.outer);
  split.zeros = {.name = absl::StrCat(kernel.name, "_zeros"),
                 .outer = zeros.loops(),
                 .phases = {{}},
                 .origins = kernel.origins};
  split.result = {.name = absl::StrCat(kernel.name, "_result"),
                  .outer = results.loops(),
                  .phases = {{}},
                  .origins = kernel.origins,
                  .num_values = kernel.num_values};
  size_t number = 0;
  for (const Inst& sum : kernel.phases[0].body) {
    if (sum.op != ScalarOp::kReduce) continue;
    const ir::BufferId sums = AddSums(module, kernel, sum, number++);
    const ir::ValueId first = split.zeros.num_values++;
    Inst identity;
    identity.op = ScalarOp::kConst;
    identity.dtype = sum.dtype;
    identity.result = first;
    ir::SetIdentity(sum.reduce_kind, identity);
    split.zeros.phases[0].body.push_back(std::move(identity));
    split.zeros.phases[0].body.push_back(Access(ScalarOp::kStore, sum, sums, first, zeros.loops()));
    split.result.phases[0].body.push_back(
        Access(ScalarOp::kLoad, sum, sums, sum.result, results.loops()));
    const ir::ValueId so_far = split.adds.num_values++, total = split.adds.num_values++;
    Inst combine;
    combine.op = *ir::CombinerOf(sum.reduce_kind);
    combine.dtype = sum.dtype;
    combine.operands = {so_far, sum.result};
    combine.result = total;
    add.body.push_back(Access(ScalarOp::kLoad, sum, sums, so_far, kernel.outer));
    add.body.push_back(std::move(combine));
    add.body.push_back(Access(ScalarOp::kStore, sum, sums, total, kernel.outer));
  }
  split.adds.phases.push_back(std::move(add));
  for (size_t p = 1; p < kernel.phases.size(); ++p) {
    for (const Inst& inst : kernel.phases[p].body) {
      split.result.phases[0].body.push_back(results.Copy(inst));
    }
  }
  return split;
}

}  // namespace kiln::schedule
