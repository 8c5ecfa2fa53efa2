#include "server/jobs/explain_miss.h"

#include <optional>
#include <utility>

#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/key_description.pb.h"
#include "proto/base/key.h"
#include "proto/base/key_description.h"
#include "proto/base/log.h"

namespace kiln::server {
namespace {

constexpr size_t kMaxCompared = 500;
constexpr size_t kMaxDifferences = 50;

struct Nearest {
  Digest key;
  v1::KeyDescription description;
  double distance = 0;
};

std::optional<Nearest> FindNearest(cache::Store& store, const v1::KeyDescription& asked,
                                   int64_t& compared) {
  std::optional<Nearest> nearest;
  for (const cache::EntryInfo& info :
       cache::MostRecent(store, {cache::EntryKind::kDescription}, kMaxCompared)) {
    auto found = store.Get(info.key);
    v1::KeyDescription description;
    if (!found.ok() || !description.ParseFromString(found->entry->bytes)) continue;
    ++compared;
    const double distance = KeyDistance(asked, description);
    // Of equally near ones the most recent.
    if (!nearest || distance < nearest->distance) {
      nearest = {info.key.digest, std::move(description), distance};
    }
  }
  return nearest;
}

}  // namespace

void StoreKeyDescription(cache::Store& store, const Digest& key, const v1::CompileRequest& request,
                         absl::string_view compiler_build) {
  const v1::KeyDescription description =
      DescribeKey(request.graph(), request.device(), request.options(), compiler_build);
  absl::Status stored = store.Put({cache::EntryKind::kDescription, key},
                                  cache::MakeEntry(description.SerializeAsString()));
  if (stored.ok()) return;
  Log(LogLevel::kWarning, "a key's description was not stored",
      {{"key", key.ShortHex()}, {"why", stored.ToString()}});
}

absl::Status ExplainMiss(cache::Store& store, absl::string_view compiler_build,
                         const v1::ExplainMissRequest& request, v1::ExplainMissResponse& response) {
  const Digest key =
      ArtifactKey(request.graph(), request.device(), request.options(), compiler_build);
  response.set_key(key.ToHex());
  if (store.Get({cache::EntryKind::kArtifact, key}).ok()) {
    response.set_hit(true);
    return absl::OkStatus();
  }
  const v1::KeyDescription asked =
      DescribeKey(request.graph(), request.device(), request.options(), compiler_build);
  int64_t compared = 0;
  const std::optional<Nearest> nearest = FindNearest(store, asked, compared);
  response.set_compared(compared);
  if (!nearest) return absl::OkStatus();
  response.set_nearest_key(nearest->key.ToHex());
  response.set_nearest_graph(nearest->description.graph_name());
  for (KeyDifferenceText& text : CompareKeys(asked, nearest->description, kMaxDifferences)) {
    v1::KeyDifference& difference = *response.add_differences();
    difference.set_component(std::move(text.component));
    difference.set_asked(std::move(text.asked));
    difference.set_nearest(std::move(text.nearest));
  }
  return absl::OkStatus();
}

}  // namespace kiln::server
