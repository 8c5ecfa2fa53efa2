#include "server/calls/transfer_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"
#include "server/calls/cache_calls.h"
#include "server/calls/call.h"
#include "server/calls/chunker.h"
#include "server/rpc/messages.h"

namespace kiln::server {
namespace {

class ExportCall final : public Reactor {
 public:
  ExportCall(const ServiceContext& service, grpc::ServerContextBase& context,
             grpc::ByteBuffer& request)
      : service_(service), call_("ExportCache", context, service.metrics), serialized_(request) {}

  void Start() override {
    absl::Status started = Begin();
    if (!started.ok()) End(started);
  }

  // One write is under way at a time, so these run one after the other.
  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client has gone"));
    Go();
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Begin() {
    KILN_RETURN_IF_ERROR(call_.Admit(service_.authenticator));
    v1::ExportCacheRequest request;
    KILN_RETURN_IF_ERROR(ParseMessage(serialized_, request));
    KILN_ASSIGN_OR_RETURN(kinds_, ParseKinds(request.kind()));
    KILN_ASSIGN_OR_RETURN(filter_,
                          ParseKeyPrefixes({request.keys().begin(), request.keys().end()}));
    every_key_ = request.keys().empty();
    return service_.upkeep.Run([this] {
      ListKeys();
      NextEntry();
    });
  }

  void ListKeys() {
    service_.durable.ForEach([this](const cache::EntryInfo& info) {
      bool kind = std::find(kinds_.begin(), kinds_.end(), info.key.kind) != kinds_.end();
      if (kind && (every_key_ || filter_(info.key.digest))) entries_.push_back(info);
    });
    cache::SortByUse(entries_);
  }

  // On the executor.
  void NextEntry() {
    while (next_entry_ < entries_.size()) {
      key_ = entries_[next_entry_++].key;
      auto found = service_.durable.Get(key_);
      if (!found.ok()) continue;
      entry_ = found->entry;
      offset_ = 0;
      return Write();
    }
    End(absl::OkStatus());
  }

  void Go() {
    if (offset_ < entry_->bytes.size()) return Write();
    absl::Status started = service_.upkeep.Run([this] { NextEntry(); });
    if (!started.ok()) End(started);
  }

  void Write() {
    v1::CacheRecord record;
    if (offset_ == 0) {
      record.set_kind(std::string(cache::EntryKindName(key_.kind)));
      record.set_key(std::string(key_.digest.view()));
      record.set_digest(std::string(entry_->digest.view()));
      record.set_total_bytes(static_cast<int64_t>(entry_->bytes.size()));
      record.set_public_key(service_.signer.public_key());
      record.set_signature(
          service_.signer.SignOnce(static_cast<uint8_t>(key_.kind), key_.digest, entry_->digest));
    }
    size_t size = std::min(kChunkBytes, entry_->bytes.size() - offset_);
    record.set_data(entry_->bytes.data() + offset_, size);
    offset_ += size;
    StartWrite(SerializeMessage(record));
  }

  void End(const absl::Status& status) { Finish(call_.End(status)); }

  const ServiceContext& service_;
  Call call_;
  grpc::ByteBuffer serialized_;
  std::vector<cache::EntryKind> kinds_;
  KeyFilter filter_;
  bool every_key_ = false;
  std::vector<cache::EntryInfo> entries_;
  size_t next_entry_ = 0;
  cache::Key key_;
  cache::EntryPtr entry_;
  size_t offset_ = 0;
};

// Puts the records of one entry after the other together.
class EntryReader {
 public:
  // True once the entry is whole and its digest matches; Take it then.
  absl::StatusOr<bool> Add(const v1::CacheRecord& record) {
    if (!record.key().empty()) {
      KILN_RETURN_IF_ERROR(CheckWhole());
      KILN_RETURN_IF_ERROR(Start(record));
    } else if (!open_) {
      return absl::InvalidArgumentError("a record belongs to no entry: it has no key");
    }
    if (record.data().size() > kChunkBytes ||
        record.data().size() > static_cast<size_t>(total_bytes_) - bytes_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Name(), " has more data than it said, or more than 1 MiB in a record"));
    }
    bytes_ += record.data();
    if (bytes_.size() < static_cast<size_t>(total_bytes_)) return false;
    open_ = false;
    entry_ = cache::MakeEntry(std::exchange(bytes_, {}));
    if (entry_->digest == digest_) return true;
    return absl::InvalidArgumentError(
        absl::StrCat(Name(), " is damaged: its bytes do not match its digest"));
  }

