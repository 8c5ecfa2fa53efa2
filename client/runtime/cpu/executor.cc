#include "client/runtime/cpu/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/runtime/check_inputs.h"
#include "client/runtime/cpu/thread_pool.h"
#include "client/runtime/program_run.h"
#include "client/runtime/strided_copy.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

constexpr size_t kMostIdleWorkspaces = 4;
constexpr int kMostThreads = 1024;

struct CpuPrepared : kiln_prepared {
  using kiln_prepared::kiln_prepared;
  std::shared_ptr<TakenBlock> block;
  std::unique_ptr<Accelerator::Kept> on_device;  // null where all launches are the host's
};

// What ExpectPrepare has made, of one program at a time: where nothing comes of it, the memory is
// the next one's.
struct Expected {
  absl::Mutex mutex;
  uint64_t executor ABSL_GUARDED_BY(mutex) = 0;
  std::shared_ptr<TakenBlock> block ABSL_GUARDED_BY(mutex);
};

Expected& TheExpected() {
  static auto* expected = new Expected;
  return *expected;
}

// Of that executor; null where there is none.
std::shared_ptr<TakenBlock> TakeExpected(uint64_t executor) {
  Expected& expected = TheExpected();
  absl::MutexLock lock(&expected.mutex);
  return expected.executor == executor ? std::move(expected.block) : nullptr;
}

}  // namespace

// What a run writes to apart from outputs; belongs to one run at a time.
struct CpuExecutor::Workspace {
  absl::Status Prepare(const Plan& plan, int threads, absl::Span<const Block> constants);

  uint64_t plan_id = 0;  // the plan that the pointers below are for; 0 for none
  Block block;
  std::shared_ptr<TakenBlock> prepared;  // of runs that are given nothing prepared; may be null
  char* scratch = nullptr;
  char* thread_scratch = nullptr;
  std::vector<void*> pointers;   // by buffer
  std::vector<void*> arguments;  // of the launch in progress
};

class CpuExecutor::OneRun final : private ProgramRun {
 public:
  OneRun(const CpuExecutor& executor, const Plan& plan, Workspace& workspace,
         absl::Span<const kiln_tensor> inputs, const kiln_run_options* options)
      : ProgramRun(executor, plan, inputs, options, absl::MakeSpan(workspace.pointers)),
        executor_(executor),
        workspace_(workspace) {
    context_.parallel_for = &ContextParallelFor;
    context_.threads = 1;
    context_.scratch = workspace.scratch;
    context_.thread_scratch = workspace.thread_scratch;
    if (executor.threads() > 1 && !plan.launches.empty()) {
      ThreadPool& pool = executor.Pool();
      pool_run_ = pool.Acquire();
      if (pool_run_ != nullptr) {
        context_.pool = pool_run_;
        context_.threads = pool.threads();
      }
    }
  }
  ~OneRun() override {
    if (pool_run_ != nullptr) pool_run_->Release();
    if (constant_moved()) workspace_.plan_id = 0;  // its pointers are not the plan's any more
  }

  // `prepared` may be null: then the prepare steps run as well.
  absl::Status Run(const CpuPrepared* prepared, absl::Span<kiln_output> outputs) {
    std::shared_ptr<TakenBlock>& own = workspace_.prepared;
    const int64_t own_bytes = own != nullptr ? own->capacity() : 0;
    if (prepared == nullptr && own_bytes < plan().prepared_bytes) {
      own = nullptr;
      KILN_ASSIGN_OR_RETURN(own, executor_.BlockForPrepared(plan().prepared_bytes));
    }
    const TakenBlock* block = prepared != nullptr ? prepared->block.get() : own.get();
    SetPointers(block != nullptr ? block->data() : nullptr);
    KILN_RETURN_IF_ERROR(BeginOnDevice(prepared != nullptr ? prepared->on_device.get() : nullptr));
    KILN_RETURN_IF_ERROR(ProgramRun::Run(
        prepared != nullptr ? static_cast<size_t>(plan().prepare_steps) : 0, outputs));
    return StoreInputs();
  }

  // Runs the prepare steps alone, into a block of the plan's prepared_bytes.
  absl::Status Prepare(char* block) {
    SetPointers(block);
    KILN_RETURN_IF_ERROR(BeginOnDevice(nullptr));
    KILN_RETURN_IF_ERROR(RunSteps(0, static_cast<size_t>(plan().prepare_steps)));
    return BringBackPrepared();
  }

