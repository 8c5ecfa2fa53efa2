#include "server/compile_job.h"

#include <atomic>
#include <climits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

constexpr uint32_t kArtifactFormatVersion = 1;
constexpr int kMaxAttempts = 2;

// One kernel of the plan, and what became of it.
struct KernelSlot {
  v1::CompileKernelResponse compiled;
  int64_t compile_ns = 0;
  bool cached = false;
};

// What worker threads write while the job's thread waits; outlives a job that was stopped.
struct KernelResults {
  absl::Mutex mu;
  std::vector<KernelSlot> slots ABSL_GUARDED_BY(mu);
  absl::Status status ABSL_GUARDED_BY(mu);
  int worker_deaths ABSL_GUARDED_BY(mu) = 0;
  int done ABSL_GUARDED_BY(mu) = 0;
  int cached ABSL_GUARDED_BY(mu) = 0;
  // One kernel's failure calls the others off.
  std::atomic<bool> failed = false;
};

v1::Progress MakeProgress(absl::string_view stage, int done, int total, int cached) {
  v1::Progress progress;
  progress.set_stage(std::string(stage));
  progress.set_kernels_done(done);
  progress.set_kernels_total(total);
  progress.set_kernels_cached(cached);
  return progress;
}

class Job {
 public:
  Job(const CompileJobContext& context, const CompileJobInput& input,
      std::shared_ptr<JobControl> control, ProgressSink progress)
      : context_(context),
        input_(input),
        control_(std::move(control)),
        progress_(std::move(progress)),
        target_(TargetLabel(input.request->device().target())) {}

  CompileJobOutcome Run() {
    outcome_.artifact = RunSteps();
    outcome_.stages = std::move(stages_text_);
    return std::move(outcome_);
  }

 private:
  absl::StatusOr<cache::EntryPtr> RunSteps() {
    KILN_RETURN_IF_ERROR(Step("plan", [this] { return Plan(); }));
    KILN_RETURN_IF_ERROR(Step("kernel_lookup", [this] { return LookUpKernels(); }));
    KILN_RETURN_IF_ERROR(Step("compile", [this] { return CompileMissingKernels(); }));
    KILN_RETURN_IF_ERROR(Step("link", [this] { return Link(); }));
    return Store();
  }

  template <typename F>
  absl::Status Step(absl::string_view name, F&& step) {
    progress_(MakeProgress(name, outcome_.kernels_cached, outcome_.kernels_total,
                           outcome_.kernels_cached));
    absl::Time start = absl::Now();
    absl::Status status = step();
    absl::Duration duration = absl::Now() - start;
    if (control_->stopped()) status = absl::CancelledError("nobody waits for it any more");
    v1::StageTime& time = *artifact_.mutable_header()->add_stages();
    time.set_stage(std::string(name));
    time.set_duration_ns(absl::ToInt64Nanoseconds(duration));
    context_.metrics.StageDone(name, target_, duration);
    absl::StrAppend(&stages_text_, stages_text_.empty() ? "" : " ", name, "=",
                    absl::StrFormat("%.1fms", absl::ToDoubleMilliseconds(duration)));
    return status;
  }

