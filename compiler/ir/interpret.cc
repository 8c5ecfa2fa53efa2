#include "compiler/ir/interpret.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/ir/half.h"
#include "compiler/ir/interpret_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

constexpr int kMaxThreads = 8;

// One past the greatest element that sizes and strides reach, from element 0; 0 where some size is.
// -1 where a size or stride is negative or the sum overflows.
int64_t Reach(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
  int64_t last = 0;
  bool empty = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || strides[i] < 0) return -1;
    if (sizes[i] == 0) {
      empty = true;
      continue;
    }
    int64_t span = 0;
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &span) ||
        __builtin_add_overflow(last, span, &last) || last == INT64_MAX) {
      return -1;
    }
  }
  return empty ? 0 : last + 1;
}

int64_t NumElements(absl::Span<const int64_t> sizes) {
  int64_t n = 1;
  for (int64_t size : sizes) n = SaturatingMul(n, size);
  return n;
}

std::vector<int64_t> RowMajor(absl::Span<const int64_t> sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = SaturatingMul(strides[i], sizes[i]);
  return strides;
}

// Calls `visit(row_major_number, offset_a, offset_b)` for each point of `sizes`.
template <typename Visit>
void ForEachPoint(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides_a,
                  absl::Span<const int64_t> strides_b, Visit visit) {
  const int64_t n = NumElements(sizes);
  std::vector<int64_t> at(sizes.size(), 0);
  int64_t a = 0, b = 0;
  for (int64_t i = 0; i < n; ++i) {
    visit(i, a, b);
    for (size_t d = sizes.size(); d-- > 0;) {
      a += strides_a[d];
      b += strides_b[d];
      if (++at[d] < sizes[d]) break;
      a -= strides_a[d] * sizes[d];
      b -= strides_b[d] * sizes[d];
      at[d] = 0;
    }
  }
}

