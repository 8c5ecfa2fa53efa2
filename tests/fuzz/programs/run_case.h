// One changed program, loaded and run as a client does it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/loader.h"
#include "tests/fuzz/programs/subjects.h"

namespace kiln::fuzz {

// All that a caller sees of a run. `types` has what the graph promises: kinds, types, sizes,
// strides, numbers, which input an output lies in; `values` the elements of outputs, and after the
// run those of the inputs that the graph writes; `changed` names the other inputs that were
// written.
struct Seen {
  std::string types, values, changed;
};

// Runs programs of one graph. The inputs, which may be large, are copied once, not for every run.
class Runner {
 public:
  // `subject` must outlive it.
  explicit Runner(const Subject& subject);
  ~Runner();
  Runner(Runner&&) noexcept;

  // The artifact's bytes, against the subject's graph.
  absl::StatusOr<Seen> LoadAndRun(absl::string_view bytes);

 private:
  class Inputs;
  const Subject& subject_;
  std::unique_ptr<Inputs> inputs_;
};

}  // namespace kiln::fuzz
