// Runs the flat program of a kernel.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

int64_t FloorDivide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<int64_t>(-static_cast<uint64_t>(a));
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

int64_t FloorModulo(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

}  // namespace

Lane ReduceIdentity(ReduceKind kind, DType dtype) {
  Inst constant{.op = ScalarOp::kConst, .dtype = dtype};
  SetIdentity(kind, constant);
  return ImmediateLane(constant);
}

bool Beats(bool is_float, bool greatest, Lane a, Lane best) {
  if (!is_float) return greatest ? a.i > best.i : a.i < best.i;
  if (std::isnan(best.f)) return false;
  return std::isnan(a.f) || (greatest ? a.f > best.f : a.f < best.f);
}

double LogAddExp(double a, double b) {
  if (a == b && std::isinf(a)) return a;
  const double greater = a > b ? a : b;
  return greater + std::log1p(std::exp(-std::abs(a - b)));  // of NaN, NaN
}

Lane Fold(ReduceKind kind, DType dtype, Lane acc, Lane v) {
  if (IsFloat(dtype)) {
    switch (kind) {
      case ReduceKind::kProd:
        return {.f = acc.f * v.f};
      case ReduceKind::kMax:
        return {.f = std::isnan(acc.f) || acc.f > v.f ? acc.f : v.f};
      case ReduceKind::kMin:
        return {.f = std::isnan(acc.f) || acc.f < v.f ? acc.f : v.f};
      case ReduceKind::kLogAddExp:
        return {.f = LogAddExp(acc.f, v.f)};
      default:
        return {.f = acc.f + v.f};
    }
  }
  const auto a = static_cast<uint64_t>(acc.i), b = static_cast<uint64_t>(v.i);
  switch (kind) {
    case ReduceKind::kProd:
      return {.i = WrapInteger(dtype, static_cast<int64_t>(a * b))};
    case ReduceKind::kMax:
      return {.i = std::max(acc.i, v.i)};
    case ReduceKind::kMin:
      return {.i = std::min(acc.i, v.i)};
    case ReduceKind::kAny:
      return {.i = acc.i | v.i};
    case ReduceKind::kAll:
      return {.i = acc.i & v.i};
    default:
      return {.i = WrapInteger(dtype, static_cast<int64_t>(a + b))};
  }
}

ProgramRunner::ProgramRunner(const KernelProgram& program, std::vector<Storage>& storage)
    : program_(program),
      storage_(storage),
      registers_(static_cast<size_t>(program.num_registers) * kLanes) {
  for (const KernelProgram::Constant& c : program.constants) Broadcast(c.reg, c.value);
  for (const LoopVar& var : program.points) Broadcast(var.reg, {.i = 0});
}

void ProgramRunner::Broadcast(int reg, Lane value) {
  std::fill_n(Register(reg), kLanes, value);
}

void ProgramRunner::SetPoint(int number, int64_t value) {
  Broadcast(program_.points[number].reg, {.i = value});
}

absl::Status ProgramRunner::RunAll() {
  std::vector<int64_t> at(program_.points.size(), 0);
  for (const LoopVar& var : program_.points) {
    if (var.extent == 0) return absl::OkStatus();
  }
  while (true) {
    for (const Nest& nest : program_.nests) KILN_RETURN_IF_ERROR(RunNest(nest));
    size_t i = at.size();
    for (; i > 0; --i) {
      const LoopVar& var = program_.points[i - 1];
      at[i - 1] = at[i - 1] + 1 < var.extent ? at[i - 1] + 1 : 0;
      if (var.used) Broadcast(var.reg, {.i = at[i - 1]});
      if (at[i - 1] != 0) break;
    }
    if (i == 0) return absl::OkStatus();
  }
}

absl::Status ProgramRunner::RunNest(const Nest& nest) {
  RunUniform(nest);
  accumulators_.clear();
  for (const Step& step : nest.reductions) {
    accumulators_.push_back({ReduceIdentity(step.reduce_kind, step.operand_dtype), -1});
  }
  KILN_RETURN_IF_ERROR(RunRange(nest, 0, nest.points));
  for (const Step& step : nest.reductions) {
    const Accumulator& a = accumulators_[step.accumulator];
    if (step.kind == StepKind::kScan) continue;
    const bool is_arg = IsArg(step.reduce_kind);
    Broadcast(step.dst, is_arg ? Lane{.i = std::max<int64_t>(a.best, 0)} : a.value);
  }
  for (int reg : nest.broadcast) Broadcast(reg, Register(reg)[0]);
  return absl::OkStatus();
}

