// From an artifact's bytes to a program that can run here.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class Artifact;
class Graph;
}  // namespace v1

namespace runtime {

class Executor;

// Immutable once loaded.
class LoadedProgram {
 public:
  // `bytes` is a serialized kiln.v1.Artifact, from a source that checked its digest. Checks the
  // format's version, the target, that this CPU or a GPU here can run the code, every number of the
  // program, its launches against the interfaces of the kernels, and it all against `graph`, which
  // may be null. DATA_LOSS for a damaged artifact or one of another graph, FAILED_PRECONDITION for
  // one that this machine cannot run. `threads` 0: one a physical core.
  static absl::StatusOr<std::unique_ptr<LoadedProgram>> Load(absl::string_view bytes,
                                                             const v1::Graph* graph, int threads);
  ~LoadedProgram();

  const v1::Artifact& artifact() const;  // `binary` is empty: it is loaded
  const Executor& executor() const;

 private:
  struct Parts;
  explicit LoadedProgram(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// What Load checks of a program against its graph without the machine code, for an artifact that is
// to be kept and not run here.
absl::Status CheckOfGraph(absl::string_view bytes, const v1::Graph& graph);

}  // namespace runtime
}  // namespace kiln