 private:
  absl::Status BeginOnDevice(Accelerator::Kept* kept) {
    if (executor_.accelerator_ == nullptr) return absl::OkStatus();
    KILN_ASSIGN_OR_RETURN(on_device_,
                          executor_.accelerator_->Begin(plan(), kept, executor_.prepared_inputs()));
    return absl::OkStatus();
  }

  absl::Status BringBackPrepared() {
    if (on_device_ == nullptr) return absl::OkStatus();
    for (size_t i = 0; i < plan().buffers.size(); ++i) {
      if (plan().buffers[i].kind != BufferKind::kPrepared) continue;
      KILN_RETURN_IF_ERROR(BeforeUse(static_cast<int>(i), false));
    }
    return on_device_->Finish();
  }

  // With a device a run writes to its inputs when all else is done: the elements of each, and not
  // what lies between them, which may be another tensor's.
  absl::Status StoreInputs() {
    if (on_device_ == nullptr) return absl::OkStatus();
    for (size_t i = 0; i < plan().buffers.size(); ++i) {
      const auto number = static_cast<int>(i);
      if (plan().buffers[i].kind != BufferKind::kInput || !on_device_->OnlyOnDevice(number))
        continue;
      KILN_RETURN_IF_ERROR(BeforeUse(number, false));
    }
    KILN_RETURN_IF_ERROR(on_device_->Finish());
    for (const auto& [number, block] : staged_) {
      const PlanBuffer& buffer = plan().buffers[static_cast<size_t>(number)];
      const PlanTensor& type = buffer.type;
      if (type.reach_bytes == 0) continue;
      CopyStrided(static_cast<char*>(inputs()[static_cast<size_t>(buffer.index)].data),
                  type.strides, block.data(), type.strides, type.sizes, DTypeSize(type.dtype));
    }
    return absl::OkStatus();
  }

  absl::Status BeforeUse(int buffer, bool writes) override {
    if (on_device_ == nullptr) return absl::OkStatus();
    KILN_RETURN_IF_ERROR(Stage(buffer, writes));
    return on_device_->ToHost(buffer, pointer(buffer), writes);
  }

  // Memory of the run's own in an input's place, before its new value comes to the host.
  absl::Status Stage(int number, bool writes) {
    const PlanBuffer& buffer = plan().buffers[static_cast<size_t>(number)];
    const bool only_on_device = on_device_->OnlyOnDevice(number);
    if (buffer.kind != BufferKind::kInput || !(writes || only_on_device) ||
        pointer(number) != inputs()[static_cast<size_t>(buffer.index)].data) {
      return absl::OkStatus();
    }
    KILN_ASSIGN_OR_RETURN(Block block, Block::Allocate(buffer.type.reach_bytes));
    if (!only_on_device && buffer.type.reach_bytes > 0) {
      std::memcpy(block.data(), pointer(number), static_cast<size_t>(buffer.type.reach_bytes));
    }
    workspace_.pointers[static_cast<size_t>(number)] = block.data();
    staged_.emplace_back(number, std::move(block));
    return absl::OkStatus();
  }

  absl::Status Launch(const PlanLaunch& launch) override {
    const int* buffers = plan().launch_buffers.data() + launch.first_buffer;
    if (on_device_ != nullptr) {
      const Kernel& kernel =
          executor_.kernels()[static_cast<size_t>(&launch - plan().launches.data())];
      if (launch.kernel == nullptr) {
        return on_device_->Launch(launch, kernel, workspace_.pointers);
      }
      for (int i = 0; i < launch.num_buffers; ++i) {
        KILN_RETURN_IF_ERROR(BeforeUse(buffers[i], kernel.interface->buffers(i).written()));
      }
    }
    for (int i = 0; i < launch.num_buffers; ++i) workspace_.arguments[i] = pointer(buffers[i]);
    context_.thread_scratch_bytes = static_cast<long>(launch.thread_scratch_bytes);
    const int result = launch.kernel(&context_, workspace_.arguments.data(), launch.symbols.data());
    if (result == KILN_CPU_OK) return absl::OkStatus();
    if (result == KILN_CPU_INDEX_OUT_OF_RANGE) {
      return absl::OutOfRangeError(
          absl::StrCat(KernelName(launch), ": an index is outside of its dimension"));
    }
    if (result == KILN_CPU_DIVISION_BY_ZERO) {
      v1::ErrorDetail detail;
      detail.set_reason(v1::ErrorDetail::REASON_DIVISION_BY_ZERO);
      return WithDetail(absl::OutOfRangeError(
                            absl::StrCat(KernelName(launch), ": an integer is divided by zero")),
                        detail);
    }
    return absl::InternalError(absl::StrCat(KernelName(launch), " returned ", result));
  }