void ProgramRunner::RunUniform(const Nest& nest) {
  const int lanes = static_cast<int>(std::min<int64_t>(nest.points, kLanes));
  for (const Step& step : nest.uniform) RunIndexStep(step, lanes);
}

absl::Status ProgramRunner::RunRange(const Nest& nest, int64_t begin, int64_t end, int sink_reg,
                                     double* sink) {
  for (int64_t at = begin; at < end; at += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(end - at, kLanes));
    FillVars(nest, at, lanes);
    for (const Step& step : nest.steps) KILN_RETURN_IF_ERROR(RunStep(step, at, lanes));
    if (sink == nullptr) continue;
    const Lane* from = Register(sink_reg);
    for (int i = 0; i < lanes; ++i) *sink++ = from[i].f;
  }
  return absl::OkStatus();
}

// The values of the loop variables at points begin, begin + 1, ... of the nest's row-major order.
void ProgramRunner::FillVars(const Nest& nest, int64_t begin, int lanes) {
  int64_t period = 1;  // points for which the variable keeps its value
  for (size_t v = nest.vars.size(); v-- > 0;) {
    const LoopVar& var = nest.vars[v];
    if (var.used) {
      Lane* out = Register(var.reg);
      int64_t value = begin / period % var.extent;
      int64_t left = period - begin % period;
      for (int i = 0; i < lanes;) {
        const int run = static_cast<int>(std::min<int64_t>(left, lanes - i));
        for (const int stop = i + run; i < stop; ++i) out[i].i = value;
        left = period;
        if (++value == var.extent) value = 0;
      }
    }
    period *= var.extent;
  }
}

void ProgramRunner::RunIndexStep(const Step& step, int lanes) {
  Lane* d = Register(step.dst);
  const Lane* a = Register(step.src[0]);
  const Lane* b = Register(step.src[1]);
  // Unsigned: an index that overflows is caught by the bounds of the buffer.
  using U = uint64_t;
  switch (step.kind) {
    case StepKind::kIntAdd:
      for (int i = 0; i < lanes; ++i) d[i].i = static_cast<int64_t>(U(a[i].i) + U(b[i].i));
      break;
    case StepKind::kIntMul:
      for (int i = 0; i < lanes; ++i) d[i].i = static_cast<int64_t>(U(a[i].i) * U(b[i].i));
      break;
    case StepKind::kIntFloorDiv:
      for (int i = 0; i < lanes; ++i) d[i].i = FloorDivide(a[i].i, b[i].i);
      break;
    case StepKind::kIntMod:
      for (int i = 0; i < lanes; ++i) d[i].i = FloorModulo(a[i].i, b[i].i);
      break;
    case StepKind::kIntMin:
      for (int i = 0; i < lanes; ++i) d[i].i = std::min(a[i].i, b[i].i);
      break;
    default:
      for (int i = 0; i < lanes; ++i) d[i].i = std::max(a[i].i, b[i].i);
  }
}

absl::Status ProgramRunner::RunStep(const Step& step, int64_t begin, int lanes) {
  switch (step.kind) {
    case StepKind::kScalar:
      RunScalarOp(step, Register(step.dst), Register(step.src[0]),
                  step.src[1] < 0 ? nullptr : Register(step.src[1]),
                  step.src[2] < 0 ? nullptr : Register(step.src[2]), lanes);
      return step.op == ScalarOp::kNonzero ? CheckDivisors(Register(step.dst), lanes)
                                           : absl::OkStatus();
    case StepKind::kLoad:
      return Load(step, lanes);
    case StepKind::kStore:
      return Store(step, lanes);
    case StepKind::kReduce:
      Reduce(step, begin, lanes);
      return absl::OkStatus();
    case StepKind::kScan:
      Scan(step, lanes);
      return absl::OkStatus();
    case StepKind::kUnsorted:
    case StepKind::kSorted:
      Sort(step, begin, lanes);
      return absl::OkStatus();
    case StepKind::kResult: {
      Lane* d = Register(step.dst);
      for (int i = 0; i < lanes; ++i) d[i].f = result_[begin + i];
      return absl::OkStatus();
    }
    default:
      RunIndexStep(step, lanes);
      return absl::OkStatus();
  }
}

