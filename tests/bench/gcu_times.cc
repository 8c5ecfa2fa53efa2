// What the launches of a graph take on a simulated GCU, beside what the compiler predicts.
//
//   gcu_times GRAPH.kgraph [--profile=gcu-16m] [--unfused] [--without=PASS,...]
//   [--sizes=N,...] [--launches | --stages]
//
// --unfused: a launch for each operator. --without: passes to leave out (afe, tlf, dafe, those of
// fusion). --sizes: of the graph's symbols in order, where they are not to be their hints; what is
// predicted is for typical sizes of the version that runs. Times are of launches alone: what runs
// on the host is named, and copies to the device are not counted. Tensors hold random numbers;
// results are not looked at.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "compiler/codegen/gcu/launch.h"
#include "compiler/fusion/fuse.h"
#include "compiler/graph/import.h"
#include "compiler/ir/identity.h"
#include "compiler/ir/verify.h"
#include "compiler/lowering/lower.h"
#include "compiler/schedule/gcu/groups.h"
#include "compiler/schedule/gcu/layout.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/status_macros.h"
#include "tests/unit/compiler/codegen/gcu_device.h"

namespace kiln {
namespace {

struct Options {
  std::string graph, profile = "gcu-16m";
  bool unfused = false, launches = false, stages = false;
  std::vector<std::string> without;
  std::vector<int64_t> sizes;
};

class Bench {
 public:
  Bench(const Options& options, const schedule::gcu::Machine& machine)
      : options_(options), machine_(machine), device_(options.profile) {}

