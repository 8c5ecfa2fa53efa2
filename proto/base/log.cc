#include "proto/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kiln {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};
std::atomic<LogFormat> g_format{LogFormat::kText};
constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};

bool NeedsQuotes(absl::string_view s) {
  return s.empty() || s.find_first_of(" \t\n\r\"=\\") != absl::string_view::npos;
}

}  // namespace

void SetLogLevel(LogLevel level) {
  g_level = level;
}
void SetLogFormat(LogFormat format) {
  g_format = format;
}
bool LogEnabled(LogLevel level) {
  return level >= g_level.load();
}

LogLevel LogLevelFromEnvironment(LogLevel fallback) {
  const char* value = std::getenv("KILN_LOG");
  for (int i = 0; value != nullptr && i < 4; ++i) {
    if (kNames[i] == value) return static_cast<LogLevel>(i);
  }
  return fallback;
}

std::string JsonQuote(absl::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          absl::StrAppendFormat(&out, "\\u%04x", c);
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  absl::string_view name = kNames[static_cast<int>(level)];
  std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  std::string line;
  if (g_format == LogFormat::kJson) {
    absl::StrAppend(&line, "{\"time\":\"", time, "\",\"level\":\"", name,
                    "\",\"message\":", JsonQuote(message));
    for (const auto& [key, value] : fields) {
      absl::StrAppend(&line, ",", JsonQuote(key), ":", JsonQuote(value));
    }
    line += "}\n";
  } else {
    absl::StrAppend(&line, time, " ", name, " ", message);
    for (const auto& [key, value] : fields) {
      absl::StrAppend(&line, " ", key, "=", NeedsQuotes(value) ? JsonQuote(value) : value);
    }
    line += "\n";
  }
  // One write a line, so that lines of several processes do not mix.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace kiln
