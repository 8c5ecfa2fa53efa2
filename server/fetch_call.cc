#include "server/fetch_call.h"

#include "absl/strings/str_cat.h"
#include "server/call.h"
#include "server/chunker.h"

namespace kiln::server {
namespace {

class FetchCall final : public grpc::ServerWriteReactor<v1::ArtifactChunk> {
 public:
  FetchCall(const ServiceContext& service, grpc::CallbackServerContext* context,
            const v1::FetchRequest& request)
      : service_(service), call_("Fetch", context, service.metrics) {
    absl::StatusOr<Digest> key = Digest::FromBytes(request.key());
    if (!key.ok()) {
      End(key.status());
      return;
    }
    call_.set_key(key->ShortHex());
    absl::Status queued = service_.executor.Run([this, key = *key] { LookUp(key); });
    if (!queued.ok()) End(queued);
  }

  // One write is under way at a time, so these run one after the other.
  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client has gone"));
    WriteNext();
  }
  void OnDone() override { delete this; }

 private:
  void LookUp(const Digest& key) {
    auto found = service_.store.Get({cache::EntryKind::kArtifact, key});
    if (!found.ok()) {
      return End(absl::NotFoundError(absl::StrCat("no artifact has the key ", key.ShortHex())));
    }
    call_.set_source(found->tier);
    chunker_ = Chunker(found->entry, found->tier);
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