  absl::Status Run() {
    std::ifstream in(options_.graph, std::ios::binary);
    v1::Graph graph;
    if (!in || !graph.ParseFromIstream(&in)) {
      return absl::InvalidArgumentError(absl::StrCat(options_.graph, " is no graph"));
    }
    const absl::Time begin = absl::Now();
    KILN_ASSIGN_OR_RETURN(graph::Graph imported, graph::Import(graph, *module_.ints));
    KILN_RETURN_IF_ERROR(lowering::Lower(imported, {}, module_));
    KILN_RETURN_IF_ERROR(fusion::Fuse(
        module_, {.enabled = !options_.unfused, .disabled_passes = options_.without}, nullptr));
    if (!options_.unfused) {
      schedule::gcu::Group(module_, machine_, options_.without,
                           [&](const ir::Operation& operation) {
                             return codegen::gcu::MakeLaunch(module_, operation, machine_).status();
                           });
      KILN_RETURN_IF_ERROR(ir::Verify(module_));
    } else {
      schedule::gcu::LayOut(module_);
    }
    for (size_t i = 0; i < options_.sizes.size(); ++i) {
      const auto& symbols = module_.ints->symbols();
      if (i >= symbols.size()) return absl::InvalidArgumentError("there are fewer symbols");
      if (options_.sizes[i] < symbols[i].min || options_.sizes[i] > symbols[i].max) {
        return absl::InvalidArgumentError(
            absl::StrCat(symbols[i].name, " is from ", symbols[i].min, " to ", symbols[i].max));
      }
    }
    const double grouped = absl::ToDoubleSeconds(absl::Now() - begin);
    double codegen = 0, run = 0;
    const std::vector<ir::Identity> identities = ir::Identify(module_);
    std::vector<double> seconds(module_.operations.size()), predicted(module_.operations.size());
    double total = 0, total_predicted = 0, errors = 0;
    int launches = 0, on_host = 0;
    std::vector<codegen::GcuTimes> taken(module_.operations.size());
    int64_t macs = 0, moved = 0;
    std::vector<bool> reached(module_.buffers.size());
    for (size_t i = 0; i < module_.operations.size(); ++i) {
      const ir::Operation& operation = module_.operations[i];
      if (const size_t first = identities[i].first; first != i) {
        seconds[i] = seconds[first];
        predicted[i] = predicted[first];
        taken[i] = taken[first];
      } else {
        const absl::Time start = absl::Now();
        absl::StatusOr<codegen::gcu::Launch> launch =
            codegen::gcu::MakeLaunch(module_, operation, machine_);
        codegen += absl::ToDoubleSeconds(absl::Now() - start);
        if (!launch.ok()) {
          std::printf("host: %s: %s\n", std::string(NameOf(operation)).c_str(),
                      std::string(launch.status().message()).c_str());
          ++on_host;
          continue;
        }
        const absl::Time at = absl::Now();
        KILN_ASSIGN_OR_RETURN(const codegen::GcuTimes times, Launch(*launch));
        run += absl::ToDoubleSeconds(absl::Now() - at);
        seconds[i] = times.seconds;
        const codegen::gcu::LaunchVersion& version = VersionFor(*launch, operation);
        predicted[i] = version.seconds;
        taken[i] = times;
        if (options_.launches) {
          std::printf("%s: %.1f us, predicted %.1f, L3 %.2f MB, L2 %.2f MB, %.1f MMAC\n",
                      std::string(NameOf(operation)).c_str(), times.seconds * 1e6,
                      predicted[i] * 1e6, static_cast<double>(times.l3_bytes) / 1e6,
                      static_cast<double>(times.l2_bytes) / 1e6,
                      static_cast<double>(times.macs) / 1e6);
          for (const std::string& reason : version.reasons) std::printf("    %s\n", reason.c_str());
          if (options_.stages) {
            Stages(version, times, static_cast<double>(machine_.launch_ns) * 1e-9);
          }
        }
      }
      if (seconds[i] == 0) continue;
      macs += taken[i].macs;
      moved += taken[i].l3_bytes;
      ir::ForEachInst(operation, [&](const ir::Inst& inst) {
        if (inst.buffer >= 0) reached[inst.buffer] = true;
      });
      ++launches;
      total += seconds[i];
      total_predicted += predicted[i];
      errors += std::abs(predicted[i] / seconds[i] - 1);
    }
    std::printf(
        "%s%s: %d launches, %d on the host: %.3f ms, predicted %.3f ms (mean error of a launch "
        "%.0f %%), limit %.3f ms; compiled in %.2f s (code %.2f), simulated in %.2f s\n",
        options_.graph.c_str(), options_.unfused ? " unfused" : "", launches, on_host, total * 1e3,
        total_predicted * 1e3, launches == 0 ? 0 : errors / launches * 100,
        Limit(macs, moved, reached) * 1e3, grouped + codegen, codegen, run);
    return absl::OkStatus();
  }

 private:
  // Seconds that nothing can be below: what launches reach of the graph's inputs and outputs once
  // over L3 (no more than they moved: of rows that are picked, few are needed), or the
  // multiply-adds, as float32, at the cores' peak.
  double Limit(int64_t macs, int64_t moved, const std::vector<bool>& reached) const {
    int64_t bytes = 0;
    for (size_t b = 0; b < reached.size(); ++b) {
      const ir::Buffer& buffer = module_.buffers[b];
      if (reached[b] && buffer.kind != ir::BufferKind::kTemp) bytes += BytesOf(buffer);
    }
    return std::max(
        static_cast<double>(std::min(bytes, moved)) / static_cast<double>(machine_.l3_rate),
        static_cast<double>(macs) / static_cast<double>(machine_.Macs(DType::kF32)) /
            static_cast<double>(machine_.cores * machine_.clock_hz));
  }

  int64_t BytesOf(const ir::Buffer& buffer) const {
    return module_.ints->Evaluate(ir::SizeBytes(*module_.ints, buffer),
                                  [&](ir::IntExpr symbol) { return Size(symbol.id()); });
  }

  // Of a symbol.
  int64_t Size(int id) const {
    const auto i = static_cast<size_t>(id);
    return i < options_.sizes.size() ? options_.sizes[i] : module_.ints->symbols()[i].hint;
  }

