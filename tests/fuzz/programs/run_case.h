// One changed program, loaded and run as a client does it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/loader.h"
#include "tests/fuzz/programs/subjects.h"

namespace kiln::fuzz {

// All that a caller sees of a run. `types` has what the graph promises: kinds, types, sizes,
// strides, numbers, which input an output lies in; `values` the elements of outputs, and of the
// inputs after the run; `unwritten` those of the inputs that the graph does not write.
struct Seen {
  std::string types, values, unwritten;
};

// The artifact's bytes, against the subject's graph.
absl::StatusOr<Seen> LoadAndRun(const Subject& subject, absl::string_view bytes);

}  // namespace kiln::fuzz
