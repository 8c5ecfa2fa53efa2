#include "tests/unit/compiler/codegen/native_run.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/codegen/targets.h"
#include "compiler/ir/identity.h"
#include "compiler/toolchain/clang.h"
#include "compiler/toolchain/lld.h"
#include "proto/base/cpu_kernel_abi.h"
#include "proto/base/device_cpu.h"
#include "proto/base/status_macros.h"
#include "tests/unit/compiler/codegen/gpu_emulator.h"

namespace kiln::codegen {

using ir::IntExpr;

std::unique_ptr<Target> TestTarget(const DeviceInfo& device) {
  const absl::string_view name = absl::StartsWith(device.arch, "sm_")    ? "ptx"
                                 : absl::StartsWith(device.arch, "gcu-") ? "gcu"
                                                                         : "cpp";
  return *(*FindTarget(name))->make(device);
}

DeviceInfo TestDevice(absl::string_view isa) {
  DeviceInfo device;
  device.arch = isa == kPtxIsa ? "sm_90" : isa == kGcuIsa ? "gcu-16m" : "x86-64";
  if (isa == kGcuIsa) device.features = {"x86-64-v2"};
  if (isa == "avx2") {
    device.arch = "haswell";
    device.features = {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "sse4.1", "sse4.2"};
  } else if (isa == "avx512") {
    device.arch = "skylake-avx512";
    device.features = {"avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl",
                       "bmi", "bmi2", "f16c",     "fma",      "sse4.1",   "sse4.2"};
  }
  if (isa == "avx512bf16") {
    device = TestDevice("avx512");
    device.arch = "cooperlake";
    device.features.insert(device.features.begin() + 2, "avx512bf16");
  }
  if (isa == kAmxIsa) {
    device = TestDevice("avx512bf16");
    device.arch = "sapphirerapids";
    device.features.insert(device.features.begin(), {"amx-bf16", "amx-tile"});
  }
  return device;
}

std::vector<std::string> RunnableIsas() {
  const bool has_tiles = absl::c_linear_search(HostCpuFeatures(), "amx-bf16");  // asks for them
  if (const char* only = std::getenv("KILN_TEST_ISA")) return {only};
  std::vector<std::string> isas = {std::string(kPtxIsa), std::string(kGcuIsa), "x86-64"};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isas.push_back("avx2");
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    isas.push_back("avx512");
    if (__builtin_cpu_supports("avx512bf16")) isas.push_back("avx512bf16");
    if (has_tiles) isas.emplace_back(kAmxIsa);
  }
  return isas;
}

// A block with guard bytes on both sides.
struct NativeModule::Storage {
  static constexpr size_t kGuard = 128;
  static constexpr unsigned char kGuardByte = 0xA5;

  explicit Storage(size_t size) : bytes(size) {
    block = static_cast<unsigned char*>(std::aligned_alloc(64, (size + 2 * kGuard + 63) / 64 * 64));
    std::memset(block, kGuardByte, size + 2 * kGuard);
  }
  ~Storage() { std::free(block); }
  char* data() const { return reinterpret_cast<char*>(block) + kGuard; }
  bool Intact() const {
    const unsigned char* after = block + kGuard + bytes;
    auto untouched = [](unsigned char c) { return c == kGuardByte; };
    return std::all_of(block, block + kGuard, untouched) &&
           std::all_of(after, after + kGuard, untouched);
  }

  size_t bytes;
  unsigned char* block;
};

NativeModule::NativeModule(ir::Module& module) : module_(module) {}

NativeModule::~NativeModule() {
  if (library_ != nullptr) dlclose(library_);
}

absl::StatusOr<void*> LoadLibrary(const std::string& bytes) {
  const int file = memfd_create("kernels", 0);
  if (file < 0) return absl::InternalError("memfd_create failed");
  const bool written =
      write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  void* library = written
                      ? dlopen(absl::StrCat("/proc/self/fd/", file).c_str(), RTLD_NOW | RTLD_LOCAL)
                      : nullptr;
  close(file);
  if (library == nullptr) return absl::InternalError(absl::StrCat("dlopen: ", dlerror()));
  return library;
}

