#include "client/runtime/cuda/executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/runtime/cuda/capture.h"
#include "client/runtime/cuda/copy.h"
#include "client/runtime/cuda/device.h"
#include "client/runtime/cuda/memory.h"
#include "client/runtime/cuda/modules.h"
#include "client/runtime/cuda/timer.h"
#include "client/runtime/program_run.h"
#include "client/status_bridge.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::cuda {
namespace {

using runtime::Plan;
using runtime::PlanLaunch;
using runtime::PlanTensorMap;
using runtime::SharedMemory;

constexpr size_t kMostNames = 8;                // of kernels in one message
constexpr int64_t kAlignment = 256;             // of workspace, scratch and what is prepared
constexpr DevicePointer kKernelAlignment = 16;  // of what kernels access

int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// REQUIRES: a type that runtime::Plan lets tensor maps have.
TensorMapType MapTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kI8:
      return TensorMapType::kBytes;
    case DType::kI32:
      return TensorMapType::kWords;
    case DType::kF16:
      return TensorMapType::kF16;
    case DType::kF32:
      return TensorMapType::kF32;
    default:
      return TensorMapType::kBF16;
  }
}

struct CudaPrepared : kiln_prepared {
  CudaPrepared(uint64_t id, int gpu) : kiln_prepared(id), ordinal(gpu) {}
  const int ordinal;
  std::shared_ptr<const DeviceBlock> block;  // which graphs may share
};

}  // namespace

// What the program has on one GPU. The executor's, and that of graphs that captured its runs.
struct CudaExecutor::OnGpu : std::enable_shared_from_this<OnGpu> {
  static std::shared_ptr<OnGpu> Make(const Gpu& gpu) { return {new OnGpu(gpu), End}; }

  const Gpu& gpu;
  std::unique_ptr<Modules> modules;
  DeviceBlock constants;
  std::vector<void*> constant;  // addresses in the block
  std::shared_ptr<int> error_memory;
  DevicePointer error = 0;  // as the GPU sees it

 private:
  explicit OnGpu(const Gpu& on) : gpu(on) {}

  // The driver waits for the device before it unloads or frees; unlike a wait for the whole
  // context, that leaves stream captures as they are.
  static void End(OnGpu* on) {
    const RelaxedCaptureScope relaxed(on->gpu.driver);
    const ContextScope context(on->gpu.driver, on->gpu.context);
    if (context.status().ok()) delete on;  // else the process's end, or a lost context
  }
};

// Before ProgramRun, which takes them.
struct Addresses {
  explicit Addresses(size_t count) : addresses_(count) {}
  absl::InlinedVector<void*, 64> addresses_;  // by buffer
};

class CudaExecutor::OneRun final : private Addresses, private runtime::ProgramRun {
 public:
  OneRun(const CudaExecutor& executor, const OnGpu& on, const ContextScope& context,
         const Plan& plan, absl::Span<const kiln_tensor> inputs, const kiln_run_options* options,
         Stream stream, bool captured)
      : Addresses(plan.buffers.size()),
        ProgramRun(executor, plan, inputs, options, absl::MakeSpan(addresses_)),
        executor_(executor),
        on_(on),
        context_(context),
        stream_(stream),
        captured_(captured) {}
  ~OneRun() override {
    // In the stream's order; a failure leaves the memory to the pool's end.
    if (owned_ != 0) executor_.driver_.free_async(owned_, stream_);
    for (const Moved& moved : moved_) {
      if (moved.owned) executor_.driver_.free_async(moved.copy, stream_);
    }
  }

  // `kept` may be null: then the prepare steps run as well.
  absl::Status Run(char* kept, absl::Span<kiln_output> outputs) {
    const int64_t prepared = kept == nullptr ? RoundUp(plan().prepared_bytes) : 0;
    KILN_ASSIGN_OR_RETURN(char* own, TakeScratch(prepared));
    SetPointers(kept == nullptr ? own : kept);
    return ProgramRun::Run(kept == nullptr ? 0 : static_cast<size_t>(plan().prepare_steps),
                           outputs);
  }

