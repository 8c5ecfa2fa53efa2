#include "server/jobs/compile_job.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/arena_message.h"
#include "proto/base/error_detail.h"
#include "proto/base/key.h"
#include "proto/base/log.h"
#include "proto/base/program_stamp.h"
#include "proto/base/status_macros.h"
#include "proto/base/target_name.h"
#include "server/jobs/choices.h"
#include "server/jobs/disassemble.h"
#include "server/jobs/explain_miss.h"
#include "server/observe/tracing.h"

namespace kiln::server {
namespace {

constexpr uint32_t kArtifactFormatVersion = 1;
constexpr int kMaxAttempts = 2;

// One kernel of the plan, or one of its routines, which come after the kernels.
struct PlannedKernel {
  std::string symbol;
  std::string operators;  // none for a routine
  std::string prelude;    // where debug asks for it
  bool is_routine = false;
  Digest key;  // of `request`
  std::shared_ptr<const v1::WorkerRequest> request;
  size_t source_bytes() const { return request->compile_kernel().source().size(); }
};

// And what became of it.
struct KernelSlot {
  v1::CompileKernelResponse compiled;
  int64_t compile_ns = 0;
  bool cached = false;
};

v1::Progress MakeProgress(absl::string_view stage, int done, int total, int cached) {
  v1::Progress progress;
  progress.set_stage(std::string(stage));
  progress.set_kernels_done(done);
  progress.set_kernels_total(total);
  progress.set_kernels_cached(cached);
  return progress;
}

// A kernel or routine that has just been compiled, on this job's account or another's.
void RecordKernel(const TraceContext& step, absl::string_view kind, absl::string_view symbol,
                  const KernelOutcome& outcome) {
  const absl::Time now = absl::Now();
  const auto record = [&](absl::string_view name, absl::Time begin, absl::Time end) {
    Span span = Span::BeginPart(step, name);
    span.Set("kiln.kernel", std::string(symbol));
    span.SetStatus(outcome.kernel.status());
    span.SetStart(begin);
    span.End(end);
  };
  if (!outcome.kernel.ok()) return record(kind, now, now);
  const absl::Time compiled = std::min(outcome.kernel->compiled, now);
  record(kind, compiled - absl::Nanoseconds(outcome.kernel->compile_ns), compiled);
  if (outcome.kernel->assembling < now) record("cubin", outcome.kernel->assembling, now);
}

// What worker threads write while the job's thread waits, and tell; outlives a job that was
// stopped.
struct KernelResults {
  KernelResults(const CompileJobContext& context, const CompileJobInput& input,
                std::shared_ptr<JobControl> job_control, ProgressSink sink)
      : metrics(context.metrics),
        observer(*context.observer),
        job(input.number),
        target(TargetName(input.request->device().target())),
        control(std::move(job_control)),
        progress(std::move(sink)) {}

  // One more is done. `step`: whose part it is.
  void Done(size_t i, const PlannedKernel& kernel, const TraceContext& step,
            const KernelOutcome& outcome) ABSL_LOCKS_EXCLUDED(mu);

  Metrics& metrics;
  JobObserver& observer;
  const int64_t job;
  const absl::string_view target;
  const std::shared_ptr<JobControl> control;
  const ProgressSink progress;

