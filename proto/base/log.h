// Logging to standard error: one line a message, as text or as a JSON object.
//
// Levels: error (a person must act), warning, info (one line a request), debug. The level comes
// from KILN_LOG ("debug", "info", "warning", "error"; default warning, kilnd sets info).
// Thread-safe.
#pragma once

#include <cstring>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kiln {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

void SetLogLevel(LogLevel level);
void SetLogFormat(LogFormat format);
// Reads KILN_LOG; `fallback` where it is unset or unknown.
LogLevel LogLevelFromEnvironment(LogLevel fallback);
bool LogEnabled(LogLevel level);

// Of one call of Log: holds no text but numbers, which stay numbers in JSON. No field is called
// "time", "level" or "message".
struct LogField {
  LogField(absl::string_view key, absl::string_view value) : key(key), value(value) {}
  template <typename Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
  LogField(absl::string_view key, Number number) : key(key), is_number(true) {
    const absl::AlphaNum text(number);
    std::memcpy(digits, text.data(), text.size());
    value = absl::string_view(digits, text.size());
  }
  LogField(const LogField&) = delete;
  LogField& operator=(const LogField&) = delete;

  absl::string_view key;
  absl::string_view value;
  bool is_number = false;
  char digits[32];  // what AlphaNum needs at most
};

// Log(LogLevel::kInfo, "compiled", {{"key", key.ShortHex()}, {"kernels", 12}});
void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields = {});

// The same, but some 10 ms later where there is a LogThread, and before any later line of Log's.
void LogSoon(LogLevel level, absl::string_view message,
             std::initializer_list<LogField> fields = {});

// While one exists, a thread of its own writes what LogSoon is given, many lines at once: whoever
// answers calls need not wait for the disk. It stands back where processors are short. One at a
// time; its end writes what is left.
class LogThread {
 public:
  LogThread();
  ~LogThread();
  LogThread(const LogThread&) = delete;
  LogThread& operator=(const LogThread&) = delete;
};

// `s` as a JSON string, quotes included: one line of valid UTF-8 without control characters,
// whatever `s` holds; bytes that are no UTF-8 become U+FFFD.
std::string JsonQuote(absl::string_view s);

}  // namespace kiln
