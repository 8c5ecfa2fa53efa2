#include "server/config.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cache/rocksdb_store.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"
#include "server/observe/span_exporter.h"
#include "server/security/access_list.h"
#include "server/security/auth.h"

namespace kiln::server {
namespace {

struct Setting {
  absl::string_view key;
  absl::string_view placeholder;
  absl::string_view help;
  absl::Status (*set)(absl::string_view value, Config& config);
};

absl::Status SetInt(absl::string_view value, int min, int max, int& out) {
  int number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < min || number > max) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value, "' is not a whole number from ", min, " to ", max));
  }
  out = number;
  return absl::OkStatus();
}

absl::Status SetTimeout(absl::string_view value, absl::Duration& out) {
  absl::Duration duration;
  if (!absl::ParseDuration(value, &duration) || duration < absl::Milliseconds(100) ||
      duration > absl::Hours(24)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value, "' is not a duration from 100ms to 24h, as in 120s"));
  }
  out = duration;
  return absl::OkStatus();
}

// Of what is kept: no upper bound.
absl::Status SetAge(absl::string_view value, absl::Duration& out) {
  absl::Duration age;
  if (!absl::ParseDuration(value, &age) || age < absl::Seconds(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value, "' is not a duration of 1s or more, as in 720h"));
  }
  out = age;
  return absl::OkStatus();
}

absl::Status SetBytes(absl::string_view value, int64_t min, int64_t& out) {
  KILN_ASSIGN_OR_RETURN(int64_t bytes, ParseBytes(value));
  if (bytes < min) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value, "' is less than the least, ", min, " bytes"));
  }
  out = bytes;
  return absl::OkStatus();
}

absl::Status SetText(absl::string_view value, std::string& out) {
  out = std::string(value);
  return value.empty() ? absl::InvalidArgumentError("it is empty") : absl::OkStatus();
}

absl::Status SetSha256(absl::string_view value, std::string& out) {
  out = absl::HexStringToBytes(value);
  const bool hex = std::all_of(value.begin(), value.end(), [](char c) {
    return absl::ascii_isxdigit(static_cast<unsigned char>(c));
  });
  if (hex && value.size() == 64) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no SHA-256 in 64 hex digits"));
}

// `out`: a bool or an optional one.
template <class Out>
absl::Status SetEither(absl::string_view value, absl::string_view yes, absl::string_view no,
                       Out& out) {
  out = value == yes;
  if (value == yes || value == no) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", value, "' is neither '", yes, "' nor '", no, "'"));
}

// Names without a port, to be compared in lower case.
absl::Status SetHosts(absl::string_view value, std::vector<std::string>& out) {
  out.clear();
  for (absl::string_view item : absl::StrSplit(value, ',')) {
    const std::string host = absl::AsciiStrToLower(absl::StripAsciiWhitespace(item));
    if (host.empty() || host.find_first_of(":/ *") != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", item, "' is no host's name, as in kiln.example"));
    }
    out.push_back(host);
  }
  return absl::OkStatus();
}

absl::Status SetRole(absl::string_view value, std::optional<Role>& out) {
  KILN_ASSIGN_OR_RETURN(out, ParseRole(value));
  return absl::OkStatus();
}

absl::Status SetAddress(absl::string_view value, Address& out) {
  KILN_ASSIGN_OR_RETURN(out, ParseAddress(value));
  return absl::OkStatus();
}

absl::Status SetOtlpEndpoint(absl::string_view value, std::string& out) {
  KILN_ASSIGN_OR_RETURN(out, ParseOtlpEndpoint(value));
  return absl::OkStatus();
}

absl::Status SetRatio(absl::string_view value, double& out) {
  double number = 0;
  if (!absl::SimpleAtod(value, &number) || !(number >= 0 && number <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("'", value, "' is not a number from 0 to 1"));
  }
  out = number;
  return absl::OkStatus();
}

// Adds to what is there: the flag may be given for each tenant.
absl::Status SetTenantWeights(absl::string_view value, std::map<std::string, int>& out) {
  for (absl::string_view item : absl::StrSplit(value, ',')) {
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    absl::string_view name = absl::StripAsciiWhitespace(parts.first);
    int weight = 0;
    if (name.empty() || !IsTenantName(name) ||
        !absl::SimpleAtoi(absl::StripAsciiWhitespace(parts.second), &weight) || weight < 1 ||
        weight > 1000) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", item, "' is not NAME=WEIGHT with a weight from 1 to 1000"));
    }
    out[std::string(name)] = weight;
  }
  return absl::OkStatus();
}