  absl::Mutex mu;
  std::vector<KernelSlot> slots ABSL_GUARDED_BY(mu);
  absl::Status status ABSL_GUARDED_BY(mu);
  int worker_deaths ABSL_GUARDED_BY(mu) = 0;
  int total ABSL_GUARDED_BY(mu) = 0;  // without routines, as the two below
  int done ABSL_GUARDED_BY(mu) = 0;
  int cached ABSL_GUARDED_BY(mu) = 0;
  // One kernel's failure calls the others off.
  std::atomic<bool> failed = false;
};

void KernelResults::Done(size_t i, const PlannedKernel& kernel, const TraceContext& step,
                         const KernelOutcome& outcome) {
  RecordKernel(step, kernel.is_routine ? "routine" : "kernel", kernel.symbol, outcome);
  if (outcome.kernel.ok()) {
    const absl::Duration took = absl::Nanoseconds(outcome.kernel->compile_ns);
    observer.KernelDone(job, kernel.symbol, kernel.operators, absl::Now() - took, took);
  }
  v1::Progress report;
  {
    absl::MutexLock lock(&mu);
    worker_deaths += outcome.worker_deaths;
    status.Update(outcome.kernel.status());
    if (outcome.kernel.ok()) {
      slots[i].compiled = outcome.kernel->response->compile_kernel();
      slots[i].compile_ns = outcome.kernel->compile_ns;
      if (!outcome.joined && !kernel.is_routine) metrics.KernelCompiled(target);
    } else {
      failed = true;
    }
    if (!kernel.is_routine) ++done;
    report = MakeProgress("compile", done, total, cached);
  }
  progress(report);
  control->Answered();
}

class Job {
 public:
  Job(const CompileJobContext& context, const CompileJobInput& input,
      std::shared_ptr<JobControl> control, ProgressSink progress)
      : context_(context),
        input_(input),
        control_(std::move(control)),
        progress_(std::move(progress)),
        target_(TargetName(input.request->device().target())),
        compiler_build_(context.compiler_builds.For(input.request->device().target())),
        device_(KeyedDevice(input.request->device())),
        options_(KeyedOptions(input.request->options())),
        results_(std::make_shared<KernelResults>(context, input, control_, progress_)) {}

  CompileJobOutcome Run() {
    outcome_.artifact = RunSteps();
    outcome_.stages = std::move(stages_text_);
    return std::move(outcome_);
  }

 private:
  absl::StatusOr<cache::EntryPtr> RunSteps() {
    KILN_RETURN_IF_ERROR(Step("plan", [this] { return Plan(); }));
    KILN_RETURN_IF_ERROR(Step("kernel_lookup", [this]() -> absl::Status {
      if (options_.autotune()) KILN_RETURN_IF_ERROR(TakeChoices());
      return LookUpKernels();
    }));
    KILN_RETURN_IF_ERROR(Step("compile", [this] { return CompileMissingKernels(); }));
    KILN_RETURN_IF_ERROR(Step("link", [this] { return Link(); }));
    if (options_.debug() && context_.disassemblers != nullptr) {
      KILN_RETURN_IF_ERROR(Step("disassemble", [this] { return ShowMachineCode(); }));
    }
    return Store();
  }

  template <typename F>
  absl::Status Step(absl::string_view name, F&& step) {
    progress_(MakeProgress(name, outcome_.kernels_cached, outcome_.kernels_total,
                           outcome_.kernels_cached));
    Span span = Span::BeginPart(input_.trace, name);
    step_trace_ = span.context();
    context_.observer->StageStarted(input_.number, name);
    absl::Time start = absl::Now();
    absl::Status status = step();
    absl::Duration duration = absl::Now() - start;
    span.SetStatus(status);
    span.End();
    if (control_->stopped()) status = absl::CancelledError("nobody waits for it any more");
    v1::StageTime& time = *artifact_.mutable_header()->add_stages();
    time.set_stage(std::string(name));
    time.set_duration_ns(absl::ToInt64Nanoseconds(duration));
    context_.metrics.StageDone(name, target_, duration);
    context_.observer->StageDone(input_.number, name, start, duration);
    absl::StrAppend(&stages_text_, stages_text_.empty() ? "" : " ", name, "=",
                    absl::StrFormat("%.1fms", absl::ToDoubleMilliseconds(duration)));
    return status;
  }