  // Runs the prepare steps alone, into a block of the plan's prepared_bytes.
  absl::Status Prepare(char* block) {
    KILN_RETURN_IF_ERROR(TakeScratch(0).status());
    SetPointers(block);
    return RunSteps(0, static_cast<size_t>(plan().prepare_steps));
  }

 private:
  // A buffer whose memory kernels cannot take.
  struct Moved {
    int buffer = 0;
    DevicePointer copy = 0;
    bool owned = false;  // of the runtime's pool
  };

  absl::StatusOr<DevicePointer> Allocate(int64_t bytes, bool& owned) {
    owned = options() == nullptr || options()->allocate_scratch == nullptr;
    if (owned) return on_.gpu.Allocate(bytes, stream_);
    void* data = nullptr;
    KILN_RETURN_IF_ERROR(FromCStatus(options()->allocate_scratch(options()->user, bytes, &data)));
    KILN_RETURN_IF_ERROR(context_.Renew());
    if (data == nullptr || reinterpret_cast<uintptr_t>(data) % kAlignment != 0) {
      return absl::InvalidArgumentError("allocate_scratch gave no memory aligned to 256 bytes");
    }
    return reinterpret_cast<DevicePointer>(data);
  }

  // Where a kernel finds the buffer: a copy, where a tensor of the caller's or of a library does
  // not begin at a multiple of kKernelAlignment, as a view of part of another may not.
  absl::StatusOr<DevicePointer> ForKernel(int buffer) {
    const auto address = reinterpret_cast<DevicePointer>(pointer(buffer));
    if (address % kKernelAlignment == 0) return address;
    const int64_t bytes = plan().buffers[static_cast<size_t>(buffer)].type.reach_bytes;
    auto moved = std::find_if(moved_.begin(), moved_.end(),
                              [&](const Moved& m) { return m.buffer == buffer; });
    if (moved == moved_.end()) {
      bool owned = false;
      KILN_ASSIGN_OR_RETURN(const DevicePointer copy, Allocate(RoundUp(bytes), owned));
      moved_.push_back({buffer, copy, owned});
      moved = moved_.end() - 1;
    }
    // Also of what the kernel only writes: it may not write all of it.
    KILN_RETURN_IF_ERROR(CopyBytes(moved->copy, address, bytes));
    return moved->copy;
  }

  absl::Status CopyBytes(DevicePointer to, DevicePointer from, int64_t bytes) {
    const Driver& driver = executor_.driver_;
    is_after_launch_ = false;
    return driver.Check(driver.copy(to, from, static_cast<size_t>(bytes), stream_),
                        "cannot copy a tensor to where kernels can take it");
  }

  // Memory for the workspace and scratch, to which it sets the pointers, and so much more, which it
  // returns.
  absl::StatusOr<char*> TakeScratch(int64_t more) {
    const int64_t workspace = RoundUp(plan().workspace_bytes);
    const int64_t scratch = RoundUp(plan().scratch_bytes);
    const int64_t bytes = workspace + scratch + more;
    DevicePointer data = 0;
    bool owned = false;
    if (bytes > 0) {
      KILN_ASSIGN_OR_RETURN(data, Allocate(bytes, owned));
    }
    if (owned) owned_ = data;
    char* base = reinterpret_cast<char*>(data);
    for (size_t i = 0; i < addresses_.size(); ++i) {
      const runtime::PlanBuffer& buffer = plan().buffers[i];
      if (buffer.kind == runtime::BufferKind::kWorkspace) {
        addresses_[i] = base + buffer.workspace_offset;
      } else if (buffer.kind == runtime::BufferKind::kConstant) {
        addresses_[i] = on_.constant[static_cast<size_t>(buffer.index)];
      }
    }
    scratch_ = base + workspace;
    return base + workspace + scratch;
  }

