#include "client/artifact_source.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/credentials.h"
#include "client/program_cache.h"
#include "kiln/v1/activity.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/compiler_builds.h"
#include "proto/base/key.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"
#include "proto/base/target_name.h"

namespace kiln {
namespace {

constexpr char kMissPayload[] = "kiln/cache-miss";
// Answers that need no work. A connection that stalls must leave time to ask elsewhere.
constexpr absl::Duration kContactLimit = absl::Seconds(5);
constexpr absl::Duration kLeastFetchLimit = absl::Seconds(5);

absl::Duration ContactLimit(absl::Time deadline) {
  return std::min(kContactLimit, deadline - absl::Now());
}

absl::Duration FetchLimit(absl::Time deadline) {
  const absl::Duration left = deadline - absl::Now();
  return std::min(left, std::max(kLeastFetchLimit, left / 4));
}

double MillisecondsSince(absl::Time start) {
  return absl::ToDoubleMilliseconds(absl::Now() - start);
}

absl::StatusOr<bool> FailOnMiss(const ClientOptions& options) {
  if (options.fail_on_miss) return true;
  const std::string text = OptionOrVariable("", "KILN_FAIL_ON_MISS");
  if (text.empty() || text == "0" || text == "false") return false;
  if (text == "1" || text == "true") return true;
  return absl::InvalidArgumentError(
      absl::StrCat("KILN_FAIL_ON_MISS is '", text, "'; expected 0 or 1"));
}

// Which compiler a server had last is an entry of the local cache, too.
Digest BuildEntryKey(absl::string_view server, int target) {
  const std::string entry = absl::StrCat("compiler build of ", server);
  // The first target's entry is named as before there were others.
  return Sha256(target == v1::TARGET_CPP ? entry : absl::StrCat(entry, " ", TargetName(target)));
}

uint64_t Affinity(const v1::Graph& graph) {
  uint64_t out = 0;
  const Digest digest = GraphFingerprint(graph);
  std::memcpy(&out, digest.view().data(), sizeof(out));
  return out;
}

}  // namespace

std::string OptionOrVariable(const std::string& given, const char* variable) {
  if (!given.empty()) return given;
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

bool IsCacheMiss(const absl::Status& status) {
  return status.GetPayload(kMissPayload).has_value();
}

CallHeaders HeadersOrVariables(const std::string& tenant, const std::string& priority) {
  return {OptionOrVariable(tenant, "KILN_TENANT"), OptionOrVariable(priority, "KILN_PRIORITY")};
}

absl::StatusOr<std::unique_ptr<ArtifactSource>> ArtifactSource::Create(
    const ClientOptions& options, v1::Device device, v1::CompileOptions compile_options) {
  std::unique_ptr<ArtifactSource> out(new ArtifactSource());
  KILN_ASSIGN_OR_RETURN(auto credentials, Credentials::Load(options));
  KILN_ASSIGN_OR_RETURN(out->trust_, Trust::Load(options));
  KILN_ASSIGN_OR_RETURN(
      out->endpoints_,
      Endpoints::Create(OptionOrVariable(options.server, "KILN_SERVER"), credentials, out->trust_,
                        HeadersOrVariables(options.tenant, options.priority)));
  if (std::string local = OptionOrVariable(options.local_cache, "KILN_LOCAL_CACHE");
      !local.empty()) {
    KILN_ASSIGN_OR_RETURN(LocalCacheOptions parsed, ParseLocalCache(local));
    KILN_ASSIGN_OR_RETURN(out->local_, LocalCache::Open(std::move(parsed)));
  }
  KILN_ASSIGN_OR_RETURN(out->fail_on_miss_, FailOnMiss(options));
  out->device_ = std::move(device);
  out->compile_options_ = std::move(compile_options);
  return out;
}

Patience ArtifactSource::PatienceOf(const ProgressCallback& progress) {
  if (progress == nullptr) return nullptr;
  return [&progress] { return progress({}) ? absl::OkStatus() : absl::CancelledError(kCancelled); };
}

std::string ArtifactSource::KnownBuild(Endpoint& endpoint) {
  {
    absl::MutexLock lock(&endpoint.mu);
    if (!endpoint.compiler_build.empty()) return endpoint.compiler_build;
  }
  if (local_ == nullptr) return "";
  absl::StatusOr<LocalEntry> entry =
      local_->Get(BuildEntryKey(endpoint.remote.server(), device_.target()));
  return entry.ok() ? entry->bytes : "";
}

absl::StatusOr<std::string> ArtifactSource::CompilerBuild(Endpoint& endpoint, bool refresh,
                                                          absl::Time deadline,
                                                          const Patience& patience) {
  if (!refresh) {
    absl::MutexLock lock(&endpoint.mu);
    if (!endpoint.compiler_build.empty()) return endpoint.compiler_build;
  }
  KILN_ASSIGN_OR_RETURN(v1::ServerInfo info,
                        endpoint.remote.GetServerInfo(ContactLimit(deadline), patience));
  endpoint.reached = true;
  const std::string build = BuildsOf(info).For(device_.target());
  if (local_ != nullptr) {
    const Digest key = BuildEntryKey(endpoint.remote.server(), device_.target());
    absl::StatusOr<LocalEntry> kept = local_->Get(key);
    if (!kept.ok() || kept->bytes != build) {
      if (absl::Status put = local_->Put(key, {build, Sha256(build), ""}); !put.ok()) {
        Log(LogLevel::kWarning, "local cache: not written", {{"why", std::string(put.message())}});
      }
    }
  }
  absl::MutexLock lock(&endpoint.mu);
  endpoint.compiler_build = build;
  return build;
}

absl::StatusOr<Digest> ArtifactSource::KeyNow(const v1::Graph& graph, Endpoint& endpoint,
                                              absl::Time deadline, const Patience& patience) {
  KILN_ASSIGN_OR_RETURN(std::string build, CompilerBuild(endpoint, true, deadline, patience));
  return ArtifactKey(graph, device_, compile_options_, build);
}

bool ArtifactSource::FindKept(const Digest& key, bool disk, Obtained& out) {
  out.key = key;
  out.program = FindProgram(key, device_.processors());
  if (out.program != nullptr) {
    out.source = kFromProcess;
    return true;
  }
  if (!disk || local_ == nullptr) return false;
  absl::StatusOr<LocalEntry> entry = local_->Get(key);
  absl::Status status = entry.status();
  if (status.ok()) {
    status = trust_->CheckKept(endpoints_->servers(), key, entry->digest, entry->signature);
    if (!status.ok()) local_->Remove(key);
  }
  if (!status.ok()) {
    if (!absl::IsNotFound(status)) {
      Log(LogLevel::kWarning, "local cache: an entry is not used",
          {{"key", key.ShortHex()}, {"why", std::string(status.message())}});
    }
    return false;
  }
  out.bytes = std::move(entry->bytes);
  out.digest = entry->digest;
  out.signature = std::move(entry->signature);
  out.source = kFromLocalCache;
  return true;
}

// Nothing of an artifact is read before this.
absl::Status ArtifactSource::Take(const Request& request, Endpoint& endpoint,
                                  RemoteArtifact artifact, Obtained& out) {
  const std::string& server = endpoint.remote.server();
  absl::Status status = trust_->Check(server, out.key, artifact.digest, artifact.signature);
  if (!status.ok()) {
    // The server may have been replaced since it was asked for its compiler, which is part of the
    // key, and for its own key.
    KILN_ASSIGN_OR_RETURN(Digest now,
                          KeyNow(request.graph, endpoint, request.deadline, request.patience));
    if (!trust_->Check(server, now, artifact.digest, artifact.signature).ok()) return status;
  }
  out.bytes = std::move(artifact.bytes);
  out.source = std::move(artifact.source);
  out.digest = artifact.digest;
  out.signature = std::move(artifact.signature);
  return absl::OkStatus();
}

absl::Status ArtifactSource::Fetch(const Request& request, Endpoint& endpoint, Obtained& out) {
  const absl::Time start = absl::Now();
  absl::StatusOr<RemoteArtifact> fetched =
      endpoint.remote.Fetch(out.key.view(), FetchLimit(request.deadline), request.patience);
  absl::Status status = fetched.status();
  if (status.ok()) status = Take(request, endpoint, *std::move(fetched), out);
  out.fetch_ms += MillisecondsSince(start);
  return status;
}

absl::Status ArtifactSource::Compile(const Request& request, Endpoint& endpoint, Obtained& out) {
  const absl::Time start = absl::Now();
  absl::StatusOr<RemoteArtifact> compiled = endpoint.remote.Compile(
      request.graph, device_, compile_options_, request.progress, request.deadline - start);
  absl::Status status = compiled.status();
  if (status.ok()) status = Take(request, endpoint, *std::move(compiled), out);
  out.compile_ms += MillisecondsSince(start);
  return status;
}

absl::Status ArtifactSource::Miss(const v1::Graph& graph, const Digest& key) const {
  absl::Status status = absl::NotFoundError(absl::StrCat(
      "graph '", graph.name(), "' (key ", key.ShortHex(), ") is not in the cache of ",
      absl::StrJoin(endpoints_->servers(), ", "), ", and fail_on_miss forbids a compile"));
  status.SetPayload(kMissPayload, absl::Cord());
  return status;
}

absl::Status ArtifactSource::Attempt(const Request& request, Endpoint& endpoint, Obtained& out) {
  const absl::Time start = absl::Now();
  KILN_ASSIGN_OR_RETURN(std::string build,
                        CompilerBuild(endpoint, false, request.deadline, request.patience));
  const Digest key = ArtifactKey(request.graph, device_, compile_options_, build);
  out.endpoint = &endpoint;
  out.key = key;
  out.fetch_ms += MillisecondsSince(start);
  if (request.kept && FindKept(key, request.disk, out)) return absl::OkStatus();
  absl::Status status = Fetch(request, endpoint, out);
  // A damaged entry is the server's to replace: compiling again does that.
  const bool missing = absl::IsNotFound(status) || absl::IsDataLoss(status);
  if (!missing || !request.compile) return status;
  if (fail_on_miss_) return absl::IsNotFound(status) ? Miss(request.graph, key) : status;
  return Compile(request, endpoint, out);
}

absl::StatusOr<Obtained> ArtifactSource::Get(const Request& request) {
  const absl::Time start = absl::Now();
  Obtained out;
  std::optional<uint64_t> affinity;
  if (endpoints_->size() > 1) affinity = Affinity(request.graph);
  absl::Status status = endpoints_->Call(
      affinity, request.deadline,
      [&](Endpoint& endpoint) { return Attempt(request, endpoint, out); }, &out.retries,
      request.patience);
  if (status.ok()) return out;
  if (!request.kept || Judge(status) != Verdict::kElsewhere) return status;
  for (size_t i = 0; i < endpoints_->size(); ++i) {
    const std::string build = KnownBuild(endpoints_->at(i));
    if (build.empty()) continue;
    const Digest key = ArtifactKey(request.graph, device_, compile_options_, build);
    if (!FindKept(key, request.disk, out)) continue;
    out.endpoint = nullptr;
    out.fetch_ms = MillisecondsSince(start);
    out.compile_ms = 0;
    return out;
  }
  return status;
}

void ArtifactSource::Keep(const Digest& key, const Obtained& artifact) {
  if (local_ == nullptr || artifact.source == kFromLocalCache) return;
  absl::Status put = local_->Put(key, {artifact.bytes, artifact.digest, artifact.signature});
  if (put.ok()) return;
  Log(LogLevel::kWarning, "local cache: not written",
      {{"key", key.ShortHex()}, {"why", std::string(put.message())}});
}

void ArtifactSource::ForgetKept(const Digest& key) {
  if (local_ != nullptr) local_->Remove(key);
}

absl::StatusOr<v1::ServerInfo> ArtifactSource::GetServerInfo(absl::Time deadline) {
  v1::ServerInfo info;
  absl::Status status = endpoints_->Call(
      std::nullopt, deadline,
      [&](Endpoint& endpoint) {
        // A single server may take all the time there is.
        const absl::Duration limit =
            endpoints_->size() > 1 ? ContactLimit(deadline) : deadline - absl::Now();
        absl::StatusOr<v1::ServerInfo> got = endpoint.remote.GetServerInfo(limit);
        if (got.ok()) info = *std::move(got);
        return got.status();
      },
      nullptr);
  KILN_RETURN_IF_ERROR(status);
  return info;
}

}  // namespace kiln