  // One task on a worker, a second time where the worker crashed.
  absl::StatusOr<v1::WorkerResponse> OnWorker(std::shared_ptr<const v1::WorkerRequest> request) {
    absl::Status last;
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      auto answer =
          std::make_shared<absl::StatusOr<v1::WorkerResponse>>(absl::InternalError("no answer"));
      control_->Expect(1);
      WorkerTask task;
      task.request = request;
      task.job = input_.number;
      task.stopped = [control = control_] { return control->stopped(); };
      task.done = [control = control_, answer](absl::StatusOr<v1::WorkerResponse> response) {
        *answer = std::move(response);
        control->Answered();
      };
      context_.workers.Submit(std::move(task));
      KILN_RETURN_IF_ERROR(control_->Wait());
      if (IsWorkerDeath(answer->status())) ++outcome_.worker_deaths;
      if (!IsWorkerCrash(answer->status())) return std::move(*answer);
      last = answer->status();
      Log(LogLevel::kWarning, "a job lost its worker",
          {{"key", input_.key.ShortHex()}, {"attempt", absl::StrCat(attempt + 1)}});
    }
    return last;
  }

  absl::Status Plan() {
    auto request = std::make_shared<v1::WorkerRequest>();
    v1::PlanRequest& plan = *request->mutable_plan();
    *plan.mutable_graph() = input_.request->graph();
    *plan.mutable_device() = input_.request->device();
    *plan.mutable_options() = input_.request->options();
    KILN_ASSIGN_OR_RETURN(v1::WorkerResponse response, OnWorker(std::move(request)));
    if (!response.has_plan()) return absl::InternalError("a worker answered with no plan");
    plan_ = std::move(*response.mutable_plan());
    outcome_.kernels_total = plan_.kernels_size();
    for (const v1::StageTime& stage : plan_.stages()) {
      *artifact_.mutable_header()->add_stages() = stage;
      context_.metrics.StageDone(stage.stage(), target_, absl::Nanoseconds(stage.duration_ns()));
    }
    for (const v1::KernelSource& kernel : plan_.kernels()) {
      KILN_ASSIGN_OR_RETURN(Digest key, Digest::FromBytes(kernel.key()));
      kernel_keys_.push_back(key);
    }
    return absl::OkStatus();
  }

  absl::Status LookUpKernels() {
    absl::MutexLock lock(&results_->mu);
    results_->slots.resize(kernel_keys_.size());
    for (size_t i = 0; i < kernel_keys_.size(); ++i) {
      if (control_->stopped()) return absl::CancelledError("stopped");
      auto found = context_.store.Get({cache::EntryKind::kKernel, kernel_keys_[i]});
      KernelSlot& slot = results_->slots[i];
      if (found.ok() && slot.compiled.ParseFromString(found->entry->bytes)) slot.cached = true;
      if (!slot.cached) missing_.push_back(i);
    }
    results_->cached = static_cast<int>(kernel_keys_.size() - missing_.size());
    results_->done = results_->cached;
    outcome_.kernels_cached = results_->cached;
    return absl::OkStatus();
  }

  absl::Status CompileMissingKernels() {
    control_->Expect(static_cast<int>(missing_.size()));
    for (size_t i : missing_) CompileOne(i);
    absl::Status waited = control_->Wait();
    absl::MutexLock lock(&results_->mu);
    outcome_.worker_deaths += results_->worker_deaths;
    KILN_RETURN_IF_ERROR(waited);
    return results_->status;
  }

  void CompileOne(size_t i) {
    auto request = std::make_shared<v1::WorkerRequest>();
    v1::CompileKernelRequest& compile = *request->mutable_compile_kernel();
    compile.set_source(plan_.kernels(static_cast<int>(i)).source());
    *compile.mutable_device() = input_.request->device();
    *compile.mutable_options() = input_.request->options();
    auto weight = static_cast<int64_t>(compile.source().size());
    KernelRequest kernel;
    kernel.key = kernel_keys_[i];
    kernel.request = std::move(request);
    kernel.job = input_.number;
    kernel.weight = weight;
    kernel.stopped = [control = control_, results = results_] {
      return results->failed || control->stopped();
    };
    kernel.done = [control = control_, results = results_, progress = progress_, i,
                   total = outcome_.kernels_total, &metrics = context_.metrics,
                   target = target_](const KernelOutcome& outcome) {
      v1::Progress report;
      {
        absl::MutexLock lock(&results->mu);
        results->worker_deaths += outcome.worker_deaths;
        results->status.Update(outcome.kernel.status());
        if (outcome.kernel.ok()) {
          KernelSlot& slot = results->slots[i];
          slot.compiled = outcome.kernel->response->compile_kernel();
          slot.compile_ns = outcome.kernel->compile_ns;
          metrics.KernelCompiled(target);
        } else {
          results->failed = true;
        }
        ++results->done;
        report = MakeProgress("compile", results->done, total, results->cached);
      }
      progress(report);
      control->Answered();
    };
    context_.kernels.Compile(std::move(kernel));
  }

  absl::Status Link() {
    if (kernel_keys_.empty()) return absl::OkStatus();
    auto request = std::make_shared<v1::WorkerRequest>();
    v1::LinkRequest& link = *request->mutable_link();
    *link.mutable_device() = input_.request->device();
    {
      absl::MutexLock lock(&results_->mu);
      for (const KernelSlot& slot : results_->slots) link.add_objects(slot.compiled.object());
    }
    KILN_ASSIGN_OR_RETURN(v1::WorkerResponse response, OnWorker(std::move(request)));
    artifact_.set_binary(std::move(*response.mutable_link()->mutable_binary()));
    return absl::OkStatus();
  }

  void FillHeader() {
    v1::ArtifactHeader& header = *artifact_.mutable_header();
    const v1::Device& device = input_.request->device();
    header.set_format_version(kArtifactFormatVersion);
    header.set_target(device.target());
    header.set_key(input_.key.ToHex());
    header.set_compiler_build(context_.compiler_build);
    header.set_arch(device.arch());
    *header.mutable_features() = device.features();
    absl::MutexLock lock(&results_->mu);
    for (size_t i = 0; i < kernel_keys_.size(); ++i) {
      const KernelSlot& slot = results_->slots[i];
      v1::KernelInfo& info = *header.add_kernels();
      info.set_symbol(plan_.kernels(static_cast<int>(i)).symbol());
      info.set_key(kernel_keys_[i].ToHex());
      info.set_object_digest(Sha256(slot.compiled.object()).ToHex());
      info.set_compile_ns(slot.compile_ns);
      info.set_cached(slot.cached);
    }
    int library_steps = 0;
    for (const v1::Step& step : plan_.program().steps()) {
      if (!step.has_library()) continue;
      ++library_steps;
      context_.metrics.LibraryStep(step.library().op());
    }
    header.set_library_steps(library_steps);
    header.set_native_steps(plan_.program().steps_size() - library_steps);
  }

  void FillDebug() {
    if (!input_.request->options().debug()) return;
    v1::Debug& debug = *artifact_.mutable_debug();
    debug = std::move(*plan_.mutable_debug());
    absl::MutexLock lock(&results_->mu);
    for (size_t i = 0; i < kernel_keys_.size(); ++i) {
      const v1::KernelSource& from = plan_.kernels(static_cast<int>(i));
      v1::Debug::KernelSource& to = *debug.add_kernels();
      to.set_symbol(from.symbol());
      to.set_source(from.source());
      to.set_assembly(results_->slots[i].compiled.assembly());
      *to.mutable_ops() = from.ops();
    }
  }

  absl::StatusOr<cache::EntryPtr> Store() {
    FillHeader();
    FillDebug();
    *artifact_.mutable_program() = std::move(*plan_.mutable_program());
    if (artifact_.ByteSizeLong() > INT_MAX) {
      return absl::ResourceExhaustedError("the artifact is over 2 GiB");
    }
    cache::EntryPtr entry = cache::MakeEntry(artifact_.SerializeAsString());
    absl::Status stored = context_.store.Put({cache::EntryKind::kArtifact, input_.key}, entry);
    if (!stored.ok()) {
      Log(LogLevel::kWarning, "an artifact was not stored",
          {{"key", input_.key.ShortHex()}, {"why", stored.ToString()}});
    }
    return entry;
  }

  const CompileJobContext& context_;
  const CompileJobInput& input_;
  const std::shared_ptr<JobControl> control_;
  const ProgressSink progress_;
  const absl::string_view target_;
  CompileJobOutcome outcome_{.artifact = absl::InternalError("not run")};
  std::string stages_text_;
  v1::PlanResponse plan_;
  v1::Artifact artifact_;
  std::vector<Digest> kernel_keys_;
  std::vector<size_t> missing_;  // of kernel_keys_
  const std::shared_ptr<KernelResults> results_ = std::make_shared<KernelResults>();
};

}  // namespace

absl::string_view TargetLabel(int target) {
  switch (target) {
    case v1::TARGET_CPP:
      return "cpp";
    case v1::TARGET_PTX:
      return "ptx";
    case v1::TARGET_GCU:
      return "gcu";
    default:
      return "unknown";
  }
}

CompileJobOutcome RunCompileJob(const CompileJobContext& context, const CompileJobInput& input,
                                const std::shared_ptr<JobControl>& control, ProgressSink progress) {
  return Job(context, input, control, std::move(progress)).Run();
}

}  // namespace kiln::server