constexpr int64_t kMiB = int64_t{1} << 20;

constexpr Setting kSettings[] = {
    {"listen", "HOST:PORT|none", "where clients connect (127.0.0.1:7461)",
     [](absl::string_view v, Config& c) { return SetAddress(v, c.listen); }},
    {"socket", "FILE|auto|none",
     "Unix socket for this user's programs, who may do everything (auto)",
     [](absl::string_view v, Config& c) { return SetText(v, c.socket); }},
    {"idle-timeout", "TIME", "ends after so long without a call (never)",
     [](absl::string_view v, Config& c) { return SetTimeout(v, c.idle_timeout); }},
    {"metrics-listen", "HOST:PORT|none", "/metrics, /healthz, /readyz (127.0.0.1:7462)",
     [](absl::string_view v, Config& c) { return SetAddress(v, c.metrics_listen); }},
    {"metrics-hosts", "NAME,...", "what browsers may call the page's host beside IPs (localhost)",
     [](absl::string_view v, Config& c) { return SetHosts(v, c.metrics_hosts); }},
    {"data-dir", "DIR", "the cache ($KILN_DATA_DIR, else ~/.cache/kiln)",
     [](absl::string_view v, Config& c) {
       c.data_dir = std::string(v);
       return v.empty() ? absl::InvalidArgumentError("it is empty") : absl::OkStatus();
     }},
    {"remote-cache", "URL",
     "a tier that servers share, redis[s]://[[user]:password@]HOST:PORT[,HOST:PORT...][/db] (none)",
     [](absl::string_view v, Config& c) { return SetRemoteUrl(v, c.remote); }},
    {"remote-ca", "FILE", "PEM: who may vouch for a rediss:// server (the system's certificates)",
     [](absl::string_view v, Config& c) {
       c.remote.ca_file = std::string(v);
       return v.empty() ? absl::InvalidArgumentError("it is empty") : absl::OkStatus();
     }},
    {"remote-trusted-keys", "KEY[,KEY...]",
     "ed25519:... of servers whose entries count, beside this one's own (none)",
     [](absl::string_view v, Config& c) { return SetRemoteTrustedKeys(v, c.remote); }},
    {"remote-connect-timeout", "TIME", "of the shared tier (50ms)",
     [](absl::string_view v, Config& c) { return SetRemoteTimeout(v, c.remote.connect_timeout); }},
    {"remote-read-timeout", "TIME", "of a read of the shared tier as a whole (100ms)",
     [](absl::string_view v, Config& c) { return SetRemoteTimeout(v, c.remote.read_timeout); }},
    {"remote-write-timeout", "TIME", "of a write to the shared tier, in the background (2s)",
     [](absl::string_view v, Config& c) { return SetRemoteTimeout(v, c.remote.write_timeout); }},
    {"remote-lease-wait", "TIME", "for an artifact that another server says it compiles (1m)",
     [](absl::string_view v, Config& c) { return SetTimeout(v, c.remote.lease_wait); }},
    {"remote-expiry", "TIME", "how long the shared tier keeps an entry, or 'never' (never)",
     [](absl::string_view v, Config& c) { return SetRemoteExpiry(v, c.remote); }},
    {"remote-max-entry-size", "BYTES", "larger entries are not shared (256MiB)",
     [](absl::string_view v, Config& c) { return SetBytes(v, 1024, c.remote.max_entry_bytes); }},
    {"remote-queue-size", "BYTES",
     "entries that wait in memory to be shared; more are shared later (64MiB)",
     [](absl::string_view v, Config& c) { return SetBytes(v, kMiB, c.remote.max_queued_bytes); }},
    {"workers", "N", "compile processes (one a processor)",
     [](absl::string_view v, Config& c) { return SetInt(v, 1, 1024, c.workers); }},
    {"worker-memory", "BYTES", "limit of one compile process (4GiB)",
     [](absl::string_view v, Config& c) { return SetBytes(v, 256 * kMiB, c.worker_memory_bytes); }},
    {"worker-timeout", "TIME", "limit of one step of a compile (120s)",
     [](absl::string_view v, Config& c) { return SetTimeout(v, c.worker_timeout); }},
    {"worker-standby", "N", "processes that wait for kernels, of all workers together (64)",
     [](absl::string_view v, Config& c) { return SetInt(v, 0, 1024, c.worker_standby); }},
    {"ptxas", "FILE|auto|none", "NVIDIA's assembler, for cubins beside PTX (none)",
     [](absl::string_view v, Config& c) {
       c.ptxas = std::string(v);
       return absl::OkStatus();
     }},
    {"nvdisasm", "FILE|auto|none", "NVIDIA's disassembler, for people to see cubins (auto)",
     [](absl::string_view v, Config& c) {
       c.nvdisasm = std::string(v);
       return absl::OkStatus();
     }},
    {"assemble-ahead", "on|off",
     "cubins of this build's kernels, made once where there is a ptxas, at the start (on)",
     [](absl::string_view v, Config& c) { return SetEither(v, "on", "off", c.assemble_ahead); }},
    {"sandbox", "require|warn", "whether a system that cannot confine workers is refused (warn)",
     [](absl::string_view v, Config& c) {
       return SetEither(v, "require", "warn", c.sandbox_required);
     }},
    {"cache-max-size", "BYTES", "limit of the cache on disk, never passed; 32MiB or more (20GiB)",
     [](absl::string_view v, Config& c) {
       return SetBytes(v, cache::kLeastCacheBytes, c.cache_max_size_bytes);
     }},
    {"cache-max-age", "TIME", "entries that nobody used for so long go, as in 720h (no limit)",
     [](absl::string_view v, Config& c) { return SetAge(v, c.cache_max_age); }},
    {"cache-memory-size", "BYTES", "limit of the cache in memory (512MiB)",
     [](absl::string_view v, Config& c) { return SetBytes(v, kMiB, c.cache_memory_size_bytes); }},
    {"max-queued-jobs", "N", "compiles that may wait; more are refused (256)",
     [](absl::string_view v, Config& c) { return SetInt(v, 1, 1000000, c.max_queued_jobs); }},
    {"max-connections", "N", "of clients (what descriptors allow, 10000 at most)",
     [](absl::string_view v, Config& c) { return SetInt(v, 1, 1000000, c.max_connections); }},
    {"max-connections-per-address", "N", "of one client address (half of max-connections)",
     [](absl::string_view v, Config& c) {
       return SetInt(v, 1, 1000000, c.max_connections_per_address);
     }},
    {"max-connection-idle", "TIME", "connections without a call are closed after it (15m)",
     [](absl::string_view v, Config& c) { return SetTimeout(v, c.max_connection_idle); }},
    {"max-connection-age", "TIME", "clients are sent to connect anew after it (1h)",
     [](absl::string_view v, Config& c) { return SetTimeout(v, c.max_connection_age); }},
    {"request-timeout", "TIME", "from a request's first byte to its last (60s)",
     [](absl::string_view v, Config& c) { return SetTimeout(v, c.request_timeout); }},
    {"tls-cert", "FILE", "the server's certificate and those that lead to its root, PEM (no TLS)",
     [](absl::string_view v, Config& c) { return SetText(v, c.security.tls_cert); }},
    {"tls-key", "FILE", "the certificate's private key, PEM",
     [](absl::string_view v, Config& c) { return SetText(v, c.security.tls_key); }},
    {"tls-client-ca", "FILE", "who vouches for clients' certificates, PEM (they show none)",
     [](absl::string_view v, Config& c) { return SetText(v, c.security.tls_client_ca); }},
    {"tls-client-auth", "require|optional", "whether clients must show a certificate (require)",
     [](absl::string_view v, Config& c) {
       return SetEither(v, "require", "optional", c.security.client_cert_required);
     }},
    {"access-file", "FILE", "names, roles, tokens; see server/README.md",
     [](absl::string_view v, Config& c) { return SetText(v, c.security.access_file); }},
    {"anonymous-role", "ROLE", "of callers who show nothing: none|read|compile|admin (none)",
     [](absl::string_view v, Config& c) { return SetRole(v, c.security.anonymous_role); }},
    {"signing-key", "FILE", "signs artifacts, Ed25519, PEM (signing.key of the data directory)",
     [](absl::string_view v, Config& c) { return SetText(v, c.security.signing_key); }},
    {"metrics-token-sha256", "HEX",
     "of the token that metrics and pages take (everybody sees them)",
     [](absl::string_view v, Config& c) { return SetSha256(v, c.security.metrics_token_sha256); }},
    {"otlp-endpoint", "URL", "collector of traces, http://HOST:4318 (no traces are sent)",
     [](absl::string_view v, Config& c) { return SetOtlpEndpoint(v, c.otlp_endpoint); }},
    {"trace-sample-ratio", "RATIO", "of calls that bring no trace of their own, 0 to 1 (1)",
     [](absl::string_view v, Config& c) { return SetRatio(v, c.trace_sample_ratio); }},
    {"max-request-bytes", "BYTES",
     "of requests that come, and of those that wait or are compiled (512MiB)",
     [](absl::string_view v, Config& c) { return SetBytes(v, kMiB, c.max_request_bytes); }},
    {"tenant-names", "N", "that callers of one address or identity may give themselves (8)",
     [](absl::string_view v, Config& c) {
       return SetInt(v, 1, 1000000, c.security.max_tenant_names);
     }},
    {"tenant-max-queued", "N", "compiles of one tenant that may wait (no limit of its own)",
     [](absl::string_view v, Config& c) { return SetInt(v, 1, 1000000, c.tenant_max_queued); }},
    {"tenant-max-running", "N", "compiles of one tenant that run at once (all places but one)",
     [](absl::string_view v, Config& c) { return SetInt(v, 1, 10000, c.tenant_max_running); }},
    {"tenant-weight", "NAME=N,...", "shares of tenants, 1 to 1000 (1 for everybody)",
     [](absl::string_view v, Config& c) { return SetTenantWeights(v, c.tenant_weights); }},
    {"log-format", "text|json", "of the lines on standard error (text)",
     [](absl::string_view v, Config& c) {
       c.log_json = v == "json";
       return v == "json" || v == "text" ? absl::OkStatus()
                                         : absl::InvalidArgumentError(absl::StrCat(
                                               "'", v, "' is neither 'text' nor 'json'"));
     }},
};

