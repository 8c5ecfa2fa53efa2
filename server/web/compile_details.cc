#include "server/web/compile_details.h"

#include <list>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "kiln/v1/activity.pb.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/page.pb.h"
#include "proto/base/arena_message.h"
#include "proto/base/key.h"
#include "proto/base/status_macros.h"
#include "server/web/describe_compile.h"

namespace kiln::server {
namespace {

constexpr int kMaxWorking = 4;
constexpr size_t kMaxFailures = 32;
constexpr absl::Duration kFailureLife = absl::Seconds(15);
constexpr int64_t kMaxParsedBytes = int64_t{64} << 20;

// The request that asks for the inside of `request`'s compile.
std::shared_ptr<const v1::CompileRequest> WithDebug(const v1::CompileRequest& request) {
  auto out = MakeArenaMessage<v1::CompileRequest>();
  out->CopyFrom(request);
  out->mutable_options()->set_debug(true);
  return out;
}

}  // namespace

struct CompileDetails::State {
  struct Work {
    v1::Progress progress;
  };
  struct Failure {
    absl::Status status;
    absl::Time until;
  };
  struct Parsed {
    std::string key;
    std::shared_ptr<const v1::Artifact> artifact;
    int64_t size_bytes = 0;
  };

  void ForgetOldFailures() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    for (auto it = failures.begin(); it != failures.end();) {
      it = it->second.until < absl::Now() ? failures.erase(it) : std::next(it);
    }
    while (failures.size() > kMaxFailures) failures.erase(failures.begin());
  }

  absl::Mutex mu;
  std::map<std::string, Work> working ABSL_GUARDED_BY(mu);
  std::map<std::string, Failure> failures ABSL_GUARDED_BY(mu);
  std::list<Parsed> parsed ABSL_GUARDED_BY(mu);  // most recently used first
  int64_t parsed_bytes ABSL_GUARDED_BY(mu) = 0;
};

CompileDetails::CompileDetails(Broker* broker, cache::Store* store, ActivityLog* activity,
                               const RunReports* run_reports, CompilerBuilds compiler_builds)
    : broker_(*broker),
      store_(*store),
      activity_(*activity),
      run_reports_(*run_reports),
      compiler_builds_(std::move(compiler_builds)),
      state_(std::make_shared<State>()) {}

CompileDetails::~CompileDetails() = default;

absl::StatusOr<std::shared_ptr<const v1::Artifact>> CompileDetails::Artifact(
    absl::string_view key) {
  std::string wanted(key);
  {
    absl::MutexLock lock(&state_->mu);
    auto& parsed = state_->parsed;
    for (auto it = parsed.begin(); it != parsed.end(); ++it) {
      if (it->key != wanted) continue;
      parsed.splice(parsed.begin(), parsed, it);
      return parsed.front().artifact;
    }
  }
  auto request = activity_.FindRequest(key);
  if (request == nullptr) {
    return absl::NotFoundError("the server does not keep this compile's graph any more");
  }
  auto debug = WithDebug(*request);
  Digest debug_key = ArtifactKey(debug->graph(), debug->device(), debug->options(),
                                 compiler_builds_.For(debug->device().target()));
  KILN_ASSIGN_OR_RETURN(cache::Found found, store_.Get({cache::EntryKind::kArtifact, debug_key}));
  auto artifact = std::make_shared<v1::Artifact>();
  if (!artifact->ParseFromString(found.entry->bytes)) {
    return absl::DataLossError("the stored artifact does not parse");
  }
  absl::MutexLock lock(&state_->mu);
  auto size = static_cast<int64_t>(found.entry->bytes.size());
  state_->parsed.push_front({wanted, artifact, size});
  state_->parsed_bytes += size;
  while (state_->parsed_bytes > kMaxParsedBytes) {
    state_->parsed_bytes -= state_->parsed.back().size_bytes;
    state_->parsed.pop_back();
  }
  return artifact;
}

absl::Status CompileDetails::Start(const std::string& key,
                                   std::shared_ptr<const v1::CompileRequest> request) {
  {
    absl::MutexLock lock(&state_->mu);
    if (state_->working.contains(key)) return absl::OkStatus();
    if (state_->working.size() >= kMaxWorking) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the details of ", kMaxWorking, " compiles are being made; try again soon"));
    }
    state_->failures.erase(key);
    state_->working[key].progress.set_stage("queued");
  }
  CompileCallbacks callbacks;
  callbacks.progress = [state = state_, key](const v1::Progress& progress) {
    absl::MutexLock lock(&state->mu);
    if (auto it = state->working.find(key); it != state->working.end()) {
      it->second.progress = progress;
    }
  };
  auto end = [state = state_, key](const absl::Status& status) {
    absl::MutexLock lock(&state->mu);
    state->working.erase(key);
    if (status.ok()) return;
    state->failures[key] = {status, absl::Now() + kFailureLife};
    state->ForgetOldFailures();
  };
  callbacks.done = [end](const absl::StatusOr<CompileAnswer>& answer) { end(answer.status()); };
  Caller caller;
  caller.role = Role::kCompile;
  caller.tenant = kPageTenant;
  caller.priority = Priority::kWarmup;
  Digest debug_key = ArtifactKey(request->graph(), request->device(), request->options(),
                                 compiler_builds_.For(request->device().target()));
  absl::Status joined =
      broker_.Join(debug_key, std::move(request), caller, std::move(callbacks)).status();
  if (!joined.ok()) end(joined);
  return joined;
}

absl::Status CompileDetails::Look(absl::string_view key, bool start, v1::CompileDetailState& out) {
  std::string name(key);
  auto request = activity_.FindRequest(key);
  if (request == nullptr) {
    v1::CompileRecord record;
    if (!activity_.FindRecord(key, record)) {
      return absl::NotFoundError("no recent compile has this key");
    }
    out.set_state("gone");
    return absl::OkStatus();
  }
  {
    absl::MutexLock lock(&state_->mu);
    if (auto it = state_->working.find(name); it != state_->working.end()) {
      out.set_state("working");
      out.set_stage(it->second.progress.stage());
      out.set_kernels_done(it->second.progress.kernels_done());
      out.set_kernels_total(it->second.progress.kernels_total());
      return absl::OkStatus();
    }
    state_->ForgetOldFailures();
    if (auto it = state_->failures.find(name); it != state_->failures.end() && !start) {
      out.set_state("failed");
      out.set_error(std::string(it->second.status.message()));
      return absl::OkStatus();
    }
  }
  if (auto artifact = Artifact(key); artifact.ok()) {
    out.set_state("ready");
    DescribeCompile(request->graph(), **artifact, *out.mutable_detail());
    if (const auto times = run_reports_.Find(key)) {
      *out.mutable_detail()->mutable_device_times() = *times;
    }
    return absl::OkStatus();
  }
  if (!start) {
    out.set_state("none");
    return absl::OkStatus();
  }
  KILN_RETURN_IF_ERROR(Start(name, WithDebug(*request)));
  out.set_state("working");
  out.set_stage("queued");
  return absl::OkStatus();
}

}  // namespace kiln::server
