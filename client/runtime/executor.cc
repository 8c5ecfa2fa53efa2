#include "client/runtime/executor.h"

#include <algorithm>
#include <atomic>

#include "client/runtime/check_inputs.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

constexpr size_t kMostPlans = 16;

uint64_t NewId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1);
}

}  // namespace

Executor::Executor(const v1::Program& program, std::vector<Kernel> kernels,
                   std::unique_ptr<const Contract> contract, kiln_device_type device)
    : id_(NewId()),
      program_(program),
      kernels_(std::move(kernels)),
      contract_(std::move(contract)),
      device_(device),
      choices_(program) {}

Executor::~Executor() = default;

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
  return absl::OkStatus();
}

void Executor::KeepParameters() {
  std::vector<bool> kept(prepared_inputs_.size(), false);
  const auto is_fixed = [](const v1::SymInt& size) { return !size.has_expr(); };
  size_t launch = 0;
  for (const v1::Step& step : program_.steps()) {
    if (!step.has_launch()) continue;
    if (kernels_[launch++].entry != nullptr) continue;  // the host's
    for (const uint32_t number : step.launch().buffers()) {
      const v1::Buffer& buffer = program_.buffers(static_cast<int>(number));
      if (buffer.kind() != v1::Buffer::KIND_INPUT || kept[buffer.index()] ||
          written_inputs_[buffer.index()] ||
          program_.inputs(static_cast<int>(buffer.index())).role() != v1::Input::ROLE_PARAMETER ||
          !std::all_of(buffer.sizes().begin(), buffer.sizes().end(), is_fixed) ||
          !std::all_of(buffer.strides().begin(), buffer.strides().end(), is_fixed)) {
        continue;
      }
      kept[buffer.index()] = prepared_inputs_[buffer.index()] = true;
      kept_bytes_ += typical_plan_->buffers[number].type.reach_bytes;
    }
  }
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

absl::StatusOr<const Plan*> Executor::Guard(absl::Span<const kiln_tensor> inputs,
                                            size_t num_outputs,
                                            std::shared_ptr<const Plan>& made) const {
  KILN_RETURN_IF_ERROR(CheckCounts(program_, inputs, num_outputs));
  const Plan* plan = typical_plan_.get();
  if (dynamic_) {
    KILN_ASSIGN_OR_RETURN(made, PlanForInputs(inputs));
    plan = made.get();
  }
  KILN_RETURN_IF_ERROR(CheckInputs(program_, *plan, inputs, device_));
  return plan;
}

absl::StatusOr<const kiln_prepared*> Executor::Prepared(const kiln_run_options* options) const {
  const kiln_prepared* prepared = options != nullptr ? options->prepared : nullptr;
  if (prepared == nullptr || prepared->executor == id_) return prepared;
  return absl::InvalidArgumentError("what is prepared is of another program");
}

}  // namespace kiln::runtime
