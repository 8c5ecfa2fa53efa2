#include "compiler/ir/module.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace kiln::ir {
namespace {

// The product of the sizes where the strides leave no gaps in some order of the dimensions; null
// where they may. Strides of empty tensors count sizes of 0 as 1, one by one or their product, so
// a stride may be any of three products of the sizes inside it.
IntExpr DenseElements(IntContext& ints, const Buffer& buffer) {
  const IntExpr one = ints.Const(1);
  IntExpr elements = one, filled = one;  // of the dimensions found, with 0 as it is and as 1
  std::vector<size_t> left;
  for (size_t i = 0; i < buffer.sizes.size(); ++i) {
    if (!buffer.sizes[i].is_const(1)) left.push_back(i);
  }
  while (!left.empty()) {
    // From the last, for the order in which tensors mostly lie.
    const auto next = std::find_if(left.rbegin(), left.rend(), [&](size_t i) {
      const IntExpr stride = buffer.strides[i];
      return stride == elements || stride == filled || stride == ints.Max(elements, one);
    });
    if (next == left.rend()) return IntExpr();
    elements = ints.Mul(elements, buffer.sizes[*next]);
    filled = ints.Mul(filled, ints.Max(buffer.sizes[*next], one));
    left.erase(std::next(next).base());
  }
  return elements;
}

}  // namespace

absl::Span<const Kernel> KernelsOf(const Operation& operation) {
  if (const auto* kernel = std::get_if<Kernel>(&operation)) return {kernel, 1};
  if (const auto* repeat = std::get_if<Repeat>(&operation)) return repeat->kernels;
  return {};
}

bool AddsUp(const Kernel& kernel) {
  if (kernel.phases.size() != 2 || kernel.phases[0].inner.empty()) return false;
  const std::vector<Inst>& sums = kernel.phases[0].body;
  const auto reduces = [](const Inst& inst) { return inst.op == ScalarOp::kReduce; };
  if (!kernel.phases[1].inner.empty() || !std::any_of(sums.begin(), sums.end(), reduces) ||
      std::any_of(sums.begin(), sums.end(),
                  [](const Inst& inst) { return inst.op == ScalarOp::kStore; })) {
    return false;
  }
  const std::vector<Inst>& body = kernel.phases[1].body;
  return std::any_of(body.begin(), body.end(), [&](const Inst& load) {
    return load.op == ScalarOp::kLoad &&
           std::any_of(body.begin(), body.end(), [&](const Inst& store) {
             return store.op == ScalarOp::kStore && store.buffer == load.buffer;
           });
  });
}

bool IsBetween(const Repeat& repeat, size_t number) {
  return number >= repeat.before && number < repeat.kernels.size() - repeat.after;
}

std::vector<IntExpr> TiledLoops(const Repeat& repeat, size_t number) {
  if (repeat.steps.empty()) return {};
  const Kernel& kernel = repeat.kernels[number];
  const bool is_between = IsBetween(repeat, number);
  const bool adds = is_between && AddsUp(kernel);
  const size_t outer = repeat.steps.size() - (is_between && !adds ? 0 : 1);
  std::vector<IntExpr> loops(kernel.outer.begin(),
                             kernel.outer.begin() + static_cast<ptrdiff_t>(outer));
  if (adds) loops.push_back(kernel.phases[0].inner[0]);
  loops.resize(repeat.steps.size());
  return loops;
}

Repeat OfVersion(const Repeat& repeat, const RepeatVersion& version) {
  Repeat out;
  out.name = repeat.name;
  out.kernels = repeat.kernels;
  if (version.step == 0) return out;
  out.steps = {version.step};
  for (size_t k = 0; k < out.kernels.size(); ++k) {
    const auto loop = out.kernels[k].outer.begin() + version.loops[k];
    std::rotate(out.kernels[k].outer.begin(), loop, loop + 1);
  }
  return out;
}

absl::string_view NameOf(const Operation& operation) {
  if (const auto* kernel = std::get_if<Kernel>(&operation)) return kernel->name;
  if (const auto* repeat = std::get_if<Repeat>(&operation)) return repeat->name;
  return std::get<Library>(operation).origin;
}

std::vector<IntExpr> Module::ContiguousStrides(const std::vector<IntExpr>& sizes) {
  std::vector<IntExpr> strides(sizes.size());
  IntExpr stride = ints->Const(1);
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    // As torch does: a dimension of size 0 counts as 1, so that strides stay positive.
    stride = ints->Mul(stride, ints->Max(sizes[i], ints->Const(1)));
  }
  return strides;
}

