// Which of a kernel's schedules clients found to be the fastest on their devices.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache/store.h"
#include "proto/base/digest.h"

namespace kiln {
namespace v1 {
class CompileOptions;
class Device;
class Program;
class ReportChoicesRequest;
}  // namespace v1

namespace server {

// A choice among several kernels. `key` is ChoiceKey's: of the kernels, their sizes and the device.
struct OpenChoice {
  Digest key;
  uint32_t candidates = 0;
};

// What was chosen, as it lies in the store under EntryKind::kChoice; nothing where that is no
// number of one of `candidates`.
std::optional<uint32_t> ReadChoice(const cache::Entry& entry, uint32_t candidates);

// Of launches with alternatives leaves the one that was chosen, where `find`, which asks the store,
// finds a choice; with options.debug also the compiler's own where it finds none: people look at
// such artifacts. The others get their choice's key. Returns those, in order. `kernels` has
// each kernel's key by its symbol. INTERNAL where a launch lacks its alternatives: a
// worker's word is not taken for what is there.
absl::StatusOr<std::vector<OpenChoice>> ApplyChoices(
    const v1::Device& device, const v1::CompileOptions& options,
    const absl::flat_hash_map<std::string, Digest>& kernels,
    const std::function<std::vector<absl::StatusOr<cache::Found>>(absl::Span<const cache::Key>)>&
        find,
    v1::Program& program);

// Thread-safe. A client can choose among what the server has offered and nothing else: whatever it
// says, all candidates do the same. The last 4096 offers count.
class Choices {
 public:
  // Both must outlive it. `store` keeps what was chosen, for all servers that share it.
  explicit Choices(cache::Store* store) : store_(*store) {}

  // Before an artifact with such launches goes to clients.
  void Offer(absl::Span<const OpenChoice> choices);

  // Keeps what a client reports, of each choice the first report. INVALID_ARGUMENT and NOT_FOUND as
  // CompileService.ReportChoices, and then nothing of the report is kept; other errors are the
  // store's.
  absl::Status Take(const v1::ReportChoicesRequest& request);

 private:
  struct Offered {
    uint32_t candidates = 0;
    bool decided = false;
  };

  cache::Store& store_;
  absl::Mutex mu_;
  absl::flat_hash_map<Digest, Offered> offers_ ABSL_GUARDED_BY(mu_);
  std::deque<Digest> order_ ABSL_GUARDED_BY(mu_);  // of the offers, oldest first
};

}  // namespace server
}  // namespace kiln