template <typename T>
T ReadAs(const char* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

Lane ReadLane(DType dtype, const char* p) {
  switch (dtype) {
    case DType::kBool:
      return {.i = *p != 0};
    case DType::kU8:
      return {.i = ReadAs<uint8_t>(p)};
    case DType::kI8:
      return {.i = ReadAs<int8_t>(p)};
    case DType::kI16:
      return {.i = ReadAs<int16_t>(p)};
    case DType::kI32:
      return {.i = ReadAs<int32_t>(p)};
    case DType::kI64:
      return {.i = ReadAs<int64_t>(p)};
    case DType::kF16:
      return {.f = DoubleFromHalf(ReadAs<uint16_t>(p))};
    case DType::kBF16:
      return {.f = DoubleFromBFloat16(ReadAs<uint16_t>(p))};
    case DType::kF32:
      return {.f = ReadAs<float>(p)};
    default:
      return {.f = ReadAs<double>(p)};
  }
}

class Interpreter {
 public:
  Interpreter(const Module& module, absl::Span<const HostTensor> inputs,
              absl::Span<const int64_t> symbols, absl::Span<const std::string> constants,
              const InterpretOptions& options, const OperationRunner& run)
      : module_(module),
        inputs_(inputs),
        symbols_(symbols),
        constants_(constants),
        options_(options),
        run_(run),
        storage_(module.buffers.size()),
        ready_(module.buffers.size(), false) {}

  absl::StatusOr<std::vector<ReferenceTensor>> Run();

 private:
  // For each operation, the buffers that it is the last to use.
  void FindLastUses();
  absl::Status RunOperation(const Operation& operation);
  absl::Status Prepare(BufferId id);
  absl::Status Allocate(BufferId id);
  absl::Status Fill(BufferId id, absl::string_view data, absl::Span<const int64_t> strides);
  absl::Status FillInput(BufferId id);
  absl::Status FillConstant(BufferId id);
  void Release(BufferId id);
  absl::StatusOr<ReferenceTensor> Output(const ModuleOutput& output);
  absl::StatusOr<ReferenceTensor> Window(const BufferWindow& window);

  int64_t Evaluate(IntExpr e) const { return ProgramBuilder(module_, symbols_).Evaluate(e); }
  std::vector<int64_t> Evaluate(const std::vector<IntExpr>& exprs) const {
    std::vector<int64_t> values;
    for (IntExpr e : exprs) values.push_back(Evaluate(e));
    return values;
  }
  int64_t FreeBytes() const { return options_.max_bytes - used_bytes_; }
  int Threads() const {
    if (options_.threads > 0) return options_.threads;
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  }

  const Module& module_;
  absl::Span<const HostTensor> inputs_;
  absl::Span<const int64_t> symbols_;
  absl::Span<const std::string> constants_;
  const InterpretOptions& options_;
  const OperationRunner run_;  // empty: the loop IR's own
  std::vector<Storage> storage_;
  std::vector<bool> ready_;
  std::vector<std::vector<BufferId>> last_uses_;
  int64_t used_bytes_ = 0;
};

std::vector<BufferId> BuffersOf(const Operation& operation) {
  std::vector<BufferId> buffers;
  ForEachInst(operation, [&](const Inst& inst) {
    if (inst.buffer >= 0) buffers.push_back(inst.buffer);
  });
  std::sort(buffers.begin(), buffers.end());
  buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
  return buffers;
}

void Interpreter::FindLastUses() {
  std::vector<int> last(module_.buffers.size(), -1);
  for (size_t i = 0; i < module_.operations.size(); ++i) {
    for (BufferId id : BuffersOf(module_.operations[i])) last[id] = static_cast<int>(i);
  }
  for (const ModuleOutput& output : module_.outputs) {
    if (const auto* window = std::get_if<BufferWindow>(&output.value)) last[window->buffer] = -1;
  }
  last_uses_.resize(module_.operations.size());
  for (size_t id = 0; id < last.size(); ++id) {
    if (last[id] >= 0) last_uses_[last[id]].push_back(static_cast<BufferId>(id));
  }
}

absl::StatusOr<std::vector<ReferenceTensor>> Interpreter::Run() {
  if (symbols_.size() != module_.ints->symbols().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the module has ", module_.ints->symbols().size(), " symbols, not ", symbols_.size()));
  }
  FindLastUses();
  const int total = static_cast<int>(module_.operations.size());
  for (int i = 0; i < total; ++i) {
    if (const auto* library = std::get_if<Library>(&module_.operations[i])) {
      return absl::UnimplementedError(absl::StrCat("node '", library->origin, "' (", library->op,
                                                   ") is a library step, which the interpreter "
                                                   "cannot execute"));
    }
    if (options_.progress) KILN_RETURN_IF_ERROR(options_.progress(i, total));
    KILN_RETURN_IF_ERROR(RunOperation(module_.operations[i]));
    for (BufferId id : last_uses_[i]) Release(id);
  }
  if (options_.progress) KILN_RETURN_IF_ERROR(options_.progress(total, total));
  std::vector<ReferenceTensor> outputs;
  for (const ModuleOutput& output : module_.outputs) {
    KILN_ASSIGN_OR_RETURN(ReferenceTensor tensor, Output(output));
    outputs.push_back(std::move(tensor));
  }
  return outputs;
}

absl::Status Interpreter::RunOperation(const Operation& operation) {
  for (BufferId id : BuffersOf(operation)) KILN_RETURN_IF_ERROR(Prepare(id));
  const auto named = [](const absl::Status& status, absl::string_view kernel) {
    return status.ok() ? status
                       : absl::Status(status.code(),
                                      absl::StrCat("kernel @", kernel, ": ", status.message()));
  };
  if (run_) return named(run_(operation, storage_), NameOf(operation));
  if (const auto* repeat = std::get_if<Repeat>(&operation); repeat && !repeat->windows.empty()) {
    return InterpretRepeat(module_, *repeat, symbols_, storage_, {FreeBytes(), Threads()});
  }
  for (const Kernel& kernel : KernelsOf(operation)) {
    const Resources resources{FreeBytes(), Threads()};
    KILN_RETURN_IF_ERROR(
        named(InterpretKernel(module_, kernel, symbols_, storage_, resources), kernel.name));
  }
  return absl::OkStatus();
}

absl::Status Interpreter::Prepare(BufferId id) {
  if (ready_[id]) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(Allocate(id));
  ready_[id] = true;
  switch (module_.buffers[id].kind) {
    case BufferKind::kInput:
      return FillInput(id);
    case BufferKind::kConstant:
      return FillConstant(id);
    default:
      return absl::OkStatus();
  }
}

absl::Status Interpreter::Allocate(BufferId id) {
  const Buffer& buffer = module_.buffers[id];
  if (IsOpaque(buffer.dtype)) {
    return absl::UnimplementedError(absl::StrCat(
        "buffer @", buffer.name, " is ", DTypeName(buffer.dtype), ", which the interpreter lacks"));
  }
  const int64_t elements = Reach(Evaluate(buffer.sizes), Evaluate(buffer.strides));
  if (elements < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer @", buffer.name, " has an impossible size"));
  }
  if (elements > FreeBytes() / static_cast<int64_t>(sizeof(Lane))) {
    return absl::ResourceExhaustedError(absl::StrCat("buffer @", buffer.name, " of ", elements,
                                                     " elements exceeds the interpreter's ",
                                                     options_.max_bytes, " bytes"));
  }
  storage_[id].resize(elements);
  used_bytes_ += elements * static_cast<int64_t>(sizeof(Lane));
  return absl::OkStatus();
}

void Interpreter::Release(BufferId id) {
  used_bytes_ -= static_cast<int64_t>(storage_[id].size() * sizeof(Lane));
  Storage().swap(storage_[id]);
  ready_[id] = false;
}

// Copies elements at `strides` in `data`.
absl::Status Interpreter::Fill(BufferId id, absl::string_view data,
                               absl::Span<const int64_t> strides) {
  const Buffer& buffer = module_.buffers[id];
  const std::vector<int64_t> sizes = Evaluate(buffer.sizes);
  const int64_t width = DTypeSize(buffer.dtype);
  const int64_t elements = Reach(sizes, strides);
  if (elements < 0 || elements > static_cast<int64_t>(data.size()) / width) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data for @", buffer.name, " has only ", data.size(), " bytes"));
  }
  Storage& storage = storage_[id];
  if (buffer.dtype == DType::kF32 && Evaluate(buffer.strides) == RowMajor(sizes) &&
      std::equal(strides.begin(), strides.end(), RowMajor(sizes).begin())) {
    // Weights, nearly always: what ForEachPoint does, without its bookkeeping.
    for (int64_t i = 0; i < elements; ++i) storage[i].f = ReadAs<float>(data.data() + i * width);
    return absl::OkStatus();
  }
  ForEachPoint(sizes, strides, Evaluate(buffer.strides), [&](int64_t, int64_t from, int64_t to) {
    storage[to] = ReadLane(buffer.dtype, data.data() + from * width);
  });
  return absl::OkStatus();
}