bool DoesSame(const Inst& a, const Inst& b) {
  return a.op == b.op && a.dtype == b.dtype && a.operands == b.operands && a.buffer == b.buffer &&
         a.indices == b.indices && a.checks == b.checks && a.has_mask == b.has_mask &&
         a.accumulates == b.accumulates && a.reduce_kind == b.reduce_kind &&
         a.immediate_int == b.immediate_int &&
         std::bit_cast<uint64_t>(a.immediate_float) == std::bit_cast<uint64_t>(b.immediate_float);
}

void SetIdentity(ReduceKind kind, Inst& constant) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const DType dtype = constant.dtype;
  double number = 0;
  switch (kind) {
    case ReduceKind::kProd:
    case ReduceKind::kAll:
      number = 1;
      break;
    case ReduceKind::kMax:
    case ReduceKind::kLogAddExp:
      number = -kInfinity;
      break;
    case ReduceKind::kMin:
      number = kInfinity;
      break;
    default:
      break;
  }
  if (IsFloat(dtype)) {
    constant.immediate_float = number;
  } else if (std::isfinite(number)) {
    constant.immediate_int = static_cast<int64_t>(number);
  } else {
    const int64_t least =
        dtype == DType::kU8 ? 0 : INT64_MIN >> (64 - 8 * static_cast<int>(DTypeSize(dtype)));
    // The greatest integer of a type is the complement of the least; of u8, 255.
    const int64_t greatest = dtype == DType::kU8 ? 255 : ~least;
    constant.immediate_int = number < 0 ? least : greatest;
  }
}

bool IsScatter(const Inst& inst) {
  return inst.op == ScalarOp::kStore && (inst.accumulates || inst.operands.size() > 1);
}

bool WidensBytes(const Module& module, const Kernel& kernel) {
  if (kernel.phases.size() != 1 || !kernel.phases[0].inner.empty()) return false;
  const std::vector<Inst>& body = kernel.phases[0].body;
  if (body.empty() || body.back().op != ScalarOp::kStore) return false;
  return std::all_of(body.begin(), body.end(), [&](const Inst& inst) {
    if (inst.op != ScalarOp::kLoad) {
      return inst.op == ScalarOp::kCast || inst.op == ScalarOp::kStore;
    }
    return !inst.has_mask && module.buffers[inst.buffer].dtype == DType::kI8;
  });
}

bool HasScatter(const Kernel& kernel) {
  return std::any_of(kernel.phases.begin(), kernel.phases.end(), [](const Phase& phase) {
    return std::any_of(phase.body.begin(), phase.body.end(), IsScatter);
  });
}

bool IsOrdered(const Phase& phase) {
  return std::any_of(phase.body.begin(), phase.body.end(), [](const Inst& inst) {
    return inst.op == ScalarOp::kScan || IsScatter(inst);
  });
}

BufferId Module::AddBuffer(Buffer buffer) {
  buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(buffers.size()) - 1;
}

IntExpr NumElements(IntContext& ints, const Buffer& buffer) {
  return ints.Product(buffer.sizes);
}

IntExpr SizeBytes(IntContext& ints, const Buffer& buffer) {
  // Of long products and sums the ranges alone do not tell what holds by meaning.
  const auto bytes = [&](IntExpr elements) {
    const bool known = ints.ProvablyLessEqual(ints.Const(0), elements);
    return ints.Mul(known ? elements : ints.Max(elements, ints.Const(0)), DTypeSize(buffer.dtype));
  };
  if (const IntExpr elements = DenseElements(ints, buffer)) return bytes(elements);
  IntExpr last = ints.Const(0);
  IntExpr nonempty = ints.Const(1);  // 0 where some dimension is empty
  for (size_t i = 0; i < buffer.sizes.size(); ++i) {
    IntExpr size = buffer.sizes[i];
    last = ints.Add(last, ints.Mul(ints.Add(size, -1), buffer.strides[i]));
    nonempty = ints.Mul(nonempty, ints.Min(size, ints.Const(1)));
  }
  return bytes(ints.Mul(ints.Add(last, 1), nonempty));
}

IntExpr LinearIndex(IntContext& ints, const Buffer& buffer, const std::vector<IntExpr>& indices) {
  IntExpr linear = ints.Const(0);
  for (size_t i = 0; i < indices.size(); ++i) {
    linear = ints.Add(linear, ints.Mul(indices[i], buffer.strides[i]));
  }
  return linear;
}

}  // namespace kiln::ir
