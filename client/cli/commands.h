// The one table of the commands of `kiln`: parsing, help, completion and the manual are made of it.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "client/cli/args.h"
#include "client/cli/command.h"

namespace kiln::cli {

struct Flag {
  absl::string_view name;   // with its dashes
  absl::string_view value;  // "FILE", "a|b"; empty: a switch
  absl::string_view help;
  bool repeats = false;  // may be given several times
};

struct Command {
  absl::string_view name;
  absl::string_view arguments;  // "GRAPH"
  absl::string_view summary;
  std::vector<Flag> flags;  // besides CommonFlags
  Outcome (*run)(const Args& args);
};

const std::vector<Command>& Commands();
const std::vector<Flag>& CommonFlags();

// Of the command's flags and the common ones.
FlagNames NamesOf(const Command& command);

}  // namespace kiln::cli
