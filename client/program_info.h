// What the C interface tells about a program, laid out once when a handle is made.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/loader.h"
#include "kiln/kiln.h"

namespace google::protobuf {
class Message;
}

namespace kiln {

class ProgramInfo {
 public:
  explicit ProgramInfo(const runtime::LoadedProgram& program);  // copies what it needs
  ProgramInfo(const ProgramInfo&) = delete;
  ProgramInfo& operator=(const ProgramInfo&) = delete;

  const std::vector<kiln_value_info>& inputs() const { return inputs_; }
  const std::vector<kiln_value_info>& outputs() const { return outputs_; }
  const std::vector<kiln_library_info>& library_steps() const { return library_steps_; }
  const std::vector<kiln_step_info>& steps() const { return steps_; }
  const kiln_program_stats& stats() const { return stats_; }

  template <typename T>
  static absl::StatusOr<T> At(const std::vector<T>& list, size_t index, absl::string_view what) {
    if (index < list.size()) return list[index];
    return absl::InvalidArgumentError(
        absl::StrCat("there is no ", what, " ", index, "; the program has ", list.size()));
  }

 private:
  void AddInputs(const runtime::LoadedProgram& program);
  void AddOutputs(const runtime::LoadedProgram& program);
  void AddLibrarySteps(const runtime::LoadedProgram& program);
  void AddSteps(const runtime::LoadedProgram& program);
  void AddStats(const runtime::LoadedProgram& program);
  const char* Keep(std::string text);

  // Elements never move.
  std::deque<std::string> texts_;
  std::deque<std::vector<int64_t>> numbers_;
  std::vector<kiln_value_info> inputs_;
  std::vector<kiln_value_info> outputs_;
  std::vector<kiln_library_info> library_steps_;
  std::vector<kiln_step_info> steps_;
  kiln_program_stats stats_ = KILN_PROGRAM_STATS_INIT;
};

// Protobuf JSON with names as in the .proto file. INTERNAL where it cannot be printed.
absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message);

}  // namespace kiln