const Setting* FindSetting(absl::string_view key) {
  for (const Setting& setting : kSettings) {
    if (setting.key == key) return &setting;
  }
  return nullptr;
}

absl::Status Apply(absl::string_view source, absl::string_view key, absl::string_view value,
                   Config& config) {
  const Setting* setting = FindSetting(key);
  if (setting == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": unknown key '", key, "' (kilnd --help lists them)"));
  }
  KILN_RETURN_IF_ERROR(Annotate(setting->set(value, config), source));
  config.origins[std::string(key)] = {std::string(value), std::string(source)};
  return absl::OkStatus();
}

absl::Status ApplyFile(const std::string& path, Config& config) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read the configuration file ", path));
  }
  std::string raw;
  for (int number = 1; std::getline(file, raw); ++number) {
    absl::string_view line = raw;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    std::string source = absl::StrCat(path, " line ", number);
    if (line.find('=') == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(source, ": expected KEY = VALUE"));
    }
    KILN_RETURN_IF_ERROR(Apply(source, absl::StripAsciiWhitespace(parts.first),
                               absl::StripAsciiWhitespace(parts.second), config));
  }
  return absl::OkStatus();
}

std::string VariableName(absl::string_view key) {
  return absl::StrCat("KILND_", absl::AsciiStrToUpper(absl::StrReplaceAll(key, {{"-", "_"}})));
}

