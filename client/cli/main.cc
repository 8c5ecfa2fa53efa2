// `kiln`, the command line.
#include <cstdio>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "kiln/kiln.h"
#include "proto/base/log.h"

namespace kiln::cli {
namespace {

const std::vector<Command>& Commands() {
  static const auto* commands = new std::vector<Command>{
      {"start", "", "starts this user's own server; commands do so by themselves", {}, RunStart},
      {"stop", "", "ends it, once it has finished what it compiles", {}, RunStop},
      {"status", "", "the server's health, version, targets, caches and queue", {}, RunStatus},
      {"compile",
       "GRAPH [--target cpp|ptx|gcu|null] [--arch native|znver3|sm_90a|gcu-16m|...] [--libraries "
       "torch] [-o "
       "OUT] [--emit artifact|source|asm|ir] [--stage NAME] [--fail-on-miss]",
       "compiles a saved graph; with --fail-on-miss only where a cache has it",
       {{"--target", "--arch", "--libraries", "-o", "--emit", "--stage", "--threads"},
        {"--fail-on-miss"}},
       RunCompile},
      {"run",
       "GRAPH|ARTIFACT [--target cpp|ptx|gcu] [--arch NAME] [--inputs random[:SEED]|FILE.npz] "
       "[--check "
       "| --expect FILE.npz] [--bench N] [--profile N [--trace FILE.json]] [--threads N] "
       "[--fail-on-miss]",
       "runs a saved graph or an artifact on this machine and its devices",
       {{"--target", "--arch", "--inputs", "--expect", "--bench", "--profile", "--trace",
         "--threads"},
        {"--check", "--fail-on-miss"}},
       RunRun},
      {"explain",
       "GRAPH [--target cpp|ptx|gcu|null] [--arch native|znver3|sm_90a|gcu-16m|...] [--libraries "
       "torch]",
       "stages with times, fusion decisions with reasons, kernels, library steps",
       {{"--target", "--arch", "--libraries", "--threads"}, {}},
       RunExplain},
      {"explain-miss",
       "GRAPH [--target cpp|ptx|gcu|null] [--arch native|znver3|sm_90a|gcu-16m|...] [--libraries "
       "torch] "
       "[--threads N]",
       "in what the graph's key differs from the nearest that the server has",
       {{"--target", "--arch", "--libraries", "--threads"}, {}},
       RunExplainMiss},
      {"cache",
       "ls|stat|verify|clear|pin KEY|unpin KEY|rm KEY|export FILE [KEY...]|import FILE "
       "[--kind artifact|kernel|description] [--limit N] [--signed-by KEY,...]",
       "the server's cache; a KEY is its first four hex digits or more",
       {{"--kind", "--limit", "--signed-by"}, {}},
       RunCache},
      {"top",
       "[--interval SECONDS] [--once]",
       "what the server does, live; q quits; --once and --json print it once",
       {{"--interval"}, {"--once"}},
       RunTop},
      {"load",
       "fetch|compile [GRAPH] [--rate R | --concurrency N] [--connections N] [--duration SECONDS] "
       "[--warmup SECONDS] [--keys N] [--zipf S] [--size BYTES] [--no-prepare] [--tenant NAME] "
       "[--priority interactive|warmup] [--seed N]",
       "puts load on the server and measures it: hits of made-up entries, or compiles of a graph",
       {{"--rate", "--concurrency", "--connections", "--duration", "--warmup", "--keys", "--zipf",
         "--size", "--tenant", "--priority", "--seed"},
        {"--no-prepare"}},
       RunLoad},
  };
  return *commands;
}

void PrintHelp(std::FILE* out) {
  std::fputs("usage: kiln COMMAND [flags]\n\n", out);
  for (const Command& command : Commands()) {
    std::string line = absl::StrCat("  kiln ", command.name, " ", command.synopsis, "\n      ",
                                    command.summary, "\n");
    std::fputs(line.c_str(), out);
  }
  std::fputs(
      "\nEvery command: --server HOST:PORT[,HOST:PORT...] (else KILN_SERVER, else the "
      "user's own\n"
      "kilnd, which is started where it does not run, unless KILN_AUTOSTART=0),\n"
      "--timeout SECONDS, --json; for a server that wants more (client/README.md): "
      "https://HOST:PORT,\n"
      "--tls-ca FILE, --tls-cert FILE, --tls-key FILE, --token-file FILE, --public-key KEY,\n"
      "--known-servers FILE (else KILN_TLS_CA, ...; a token also in KILN_TOKEN).\n"
      "Exit codes: 0 done, 1 failed, 2 wrong use, 3 the server cannot be reached, 4 the graph was "
      "refused,\n"
      "5 no cache had it and --fail-on-miss forbade a compile.\n",
      out);
}

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
    PrintHelp(stderr);
    return kExitUsage;
  }
  absl::string_view name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(stdout);
    return kExitOk;
  }
  if (name == "--version") {
    std::printf("kiln %s\n", kiln_version());
    return kExitOk;
  }
  for (const Command& command : Commands()) {
    if (command.name != name) continue;
    FlagNames flags = command.flags;
    flags.with_value.insert(flags.with_value.end(), {"--server", "--timeout"});
    flags.with_value.insert(flags.with_value.end(), std::begin(kSecurityFlags),
                            std::end(kSecurityFlags));
    flags.switches.insert(flags.switches.end(), {"--json", "--help", "-h"});
    auto args = Args::Parse(absl::MakeSpan(argv + 2, static_cast<size_t>(argc - 2)), flags);
    if (!args.ok()) return Report(Usage(args.status()));
    if (args->Has("--help") || args->Has("-h")) {
      PrintHelp(stdout);
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
