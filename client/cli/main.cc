// `kiln`, the command line.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/cli/command.h"
#include "client/cli/commands.h"
#include "client/cli/manual.h"
#include "kiln/kiln.h"
#include "proto/base/log.h"

namespace kiln::cli {
namespace {

int Report(const Outcome& outcome) {
  if (!outcome.status.ok()) {
    std::string message(outcome.status.message());
    std::fprintf(stderr, "kiln: %s\n", message.c_str());
    if (outcome.usage) std::fputs("Try 'kiln --help'.\n", stderr);
  }
  return ExitCode(outcome);
}

int Main(int argc, char** argv) {
  SetLogLevel(LogLevelFromEnvironment(LogLevel::kWarning));
  if (argc < 2) {
    std::fputs(HelpOfAll().c_str(), stderr);
    return kExitUsage;
  }
  absl::string_view name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(HelpOfAll().c_str(), stdout);
    return kExitOk;
  }
  if (name == "--version") {
    std::printf("kiln %s\n", kiln_version());
    return kExitOk;
  }
  for (const Command& command : Commands()) {
    if (command.name != name) continue;
    const absl::Span<char* const> rest(argv + 2, static_cast<size_t>(argc - 2));
    auto args = Args::Parse(rest, NamesOf(command));
    if (!args.ok()) return Report(Usage(args.status()));
    if (args->Has("--help") || args->Has("-h")) {
      std::fputs(HelpOf(command).c_str(), stdout);
      return kExitOk;
    }
    return Report(command.run(*args));
  }
  return Report(Usage(absl::StrCat("there is no command '", name, "'")));
}

}  // namespace
}  // namespace kiln::cli

int main(int argc, char** argv) {
  return kiln::cli::Main(argc, argv);
}