  // INVALID_ARGUMENT where an entry's rest is missing.
  absl::Status CheckWhole() const {
    if (!open_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(Name(), " ends after ", bytes_.size(), " of ", total_bytes_, " bytes"));
  }

  const cache::Key& key() const { return key_; }
  cache::EntryPtr Take() { return std::move(entry_); }
  std::string Name() const {
    return absl::StrCat("the ", cache::EntryKindName(key_.kind), " ", key_.digest.ToHex());
  }

 private:
  absl::Status Start(const v1::CacheRecord& record) {
    KILN_ASSIGN_OR_RETURN(auto kinds, ParseKinds(record.kind()));
    if (kinds.size() != 1) return absl::InvalidArgumentError("an entry has no kind");
    key_.kind = kinds.front();
    KILN_ASSIGN_OR_RETURN(key_.digest, Digest::FromBytes(record.key()));
    auto digest = Digest::FromBytes(record.digest());
    if (!digest.ok()) return absl::InvalidArgumentError(absl::StrCat(Name(), " has no digest"));
    digest_ = *digest;
    total_bytes_ = record.total_bytes();
    if (total_bytes_ < 0 || total_bytes_ > kMaxImportBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          Name(), " has ", total_bytes_, " bytes; at most ", kMaxImportBytes, " are taken"));
    }
    bytes_.clear();
    open_ = true;
    return absl::OkStatus();
  }

  bool open_ = false;
  cache::Key key_;
  Digest digest_;
  int64_t total_bytes_ = 0;
  std::string bytes_;
  cache::EntryPtr entry_;
};

class ImportCall final : public Reactor {
 public:
  ImportCall(const ServiceContext& service, grpc::ServerContextBase& context)
      : service_(service), call_("ImportCache", context, service.metrics) {}

  void Start() override {
    absl::Status admitted = call_.Admit(service_.authenticator);
    if (admitted.ok()) {
      StartRead(&serialized_);
    } else {
      End(admitted);
    }
  }

  // One read is under way at a time, so these run one after the other.
  void OnReadDone(bool ok) override {
    if (!ok) return End(reader_.CheckWhole());
    absl::Status started = service_.upkeep.Run([this] { Take(); });
    if (!started.ok()) End(started);
  }
  void OnDone() override { delete this; }

 private:
  // On the executor: digests large entries and writes to the disk.
  void Take() {
    if (absl::Status status = TakeRecord(); !status.ok()) return End(status);
    StartRead(&serialized_);
  }

  absl::Status TakeRecord() {
    v1::CacheRecord record;
    KILN_RETURN_IF_ERROR(ParseMessage(serialized_, record));
    KILN_ASSIGN_OR_RETURN(bool whole, reader_.Add(record));
    return whole ? Store() : absl::OkStatus();
  }

  absl::Status Store() {
    cache::EntryPtr entry = reader_.Take();
    if (auto found = service_.durable.Get(reader_.key());
        found.ok() && found->entry->digest == entry->digest) {
      response_.set_present(response_.present() + 1);
      return absl::OkStatus();
    }
    absl::Status stored = service_.durable.Put(reader_.key(), entry);
    if (!stored.ok()) return Annotate(stored, absl::StrCat("cannot store ", reader_.Name()));
    response_.set_imported(response_.imported() + 1);
    return absl::OkStatus();
  }

  void End(const absl::Status& status) {
    if (!status.ok()) return Finish(call_.End(status));
    StartWriteAndFinish(SerializeMessage(response_), call_.End(status));
  }

  const ServiceContext& service_;
  Call call_;
  v1::ImportCacheResponse response_;
  EntryReader reader_;
  grpc::ByteBuffer serialized_;
};

}  // namespace

Method ExportMethod(const ServiceContext& service) {
  return {.make = [&service](grpc::ServerContextBase& context, grpc::ByteBuffer& request) {
    return new ExportCall(service, context, request);
  }};
}

Method ImportMethod(const ServiceContext& service) {
  return {.reads_stream = true,
          .make = [&service](grpc::ServerContextBase& context, grpc::ByteBuffer&) {
            return new ImportCall(service, context);
          }};
}

}  // namespace kiln::server