namespace {

void ParallelFor(const KilnCpuContext* context, long tasks,
                 void (*body)(void* closure, long task, int thread), void* closure) {
  std::atomic<long> next = 0;
  auto work = [&](int thread) {
    for (long task = next++; task < tasks; task = next++) body(closure, task, thread);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < context->threads; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& other : others) other.join();
}

// Parsed once in a process.
const toolchain::Prelude* PreludeOf(const std::string& text) {
  static auto* const preludes = new std::map<std::string, toolchain::Prelude>;
  return &preludes->try_emplace(text, text).first->second;
}

absl::StatusOr<EmittedKernel> EmitTogether(const Target& target, ir::Module& module) {
  const std::vector<ir::Identity> identities = ir::Identify(module);
  std::vector<BufferMap> copies(identities.size());
  for (size_t copy = 0; copy < copies.size(); ++copy) {
    if (identities[copy].first != 0) return absl::InvalidArgumentError("kernels differ");
    for (size_t i = 0; i < identities[0].buffers.size(); ++i) {
      copies[copy][identities[0].buffers[i]] = identities[copy].buffers[i];
    }
  }
  KILN_ASSIGN_OR_RETURN(const schedule::Tree tree, target.Schedule(module, module.operations[0]));
  KILN_ASSIGN_OR_RETURN(std::optional<EmittedKernel> emitted,
                        target.PrintTogether(module, tree, copies));
  if (!emitted) return absl::UnimplementedError("the target has no such kernel");
  return *std::move(emitted);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NativeModule>> NativeModule::Build(ir::Module& module,
                                                                  const DeviceInfo& device,
                                                                  bool together) {
  std::unique_ptr<NativeModule> native(new NativeModule(module));
  const std::unique_ptr<Target> target = TestTarget(device);
  const bool emulated = target->name() == "ptx";
  std::vector<std::string> objects;
  absl::flat_hash_set<std::string> routines;
  for (const ir::Operation& operation : module.operations) {
    if (std::holds_alternative<ir::Library>(operation)) {
      return absl::UnimplementedError("library steps do not run here");
    }
    if (together && !native->kernels_.empty()) break;
    KILN_ASSIGN_OR_RETURN(EmittedKernel emitted, together ? EmitTogether(*target, module)
                                                          : target->Emit(module, operation));
    if (target->name() == "gcu" && emitted.binary != 0) {
      native->on_gcu_.push_back(true);
      native->kernels_.push_back(std::move(emitted));
      continue;
    }
    native->on_gcu_.push_back(false);
    const std::string symbol = absl::StrCat("kernel_", native->kernels_.size());
    std::vector<std::string> texts = {
        absl::StrReplaceAll(emitted.source, {{kSymbolPlaceholder, symbol}})};
    for (const Routine& routine : emitted.routines) {
      if (routines.insert(routine.name).second) texts.push_back(routine.source);
    }
    const toolchain::Prelude* const prelude =
        PreludeOf(absl::StrCat(emulated ? EmulatedPrelude() : "", emitted.prelude));
    for (const std::string& text : texts) {
      toolchain::ClangJob job{
          .prelude = prelude, .source = text, .arch = device.arch, .features = device.features};
      if (emulated) job.optimization_level = 1;  // what they compute is looked at, not how fast
      if (target->name() != "cpp") job.arch = "x86-64";
      if (target->name() == "gcu") job.features.clear();
      absl::StatusOr<toolchain::ClangOutput> output =
          toolchain::CompileCpp(toolchain::Prepare(job));
      if (!output.ok()) {
        return absl::InternalError(absl::StrCat(output.status().message().data(), "\n", text));
      }
      objects.push_back(std::move(output->object));
    }
    native->kernels_.push_back(std::move(emitted));
  }
  native->entries_.resize(native->kernels_.size());
  if (target->name() == "gcu") native->gcu_ = std::make_unique<GcuDevice>(device.arch);
  if (objects.empty()) return native;
  KILN_ASSIGN_OR_RETURN(const std::string linked, toolchain::LinkSharedObject(objects));
  KILN_ASSIGN_OR_RETURN(native->library_, LoadLibrary(linked));
  for (size_t i = 0; i < native->kernels_.size(); ++i) {
    if (native->on_gcu_[i]) continue;
    void* entry = dlsym(native->library_, absl::StrCat("kernel_", i).c_str());
    if (entry == nullptr) return absl::InternalError("a kernel is not exported");
    native->entries_[i] = entry;
  }
  return native;
}

int64_t NativeModule::Value(IntExpr expr) const {
  return module_.ints->Evaluate(expr, [this](IntExpr leaf) { return symbols_[leaf.id()]; });
}

absl::Status NativeModule::Allocate(absl::Span<const HostTensor> inputs,
                                    absl::Span<const int64_t> symbols) {
  symbols_.assign(symbols.begin(), symbols.end());
  buffers_.clear();
  for (const ir::Buffer& buffer : module_.buffers) {
    const size_t bytes = Value(SizeBytes(*module_.ints, buffer));
    buffers_.push_back(std::make_unique<Storage>(bytes));
    if (buffer.kind != ir::BufferKind::kInput) continue;
    const std::string& data = inputs[buffer.index].data;
    if (data.size() < bytes) return absl::InvalidArgumentError("an input is too small");
    std::memcpy(buffers_.back()->data(), data.data(), bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> NativeModule::RunOnGrid(size_t number) {
  const EmittedKernel& kernel = kernels_[number];
  std::vector<int64_t> arguments;
  const auto add = [&](const void* p) { arguments.push_back(reinterpret_cast<intptr_t>(p)); };
  for (ir::BufferId buffer : kernel.buffers) add(buffers_[buffer]->data());
  for (int symbol : kernel.symbols) arguments.push_back(symbols_[symbol]);
  const Storage scratch(Value(kernel.scratch_bytes));
  add(scratch.data());
  int error = 0;
  add(&error);
  KILN_RETURN_IF_ERROR(LaunchEmulated(library_, entries_[number], arguments,
                                      Value(kernel.grid.blocks[0]), Value(kernel.grid.threads[0]),
                                      Value(kernel.grid.shared_bytes)));
  return error;
}

absl::StatusOr<int> NativeModule::RunOnGcu(size_t number) {
  const EmittedKernel& kernel = kernels_[number];
  std::vector<HostBuffer> buffers;
  for (ir::BufferId buffer : kernel.buffers) {
    buffers.push_back({buffers_[buffer]->data(), buffers_[buffer]->bytes});
  }
  std::vector<int64_t> symbols;
  for (int symbol : kernel.symbols) symbols.push_back(symbols_[symbol]);
  KILN_RETURN_IF_ERROR(gcu_->Run(kernel.source, buffers, symbols).status());
  return KILN_CPU_OK;
}

absl::StatusOr<int> NativeModule::RunKernel(size_t number, int threads) {
  const EmittedKernel& kernel = kernels_[number];
  if (on_gcu_[number]) return RunOnGcu(number);
  if (!kernel.grid.blocks.empty()) return RunOnGrid(number);
  const int64_t thread_bytes = (Value(kernel.thread_scratch_bytes) + 63) / 64 * 64;
  Storage scratch(Value(kernel.scratch_bytes));
  Storage thread_scratch(thread_bytes * threads);
  KilnCpuContext context = {ParallelFor,           nullptr,     threads, scratch.data(),
                            thread_scratch.data(), thread_bytes};
  std::vector<void*> arguments;
  for (ir::BufferId buffer : kernel.buffers) arguments.push_back(buffers_[buffer]->data());
  std::vector<long> symbols;
  for (int symbol : kernel.symbols) symbols.push_back(symbols_[symbol]);
  const auto entry = reinterpret_cast<KilnCpuKernel>(entries_[number]);
  const int result = entry(&context, arguments.data(), symbols.data());
  if (!scratch.Intact() || !thread_scratch.Intact()) {
    return absl::InternalError("a kernel wrote outside its scratch memory");
  }
  return result;
}

absl::Status NativeModule::CheckGuards() const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!buffers_[i]->Intact()) {
      return absl::InternalError(absl::StrCat("written outside @", module_.buffers[i].name));
    }
  }
  return absl::OkStatus();
}

int NativeModule::Rerun(size_t kernel) {
  return *RunKernel(kernel, threads_);
}

namespace {

double HalfValue(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double sign = (h >> 15) ? -1 : 1;
  if (exponent == 31) return mantissa ? std::nan("") : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

template <typename T>
T Read(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

void Append(ir::ReferenceTensor& tensor, const char* p) {
  switch (tensor.dtype) {
    case DType::kF64:
      tensor.floats.push_back(Read<double>(p));
      break;
    case DType::kF32:
      tensor.floats.push_back(Read<float>(p));
      break;
    case DType::kF16:
      tensor.floats.push_back(HalfValue(Read<uint16_t>(p)));
      break;
    case DType::kBF16: {
      const uint32_t bits = static_cast<uint32_t>(Read<uint16_t>(p)) << 16;
      tensor.floats.push_back(Read<float>(reinterpret_cast<const char*>(&bits)));
      break;
    }
    case DType::kI64:
      tensor.ints.push_back(Read<int64_t>(p));
      break;
    case DType::kI32:
      tensor.ints.push_back(Read<int32_t>(p));
      break;
    case DType::kI16:
      tensor.ints.push_back(Read<int16_t>(p));
      break;
    case DType::kI8:
      tensor.ints.push_back(Read<int8_t>(p));
      break;
    default:
      tensor.ints.push_back(Read<uint8_t>(p));
      break;
  }
}

}  // namespace

ir::ReferenceTensor NativeModule::ReadWindow(const ir::BufferWindow& window) const {
  ir::ReferenceTensor tensor;
  tensor.dtype = module_.buffers[window.buffer].dtype;
  const int64_t element = DTypeSize(tensor.dtype);
  std::vector<int64_t> at(window.sizes.size(), 0);
  int64_t count = 1;
  for (IntExpr size : window.sizes) {
    tensor.sizes.push_back(Value(size));
    count *= tensor.sizes.back();
  }
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = Value(window.offset);
    for (size_t d = 0; d < at.size(); ++d) offset += at[d] * Value(window.strides[d]);
    Append(tensor, buffers_[window.buffer]->data() + offset * element);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < tensor.sizes[d]) break;
      at[d] = 0;
    }
  }
  return tensor;
}

absl::StatusOr<std::vector<ir::ReferenceTensor>> NativeModule::Run(
    absl::Span<const HostTensor> inputs, absl::Span<const int64_t> symbols, int threads) {
  threads_ = threads;
  KILN_RETURN_IF_ERROR(Allocate(inputs, symbols));
  for (size_t i = 0; i < kernels_.size(); ++i) {
    KILN_ASSIGN_OR_RETURN(const int result, RunKernel(i, threads));
    if (result == KILN_CPU_INDEX_OUT_OF_RANGE) return absl::OutOfRangeError("index out of range");
    if (result == KILN_CPU_DIVISION_BY_ZERO) return absl::OutOfRangeError("division by zero");
  }
  KILN_RETURN_IF_ERROR(CheckGuards());
  std::vector<ir::ReferenceTensor> outputs;
  for (const ir::ModuleOutput& output : module_.outputs) {
    const auto* window = std::get_if<ir::BufferWindow>(&output.value);
    if (window != nullptr) outputs.push_back(ReadWindow(*window));
  }
  return outputs;
}

}  // namespace kiln::codegen
