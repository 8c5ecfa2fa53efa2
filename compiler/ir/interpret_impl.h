// For interpreters (interpret*.cc, compiler/schedule/interpret.cc): kernels as flat programs over
// vectors of lanes.
//
// A nest of loops is run as one linear range of points, kLanes of them at a time: each step of the
// program handles a whole vector of lanes, so the cost of decoding a step is shared by its lanes.
// There is one kind of register, a vector of lanes; what is the same in all lanes is broadcast.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/module.h"

namespace kiln::ir {

inline constexpr int kLanes = 256;

// A value: `f` for floating types, `i` for integral ones.
union Lane {
  int64_t i;
  double f;
};

// Zeroed memory from calloc: the pages of a large buffer cost nothing until they are written.
template <typename T>
struct ZeroedAllocator {
  using value_type = T;
  ZeroedAllocator() = default;
  template <typename U>
  explicit ZeroedAllocator(const ZeroedAllocator<U>&) {}
  T* allocate(size_t n) {
    void* p = std::calloc(n, sizeof(T));
    if (p == nullptr) throw std::bad_alloc();  // as std::allocator; Allocate() bounds n before
    return static_cast<T*>(p);
  }
  void deallocate(T* p, size_t) { std::free(p); }
  template <typename U>
  void construct(U*) {}  // is zero
  template <typename U, typename V>
  void construct(U* p, V&& value) {
    ::new (static_cast<void*>(p)) U(std::forward<V>(value));
  }
  friend bool operator==(const ZeroedAllocator&, const ZeroedAllocator&) { return true; }
};

// Elements of a buffer, in the buffer's own layout. Sized once, from empty.
using Storage = std::vector<Lane, ZeroedAllocator<Lane>>;

enum class StepKind : uint8_t {
  kIntAdd,  // index arithmetic: dst = src[0] op src[1]
  kIntMul,
  kIntFloorDiv,
  kIntMod,
  kIntMin,
  kIntMax,
  kScalar,    // `op`
  kLoad,      // dst = buffer[src[0]]
  kStore,     // buffer[src[0]] = src[1]
  kReduce,    // folds src[0] into accumulator number `accumulator`
  kScan,      // the same, and dst = the accumulator after each lane
  kUnsorted,  // src[0] is among what is sorted
  kSorted,    // dst = what comes at the point's number of it
  kResult,    // dst = the contraction's result at the point
};

// The operand `reg` of an indirect index must be below `extent` and not negative.
struct IndexCheck {
  int reg;
  int64_t extent;
};

struct Step {
  StepKind kind;
  ScalarOp op = ScalarOp::kConst;
  ReduceKind reduce_kind = ReduceKind::kSum;
  DType dtype = DType::kI64;          // of the result
  DType operand_dtype = DType::kI64;  // of src[0]; of src[1] for kSelect
  int dst = -1;
  int src[3] = {-1, -1, -1};
  int mask = -1;             // kLoad: register of bools, or -1
  bool accumulates = false;  // kStore: by reduce_kind
  int accumulator = -1;
  BufferId buffer = -1;
  Lane otherwise = {};  // kLoad: where the mask is false
  std::vector<IndexCheck> checks;
};

struct LoopVar {
  int reg;
  int64_t extent;
  bool used = false;
};

// Of counts, none negative; INT64_MAX where the product is greater.
inline int64_t SaturatingMul(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// Loops run as lanes, and what runs at each of their points.
struct Nest {
  std::vector<LoopVar> vars;     // outermost first
  int64_t points = 1;            // product of their extents
  std::vector<Step> uniform;     // once before the points: index arithmetic equal in all lanes
  std::vector<Step> steps;       // at each vector of lanes
  std::vector<int> broadcast;    // registers whose lane 0 goes to all lanes afterwards
  std::vector<Step> reductions;  // the kReduce and kScan steps, by accumulator
};

struct KernelProgram {
  struct Constant {
    int reg;
    Lane value;
  };
  int num_registers = 0;
  std::vector<Constant> constants;
  std::vector<LoopVar> points;  // loops around the nests, one point at a time
  std::vector<Nest> nests;
};

// Builds programs for one kernel. Symbols have their values: sizes become constants.
class ProgramBuilder {
 public:
  ProgramBuilder(const Module& module, absl::Span<const int64_t> symbols)
      : module_(module), symbols_(symbols) {}

  // Loops whose variables are set from outside, a point at a time.
  void AddPointLoops(absl::Span<const IntExpr> vars);
  // Starts a nest whose lanes run over `vars`.
  void BeginNest(absl::Span<const IntExpr> vars);
  void AddInst(const Inst& inst);
  // `sorted`: a kSort gives its result, else it takes its operand; a nest for either.
  void AddInst(const Inst& inst, bool sorted);
  // `value` comes from a contraction's result.
  void AddResult(ValueId value, DType dtype);
  // `broadcast_values`: the nest has a single lane, and later nests may read its values.
  void EndNest(bool broadcast_values);
  // REQUIRES: its instruction was added, as the verifier makes sure.
  int RegisterOf(ValueId value) const { return values_.at(value).reg; }
  KernelProgram Finish() { return std::move(program_); }

  int64_t Evaluate(IntExpr size) const;

 private:
  struct Value {
    int reg;
    DType dtype;
  };
  struct Operand {
    int reg;
    bool uniform;
  };
  int NewRegister() { return program_.num_registers++; }
  int ConstantRegister(Lane value);
  Operand Index(IntExpr expr, const Inst& inst);
  Operand IndexUncached(IntExpr expr, const Inst& inst);
  Operand Combine(StepKind kind, Operand a, Operand b);
  void AddAccess(const Inst& inst);
  Step ScalarStep(const Inst& inst);
  Nest& nest() { return program_.nests.back(); }

  const Module& module_;
  absl::Span<const int64_t> symbols_;
  KernelProgram program_;
  absl::flat_hash_map<ValueId, Value> values_;
  absl::flat_hash_map<IntExpr, int> point_vars_;   // number in program_.points
  absl::flat_hash_map<IntExpr, int> lane_vars_;    // number in nest().vars
  absl::flat_hash_map<IntExpr, Operand> indices_;  // of this nest
  absl::flat_hash_map<int64_t, int> int_constants_;
};

// Runs programs. One per kernel.
class ProgramRunner {
 public:
  ProgramRunner(const KernelProgram& program, std::vector<Storage>& storage);

  // Every nest at every point of program.points.
  absl::Status RunAll();
  // Points [begin, end) of a nest, with the point variables as they are; where `sink` is not null,
  // register `sink_reg` of each point goes there as a double.
  absl::Status RunRange(const Nest& nest, int64_t begin, int64_t end, int sink_reg = -1,
                        double* sink = nullptr);
  void SetPoint(int number, int64_t value);
  void RunUniform(const Nest& nest);
  // What kResult reads: one number a point.
  void SetResult(const double* result) { result_ = result; }

 private:
  struct Accumulator {
    Lane value;
    int64_t best;  // kArgMax, kArgMin: number of the element, -1 before the first
  };
  Lane* Register(int reg) { return &registers_[static_cast<size_t>(reg) * kLanes]; }
  absl::Status RunNest(const Nest& nest);
  void FillVars(const Nest& nest, int64_t begin, int lanes);
  absl::Status RunStep(const Step& step, int64_t begin, int lanes);
  void RunIndexStep(const Step& step, int lanes);
  absl::Status CheckIndices(const Step& step, int lanes);
  absl::Status Load(const Step& step, int lanes);
  absl::Status Store(const Step& step, int lanes);
  void Reduce(const Step& step, int64_t begin, int lanes);
  void Scan(const Step& step, int lanes);
  void Sort(const Step& step, int64_t begin, int lanes);
  void Broadcast(int reg, Lane value);

  const KernelProgram& program_;
  std::vector<Storage>& storage_;
  std::vector<Lane> registers_;
  std::vector<Accumulator> accumulators_;
  std::vector<int64_t> sorted_;
  const double* result_ = nullptr;
};

// interpret_scalar.cc: `step.op` on `lanes` lanes.
void RunScalarOp(const Step& step, Lane* dst, const Lane* a, const Lane* b, const Lane* c,
                 int lanes);
// OUT_OF_RANGE where one of them is 0: what kNonzero looks for.
absl::Status CheckDivisors(const Lane* divisors, int lanes);
// What a reduction of values of `dtype` starts from, but for places, which start from none.
Lane ReduceIdentity(ReduceKind kind, DType dtype);
// `v` taken into `acc`; REQUIRES: no kind that gives a place.
Lane Fold(ReduceKind kind, DType dtype, Lane acc, Lane v);
// True where `a` comes before `best` in an argmax (`greatest`) or argmin.
bool Beats(bool is_float, bool greatest, Lane a, Lane best);
// `v` in the width of `dtype`, which is integral.
int64_t WrapInteger(DType dtype, int64_t v);
// `step.otherwise` or a constant: an immediate as a lane.
Lane ImmediateLane(const Inst& inst);

// Interpret() with another way to run a Kernel or Repeat, given the storage of every buffer that
// its phases name. Operations run once each, in order.
using OperationRunner =
    std::function<absl::Status(const Operation& operation, std::vector<Storage>& storage)>;
absl::StatusOr<std::vector<ReferenceTensor>> InterpretWith(const Module& module,
                                                           absl::Span<const HostTensor> inputs,
                                                           absl::Span<const int64_t> symbols,
                                                           absl::Span<const std::string> constants,
                                                           const InterpretOptions& options,
                                                           const OperationRunner& run);

// What a run may use.
struct Resources {
  int64_t free_bytes;
  int threads;  // one or more
};

// interpret_kernel.cc: one kernel, by the way that suits it.
absl::Status InterpretKernel(const Module& module, const Kernel& kernel,
                             absl::Span<const int64_t> symbols, std::vector<Storage>& storage,
                             const Resources& resources);

// interpret_repeat.cc: the repeat's kernels tile by tile; reading what a tile has not computed
// gives NaN, or a great negative integer. REQUIRES: it has windows.
absl::Status InterpretRepeat(const Module& module, const Repeat& repeat,
                             absl::Span<const int64_t> symbols, std::vector<Storage>& storage,
                             const Resources& resources);

// interpret_contraction.cc: phase 0 of a contraction over floating types as a blocked matrix
// product; `result` gets one number for each outer point in row-major order, bit for bit what the
// general way gives. Returns false, having done nothing, where the general way is as good.
absl::StatusOr<bool> InterpretContraction(const Module& module, const Kernel& kernel,
                                          absl::Span<const int64_t> symbols,
                                          std::vector<Storage>& storage, const Resources& resources,
                                          std::vector<double>& result);

}  // namespace kiln::ir
