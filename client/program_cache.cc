#include "client/program_cache.h"

#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace kiln {
namespace {

constexpr size_t kMostPrograms = 256;

struct Programs {
  using Key = std::pair<Digest, int>;
  using Order = std::list<std::pair<Key, std::shared_ptr<const Program>>>;
  absl::Mutex mutex;
  Order order ABSL_GUARDED_BY(mutex);  // used last comes last
  absl::flat_hash_map<Key, Order::iterator> by_key ABSL_GUARDED_BY(mutex);
};

Programs& AllPrograms() {
  static auto* programs = new Programs;
  return *programs;
}

}  // namespace

std::shared_ptr<const Program> FindProgram(const Digest& key, int threads) {
  Programs& programs = AllPrograms();
  absl::MutexLock lock(&programs.mutex);
  auto it = programs.by_key.find({key, threads});
  if (it == programs.by_key.end()) return nullptr;
  programs.order.splice(programs.order.end(), programs.order, it->second);
  return it->second->second;
}

std::shared_ptr<const Program> KeepProgram(const Digest& key, int threads,
                                           std::shared_ptr<const Program> program) {
  std::shared_ptr<const Program> dropped;  // unloaded outside of the lock
  Programs& programs = AllPrograms();
  absl::MutexLock lock(&programs.mutex);
  auto it = programs.by_key.find({key, threads});
  if (it != programs.by_key.end()) return it->second->second;
  programs.order.emplace_back(Programs::Key(key, threads), program);
  programs.by_key[{key, threads}] = std::prev(programs.order.end());
  if (programs.order.size() > kMostPrograms) {
    dropped = std::move(programs.order.front().second);
    programs.by_key.erase(programs.order.front().first);
    programs.order.pop_front();
  }
  return program;
}

void ForgetPrograms() {
  Programs::Order dropped;
  Programs& programs = AllPrograms();
  absl::MutexLock lock(&programs.mutex);
  programs.by_key.clear();
  dropped.swap(programs.order);
}

}  // namespace kiln
