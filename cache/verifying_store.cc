#include "cache/verifying_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/log.h"

namespace kiln::cache {
namespace {

class VerifyingStore final : public Store {
 public:
  explicit VerifyingStore(Store* inner) : inner_(*inner) {}

  absl::StatusOr<Found> Get(const Key& key) override { return Check(key, inner_.Get(key)); }

  std::vector<absl::StatusOr<Found>> GetMany(absl::Span<const Key> keys) override {
    std::vector<absl::StatusOr<Found>> found = inner_.GetMany(keys);
    for (size_t i = 0; i < keys.size(); ++i) found[i] = Check(keys[i], std::move(found[i]));
    return found;
  }

  absl::Status Put(const Key& key, const EntryPtr& entry) override {
    return inner_.Put(key, entry);
  }
  absl::Status Remove(const Key& key) override { return inner_.Remove(key); }
  void ForEach(const std::function<void(const EntryInfo&)>& visit) override {
    inner_.ForEach(visit);
  }
  std::vector<Usage> Usages() override { return inner_.Usages(); }

 private:
  absl::StatusOr<Found> Check(const Key& key, absl::StatusOr<Found> found) {
    if (found.ok() && Sha256(found->entry->bytes) == found->entry->digest) return found;
    if (!found.ok() && !absl::IsDataLoss(found.status())) return found;
    absl::Status removed = inner_.Remove(key);
    Log(LogLevel::kWarning, "removed a damaged cache entry",
        {{"kind", std::string(EntryKindName(key.kind))},
         {"key", key.digest.ToHex()},
         {"why", found.ok() ? "digest mismatch" : std::string(found.status().message())},
         {"removed", removed.ok() ? "yes" : std::string(removed.message())}});
    return absl::DataLossError(absl::StrCat("the ", EntryKindName(key.kind), " ",
                                            key.digest.ShortHex(), " was damaged and removed"));
  }

  Store& inner_;
};

}  // namespace

std::unique_ptr<Store> MakeVerifyingStore(Store* inner) {
  return std::make_unique<VerifyingStore>(inner);
}

}  // namespace kiln::cache