  // A worker says how long its stages took, one after the other, and has just answered.
  void RecordPlanStages() {
    absl::Duration all;
    for (const v1::StageTime& stage : plan_.stages()) all += absl::Nanoseconds(stage.duration_ns());
    absl::Time start = absl::Now() - all;
    for (const v1::StageTime& stage : plan_.stages()) {
      absl::Duration duration = absl::Nanoseconds(stage.duration_ns());
      RecordSpan(step_trace_, stage.stage(), start, duration);
      context_.observer->StageDone(input_.number, stage.stage(), start, duration);
      start += duration;
    }
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
      task.job = input_.order;
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
    auto request = MakeArenaMessage<v1::WorkerRequest>();
    v1::PlanRequest& plan = *request->mutable_plan();
    *plan.mutable_graph() = input_.request->graph();
    *plan.mutable_device() = device_;
    *plan.mutable_options() = options_;
    KILN_ASSIGN_OR_RETURN(v1::WorkerResponse response, OnWorker(std::move(request)));
    plan_ = std::move(*response.mutable_plan());
    outcome_.kernels_total = plan_.kernels_size();
    RecordPlanStages();
    for (const v1::StageTime& stage : plan_.stages()) {
      *artifact_.mutable_header()->add_stages() = stage;
      context_.metrics.StageDone(stage.stage(), target_, absl::Nanoseconds(stage.duration_ns()));
    }
    for (v1::KernelSource& kernel : *plan_.mutable_kernels()) {
      KILN_RETURN_IF_ERROR(AddKernel(kernel, /*is_routine=*/false));
    }
    for (v1::KernelSource& routine : *plan_.mutable_routines()) {
      KILN_RETURN_IF_ERROR(AddKernel(routine, /*is_routine=*/true));
    }
    return absl::OkStatus();
  }

  bool IsRoutine(size_t i) const { return kernels_[i].is_routine; }

  // Takes its source. The key is made of the very message that a worker will get.
  absl::Status AddKernel(v1::KernelSource& kernel, bool is_routine) {
    auto request = std::make_shared<v1::WorkerRequest>();
    v1::CompileKernelRequest& compile = *request->mutable_compile_kernel();
    compile.set_source(std::move(*kernel.mutable_source()));
    *compile.mutable_device() = device_;
    *compile.mutable_options() = options_;
    KILN_ASSIGN_OR_RETURN(Digest key, context_.kernel_key(compile));
    kernels_.push_back({.symbol = kernel.symbol(),
                        .operators = absl::StrJoin(kernel.ops(), ", "),
                        .prelude = std::move(*kernel.mutable_prelude()),
                        .is_routine = is_routine,
                        .key = key,
                        .request = std::move(request)});
    return absl::OkStatus();
  }

  // Leaves one of launches with alternatives where a client has found it the fastest; the kernels
  // of the others go with them.
  absl::Status TakeChoices() {
    absl::flat_hash_map<std::string, Digest> keys;
    for (const PlannedKernel& kernel : kernels_) {
      if (kernel.is_routine) continue;
      // With debug or without, it is the same choice.
      v1::CompileKernelRequest plain = kernel.request->compile_kernel();
      plain.mutable_options()->clear_debug();
      KILN_ASSIGN_OR_RETURN(keys[kernel.symbol], context_.kernel_key(plain));
    }
    const auto find = [this](absl::Span<const cache::Key> of) {
      return TracedGetMany(step_trace_, context_.store, of);
    };
    v1::Program& program = *plan_.mutable_program();
    KILN_ASSIGN_OR_RETURN(open_choices_, ApplyChoices(device_, options_, keys, find, program));
    absl::flat_hash_set<absl::string_view> used;
    for (const v1::Step& step : program.steps()) used.insert(step.launch().kernel());
    std::vector<PlannedKernel> kept;
    google::protobuf::RepeatedPtrField<v1::KernelSource> of_kept;
    for (size_t i = 0; i < kernels_.size(); ++i) {
      const bool is_routine = kernels_[i].is_routine;
      if (!is_routine && !used.contains(kernels_[i].symbol)) continue;
      if (!is_routine) of_kept.Add(std::move(*plan_.mutable_kernels(static_cast<int>(i))));
      kept.push_back(std::move(kernels_[i]));
    }
    kernels_ = std::move(kept);
    *plan_.mutable_kernels() = std::move(of_kept);
    outcome_.kernels_total = plan_.kernels_size();
    return absl::OkStatus();
  }