absl::Status Interpreter::FillInput(BufferId id) {
  const Buffer& buffer = module_.buffers[id];
  if (static_cast<size_t>(buffer.index) >= inputs_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("input ", buffer.index, " is missing"));
  }
  const HostTensor& input = inputs_[buffer.index];
  if (input.dtype != buffer.dtype || input.sizes != Evaluate(buffer.sizes) ||
      input.strides.size() != input.sizes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", buffer.index, " differs in type or sizes from @", buffer.name));
  }
  return Fill(id, input.data, input.strides);
}

absl::Status Interpreter::FillConstant(BufferId id) {
  const Buffer& buffer = module_.buffers[id];
  if (static_cast<size_t>(buffer.index) >= constants_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("constant ", buffer.index, " is missing"));
  }
  return Fill(id, constants_[buffer.index], Evaluate(buffer.strides));
}

absl::StatusOr<ReferenceTensor> Interpreter::Output(const ModuleOutput& output) {
  if (const auto* window = std::get_if<BufferWindow>(&output.value)) return Window(*window);
  if (const auto* size = std::get_if<IntExpr>(&output.value)) {
    return ReferenceTensor{.dtype = DType::kI64, .ints = {Evaluate(*size)}};
  }
  return ReferenceTensor{.dtype = DType::kU8, .sizes = {0}};
}

absl::StatusOr<ReferenceTensor> Interpreter::Window(const BufferWindow& window) {
  KILN_RETURN_IF_ERROR(Prepare(window.buffer));
  const Buffer& buffer = module_.buffers[window.buffer];
  const Storage& storage = storage_[window.buffer];
  ReferenceTensor tensor{.dtype = buffer.dtype, .sizes = Evaluate(window.sizes)};
  const std::vector<int64_t> strides = Evaluate(window.strides);
  const int64_t offset = Evaluate(window.offset);
  const int64_t reach = Reach(tensor.sizes, strides);
  const auto size = static_cast<int64_t>(storage.size());
  if (reach < 0 || (reach > 0 && (offset < 0 || offset > size || reach > size - offset))) {
    return absl::InvalidArgumentError(
        absl::StrCat("an output reaches outside buffer @", buffer.name));
  }
  const int64_t elements = NumElements(tensor.sizes);
  if (elements > FreeBytes() / static_cast<int64_t>(sizeof(Lane))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an output of ", elements, " elements is too large"));
  }
  used_bytes_ += elements * static_cast<int64_t>(sizeof(Lane));
  const bool is_float = IsFloat(buffer.dtype);
  is_float ? tensor.floats.resize(elements) : tensor.ints.resize(elements);
  ForEachPoint(tensor.sizes, strides, strides, [&](int64_t i, int64_t at, int64_t) {
    const Lane lane = storage[offset + at];
    if (is_float) {
      tensor.floats[i] = lane.f;
    } else {
      tensor.ints[i] = lane.i;
    }
  });
  return tensor;
}

}  // namespace

absl::StatusOr<std::vector<ReferenceTensor>> Interpret(const Module& module,
                                                       absl::Span<const HostTensor> inputs,
                                                       absl::Span<const int64_t> symbols,
                                                       absl::Span<const std::string> constants,
                                                       const InterpretOptions& options) {
  return Interpreter(module, inputs, symbols, constants, options, {}).Run();
}

absl::StatusOr<std::vector<ReferenceTensor>> InterpretWith(const Module& module,
                                                           absl::Span<const HostTensor> inputs,
                                                           absl::Span<const int64_t> symbols,
                                                           absl::Span<const std::string> constants,
                                                           const InterpretOptions& options,
                                                           const OperationRunner& run) {
  return Interpreter(module, inputs, symbols, constants, options, run).Run();
}

}  // namespace kiln::ir
