#include <iterator>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/tileable.h"

namespace kiln::schedule {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;
using ir::ScalarOp;

ir::Repeat MakeRepeat(const Module& module, const Tileable& tileable,
                      const std::vector<int64_t>& steps) {
  ir::Repeat repeat;
  repeat.steps = steps;
  for (size_t k = 0; k < tileable.operations.size(); ++k) {
    Kernel kernel = std::get<Kernel>(module.operations[tileable.operations[k]]);
    std::vector<IntExpr> outer;
    for (size_t i = 0; i < steps.size(); ++i) {
      const IntExpr loop = tileable.loops[i][k];
      if (absl::c_linear_search(kernel.outer, loop)) outer.push_back(loop);
    }
    for (IntExpr var : kernel.outer) {
      if (!absl::c_linear_search(outer, var)) outer.push_back(var);
    }
    kernel.outer = std::move(outer);
    repeat.kernels.push_back(std::move(kernel));
  }
  repeat.windows = tileable.windows;
  for (std::vector<ir::TileWindow>& windows : repeat.windows) windows.resize(steps.size());
  repeat.name = absl::StrCat(repeat.kernels.back().name, "_tiles");
  return repeat;
}

namespace {

// Copies of `loops`, and of `insts` for them.
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

// Makes `kernel` add its sums to a new buffer; appends what makes its zeros and what takes the
// sums.
void SplitSum(Module& module, Kernel& kernel, std::vector<Kernel>& before,
              std::vector<Kernel>& after) {
  const Inst& sum = kernel.phases[0].body.back();
  ir::Buffer buffer;
  buffer.name = absl::StrCat(kernel.name, "_sums");
  buffer.dtype = sum.dtype;
  buffer.kind = BufferKind::kTile;
  for (IntExpr var : kernel.outer) buffer.sizes.push_back(var.extent());
  buffer.strides = module.ContiguousStrides(buffer.sizes);
  const BufferId sums = module.AddBuffer(buffer);
  const auto access = [&](ScalarOp op, ir::ValueId value, const std::vector<IntExpr>& at) {
    Inst inst;
    inst.op = op;
    inst.dtype = sum.dtype;
    inst.buffer = sums;
    inst.indices = at;
    if (op == ScalarOp::kLoad) inst.result = value;
    if (op == ScalarOp::kStore) inst.operands = {value};
    return inst;
  };

  Copier zeros(module, kernel.outer);
  Inst zero;
  zero.dtype = sum.dtype;
  zero.result = 0;
  Kernel make{.name = absl::StrCat(kernel.name, "_zeros"),
              .outer = zeros.loops(),
              .phases = {{{}, {zero, access(ScalarOp::kStore, 0, zeros.loops())}}},
              .origins = kernel.origins,
              .num_values = 1};
  before.push_back(std::move(make));

  Copier results(module, kernel.outer);
  Kernel take{.name = absl::StrCat(kernel.name, "_result"),
              .outer = results.loops(),
              .phases = {{}},
              .origins = kernel.origins,
              .num_values = kernel.num_values};
  take.phases[0].body.push_back(access(ScalarOp::kLoad, sum.result, results.loops()));
  for (size_t p = 1; p < kernel.phases.size(); ++p) {
    for (const Inst& inst : kernel.phases[p].body) {
      take.phases[0].body.push_back(results.Copy(inst));
    }
  }
  after.push_back(std::move(take));

  const ir::ValueId so_far = kernel.num_values++, total = kernel.num_values++;
  Inst add;
  add.op = ScalarOp::kAdd;
  add.dtype = sum.dtype;
  add.operands = {so_far, sum.result};
  add.result = total;
  std::vector<Inst> body = {access(ScalarOp::kLoad, so_far, kernel.outer), std::move(add),
                            access(ScalarOp::kStore, total, kernel.outer)};
  kernel.phases.resize(1);
  kernel.phases.push_back({{}, std::move(body)});
}

}  // namespace

void Replace(Module& module, const Tileable& tileable, ir::Repeat repeat) {
  for (const BufferId buffer : tileable.buffers) module.buffers[buffer].kind = BufferKind::kTile;
  for (const size_t i : tileable.operations) module.operations[i] = ir::Repeat();
  std::vector<Kernel> before, after;
  for (size_t k = 0; k < repeat.kernels.size(); ++k) {
    Kernel& kernel = repeat.kernels[k];
    if (!tileable.sums || absl::c_linear_search(kernel.outer, tileable.loops.back()[k])) continue;
    SplitSum(module, kernel, before, after);
  }
  repeat.before = before.size();
  repeat.after = after.size();
  absl::c_move(repeat.kernels, std::back_inserter(before));
  absl::c_move(after, std::back_inserter(before));
  repeat.kernels = std::move(before);
  module.operations[tileable.operations.back()] = std::move(repeat);
}

}  // namespace kiln::schedule