absl::Status ApplyEnvironment(const Environment& environment, Config& config) {
  for (const Setting& setting : kSettings) {
    std::string name = VariableName(setting.key);
    if (auto value = environment(name)) {
      KILN_RETURN_IF_ERROR(Apply(name, setting.key, *value, config));
    }
  }
  return absl::OkStatus();
}

struct Flag {
  std::string key;
  std::string value;
};

absl::StatusOr<std::vector<Flag>> SplitFlags(absl::Span<const std::string> arguments) {
  std::vector<Flag> flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (!absl::ConsumePrefix(&argument, "--")) {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected argument '", arguments[i], "' (try --help)"));
    }
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(argument, absl::MaxSplits('=', 1));
    Flag flag{std::string(parts.first), std::string(parts.second)};
    if (flag.key != "config" && FindSetting(flag.key) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag '--", flag.key, "' (try --help)"));
    }
    if (argument.find('=') == absl::string_view::npos) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat("--", flag.key, " needs a value"));
      }
      flag.value = arguments[++i];
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

std::string DefaultDataDir(const Environment& environment) {
  if (auto dir = environment("KILN_DATA_DIR"); dir && !dir->empty()) return *dir;
  // systemd sets INVOCATION_ID for what it starts.
  if (geteuid() == 0 && environment("INVOCATION_ID")) return "/var/lib/kiln";
  if (auto dir = environment("XDG_CACHE_HOME"); dir && !dir->empty()) {
    return absl::StrCat(*dir, "/kiln");
  }
  if (auto home = environment("HOME"); home && !home->empty()) {
    return absl::StrCat(*home, "/.cache/kiln");
  }
  return "/var/lib/kiln";
}

