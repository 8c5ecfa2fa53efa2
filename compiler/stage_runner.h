// Runs the compiler's stages: cancellation, disable switch, timer, IR dump and verifier around
// each.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "compiler/compiler.h"
#include "compiler/ir/module.h"

namespace kiln {

// Not thread-safe; one a compile. Outlived by the module and the stop check it is given.
class StageRunner {
 public:
  struct Timing {
    std::string stage;
    int64_t duration_ns = 0;
  };
  struct Dump {
    std::string stage;
    std::string text;
  };

  StageRunner(const ir::Module& module, const StopCheck& stop, bool keep_ir)
      : module_(module), stop_(stop), keep_ir_(keep_ir) {}

  // Runs one stage. Its error comes back as "<stage>: ..." with code and details kept.
  absl::Status Run(absl::string_view stage, const std::function<absl::Status()>& body);
  // The same for a stage that leaves a module: verifies it and keeps its text where asked to.
  absl::Status RunOnIr(absl::string_view stage, const std::function<absl::Status()>& body);

  // What a stage left, for people, where it is kept.
  void Keep(absl::string_view stage, const std::function<std::string()>& text);

  const std::vector<Timing>& timings() const { return timings_; }
  const std::vector<Dump>& dumps() const { return dumps_; }

 private:
  const ir::Module& module_;
  const StopCheck& stop_;
  const bool keep_ir_;
  std::vector<Timing> timings_;
  std::vector<Dump> dumps_;
};

}  // namespace kiln