  absl::Status Launch(const PlanLaunch& launch) override {
    const runtime::PlanGrid& grid = launch.grid;
    if (grid.blocks[0] == 0 || grid.blocks[1] == 0 || grid.blocks[2] == 0) return absl::OkStatus();
    KILN_ASSIGN_OR_RETURN(const Function function,
                          on_.modules->Find(launch.function, grid.shared_bytes));
    absl::InlinedVector<uint64_t, 32> values;
    const int* buffers = plan().launch_buffers.data() + launch.first_buffer;
    for (int i = 0; i < launch.num_buffers; ++i) {
      KILN_ASSIGN_OR_RETURN(const DevicePointer address, ForKernel(buffers[i]));
      values.push_back(address);
    }
    for (const long symbol : launch.symbols) values.push_back(static_cast<uint64_t>(symbol));
    values.push_back(launch.scratch_bytes > 0 ? reinterpret_cast<uintptr_t>(scratch_) : 0);
    values.push_back(on_.error);
    absl::InlinedVector<void*, 32> arguments;
    for (uint64_t& value : values) arguments.push_back(&value);
    absl::InlinedVector<TensorMap, 2> maps(launch.tensor_maps.size());
    for (size_t i = 0; i < maps.size(); ++i) {
      const PlanTensorMap& map = launch.tensor_maps[i];
      KILN_RETURN_IF_ERROR(Encode(launch, map, values[static_cast<size_t>(map.argument)], maps[i]));
      arguments.push_back(&maps[i]);
    }
    const Driver& driver = executor_.driver_;
    for (const int zeroed : launch.zeroed) {
      const auto bytes = plan().buffers[static_cast<size_t>(buffers[zeroed])].type.reach_bytes;
      is_after_launch_ = false;
      KILN_RETURN_IF_ERROR(
          driver.Check(driver.fill_bytes(values[static_cast<size_t>(zeroed)], 0,
                                         static_cast<size_t>(bytes), stream_),
                       absl::StrCat("cannot make zero what ", KernelName(launch), " adds to")));
    }
    // Not after anything else: only of launches is known what they write. Older drivers' captures
    // of such launches do not keep the order.
    const bool begins_early =
        launch.begins_early && is_after_launch_ && driver.version >= kVersionOfEarlyLaunches;
    const LaunchAttribute early{.kind = kMayBeginEarly, .padding = 0, .value = {1}};
    const LaunchConfig config{{grid.blocks[0], grid.blocks[1], grid.blocks[2]},
                              {grid.threads[0], grid.threads[1], grid.threads[2]},
                              grid.shared_bytes,
                              stream_,
                              &early,
                              begins_early ? 1u : 0u};
    const Result result = driver.launch(&config, function, arguments.data(), nullptr);
    if (result != kSuccess) {
      return driver.Check(result, absl::StrCat("cannot launch ", KernelName(launch)));
    }
    is_after_launch_ = true;
    for (const Moved& moved : moved_) KILN_RETURN_IF_ERROR(GiveBack(launch, moved));
    const bool checks = executor_.checks_launches_ && !captured_;
    return checks ? CheckLaunch(launch) : absl::OkStatus();
  }

  bool MayTime() const override { return !captured_; }

  absl::StatusOr<double> TimeLaunch(const PlanLaunch& launch) override {
    if (timer_ == nullptr) {
      KILN_ASSIGN_OR_RETURN(timer_, LaunchTimer::Make(on_.gpu, stream_));
    }
    is_after_launch_ = false;
    const absl::StatusOr<double> took = timer_->Time([&] { return Launch(launch); });
    is_after_launch_ = false;
    return took;
  }

  // The map of a matrix in the buffer at `address`.
  absl::Status Encode(const PlanLaunch& launch, const PlanTensorMap& map, DevicePointer address,
                      TensorMap& out) const {
    const Driver& driver = executor_.driver_;
    const uint32_t steps[runtime::kMostMapSizes] = {1, 1, 1, 1, 1};
    const Result result = driver.encode_tensor_map(
        &out, MapTypeOf(map.dtype), map.rank,
        reinterpret_cast<void*>(address + static_cast<DevicePointer>(map.offset_bytes)), map.sizes,
        map.stride_bytes, map.box, steps, kInterleaveNone, kSwizzle128Bytes, kPromote128Bytes,
        kFillZeros);
    if (result == kSuccess) return absl::OkStatus();
    return driver.Check(result, absl::StrCat("cannot describe an operand of ", KernelName(launch)));
  }

