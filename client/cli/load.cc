// `kiln load`: load of a chosen kind on a server, and how it bore it.
#include <malloc.h>

#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/artifact_source.h"
#include "client/cli/command.h"
#include "client/credentials.h"
#include "client/load/load.h"
#include "client/local_access.h"
#include "client/own_server.h"
#include "client/remote.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/device_cpu.h"
#include "proto/base/log.h"
#include "proto/base/scheduling.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

using load::LoadOptions;
using load::LoadResult;

constexpr int kKeptBytes = 256 << 20;

absl::StatusOr<double> GetNumber(const Args& args, absl::string_view name, double fallback,
                                 double min, double max) {
  if (!args.Has(name)) return fallback;
  double value = 0;
  if (!absl::SimpleAtod(args.Get(name, ""), &value) || !(value >= min && value <= max)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is '", args.Get(name, ""),
                                                   "'; expected a number from ", min, " to ", max));
  }
  return value;
}

// What is named, else the user's own, running.
absl::StatusOr<std::string> Server(const Args& args) {
  std::string server = OptionOrVariable(args.Get("--server", ""), "KILN_SERVER");
  if (!server.empty()) return server;
  const OwnServer own = OwnServer::Locate();
  KILN_RETURN_IF_ERROR(own.Ensure());
  return own.address();
}

absl::StatusOr<LoadOptions> ParseOptions(const Args& args) {
  LoadOptions options;
  KILN_ASSIGN_OR_RETURN(options.server, Server(args));
  KILN_RETURN_IF_ERROR(GrpcTarget(options.server).status());  // one server
  ClientOptions security;
  TakeSecurityFlags(args, security);
  if (OptionOrVariable(security.token_file, "KILN_TOKEN_FILE").empty() &&
      OptionOrVariable("", "KILN_TOKEN").empty()) {
    security.token = ReadLocalAccess(options.server).file.token;
  }
  KILN_ASSIGN_OR_RETURN(options.credentials, Credentials::Load(security));
  KILN_RETURN_IF_ERROR(options.credentials->CheckServer(options.server));
  KILN_ASSIGN_OR_RETURN(double rate, GetNumber(args, "--rate", 0, 0.001, 1e6));
  options.requests_per_s = rate;
  KILN_ASSIGN_OR_RETURN(int64_t concurrency, args.GetInt("--concurrency", 32, 1, 100000));
  options.concurrency = static_cast<int>(concurrency);
  KILN_ASSIGN_OR_RETURN(int64_t connections, args.GetInt("--connections", 8, 1, 1000));
  options.connections = static_cast<int>(connections);
  KILN_ASSIGN_OR_RETURN(options.keys, args.GetInt("--keys", 1000, 1, 10000000));
  KILN_ASSIGN_OR_RETURN(options.zipf, GetNumber(args, "--zipf", 0, 0, 10));
  KILN_ASSIGN_OR_RETURN(double duration_s, GetNumber(args, "--duration", 10, 0.1, 86400));
  options.duration = absl::Seconds(duration_s);
  KILN_ASSIGN_OR_RETURN(double warmup_s, GetNumber(args, "--warmup", 1, 0, 3600));
  options.warmup = absl::Seconds(warmup_s);
  KILN_ASSIGN_OR_RETURN(double timeout_s, GetNumber(args, "--timeout", 60, 0.001, 86400));
  options.timeout = absl::Seconds(timeout_s);
  KILN_ASSIGN_OR_RETURN(int64_t seed, args.GetInt("--seed", 1, 0, INT64_MAX));
  options.seed = static_cast<uint64_t>(seed);
  options.headers = HeadersOrVariables(args.Get("--tenant", ""), args.Get("--priority", ""));
  KILN_RETURN_IF_ERROR(CheckHeaders(options.headers));
  return options;
}

std::string Ms(absl::Duration duration) {
  return absl::StrFormat("%.3f", absl::ToDoubleMilliseconds(duration));
}