  absl::Status LookUpKernels() {
    std::vector<cache::Key> keys;
    for (const PlannedKernel& kernel : kernels_) {
      keys.push_back({cache::EntryKind::kKernel, kernel.key});
    }
    const auto found = TracedGetMany(step_trace_, context_.store, keys);
    absl::MutexLock lock(&results_->mu);
    results_->slots.resize(kernels_.size());
    results_->total = outcome_.kernels_total;
    for (size_t i = 0; i < kernels_.size(); ++i) {
      KernelSlot& slot = results_->slots[i];
      slot.cached = found[i].ok() && slot.compiled.ParseFromString(found[i]->entry->bytes);
      if (!slot.cached) missing_.push_back(i);
      if (slot.cached && !IsRoutine(i)) ++results_->cached;
    }
    results_->done = results_->cached;
    outcome_.kernels_cached = results_->cached;
    context_.metrics.KernelsReused(target_, results_->cached);
    context_.observer->KernelsFound(input_.number, outcome_.kernels_total, results_->cached);
    return absl::OkStatus();
  }

  absl::Status CompileMissingKernels() {
    control_->Expect(static_cast<int>(missing_.size()));
    // The heaviest first, so that none is left to the end. A job's k-th kernel takes turns with the
    // first of the job that starts k later: a large graph does not keep the workers to itself.
    std::sort(missing_.begin(), missing_.end(), [this](size_t a, size_t b) {
      return Weight(a) != Weight(b) ? Weight(a) > Weight(b) : a < b;
    });
    for (size_t rank = 0; rank < missing_.size(); ++rank) {
      CompileOne(missing_[rank], static_cast<int64_t>(rank));
    }
    absl::Status waited = control_->Wait();
    absl::MutexLock lock(&results_->mu);
    outcome_.worker_deaths += results_->worker_deaths;
    KILN_RETURN_IF_ERROR(waited);
    return results_->status;
  }

  size_t Weight(size_t i) const { return kernels_[i].source_bytes(); }

  void CompileOne(size_t i, int64_t rank) {
    KernelRequest kernel;
    kernel.key = kernels_[i].key;
    kernel.request = kernels_[i].request;
    kernel.job = input_.order + rank;
    kernel.weight = static_cast<int64_t>(Weight(i));
    kernel.stopped = [control = control_, results = results_] {
      return results->failed || control->stopped();
    };
    kernel.done = [results = results_, i, planned = kernels_[i], step = step_trace_](
                      const KernelOutcome& outcome) { results->Done(i, planned, step, outcome); };
    context_.kernels.Compile(std::move(kernel));
  }

  absl::Status Link() {
    if (kernels_.empty()) return absl::OkStatus();
    auto request = std::make_shared<v1::WorkerRequest>();
    v1::LinkRequest& link = *request->mutable_link();
    *link.mutable_device() = device_;
    {
      absl::MutexLock lock(&results_->mu);
      for (const KernelSlot& slot : results_->slots) link.add_objects(slot.compiled.object());
      // A client loads all kernels of one kind of code.
      if (std::all_of(results_->slots.begin(), results_->slots.end(),
                      [](const KernelSlot& slot) { return !slot.compiled.cubin().empty(); })) {
        for (const KernelSlot& slot : results_->slots) link.add_cubins(slot.compiled.cubin());
      }
    }
    KILN_ASSIGN_OR_RETURN(v1::WorkerResponse response, OnWorker(std::move(request)));
    artifact_.set_binary(std::move(*response.mutable_link()->mutable_binary()));
    *artifact_.mutable_binaries() = std::move(*response.mutable_link()->mutable_binaries());
    return absl::OkStatus();
  }

  absl::Status ShowMachineCode() {
    std::vector<std::string> cubins;
    {
      absl::MutexLock lock(&results_->mu);
      for (const KernelSlot& slot : results_->slots) cubins.push_back(slot.compiled.cubin());
    }
    KILN_ASSIGN_OR_RETURN(machine_code_,
                          Disassemble(*context_.disassemblers, cubins, input_.order, control_));
    return absl::OkStatus();
  }