  // What the launch has written to the copy of a buffer.
  absl::Status GiveBack(const PlanLaunch& launch, const Moved& moved) {
    const auto number = static_cast<size_t>(&launch - plan().launches.data());
    const v1::KernelInterface& interface = *executor_.kernels()[number].interface;
    const int* buffers = plan().launch_buffers.data() + launch.first_buffer;
    for (int i = 0; i < launch.num_buffers; ++i) {
      if (buffers[i] != moved.buffer || !interface.buffers(i).written()) continue;
      return CopyBytes(reinterpret_cast<DevicePointer>(pointer(moved.buffer)), moved.copy,
                       plan().buffers[static_cast<size_t>(moved.buffer)].type.reach_bytes);
    }
    return absl::OkStatus();
  }

  absl::Status CheckLaunch(const PlanLaunch& launch) {
    const Driver& driver = executor_.driver_;
    KILN_RETURN_IF_ERROR(driver.Check(driver.synchronize_stream(stream_), KernelName(launch)));
    if (executor_.TakeError().ok()) return absl::OkStatus();
    return absl::OutOfRangeError(
        absl::StrCat(KernelName(launch), ": an index is outside of its dimension"));
  }

  absl::Status CopyWindow(const Window& to, const Window& from, absl::Span<const int64_t> sizes,
                          int64_t element_bytes) override {
    is_after_launch_ = false;
    return CopyOnGpu(executor_.driver_, reinterpret_cast<DevicePointer>(to.data), to.strides,
                     reinterpret_cast<DevicePointer>(from.data), from.strides, sizes, element_bytes,
                     stream_);
  }

  absl::StatusOr<SharedMemory*> AllocateOwn(int64_t bytes) override {
    return on_.gpu.AllocateShared(bytes, stream_);
  }

  void SetDevice(kiln_tensor& tensor) const override {
    tensor.device_type = KILN_CUDA;
    tensor.device_index = on_.gpu.ordinal;
  }

  absl::Status AfterCallback() override {
    is_after_launch_ = false;
    return context_.Renew();
  }

  const CudaExecutor& executor_;
  const OnGpu& on_;
  const ContextScope& context_;
  const Stream stream_;
  const bool captured_;      // what is given to the stream is only recorded
  DevicePointer owned_ = 0;  // of the runtime's pool
  absl::InlinedVector<Moved, 2> moved_;
  char* scratch_ = nullptr;
  std::unique_ptr<LaunchTimer> timer_;  // null before it is needed
  bool is_after_launch_ = false;        // the last of what this run gave the stream is one
};

CudaExecutor::CudaExecutor(const v1::Program& program, std::vector<runtime::Kernel> kernels,
                           std::vector<std::unique_ptr<const runtime::Archive>> archives,
                           std::string arch, std::unique_ptr<const runtime::Contract> contract,
                           const Driver& driver)
    : Executor(program, std::move(kernels), std::move(contract), KILN_CUDA),
      archives_(std::move(archives)),
      arch_(std::move(arch)),
      driver_(driver),
      checks_launches_([] {
        const char* value = std::getenv("KILN_CHECK_LAUNCHES");
        return value != nullptr && std::strcmp(value, "1") == 0;
      }()) {}

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(
    const v1::Program& program, std::vector<runtime::Kernel> kernels,
    std::vector<std::unique_ptr<const runtime::Archive>> archives, std::string arch,
    std::unique_ptr<const runtime::Contract> contract, const Driver& driver) {
  std::unique_ptr<CudaExecutor> executor(new CudaExecutor(program, std::move(kernels),
                                                          std::move(archives), std::move(arch),
                                                          std::move(contract), driver));
  KILN_RETURN_IF_ERROR(executor->Prepare());
  if (executor->typical_plan().thread_scratch_bytes != 0) {
    return absl::DataLossError("the artifact's program is for a GPU and wants scratch of threads");
  }
  return executor;
}

