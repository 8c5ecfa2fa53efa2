// Logging to standard error: one line a message, as text or as a JSON object.
//
// Levels: error (a person must act), warning, info (one line a request), debug. The level comes
// from KILN_LOG ("debug", "info", "warning", "error"; default warning, kilnd sets info).
// Thread-safe.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace kiln {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

void SetLogLevel(LogLevel level);
void SetLogFormat(LogFormat format);
// Reads KILN_LOG; `fallback` where it is unset or unknown.
LogLevel LogLevelFromEnvironment(LogLevel fallback);
bool LogEnabled(LogLevel level);

using LogField = std::pair<absl::string_view, std::string>;

// Log(LogLevel::kInfo, "compiled", {{"key", key.ShortHex()}, {"target", "cpp"}});
void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields = {});

// `s` as a JSON string, quotes included.
std::string JsonQuote(absl::string_view s);

}  // namespace kiln