  void FillHeader() {
    v1::ArtifactHeader& header = *artifact_.mutable_header();
    const v1::Device& device = input_.request->device();
    header.set_format_version(kArtifactFormatVersion);
    header.set_target(device.target());
    header.set_key(input_.key.ToHex());
    header.set_compiler_build(compiler_build_);
    header.set_arch(device.arch());
    *header.mutable_features() = device.features();
    absl::MutexLock lock(&results_->mu);
    for (size_t i = 0; i < kernels_.size(); ++i) {
      const KernelSlot& slot = results_->slots[i];
      v1::KernelInfo& info = IsRoutine(i) ? *header.add_routines() : *header.add_kernels();
      info.set_symbol(kernels_[i].symbol);
      info.set_key(kernels_[i].key.ToHex());
      info.set_object_digest(Sha256(slot.compiled.object()).ToHex());
      info.set_compile_ns(slot.compile_ns);
      info.set_cached(slot.cached);
      info.set_assembler(slot.compiled.assembler());
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
    for (size_t i = 0; i < kernels_.size(); ++i) {
      v1::Debug::KernelSource& to = IsRoutine(i) ? *debug.add_routines() : *debug.add_kernels();
      to.set_symbol(kernels_[i].symbol);
      to.set_source(
          absl::StrCat(kernels_[i].prelude, kernels_[i].request->compile_kernel().source()));
      to.set_assembly(results_->slots[i].compiled.assembly());
      if (!machine_code_.empty()) to.set_machine_code(machine_code_[i]);
      if (IsRoutine(i)) continue;
      const v1::KernelSource& from = plan_.kernels(static_cast<int>(i));
      *to.mutable_schedule() = from.schedule();
      *to.mutable_plans() = from.plans();
      *to.mutable_ops() = from.ops();
    }
  }

  absl::StatusOr<cache::EntryPtr> Store() {
    Span span = Span::BeginPart(input_.trace, "store");
    FillHeader();
    FillDebug();
    *artifact_.mutable_program() = std::move(*plan_.mutable_program());
    // Of a shared object; where it has no room for it, clients refuse the artifact.
    StampProgram(artifact_.program().SerializeAsString(), *artifact_.mutable_binary());
    if (artifact_.ByteSizeLong() > INT_MAX) {
      return absl::ResourceExhaustedError("the artifact is over 2 GiB");
    }
    cache::EntryPtr entry = cache::MakeEntry(artifact_.SerializeAsString());
    if (!open_choices_.empty()) {
      // The next compile may know better.
      context_.choices->Offer(open_choices_);
      return entry;
    }
    absl::Status stored = context_.store.Put({cache::EntryKind::kArtifact, input_.key}, entry);
    if (!stored.ok()) {
      Log(LogLevel::kWarning, "an artifact was not stored",
          {{"key", input_.key.ShortHex()}, {"why", stored.ToString()}});
    }
    StoreKeyDescription(context_.durable, input_.key, *input_.request, compiler_build_);
    return entry;
  }

  const CompileJobContext& context_;
  const CompileJobInput& input_;
  const std::shared_ptr<JobControl> control_;
  const ProgressSink progress_;
  const absl::string_view target_;
  const std::string& compiler_build_;  // of the target
  // What workers get: nothing that is not in the artifact's key.
  const v1::Device device_;
  const v1::CompileOptions options_;
  CompileJobOutcome outcome_{.artifact = absl::InternalError("not run")};
  std::string stages_text_;
  TraceContext step_trace_;  // the step under way
  v1::PlanResponse plan_;
  v1::Artifact artifact_;
  std::vector<PlannedKernel> kernels_;
  std::vector<size_t> missing_;            // of kernels_
  std::vector<std::string> machine_code_;  // as text, by kernel; empty where nobody asks
  std::vector<OpenChoice> open_choices_;   // those of the program's steps, in order
  const std::shared_ptr<KernelResults> results_;
};

}  // namespace

CompileJobOutcome RunCompileJob(const CompileJobContext& context, const CompileJobInput& input,
                                const std::shared_ptr<JobControl>& control, ProgressSink progress) {
  return Job(context, input, control, std::move(progress)).Run();
}

}  // namespace kiln::server