CudaExecutor::~CudaExecutor() {
  EndReleased();
}

int CudaExecutor::OrdinalOf(const Plan& plan, absl::Span<const kiln_tensor> inputs) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (plan.inputs[i].is_tensor) return inputs[i].device_index;
  }
  Device device = 0;
  return driver_.current_device(&device) == kSuccess ? device : 0;
}

absl::StatusOr<const CudaExecutor::OnGpu*> CudaExecutor::Use(int ordinal) const {
  if (ordinal < 0 || ordinal >= kMostGpus) {
    return absl::InvalidArgumentError(absl::StrCat("there is no GPU ", ordinal));
  }
  std::atomic<const OnGpu*>& slot = on_gpus_[static_cast<size_t>(ordinal)];
  const OnGpu* on = slot.load(std::memory_order_acquire);
  if (on != nullptr) return on;
  absl::MutexLock lock(&mutex_);  // whoever else wants the GPU has to wait for this anyway
  on = slot.load(std::memory_order_acquire);
  if (on != nullptr) return on;
  EndReleased();
  KILN_ASSIGN_OR_RETURN(std::shared_ptr<const OnGpu> made, Load(ordinal));
  on = loaded_.emplace_back(std::move(made)).get();
  slot.store(on, std::memory_order_release);
  return on;
}

absl::StatusOr<std::shared_ptr<const CudaExecutor::OnGpu>> CudaExecutor::Load(int ordinal) const {
  KILN_RETURN_IF_ERROR(CheckRunsOnGpu(driver_, arch_, ordinal));
  KILN_ASSIGN_OR_RETURN(const Gpu* gpu, Gpu::Get(ordinal));
  const ContextScope context(driver_, gpu->context);
  KILN_RETURN_IF_ERROR(context.status());
  std::shared_ptr<OnGpu> on = OnGpu::Make(*gpu);
  const RelaxedCaptureScope relaxed(driver_);
  KILN_ASSIGN_OR_RETURN(on->modules, Modules::Load(driver_, archives_));
  int64_t bytes = 0;
  std::vector<int64_t> offsets;
  for (const v1::Constant& constant : program().constants()) {
    offsets.push_back(bytes);
    bytes += RoundUp(static_cast<int64_t>(constant.data().size()));
  }
  KILN_ASSIGN_OR_RETURN(on->constants, DeviceBlock::Allocate(*gpu, bytes));
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<OwnStream> stream, OwnStream::Make(driver_));
  for (int i = 0; i < program().constants_size(); ++i) {
    const std::string& data = program().constants(i).data();
    char* to = on->constants.data() + offsets[static_cast<size_t>(i)];
    on->constant.push_back(to);
    if (data.empty()) continue;
    KILN_RETURN_IF_ERROR(
        driver_.Check(driver_.copy_to_device(reinterpret_cast<DevicePointer>(to), data.data(),
                                             data.size(), stream->get()),
                      absl::StrCat("cannot copy constant ", i, " to GPU ", ordinal)));
  }
  KILN_RETURN_IF_ERROR(stream->Synchronize());
  if (error_memory_ == nullptr) {
    void* word = nullptr;
    KILN_RETURN_IF_ERROR(
        driver_.Check(driver_.allocate_host(&word, sizeof(int), kHostPortable | kHostDeviceMap),
                      "cannot allocate memory that the host and GPUs share"));
    error_memory_.reset(static_cast<int*>(word), [&driver = driver_](int* memory) {
      const RelaxedCaptureScope for_free(driver);
      driver.free_host(memory);
    });
    *error_memory_ = 0;
    error_.store(error_memory_.get());
  }
  on->error_memory = error_memory_;
  KILN_RETURN_IF_ERROR(
      driver_.Check(driver_.host_device_pointer(&on->error, error_memory_.get(), 0),
                    "cannot show memory of the host to a GPU"));
  return on;
}

