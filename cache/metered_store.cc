#include "cache/metered_store.h"

#include <utility>

namespace kiln::cache {
namespace {

GetResult ResultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return GetResult::kHit;
    case absl::StatusCode::kNotFound:
      return GetResult::kMiss;
    case absl::StatusCode::kDataLoss:
      return GetResult::kCorrupt;
    case absl::StatusCode::kPermissionDenied:
      return GetResult::kUntrusted;
    default:
      return GetResult::kError;
  }
}

class MeteredStore final : public Store {
 public:
  MeteredStore(Store* inner, GetObserver observer, PutFailureObserver put_failed)
      : inner_(*inner), observer_(std::move(observer)), put_failed_(std::move(put_failed)) {}

  absl::StatusOr<Found> Get(const Key& key) override {
    absl::StatusOr<Found> found = inner_.Get(key);
    observer_(key.kind, ResultOf(found.status()));
    return found;
  }
  std::vector<absl::StatusOr<Found>> GetMany(absl::Span<const Key> keys) override {
    std::vector<absl::StatusOr<Found>> found = inner_.GetMany(keys);
    for (size_t i = 0; i < keys.size(); ++i) observer_(keys[i].kind, ResultOf(found[i].status()));
    return found;
  }
  absl::Status Put(const Key& key, const EntryPtr& entry) override {
    absl::Status put = inner_.Put(key, entry);
    if (!put.ok() && put_failed_) put_failed_(key.kind);
    return put;
  }
  absl::Status Remove(const Key& key) override { return inner_.Remove(key); }
  void ForEach(const std::function<void(const EntryInfo&)>& visit) override {
    inner_.ForEach(visit);
  }
  std::vector<Usage> Usages() override { return inner_.Usages(); }

 private:
  Store& inner_;
  const GetObserver observer_;
  const PutFailureObserver put_failed_;
};

}  // namespace

absl::string_view GetResultName(GetResult result) {
  switch (result) {
    case GetResult::kHit:
      return "hit";
    case GetResult::kMiss:
      return "miss";
    case GetResult::kCorrupt:
      return "corrupt";
    case GetResult::kUntrusted:
      return "untrusted";
    case GetResult::kError:
      return "error";
  }
  return "error";
}

std::unique_ptr<Store> MakeMeteredStore(Store* inner, GetObserver observer,
                                        PutFailureObserver put_failed) {
  return std::make_unique<MeteredStore>(inner, std::move(observer), std::move(put_failed));
}

}  // namespace kiln::cache