void PrintLatencies(const char* what, const load::Histogram& latencies) {
  if (latencies.count() == 0) return;
  std::printf("%-8s ms  mean %s  p50 %s  p90 %s  p99 %s  p99.9 %s  max %s\n", what,
              Ms(latencies.Mean()).c_str(), Ms(latencies.Quantile(0.5)).c_str(),
              Ms(latencies.Quantile(0.9)).c_str(), Ms(latencies.Quantile(0.99)).c_str(),
              Ms(latencies.Quantile(0.999)).c_str(), Ms(latencies.max()).c_str());
}

void PrintText(const LoadResult& result) {
  const double seconds = absl::ToDoubleSeconds(result.took);
  const double ended = static_cast<double>(result.latency.count());
  std::printf("%.1f requests/s and %.1f MB/s over %.1f s\n", ended / seconds,
              static_cast<double>(result.bytes) / 1e6 / seconds, seconds);
  for (const auto& [code, count] : result.by_code) {
    std::printf("%-20s %lld\n", code.c_str(), static_cast<long long>(count));
  }
  if (result.unsent > 0) {
    std::printf("%-20s %lld (too many were under way)\n", "not sent",
                static_cast<long long>(result.unsent));
  }
  PrintLatencies("ended", result.latency);
  PrintLatencies("failed", result.failed);
}

std::string LatencyJson(const load::Histogram& latencies) {
  return absl::StrCat(
      "{\"count\": ", latencies.count(), ", \"mean\": ", Ms(latencies.Mean()),
      ", \"p50\": ", Ms(latencies.Quantile(0.5)), ", \"p90\": ", Ms(latencies.Quantile(0.9)),
      ", \"p99\": ", Ms(latencies.Quantile(0.99)), ", \"p99.9\": ", Ms(latencies.Quantile(0.999)),
      ", \"max\": ", Ms(latencies.max()), "}");
}

void PrintJsonResult(const LoadResult& result) {
  std::string codes;
  for (const auto& [code, count] : result.by_code) {
    absl::StrAppend(&codes, codes.empty() ? "" : ", ", JsonQuote(code), ": ", count);
  }
  std::printf(
      "{\"seconds\": %.3f, \"bytes\": %lld, \"unsent\": %lld, \"codes\": {%s}, "
      "\"ms\": %s, \"failed_ms\": %s}\n",
      absl::ToDoubleSeconds(result.took), static_cast<long long>(result.bytes),
      static_cast<long long>(result.unsent), codes.c_str(), LatencyJson(result.latency).c_str(),
      LatencyJson(result.failed).c_str());
}

absl::StatusOr<LoadResult> Fetches(const Args& args, const LoadOptions& options) {
  load::Entries entries{.count = options.keys};
  KILN_ASSIGN_OR_RETURN(entries.bytes, args.GetInt("--size", 64 << 10, 1, int64_t{1} << 30));
  if (!args.Has("--no-prepare")) KILN_RETURN_IF_ERROR(load::PutEntries(options, entries));
  return load::RunFetches(options, entries);
}

absl::StatusOr<LoadResult> Compiles(const Args& args, const LoadOptions& options) {
  v1::CompileRequest request;
  KILN_ASSIGN_OR_RETURN(*request.mutable_graph(), LoadGraph(args.positional()[1]));
  KILN_ASSIGN_OR_RETURN(*request.mutable_device(), DescribeCpu("native", 1));
  return load::RunCompiles(options, request);
}

}  // namespace

Outcome RunLoad(const Args& args) {
  const std::vector<std::string>& words = args.positional();
  const bool fetch = words.size() == 1 && words[0] == "fetch";
  const bool compile = words.size() == 2 && words[0] == "compile";
  if (!fetch && !compile) return Usage("expected 'load fetch' or 'load compile GRAPH'");
  absl::StatusOr<LoadOptions> options = ParseOptions(args);
  if (!options.ok()) return Usage(options.status());
  SkipDeadlockChecks();
  // What is measured is how long the server takes, not page faults of what it sent.
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  absl::StatusOr<LoadResult> result = fetch ? Fetches(args, *options) : Compiles(args, *options);
  if (!result.ok()) return Failed(result.status());
  args.Has("--json") ? PrintJsonResult(*result) : PrintText(*result);
  return Ok();
}

}  // namespace kiln::cli
