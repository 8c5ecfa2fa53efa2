#include "server/calls/fetch_call.h"

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "server/calls/call.h"
#include "server/calls/chunker.h"
#include "server/observe/tracing.h"

namespace kiln::server {
namespace {

class FetchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  FetchCall(const ServiceContext& service, grpc::CallbackServerContext* context,
            const grpc::ByteBuffer& request)
      : service_(service), call_("Fetch", context, service.metrics) {
    absl::Status started = Begin(request);
    if (!started.ok()) End(started);
  }

  // One write is under way at a time, so these run one after the other.
  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client has gone"));
    WriteNext();
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Begin(grpc::ByteBuffer serialized) {
    KILN_RETURN_IF_ERROR(call_.Admit(service_.authenticator));
    KILN_ASSIGN_OR_RETURN(place_,
                          service_.admission.Enter(CallKind::kFetch, call_.caller().tenant));
    v1::FetchRequest request;
    if (!grpc::SerializationTraits<v1::FetchRequest>::Deserialize(&serialized, &request).ok()) {
      return absl::InvalidArgumentError("not a FetchRequest");
    }
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
    auto found =
        TracedGet(call_.caller().trace, service_.store, {cache::EntryKind::kArtifact, key});
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
    chunk_ = chunker_.NextChunk();
    if (chunker_.AtEnd()) {
      service_.activity.Hit(call_.caller().tenant, call_.elapsed());
      StartWriteAndFinish(&chunk_, grpc::WriteOptions(), call_.End(absl::OkStatus()));
    } else {
      StartWrite(&chunk_);
    }
  }

  void End(const absl::Status& status) { Finish(call_.End(status)); }

  const ServiceContext& service_;
  Call call_;
  Admission::Place place_;
  Chunker chunker_;
  grpc::ByteBuffer chunk_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(const ServiceContext& service,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) {
  return new FetchCall(service, context, *request);
}

}  // namespace kiln::server
