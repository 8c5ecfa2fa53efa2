// Children of a metric family by their labels' values, found without building labels: what calls
// touch on their way has to cost less than prometheus-cpp's Family::Add, which allocates a map of
// strings each time.
#pragma once

#include <prometheus/family.h>

#include <array>
#include <deque>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace kiln::server {

// Thread-safe. `N` labels; `Arguments` are what Family<T>::Add takes after the labels: a
// histogram's boundaries. The caller bounds the values: every combination stays for good.
template <typename T, size_t N, typename... Arguments>
class MetricTable {
 public:
  using Values = std::array<absl::string_view, N>;

  MetricTable(prometheus::Family<T>& family, std::array<const char*, N> names,
              Arguments... arguments)
      : family_(family), names_(names), arguments_(std::move(arguments)...) {}

  T& At(const Values& values) {
    {
      absl::ReaderMutexLock lock(&mu_);
      if (auto it = children_.find(values); it != children_.end()) return *it->second;
    }
    return Make(values);
  }

 private:
  T& Make(const Values& values) {
    prometheus::Labels labels;
    for (size_t i = 0; i < N; ++i) labels.emplace(names_[i], std::string(values[i]));
    absl::MutexLock lock(&mu_);
    if (auto it = children_.find(values); it != children_.end()) return *it->second;
    Values kept;
    for (size_t i = 0; i < N; ++i) kept[i] = texts_.emplace_back(values[i]);
    T& child = std::apply(
        [&](const Arguments&... arguments) -> T& { return family_.Add(labels, arguments...); },
        arguments_);
    children_.emplace(kept, &child);
    return child;
  }

  prometheus::Family<T>& family_;
  const std::array<const char*, N> names_;
  const std::tuple<Arguments...> arguments_;
  absl::Mutex mu_;
  std::deque<std::string> texts_ ABSL_GUARDED_BY(mu_);  // what the keys refer to; never moves
  absl::flat_hash_map<Values, T*> children_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln::server
