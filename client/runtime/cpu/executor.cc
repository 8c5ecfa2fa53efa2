#include "client/runtime/cpu/executor.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/runtime/contract.h"
#include "client/runtime/cpu/executor_run.h"
#include "client/runtime/cpu/thread_pool.h"
#include "client/runtime/strided_copy.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

constexpr size_t kMostIdleWorkspaces = 4;
constexpr size_t kMostPlans = 16;
constexpr int kMostThreads = 1024;

uint64_t NewId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1);
}

}  // namespace

Executor::Executor(const v1::Program& program, std::vector<Kernel> kernels,
                   std::unique_ptr<const Contract> contract, int threads)
    : id_(NewId()),
      program_(program),
      kernels_(std::move(kernels)),
      contract_(std::move(contract)),
      threads_(threads) {}

Executor::~Executor() {
  delete spare_.load();
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const v1::Program& program,
                                                           std::vector<Kernel> kernels,
                                                           std::unique_ptr<const Contract> contract,
                                                           int threads) {
  if (threads < 1 || threads > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", threads, "; expected 1 to ", kMostThreads));
  }
  std::unique_ptr<Executor> executor(
      new Executor(program, std::move(kernels), std::move(contract), threads));
  KILN_RETURN_IF_ERROR(executor->Prepare());
  return executor;
}

absl::Status Executor::Prepare() {
  written_inputs_.assign(static_cast<size_t>(program_.inputs_size()), false);
  KILN_RETURN_IF_ERROR(CheckLaunches(program_, kernels_, [this](int input) {
    written_inputs_[static_cast<size_t>(input)] = true;
    return contract_ == nullptr || contract_->MayWrite(input);
  }));
  prepared_inputs_.assign(written_inputs_.size(), false);
  for (int i = 0; i < static_cast<int>(program_.prepare_steps()); ++i) {
    for (uint32_t number : program_.steps(i).launch().buffers()) {
      const v1::Buffer& buffer = program_.buffers(static_cast<int>(number));
      if (buffer.kind() == v1::Buffer::KIND_INPUT) prepared_inputs_[buffer.index()] = true;
    }
  }
  symbol_sources_ = FindSymbolSources(program_);
  std::vector<int64_t> hints;
  for (const SymbolSource& source : symbol_sources_) {
    hints.push_back(source.fixed);
    dynamic_ = dynamic_ || source.kind != SymbolSource::Kind::kNone;
  }
  KILN_ASSIGN_OR_RETURN(typical_plan_, MakeSoundPlan(hints));
  for (const v1::Constant& constant : program_.constants()) {
    KILN_ASSIGN_OR_RETURN(Block block,
                          Block::Allocate(static_cast<int64_t>(constant.data().size())));
    std::memcpy(block.data(), constant.data().data(), constant.data().size());
    constants_.push_back(std::move(block));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Plan>> Executor::MakeSoundPlan(
    absl::Span<const int64_t> symbols) const {
  KILN_ASSIGN_OR_RETURN(Plan made, MakePlan(program_, kernels_, symbols));
  if (contract_ != nullptr) KILN_RETURN_IF_ERROR(contract_->CheckPlan(made));
  return std::make_shared<const Plan>(std::move(made));
}

absl::StatusOr<std::shared_ptr<const Plan>> Executor::PlanForInputs(
    absl::Span<const kiln_tensor> inputs) const {
  KILN_ASSIGN_OR_RETURN(std::vector<int64_t> symbols, ReadSymbols(symbol_sources_, inputs));
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = plans_.rbegin(); it != plans_.rend(); ++it) {
      if ((*it)->symbols != symbols) continue;
      std::shared_ptr<const Plan> plan = *it;
      std::rotate(it.base() - 1, it.base(), plans_.end());
      return plan;
    }
  }
  KILN_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan, MakeSoundPlan(symbols));
  absl::MutexLock lock(&mutex_);
  if (plans_.size() >= kMostPlans) plans_.erase(plans_.begin());
  plans_.push_back(plan);
  return plan;
}

absl::StatusOr<std::unique_ptr<Executor::Workspace>> Executor::TakeWorkspace(
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

void Executor::ReturnWorkspace(std::unique_ptr<Workspace> workspace) const {
  Workspace* none = nullptr;
  if (spare_.compare_exchange_strong(none, workspace.get(), std::memory_order_release,
                                     std::memory_order_relaxed)) {
    workspace.release();
    return;
  }
  absl::MutexLock lock(&mutex_);
  if (idle_.size() < kMostIdleWorkspaces) idle_.push_back(std::move(workspace));
}

ThreadPool& Executor::Pool() const {
  ThreadPool* pool = pool_.load(std::memory_order_acquire);
  if (pool == nullptr) {
    pool = &ThreadPool::Shared(threads_);
    pool_.store(pool, std::memory_order_release);
  }
  return *pool;
}

absl::Status Executor::Workspace::Prepare(const Plan& plan, int threads,
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

absl::StatusOr<const Plan*> Executor::Guard(absl::Span<const kiln_tensor> inputs,
                                            std::shared_ptr<const Plan>& made) const {
  const Plan* plan = typical_plan_.get();
  if (dynamic_) {
    KILN_ASSIGN_OR_RETURN(made, PlanForInputs(inputs));
    plan = made.get();
  }
  KILN_RETURN_IF_ERROR(CheckInputs(program_, *plan, inputs));
  return plan;
}

absl::StatusOr<std::unique_ptr<kiln_prepared>> Executor::PrepareWeights(
    absl::Span<const kiln_tensor> inputs) const {
  KILN_RETURN_IF_ERROR(CheckCounts(program_, inputs, static_cast<size_t>(program_.outputs_size())));
  std::shared_ptr<const Plan> made;
  KILN_ASSIGN_OR_RETURN(const Plan* plan, Guard(inputs, made));
  auto prepared = std::make_unique<kiln_prepared>();
  prepared->executor = id_;
  KILN_ASSIGN_OR_RETURN(prepared->block, Block::Allocate(plan->prepared_bytes));
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<Workspace> workspace, TakeWorkspace(*plan));
  absl::Status status;
  {
    OneRun run(*this, *plan, *workspace, inputs, nullptr);
    status = run.Prepare(prepared->block.data());
  }
  ReturnWorkspace(std::move(workspace));
  if (!status.ok()) return status;
  return prepared;
}

absl::Status Executor::Run(absl::Span<const kiln_tensor> inputs, absl::Span<kiln_output> outputs,
                           const kiln_run_options* options) const {
  KILN_RETURN_IF_ERROR(CheckCounts(program_, inputs, outputs.size()));
  std::shared_ptr<const Plan> made;
  KILN_ASSIGN_OR_RETURN(const Plan* plan, Guard(inputs, made));
  if (options != nullptr && options->prepared != nullptr && options->prepared->executor != id_) {
    return absl::InvalidArgumentError("what is prepared is of another program");
  }
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<Workspace> workspace, TakeWorkspace(*plan));
  absl::Status status;
  {
    OneRun run(*this, *plan, *workspace, inputs, options);
    status = run.Run(outputs);
  }
  ReturnWorkspace(std::move(workspace));
  return status;
}

}  // namespace kiln::runtime
