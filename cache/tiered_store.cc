#include "cache/tiered_store.h"

#include <utility>

#include "absl/container/flat_hash_map.h"

namespace kiln::cache {
namespace {

class TieredStore final : public Store {
 public:
  TieredStore(Store* upper, Store* lower) : upper_(*upper), lower_(*lower) {}

  absl::StatusOr<Found> Get(const Key& key) override {
    if (absl::StatusOr<Found> found = upper_.Get(key); found.ok()) return found;
    return Promote(key, lower_.Get(key));
  }

  std::vector<absl::StatusOr<Found>> GetMany(absl::Span<const Key> keys) override {
    std::vector<absl::StatusOr<Found>> found = upper_.GetMany(keys);
    std::vector<Key> missing;
    std::vector<size_t> places;  // of those
    for (size_t i = 0; i < keys.size(); ++i) {
      if (found[i].ok()) continue;
      missing.push_back(keys[i]);
      places.push_back(i);
    }
    if (missing.empty()) return found;
    std::vector<absl::StatusOr<Found>> below = lower_.GetMany(missing);
    for (size_t i = 0; i < missing.size(); ++i) {
      found[places[i]] = Promote(missing[i], std::move(below[i]));
    }
    return found;
  }

  absl::Status Put(const Key& key, const EntryPtr& entry) override {
    absl::Status upper = upper_.Put(key, entry);
    absl::Status lower = lower_.Put(key, entry);
    return upper.ok() ? upper : lower;
  }

  absl::Status Remove(const Key& key) override {
    absl::Status upper = upper_.Remove(key);
    absl::Status lower = lower_.Remove(key);
    return upper.ok() ? lower : upper;
  }

  void ForEach(const std::function<void(const EntryInfo&)>& visit) override {
    // Only of the upper tier, which is the small one.
    absl::flat_hash_map<Key, EntryInfo> above;
    upper_.ForEach([&](const EntryInfo& info) { above.emplace(info.key, info); });
    lower_.ForEach([&](const EntryInfo& info) {
      above.erase(info.key);
      visit(info);
    });
    for (const auto& [key, info] : above) visit(info);
  }

  std::vector<Usage> Usages() override {
    std::vector<Usage> usages = upper_.Usages();
    for (const Usage& usage : lower_.Usages()) usages.push_back(usage);
    return usages;
  }

 private:
  // What the lower tier answered, kept in the upper one.
  absl::StatusOr<Found> Promote(const Key& key, absl::StatusOr<Found> found) {
    if (!found.ok()) return absl::NotFoundError("in no tier");
    upper_.Put(key, found->entry).IgnoreError();  // too large for the upper tier: served from below
    return found;
  }

  Store& upper_;
  Store& lower_;
};

}  // namespace

std::unique_ptr<Store> MakeTieredStore(Store* upper, Store* lower) {
  return std::make_unique<TieredStore>(upper, lower);
}

}  // namespace kiln::cache