  absl::StatusOr<double> TimeLaunch(const PlanLaunch& launch) override {
    const auto begin = std::chrono::steady_clock::now();
    KILN_RETURN_IF_ERROR(Launch(launch));
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
        .count();
  }

  // A device's launches need not have ended when Launch returns.
  bool MayTime() const override { return on_device_ == nullptr; }

  absl::Status CopyWindow(const Window& to, const Window& from, absl::Span<const int64_t> sizes,
                          int64_t element_bytes) override {
    CopyStrided(static_cast<char*>(to.data), to.strides, static_cast<const char*>(from.data),
                from.strides, sizes, element_bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<SharedMemory*> AllocateOwn(int64_t bytes) override {
    return AllocateShared(bytes);
  }

  void SetDevice(kiln_tensor& tensor) const override { tensor.device_type = KILN_CPU; }
  absl::Status AfterCallback() override { return absl::OkStatus(); }

  const CpuExecutor& executor_;
  Workspace& workspace_;
  std::unique_ptr<Accelerator::Run> on_device_;  // null where all launches are the host's
  std::vector<std::pair<int, Block>> staged_;    // inputs' buffers
  ThreadPool::Run* pool_run_ = nullptr;          // its place, where it has one
  KilnCpuContext context_{};
};

CpuExecutor::CpuExecutor(const v1::Program& program, std::vector<Kernel> kernels,
                         std::unique_ptr<const Contract> contract, int threads,
                         std::unique_ptr<const Accelerator> accelerator)
    : Executor(program, std::move(kernels), std::move(contract), KILN_CPU),
      threads_(threads),
      accelerator_(std::move(accelerator)) {}

CpuExecutor::~CpuExecutor() {
  TakeExpected(id());
  delete spare_.load();
}

absl::StatusOr<std::unique_ptr<CpuExecutor>> CpuExecutor::Create(
    const v1::Program& program, std::vector<Kernel> kernels,
    std::unique_ptr<const Contract> contract, int threads,
    std::unique_ptr<const Accelerator> accelerator) {
  if (threads < 1 || threads > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", threads, "; expected 1 to ", kMostThreads));
  }
  std::unique_ptr<CpuExecutor> executor(new CpuExecutor(
      program, std::move(kernels), std::move(contract), threads, std::move(accelerator)));
  KILN_RETURN_IF_ERROR(executor->Prepare());
  if (executor->accelerator_ != nullptr) executor->KeepParameters();
  for (const v1::Constant& constant : program.constants()) {
    KILN_ASSIGN_OR_RETURN(Block block,
                          Block::Allocate(static_cast<int64_t>(constant.data().size())));
    std::memcpy(block.data(), constant.data().data(), constant.data().size());
    executor->constants_.push_back(std::move(block));
  }
  return executor;
}

absl::StatusOr<std::unique_ptr<CpuExecutor::Workspace>> CpuExecutor::TakeWorkspace(
    const Plan& plan) const {
  std::unique_ptr<Workspace> workspace(spare_.exchange(nullptr, std::memory_order_acquire));
  if (workspace == nullptr) {
    absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      workspace = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (workspace == nullptr) workspace = std::make_unique<Workspace>();
  if (workspace->plan_id != plan.id) {
    KILN_RETURN_IF_ERROR(workspace->Prepare(plan, threads_, constants_));
  }
  return workspace;
}

void CpuExecutor::ReturnWorkspace(std::unique_ptr<Workspace> workspace) const {
  Workspace* none = nullptr;
  if (spare_.compare_exchange_strong(none, workspace.get(), std::memory_order_release,
                                     std::memory_order_relaxed)) {
    workspace.release();
    return;
  }
  absl::MutexLock lock(&mutex_);
  if (idle_.size() < kMostIdleWorkspaces) idle_.push_back(std::move(workspace));
}

ThreadPool& CpuExecutor::Pool() const {
  ThreadPool* pool = pool_.load(std::memory_order_acquire);
  if (pool == nullptr) {
    pool = &ThreadPool::Shared(threads_);
    pool_.store(pool, std::memory_order_release);
  }
  return *pool;
}

void CpuExecutor::ExpectPrepare() const {
  const int64_t bytes = typical_plan().prepared_bytes;
  if (bytes == 0) return;
  Expected& expected = TheExpected();
  absl::MutexLock lock(&expected.mutex);
  if (expected.executor == id() && expected.block != nullptr) return;
  expected.block = nullptr;
  absl::StatusOr<Block> block = Block::Allocate(bytes);
  if (!block.ok()) return;  // who needs it says so
  expected.executor = id();
  expected.block = std::make_shared<TakenBlock>(*std::move(block));
  TakenBlock::TakeMeanwhile(expected.block);
}

absl::StatusOr<std::shared_ptr<TakenBlock>> CpuExecutor::BlockForPrepared(int64_t bytes) const {
  std::shared_ptr<TakenBlock> expected = TakeExpected(id());
  if (expected != nullptr && expected->capacity() >= bytes) return expected;
  KILN_ASSIGN_OR_RETURN(Block block, Block::Allocate(bytes));
  return std::make_shared<TakenBlock>(std::move(block));
}

absl::Status CpuExecutor::Workspace::Prepare(const Plan& plan, int threads,
                                             absl::Span<const Block> constants) {
  // Forget the old plan first: an allocation below may fail.
  plan_id = 0;
  const int64_t needed =
      plan.workspace_bytes + plan.scratch_bytes + plan.thread_scratch_bytes * threads + 64;
  if (block.capacity() < needed) {
    block = Block();
    KILN_ASSIGN_OR_RETURN(block, Block::Allocate(needed));
  }
  scratch = block.data() + (plan.workspace_bytes + 63) / 64 * 64;
  thread_scratch = scratch + plan.scratch_bytes;
  pointers.assign(plan.buffers.size(), nullptr);
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const PlanBuffer& buffer = plan.buffers[i];
    if (buffer.kind == BufferKind::kWorkspace) {
      pointers[i] = block.data() + buffer.workspace_offset;
    } else if (buffer.kind == BufferKind::kConstant) {
      pointers[i] = constants[buffer.index].data();
    }
  }
  int most = 0;
  for (const PlanLaunch& launch : plan.launches) most = std::max(most, launch.num_buffers);
  arguments.assign(most, nullptr);
  plan_id = plan.id;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<kiln_prepared>> CpuExecutor::PrepareWeights(
    absl::Span<const kiln_tensor> inputs) const {
  std::shared_ptr<const Plan> made;
  KILN_ASSIGN_OR_RETURN(const Plan* plan,
                        Guard(inputs, static_cast<size_t>(program().outputs_size()), made));
  auto prepared = std::make_unique<CpuPrepared>(id());
  KILN_ASSIGN_OR_RETURN(prepared->block, BlockForPrepared(plan->prepared_bytes));
  // A weight fills a huge page or two, which one thread would be given while the others wait for
  // it.
  if (ThreadPool::Run* run = Pool().Acquire()) {
    run->ParallelFor(
        threads_, [](void* block, long, int) { static_cast<TakenBlock*>(block)->Take(); },
        prepared->block.get());
    run->Release();
  }
  if (accelerator_ != nullptr) prepared->on_device = accelerator_->Keep();
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<Workspace> workspace, TakeWorkspace(*plan));
  const absl::Status status =
      OneRun(*this, *plan, *workspace, inputs, nullptr).Prepare(prepared->block->data());
  ReturnWorkspace(std::move(workspace));
  if (!status.ok()) return status;
  return prepared;
}

absl::Status CpuExecutor::Run(absl::Span<const kiln_tensor> inputs, absl::Span<kiln_output> outputs,
                              const kiln_run_options* options) const {
  std::shared_ptr<const Plan> made;
  KILN_ASSIGN_OR_RETURN(const Plan* plan, Guard(inputs, outputs.size(), made));
  if (accelerator_ != nullptr) {
    KILN_RETURN_IF_ERROR(CheckUpdatesAreAlone(program(), *plan, inputs, written_inputs()));
  }
  KILN_ASSIGN_OR_RETURN(const kiln_prepared* prepared, Prepared(options));
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<Workspace> workspace, TakeWorkspace(*plan));
  absl::Status status = OneRun(*this, *plan, *workspace, inputs, options)
                            .Run(static_cast<const CpuPrepared*>(prepared), outputs);
  ReturnWorkspace(std::move(workspace));
  return status;
}

}  // namespace kiln::runtime