  // What the launch runs for these sizes.
  const codegen::gcu::LaunchVersion& VersionFor(const codegen::gcu::Launch& launch,
                                                const ir::Operation& operation) const {
    const std::vector<ir::IntExpr> symbols = schedule::gcu::SymbolsOf(operation);
    for (const codegen::gcu::LaunchVersion& version : launch.versions) {
      const std::vector<int64_t>& most = version.plan.bucket.most;
      bool fits = true;
      for (size_t i = 0; i < most.size(); ++i) fits = fits && Size(symbols[i].id()) <= most[i];
      if (fits) return version;
    }
    return launch.versions.back();
  }

  absl::StatusOr<codegen::GcuTimes> Launch(const codegen::gcu::Launch& launch) {
    std::vector<std::string> data;
    std::vector<int64_t> symbols;
    for (int id : launch.symbols) symbols.push_back(Size(id));
    for (ir::BufferId id : launch.buffers) {
      const ir::Buffer& buffer = module_.buffers[id];
      const int64_t bytes = BytesOf(buffer);
      std::string& bits = data.emplace_back(static_cast<size_t>(bytes), '\0');
      if (buffer.dtype != DType::kF32) continue;
      for (size_t i = 0; i + 4 <= bits.size(); i += 4) {
        const float value = static_cast<float>(random_() % 2048) / 1024 - 1;
        std::memcpy(&bits[i], &value, 4);
      }
    }
    std::vector<codegen::HostBuffer> buffers;
    for (std::string& bits : data) buffers.push_back({bits.data(), bits.size()});
    return device_.Run(launch.kernel, buffers, symbols);
  }

  // What each kernel of a group took, all its tiles: from barrier to barrier. Tiles that overlap
  // have others as well, and with sums some are no tile's.
  static void Stages(const codegen::gcu::LaunchVersion& version, const codegen::GcuTimes& times,
                     double launch) {
    const size_t kernels = version.stages.size();
    const bool sums = version.plan.before + version.plan.after > 0;
    if (kernels < 2 || sums || !version.plan.overlaps.empty()) return;
    std::vector<double> seconds(kernels);
    // Before the first tile there may be one more, for weights that stay.
    const size_t first = times.barriers.size() % kernels;
    double before = first == 0 ? launch : times.barriers[first - 1];
    for (size_t i = first; i < times.barriers.size(); ++i) {
      seconds[(i - first) % kernels] += times.barriers[i] - before;
      before = times.barriers[i];
    }
    for (size_t k = 0; k < kernels; ++k) {
      std::printf("  stage %6.1f us, predicted %6.1f: %s\n", seconds[k] * 1e6,
                  version.stages[k].seconds * 1e6, version.plan.kernels[k].name.c_str());
    }
  }

  const Options& options_;
  const schedule::gcu::Machine& machine_;
  ir::Module module_;
  codegen::GcuDevice device_;
  std::minstd_rand random_;
};

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--profile=")) {
      options.profile = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--without=")) {
      options.without = absl::StrSplit(argument, ',');
    } else if (absl::ConsumePrefix(&argument, "--sizes=")) {
      for (absl::string_view size : absl::StrSplit(argument, ',')) {
        if (!absl::SimpleAtoi(size, &options.sizes.emplace_back())) options.graph.clear();
      }
    } else if (argument == "--unfused") {
      options.unfused = true;
    } else if (argument == "--launches" || argument == "--stages") {
      options.launches = true;
      options.stages = options.stages || argument == "--stages";
    } else {
      options.graph = std::string(argument);
    }
  }
  const auto machine = schedule::gcu::FindMachine(options.profile);
  if (!machine || options.graph.empty()) {
    std::fprintf(stderr,
                 "gcu_times GRAPH.kgraph [--profile=NAME] [--unfused] [--without=PASS,...] "
                 "[--sizes=N,...] [--launches | --stages]\n");
    return 2;
  }
  const absl::Status status = Bench(options, *machine).Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) {
  return kiln::Main(argc, argv);
}
