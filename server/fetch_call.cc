#include "server/fetch_call.h"

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "server/call.h"
#include "server/chunker.h"
#include "server/tracing.h"

namespace kiln::server {
namespace {

class FetchCall final : public grpc::ServerWriteReactor<v1::ArtifactChunk> {
 public:
  FetchCall(const ServiceContext& service, grpc::CallbackServerContext* context,
            const v1::FetchRequest& request)
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
  absl::Status Begin(const v1::FetchRequest& request) {
    KILN_RETURN_IF_ERROR(call_.Admit(service_.authenticator));
    KILN_ASSIGN_OR_RETURN(place_,
                          service_.admission.Enter(CallKind::kFetch, call_.caller().tenant));
    KILN_ASSIGN_OR_RETURN(Digest key, Digest::FromBytes(request.key()));
    call_.set_key(key.ShortHex());
    return service_.executor.Run([this, key] { LookUp(key); });
  }

  void LookUp(const Digest& key) {
    auto found =
        TracedGet(call_.caller().trace, service_.store, {cache::EntryKind::kArtifact, key});
    if (!found.ok()) {
      return End(absl::NotFoundError(absl::StrCat("no artifact has the key ", key.ShortHex())));
    }
    call_.set_source(found->tier);
    call_.set_sent_bytes(static_cast<int64_t>(found->entry->bytes.size()));
    chunker_ = Chunker(found->entry, found->tier, service_.signer.Sign(key, found->entry->digest));
    WriteNext();
  }

  void WriteNext() {
    if (chunker_.AtEnd()) return End(absl::OkStatus());
    chunker_.Next(chunk_);
    if (chunker_.AtEnd()) {
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
  v1::ArtifactChunk chunk_;
};

}  // namespace

grpc::ServerWriteReactor<v1::ArtifactChunk>* StartFetch(const ServiceContext& service,
                                                        grpc::CallbackServerContext* context,
                                                        const v1::FetchRequest* request) {
  return new FetchCall(service, context, *request);
}

}  // namespace kiln::server