void ProgramRunner::Sort(const Step& step, int64_t begin, int lanes) {
  if (step.kind == StepKind::kUnsorted) {
    if (begin == 0) sorted_.clear();
    for (int i = 0; i < lanes; ++i) sorted_.push_back(Register(step.src[0])[i].i);
    return;
  }
  if (begin == 0) std::sort(sorted_.begin(), sorted_.end());
  for (int i = 0; i < lanes; ++i) Register(step.dst)[i].i = sorted_[begin + i];
}

absl::Status ProgramRunner::CheckIndices(const Step& step, int lanes) {
  const Lane* mask = step.mask < 0 ? nullptr : Register(step.mask);
  for (const IndexCheck& check : step.checks) {
    const Lane* index = Register(check.reg);
    for (int i = 0; i < lanes; ++i) {
      const bool inside = index[i].i >= 0 && index[i].i < check.extent;
      if (inside || (mask != nullptr && mask[i].i == 0)) continue;
      return absl::OutOfRangeError(absl::StrCat(
          "index ", index[i].i, " is out of bounds for a dimension of size ", check.extent));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDivisors(const Lane* divisors, int lanes) {
  for (int i = 0; i < lanes; ++i) {
    if (divisors[i].i == 0) return absl::OutOfRangeError("an integer is divided by zero");
  }
  return absl::OkStatus();
}

namespace {
absl::Status OutsideBuffer(int64_t index, size_t size) {
  return absl::InternalError(
      absl::StrCat("an access to element ", index, " of a buffer of ", size, " elements"));
}
}  // namespace

absl::Status ProgramRunner::Load(const Step& step, int lanes) {
  KILN_RETURN_IF_ERROR(CheckIndices(step, lanes));
  const Storage& buffer = storage_[step.buffer];
  const uint64_t size = buffer.size();
  const Lane* index = Register(step.src[0]);
  Lane* d = Register(step.dst);
  if (step.mask < 0) {
    for (int i = 0; i < lanes; ++i) {
      if (static_cast<uint64_t>(index[i].i) >= size) return OutsideBuffer(index[i].i, size);
      d[i] = buffer[index[i].i];
    }
    return absl::OkStatus();
  }
  const Lane* mask = Register(step.mask);
  for (int i = 0; i < lanes; ++i) {
    if (mask[i].i == 0) {
      d[i] = step.otherwise;
    } else if (static_cast<uint64_t>(index[i].i) >= size) {
      return OutsideBuffer(index[i].i, size);
    } else {
      d[i] = buffer[index[i].i];
    }
  }
  return absl::OkStatus();
}

absl::Status ProgramRunner::Store(const Step& step, int lanes) {
  KILN_RETURN_IF_ERROR(CheckIndices(step, lanes));
  Storage& buffer = storage_[step.buffer];
  const uint64_t size = buffer.size();
  const Lane* index = Register(step.src[0]);
  const Lane* value = Register(step.src[1]);
  for (int i = 0; i < lanes; ++i) {
    if (static_cast<uint64_t>(index[i].i) >= size) return OutsideBuffer(index[i].i, size);
    Lane& element = buffer[index[i].i];
    element = step.accumulates ? Fold(step.reduce_kind, step.dtype, element, value[i]) : value[i];
  }
  return absl::OkStatus();
}

void ProgramRunner::Scan(const Step& step, int lanes) {
  Lane& acc = accumulators_[step.accumulator].value;
  const Lane* v = Register(step.src[0]);
  Lane* d = Register(step.dst);
  for (int i = 0; i < lanes; ++i) d[i] = acc = Fold(step.reduce_kind, step.dtype, acc, v[i]);
}

void ProgramRunner::Reduce(const Step& step, int64_t begin, int lanes) {
  Accumulator& acc = accumulators_[step.accumulator];
  const Lane* v = Register(step.src[0]);
  const bool is_float = IsFloat(step.operand_dtype);
  if (step.reduce_kind == ReduceKind::kSum && is_float) {
    double sum = acc.value.f;
    for (int i = 0; i < lanes; ++i) sum += v[i].f;
    acc.value.f = sum;
    return;
  }
  if (!IsArg(step.reduce_kind)) {
    for (int i = 0; i < lanes; ++i) {
      acc.value = Fold(step.reduce_kind, step.operand_dtype, acc.value, v[i]);
    }
    return;
  }
  const bool greatest = step.reduce_kind == ReduceKind::kArgMax;
  for (int i = 0; i < lanes; ++i) {
    if (acc.best >= 0 && !Beats(is_float, greatest, v[i], acc.value)) continue;
    acc.value = v[i];
    acc.best = begin + i;
  }
}

}  // namespace kiln::ir