// What the help says in parentheses at its end, but for what depends on the machine.
std::string DefaultText(const Setting& setting, const Config& config) {
  if (setting.key == "workers") return absl::StrCat(config.workers);
  if (setting.key == "data-dir") return config.data_dir;
  size_t open = setting.help.rfind('(');
  if (open == absl::string_view::npos) return "";
  return std::string(absl::StripSuffix(setting.help.substr(open + 1), ")"));
}

// "redis://user:secret@host" without what stands between '://' and '@'.
std::string WithoutPassword(absl::string_view value) {
  size_t scheme = value.find("://");
  size_t at = value.rfind('@');
  if (scheme == absl::string_view::npos || at == absl::string_view::npos || at < scheme) {
    return std::string(value);
  }
  return absl::StrCat(value.substr(0, scheme + 3), "***", value.substr(at));
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  static constexpr std::pair<absl::string_view, int64_t> kUnits[] = {{"KiB", int64_t{1} << 10},
                                                                     {"MiB", int64_t{1} << 20},
                                                                     {"GiB", int64_t{1} << 30},
                                                                     {"TiB", int64_t{1} << 40},
                                                                     {"KB", 1000},
                                                                     {"MB", 1000000},
                                                                     {"GB", 1000000000},
                                                                     {"TB", 1000000000000},
                                                                     {"B", 1}};
  absl::string_view number = text;
  int64_t unit = 1;
  for (const auto& [name, factor] : kUnits) {
    if (absl::ConsumeSuffix(&number, name)) {
      unit = factor;
      break;
    }
  }
  int64_t value = 0;
  int64_t bytes = 0;
  if (!absl::SimpleAtoi(number, &value) || value <= 0 ||
      __builtin_mul_overflow(value, unit, &bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no size in bytes, as in 512MiB or 20GiB"));
  }
  return bytes;
}

absl::StatusOr<Config> LoadConfig(absl::Span<const std::string> arguments,
                                  const Environment& environment) {
  Config config;
  config.workers = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  config.data_dir = DefaultDataDir(environment);
  KILN_ASSIGN_OR_RETURN(std::vector<Flag> flags, SplitFlags(arguments));
  std::string file = environment("KILND_CONFIG").value_or("");
  for (const Flag& flag : flags) {
    if (flag.key == "config") file = flag.value;
  }
  if (!file.empty()) KILN_RETURN_IF_ERROR(ApplyFile(file, config));
  KILN_RETURN_IF_ERROR(ApplyEnvironment(environment, config));
  for (const Flag& flag : flags) {
    if (flag.key == "config") continue;
    KILN_RETURN_IF_ERROR(Apply(absl::StrCat("--", flag.key), flag.key, flag.value, config));
  }
  return config;
}

std::string DescribeConfig(const Config& config) {
  std::string text = "# What is in force. Lines that begin with '#' are defaults.\n";
  for (const Setting& setting : kSettings) {
    auto given = config.origins.find(std::string(setting.key));
    const bool is_default = given == config.origins.end();
    std::string left = absl::StrCat(
        is_default ? "# " : "", setting.key, " = ",
        is_default ? DefaultText(setting, config) : WithoutPassword(given->second.value));
    left.resize(std::max<size_t>(left.size() + 1, 48), ' ');
    absl::StrAppend(&text, left, "# ", is_default ? "default" : given->second.source, "\n");
  }
  return text;
}

std::string ConfigHelp() {
  std::string text =
      "kilnd: the compilation service\n\n"
      "  kilnd [--config FILE] [--KEY VALUE]...\n"
      "  kilnd --version\n"
      "  kilnd --check-config [...]        checks and prints what the same arguments would run\n"
      "  kilnd --make-key FILE             makes a --signing-key, prints its public key\n"
      "  kilnd --background [...]          leaves the terminal; the ready line comes all the "
      "same\n\n"
      "Each key is also a line 'KEY = VALUE' of FILE and a variable KILND_KEY; a flag goes before\n"
      "a variable, a variable before the file.\n\n";
  for (const Setting& setting : kSettings) {
    std::string left = absl::StrCat("  --", setting.key, " ", setting.placeholder);
    left.resize(std::max<size_t>(left.size() + 1, 36), ' ');
    absl::StrAppend(&text, left, setting.help, "\n");
  }
  return text;
}

}  // namespace kiln::server
