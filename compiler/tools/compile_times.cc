// kiln-compile-times: compiles saved graphs in this process, stage by stage, and says how long each
// stage and each kernel took. Also what deploy/portable/optimize.sh takes its profile of.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compiler/compiler.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/device_cpu.h"
#include "proto/base/device_gpu.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr absl::string_view kUsage =
    R"(usage: kiln-compile-times [--target=cpp|ptx] [--arch=NAME] [--repeat=N] [--save=FOLDER]
                          GRAPH.kgraph...

Plans each graph, compiles its kernels one after another and links them, all in this process and
without a cache, and prints a line for each with its wall time in ms, the least of N.

  --target=NAME    cpp (default) or ptx
  --arch=NAME      an architecture of the target (default: this CPU, sm_90a)
  --repeat=N       how often each stage and kernel runs (default 1)
  --save=FOLDER    writes what each kernel becomes, an object or PTX, to a file of its name there
)";

struct Flags {
  std::string target = "cpp", arch, save;
  int repeat = 1;
  std::vector<std::string> graphs;
};

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--target=")) {
      flags.target = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--arch=")) {
      flags.arch = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--repeat=")) {
      if (!absl::SimpleAtoi(argument, &flags.repeat) || flags.repeat < 1) {
        return absl::InvalidArgumentError("--repeat wants a number from 1 on");
      }
    } else if (absl::ConsumePrefix(&argument, "--save=")) {
      flags.save = std::string(argument);
    } else if (absl::StartsWith(argument, "-")) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag '", argument, "'"));
    } else {
      flags.graphs.emplace_back(argument);
    }
  }
  if (flags.graphs.empty()) return absl::InvalidArgumentError("no graph is named");
  return flags;
}

absl::StatusOr<v1::Device> DescribeDevice(const Flags& flags) {
  if (flags.target == "cpp") return DescribeCpu(flags.arch, /*threads=*/0);
  if (flags.target == "ptx") return DescribeGpu(flags.arch.empty() ? "sm_90a" : flags.arch);
  return absl::InvalidArgumentError(absl::StrCat("no target '", flags.target, "': cpp or ptx"));
}

absl::StatusOr<v1::Graph> Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  v1::Graph graph;
  if (!file || !graph.ParseFromIstream(&file)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no saved graph"));
  }
  return graph;
}

absl::Status Write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// What `work` returned last; `ms` is the least that it took.
template <typename Work>
auto Time(int repeat, const Work& work, double& ms) {
  using Clock = std::chrono::steady_clock;
  const auto once = [&] {
    const Clock::time_point start = Clock::now();
    auto result = work();
    const double took = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    ms = ms > 0 ? std::min(ms, took) : took;
    return result;
  };
  for (int i = 1; i < repeat; ++i) once().IgnoreError();
  return once();
}

void PrintLine(absl::string_view what, double ms, const std::string& more = "") {
  std::cout << std::setw(10) << what << std::setw(9) << std::fixed << std::setprecision(1) << ms
            << (more.empty() ? "" : "  ") << more << "\n";
}

absl::Status CompileGraph(const std::string& path, const v1::Device& device, const Flags& flags) {
  const int repeat = flags.repeat;
  v1::PlanRequest request;
  KILN_ASSIGN_OR_RETURN(*request.mutable_graph(), Read(path));
  *request.mutable_device() = device;
  std::cout << path << "\n";
  double plan_ms = 0, link_ms = 0, kernels_ms = 0;
  KILN_ASSIGN_OR_RETURN(
      const v1::PlanResponse plan,
      Time(repeat, [&] { return PlanGraph(request, [] { return absl::OkStatus(); }); }, plan_ms));
  PrintLine("plan", plan_ms);
  std::vector<v1::KernelSource> sources(plan.kernels().begin(), plan.kernels().end());
  sources.insert(sources.end(), plan.routines().begin(), plan.routines().end());
  v1::LinkRequest link;
  *link.mutable_device() = device;
  for (const v1::KernelSource& source : sources) {
    v1::CompileKernelRequest kernel;
    kernel.set_source(source.source());
    *kernel.mutable_device() = device;
    KILN_RETURN_IF_ERROR(PrepareForKernels(kernel));
    double ms = 0;
    KILN_ASSIGN_OR_RETURN(v1::CompileKernelResponse compiled,
                          Time(repeat, [&] { return CompileKernel(kernel); }, ms));
    kernels_ms += ms;
    PrintLine("kernel", ms,
              absl::StrCat(source.symbol(), ", source ", kernel.source().size(), " bytes, object ",
                           compiled.object().size()));
    if (!flags.save.empty()) {
      KILN_RETURN_IF_ERROR(
          Write(absl::StrCat(flags.save, "/", source.symbol()), compiled.object()));
    }
    link.add_objects(std::move(*compiled.mutable_object()));
  }
  KILN_RETURN_IF_ERROR(Time(repeat, [&] { return LinkKernels(link); }, link_ms).status());
  PrintLine("link", link_ms);
  PrintLine("all", plan_ms + kernels_ms + link_ms, absl::StrCat(sources.size(), " kernels"));
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags) {
  KILN_ASSIGN_OR_RETURN(const v1::Device device, DescribeDevice(flags));
  KILN_RETURN_IF_ERROR(WarmUpTargets());
  for (const std::string& path : flags.graphs) {
    KILN_RETURN_IF_ERROR(CompileGraph(path, device, flags));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Flags> flags = ParseFlags(argc, argv);
  if (!flags.ok()) {
    std::cerr << "kiln-compile-times: " << flags.status().message() << "\n" << kUsage;
    return 2;
  }
  const absl::Status status = Run(*flags);
  if (status.ok()) return 0;
  std::cerr << "kiln-compile-times: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) {
  return kiln::Main(argc, argv);
}
