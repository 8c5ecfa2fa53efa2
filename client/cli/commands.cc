#include "client/cli/commands.h"

#include "client/cli/manual.h"

namespace kiln::cli {
namespace {

constexpr Flag kTarget = {"--target", "cpp|ptx|gcu|null", "what runs it (cpp)"};
constexpr Flag kArch = {"--arch", "NAME",
                        "of the target: znver3, sm_90a, gcu-16m (native: this machine's)"};
constexpr Flag kLibraries = {"--libraries", "torch",
                             "what library steps can call (as the graph asks, else nothing)"};
constexpr Flag kThreads = {"--threads", "N", "that it runs on (one a physical core)"};
constexpr Flag kFailOnMiss = {"--fail-on-miss", "", "compile nothing: exit code 5 on a miss"};

}  // namespace

const std::vector<Command>& Commands() {
  static const auto* commands = new std::vector<Command>{
      {"start", "", "starts this user's own server; commands do so by themselves", {}, RunStart},
      {"stop", "", "ends it, once it has finished what it compiles", {}, RunStop},
      {"status", "", "the server's health, version, targets, caches and queue", {}, RunStatus},
      {"doctor",
       "",
       "what works here: device, server, caches, and one compile",
       {kTarget, kArch},
       RunDoctor},
      {"compile",
       "GRAPH|FOLDER...",
       "compiles saved graphs, those of folders too, and so warms the server's cache",
       {kTarget,
        kArch,
        kLibraries,
        {"-o", "OUT", "where to write what --emit says (of one graph)"},
        {"--emit", "artifact|source|asm|sass|ir", "what to write (artifact)"},
        {"--stage", "NAME", "the stage whose IR --emit ir writes"},
        kThreads,
        kFailOnMiss},
       RunCompile},
      {"run",
       "GRAPH|ARTIFACT",
       "runs a saved graph or an artifact on this machine and its devices",
       {kTarget,
        kArch,
        {"--inputs", "random[:SEED]|FILE.npz", "what it gets; what FILE lacks is random (random)"},
        {"--weights", "FILE.safetensors", "parameters by their names; as often as there are files",
         true},
        {"--check", "", "compares with the reference interpreter, run by the server"},
        {"--expect", "FILE.npz", "compares with the arrays output_0, output_1, ..."},
        {"--bench", "N", "times N runs"},
        {"--profile", "N", "times the steps of N runs"},
        {"--trace", "FILE.json", "writes --profile's times as a Chrome trace"},
        kThreads,
        kFailOnMiss},
       RunRun},
      {"explain",
       "GRAPH",
       "stages with times, fusion decisions with reasons, kernels, library steps; of GPUs' kernels "
       "registers, memory and occupancy",
       {kTarget,
        kArch,
        kLibraries,
        kThreads,
        {"--code", "", "also each kernel's assembly, and a GPU's machine code"}},
       RunExplain},
      {"explain-miss",
       "GRAPH",
       "in what the graph's key differs from the nearest that the server has",
       {kTarget, kArch, kLibraries, kThreads},
       RunExplainMiss},
      {"cache",
       "ls|stat|verify|clear|pin KEY|unpin KEY|rm KEY|export FILE [KEY...]|import FILE",
       "the server's cache; a KEY is its first four hex digits or more",
       {{"--kind", "artifact|kernel|description|choice", "only entries of this kind (all)"},
        {"--limit", "N", "how many ls lists, the last used first"},
        {"--signed-by", "KEY,...", "whose signatures import takes (the server's)"}},
       RunCache},
      {"top",
       "",
       "what the server does, live; q quits",
       {{"--interval", "SECONDS", "between two looks (1)"},
        {"--once", "", "prints it once, as --json does"}},
       RunTop},
      {"load",
       "fetch|compile [GRAPH]",
       "puts load on the server and measures it: hits of made-up entries, or compiles of a graph",
       {{"--rate", "R", "requests a second, whether or not the server keeps up"},
        {"--concurrency", "N", "requests under way, where there is no rate (32)"},
        {"--connections", "N", "to the server (8)"},
        {"--duration", "SECONDS", "of what is measured (10)"},
        {"--warmup", "SECONDS", "before it (1)"},
        {"--keys", "N", "made-up entries (1000)"},
        {"--zipf", "S", "how uneven the choice among them is (0)"},
        {"--size", "BYTES", "of each (65536)"},
        {"--no-prepare", "", "the server has them already"},
        {"--tenant", "NAME", "whose share of the server"},
        {"--priority", "interactive|warmup", "of compiles (interactive)"},
        {"--seed", "N", "of what is chosen (1)"}},
       RunLoad},
      {"completion",
       "bash",
       "a script that completes these commands: source <(kiln completion bash)",
       {},
       RunCompletion},
      {"manual", "", "this as a manual page: kiln manual | man -l -", {}, RunManual},
  };
  return *commands;
}

const std::vector<Flag>& CommonFlags() {
  static const auto* flags = new std::vector<Flag>{
      {"--server", "HOST:PORT,...",
       "else KILN_SERVER, else this user's own kilnd, which starts by itself"},
      {"--timeout", "SECONDS", "of a call with all its retries (600)"},
      {"--json", "", "for programs to read"},
      {"--tls-ca", "FILE", "who vouches for the server (KILN_TLS_CA)"},
      {"--tls-cert", "FILE", "this client's certificate (KILN_TLS_CERT)"},
      {"--tls-key", "FILE", "its key (KILN_TLS_KEY)"},
      {"--token-file", "FILE", "the token, and keys after it (KILN_TOKEN_FILE; KILN_TOKEN is one)"},
      {"--public-key", "KEY,...", "whose artifacts are loaded (KILN_PUBLIC_KEY)"},
      {"--known-servers", "FILE", "keys of servers, as ssh keeps them (KILN_KNOWN_SERVERS)"},
      {"--help", "", "a command's own options"},
      {"-h", "", "the same"},
  };
  return *flags;
}

FlagNames NamesOf(const Command& command) {
  FlagNames names;
  for (const std::vector<Flag>* flags : {&command.flags, &CommonFlags()}) {
    for (const Flag& flag : *flags) {
      (flag.value.empty() ? names.switches : names.with_value).push_back(flag.name);
      if (flag.repeats) names.repeated.push_back(flag.name);
    }
  }
  return names;
}

}  // namespace kiln::cli
