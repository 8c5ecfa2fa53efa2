#include "server/calls/fetch_call.h"

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "server/calls/call.h"
#include "server/calls/chunker.h"
#include "server/calls/shared_lookup.h"
#include "server/observe/tracing.h"
#include "server/rpc/messages.h"

namespace kiln::server {
namespace {

class FetchCall final : public Reactor {
 public:
  FetchCall(const ServiceContext& service, grpc::ServerContextBase& context,
            grpc::ByteBuffer& request)
      : service_(service), call_("Fetch", context, service.metrics), serialized_(request) {}

  void Start() override {
    absl::Status started = Begin();
    if (!started.ok()) End(started);
  }
  // One write is under way at a time, so these run one after the other.
  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client has gone"));
    WriteNext();
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Begin() {
    KILN_RETURN_IF_ERROR(call_.Admit(service_.authenticator));
    KILN_ASSIGN_OR_RETURN(place_,
                          service_.admission.Enter(CallKind::kFetch, call_.caller().tenant));
    v1::FetchRequest request;
    KILN_RETURN_IF_ERROR(ParseMessage(serialized_, request));
    KILN_ASSIGN_OR_RETURN(Digest key, Digest::FromBytes(request.key()));
    call_.set_key(key.ShortHex());
    // What is in memory is at hand: no other thread need be woken.
    const cache::Key artifact{cache::EntryKind::kArtifact, key};
    auto found = TracedGet(call_.caller().trace, service_.memory, artifact);
    if (!found.ok()) return service_.executor.Run([this, key] { LookUp(key); });
    service_.metrics.CacheRequest(artifact.kind, found->tier, cache::GetResult::kHit);
    Send(key, *found);
    return absl::OkStatus();
  }

  void LookUp(const Digest& key) {
    const cache::Key artifact{cache::EntryKind::kArtifact, key};
    auto found = TracedGet(call_.caller().trace, service_.local, artifact);
    if (found.ok()) return Send(key, *found);
    LookUpShared(service_, call_.caller().trace, artifact,
                 [this, key](const absl::StatusOr<cache::Found>& shared) { Answer(key, shared); });
  }

  void Answer(const Digest& key, const absl::StatusOr<cache::Found>& found) {
    if (!found.ok()) {
      service_.activity.FetchMissed(key);
      return End(absl::NotFoundError(absl::StrCat("no artifact has the key ", key.ShortHex())));
    }
    Send(key, *found);
  }

  void Send(const Digest& key, const cache::Found& found) {
    call_.set_source(found.tier);
    call_.set_sent_bytes(static_cast<int64_t>(found.entry->bytes.size()));
    chunker_ = Chunker(found.entry, found.tier, service_.signer.Sign(key, found.entry->digest));
    WriteNext();
  }

  void WriteNext() {
    if (chunker_.AtEnd()) return End(absl::OkStatus());
    const grpc::ByteBuffer chunk = chunker_.NextChunk();
    if (!chunker_.AtEnd()) return StartWrite(chunk);
    service_.activity.Hit(call_.caller().tenant, call_.elapsed());
    StartWriteAndFinish(chunk, call_.End(absl::OkStatus()));
  }

  void End(const absl::Status& status) { Finish(call_.End(status)); }

  const ServiceContext& service_;
  Call call_;
  Admission::Place place_;
  grpc::ByteBuffer serialized_;
  Chunker chunker_;
};

}  // namespace

Method FetchMethod(const ServiceContext& service) {
  return {.max_request_bytes = int64_t{64} << 10,
          .make = [&service](grpc::ServerContextBase& context, grpc::ByteBuffer& request) {
            return new FetchCall(service, context, request);
          }};
}

}  // namespace kiln::server