absl::Status CudaExecutor::TakeError() const {
  int* error = error_.load(std::memory_order_acquire);
  if (error == nullptr || __atomic_load_n(error, __ATOMIC_ACQUIRE) == 0 ||
      __atomic_exchange_n(error, 0, __ATOMIC_ACQ_REL) == 0) {
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  for (const runtime::ArchivedKernel& kernel : archives_.front()->kernels()) {
    if (names.size() == kMostNames) {
      names.push_back("others");
      break;
    }
    names.push_back(kernel.name);
  }
  return absl::OutOfRangeError(
      absl::StrCat("a run of this program met an index outside of its dimension, in a kernel of ",
                   absl::StrJoin(names, ", "), " (KILN_CHECK_LAUNCHES=1 tells which)"));
}

absl::StatusOr<std::unique_ptr<kiln_prepared>> CudaExecutor::PrepareWeights(
    absl::Span<const kiln_tensor> inputs) const {
  std::shared_ptr<const Plan> made;
  KILN_ASSIGN_OR_RETURN(const Plan* plan,
                        Guard(inputs, static_cast<size_t>(program().outputs_size()), made));
  const int ordinal = OrdinalOf(*plan, inputs);
  KILN_ASSIGN_OR_RETURN(const OnGpu* on, Use(ordinal));
  const ContextScope context(driver_, on->gpu.context);
  KILN_RETURN_IF_ERROR(context.status());
  auto prepared = std::make_unique<CudaPrepared>(id(), ordinal);
  KILN_ASSIGN_OR_RETURN(DeviceBlock block, DeviceBlock::Allocate(on->gpu, plan->prepared_bytes));
  prepared->block = std::make_shared<const DeviceBlock>(std::move(block));
  const RelaxedCaptureScope relaxed(driver_);
  KILN_RETURN_IF_ERROR(driver_.Check(driver_.synchronize(), "cannot wait for the parameters"));
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<OwnStream> stream, OwnStream::Make(driver_));
  KILN_RETURN_IF_ERROR(OneRun(*this, *on, context, *plan, inputs, nullptr, stream->get(), false)
                           .Prepare(prepared->block->data()));
  KILN_RETURN_IF_ERROR(stream->Synchronize());
  KILN_RETURN_IF_ERROR(TakeError());
  return prepared;
}

absl::Status CudaExecutor::Run(absl::Span<const kiln_tensor> inputs,
                               absl::Span<kiln_output> outputs,
                               const kiln_run_options* options) const {
  std::shared_ptr<const Plan> made;
  KILN_ASSIGN_OR_RETURN(const Plan* plan, Guard(inputs, outputs.size(), made));
  KILN_ASSIGN_OR_RETURN(const kiln_prepared* prepared, Prepared(options));
  const int ordinal = OrdinalOf(*plan, inputs);
  const auto* kept = static_cast<const CudaPrepared*>(prepared);
  if (kept != nullptr && kept->ordinal != ordinal) {
    return absl::InvalidArgumentError(absl::StrCat("what is prepared is on GPU ", kept->ordinal,
                                                   ", the inputs are on GPU ", ordinal));
  }
  KILN_RETURN_IF_ERROR(TakeError());
  KILN_ASSIGN_OR_RETURN(const OnGpu* on, Use(ordinal));
  const ContextScope context(driver_, on->gpu.context);
  KILN_RETURN_IF_ERROR(context.status());
  const Stream stream = options == nullptr ? nullptr : static_cast<Stream>(options->stream);
  const Graph graph = CapturedInto(driver_, stream);
  if (graph != nullptr) {
    KeepFor(driver_, graph, on->shared_from_this());
    if (kept != nullptr) KeepFor(driver_, graph, kept->block);
  }
  return OneRun(*this, *on, context, *plan, inputs, options, stream, graph != nullptr)
      .Run(kept == nullptr ? nullptr : kept->block->data(), outputs);
}

}  // namespace kiln::cuda
