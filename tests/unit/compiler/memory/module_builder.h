// Modules by hand: what a kernel computes does not matter to the planner, only what it touches.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/memory/plan_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kiln::memory {

using ir::Buffer;
using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Library;
using ir::Module;
using ir::Phase;
using ir::ScalarOp;

MATCHER(IsOk, "") {
  *result_listener << arg.ToString();
  return arg.ok();
}

struct Builder {
  Module module;

  IntExpr C(int64_t v) { return module.ints->Const(v); }

  BufferId Add(BufferKind kind, std::vector<IntExpr> sizes, DType dtype = DType::kF32) {
    Buffer buffer;
    buffer.name = "b" + std::to_string(module.buffers.size());
    buffer.dtype = dtype;
    buffer.strides = module.ContiguousStrides(sizes);
    buffer.sizes = std::move(sizes);
    buffer.kind = kind;
    return module.AddBuffer(std::move(buffer));
  }
  BufferId Temp(int64_t n) { return Add(BufferKind::kTemp, {C(n)}); }

  static Inst Load(BufferId buffer, std::vector<IntExpr> indices) {
    Inst inst;
    inst.op = ScalarOp::kLoad;
    inst.buffer = buffer;
    inst.indices = std::move(indices);
    return inst;
  }
  static Inst Store(BufferId buffer, std::vector<IntExpr> indices) {
    Inst inst = Load(buffer, std::move(indices));
    inst.op = ScalarOp::kStore;
    return inst;
  }

  // One element of every buffer a point of the loops.
  Kernel& Pointwise(const std::vector<BufferId>& reads, const std::vector<BufferId>& writes) {
    Kernel kernel;
    kernel.name = "k" + std::to_string(module.operations.size());
    for (IntExpr size : module.buffers[writes.at(0)].sizes) {
      kernel.outer.push_back(module.ints->NewVar(size));
    }
    Phase phase;
    for (BufferId b : reads) phase.body.push_back(Load(b, kernel.outer));
    for (BufferId b : writes) phase.body.push_back(Store(b, kernel.outer));
    kernel.phases.push_back(std::move(phase));
    return AddKernel(std::move(kernel));
  }
  Kernel& AddKernel(Kernel kernel) {
    module.operations.emplace_back(std::move(kernel));
    return std::get<Kernel>(module.operations.back());
  }
  Kernel& kernel(int i) { return std::get<Kernel>(module.operations[i]); }

  Plan MustPlan() {
    absl::StatusOr<Plan> plan = PlanMemory(module);
    EXPECT_THAT(plan.status(), IsOk());
    EXPECT_THAT(CheckPlan(module, *plan), IsOk());
    return *plan;
  }
};

}  // namespace kiln::memory
