#include "proto/base/log.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/scheduling.h"

namespace kiln {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};
std::atomic<LogFormat> g_format{LogFormat::kText};
constexpr absl::Duration kLogDelay = absl::Milliseconds(10);
constexpr size_t kUsualLineBytes = 320;
constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};

// What JSON strings and terminals take as it is.
bool IsPlain(char c) {
  return c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
}

bool NeedsQuotes(absl::string_view s) {
  // Anything but plain ASCII goes through AppendJsonQuoted, which makes it safe to show.
  return s.empty() || std::any_of(s.begin(), s.end(),
                                  [](char c) { return c == ' ' || c == '=' || !IsPlain(c); });
}

// The length of the UTF-8 character that `s` begins with; 0 where it is none (RFC 3629: no overlong
// form, no surrogate, nothing over U+10FFFF).
size_t Utf8Length(absl::string_view s) {
  const auto byte = [s](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || s.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

// U+007F to U+009F: terminals obey them. U+2028 and U+2029 end a line for some readers.
bool IsHiddenControl(absl::string_view character) {
  const auto byte = [character](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) == 0x7F;
  if (character.size() == 2) return byte(0) == 0xC2 && byte(1) < 0xA0;
  return character == "\xE2\x80\xA8" || character == "\xE2\x80\xA9";
}

// The code point of a hidden control.
int HiddenCodePoint(absl::string_view character) {
  const auto last = static_cast<unsigned char>(character.back());
  return character.size() == 3 ? 0x2000 + (last & 0x3F) : last;
}

void WriteLine(absl::string_view lines) {
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, lines.data(), lines.size());
}

// Lines that wait for the thread that writes them.
class WaitingLines {
 public:
  void StartThread() {
    SetOn(true);
    thread_ = std::thread([this] { Run(); });
  }

  void StopThread() {
    SetOn(false);
    thread_.join();
    Write();
  }

  // False where there is no such thread.
  bool Add(absl::string_view line) {
    absl::MutexLock lock(&mu_);
    if (!on_ || lines_.size() + line.size() > kMostBytes) return false;
    absl::StrAppend(&lines_, line);
    return true;
  }

  // Writes what waits, and `last` after it.
  void Write(absl::string_view last = "") {
    absl::MutexLock write_lock(&write_mu_);
    std::string lines;
    {
      absl::MutexLock lock(&mu_);
      lines.swap(lines_);
    }
    // As many whole lines at once as a pipe takes in one piece, so that lines of several processes
    // do not mix.
    absl::string_view rest = lines;
    while (!rest.empty()) {
      size_t end = rest.size() <= PIPE_BUF ? rest.size() : rest.rfind('\n', PIPE_BUF - 1) + 1;
      if (end == 0) end = rest.find('\n') + 1;
      WriteLine(rest.substr(0, end));
      rest.remove_prefix(end);
    }
    if (!last.empty()) WriteLine(last);
  }

 private:
  static constexpr size_t kMostBytes = 4 << 20;  // a disk that is slower makes callers wait

  void SetOn(bool on) {
    absl::MutexLock lock(&mu_);
    on_ = on;
  }

  void Run() {
    StandBack();
    while (WaitForSome()) {
      absl::SleepFor(kLogDelay);  // for more to come
      Write();
    }
  }

  // False once there will be no more.
  bool WaitForSome() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &WaitingLines::SomeOrOff));
    return on_;
  }
  bool SomeOrOff() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !on_ || !lines_.empty(); }

  absl::Mutex write_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  absl::Mutex mu_;
  bool on_ ABSL_GUARDED_BY(mu_) = false;
  std::string lines_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // of the one LogThread
};

WaitingLines& Waiting() {
  static auto* lines = new WaitingLines();  // never destroyed: threads may log at exit
  return *lines;
}

// Takes one character off `s`.
void AppendEscaped(absl::string_view& s, std::string& out) {
  const size_t length = Utf8Length(s);
  const absl::string_view character = s.substr(0, std::max<size_t>(length, 1));
  s.remove_prefix(character.size());
  const char c = character[0];
  if (length == 0) {
    out += "\xEF\xBF\xBD";
  } else if (c == '"' || c == '\\') {
    absl::StrAppend(&out, "\\", character);
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else if (c == '\t') {
    out += "\\t";
  } else if (length == 1 && static_cast<unsigned char>(c) < 0x20) {
    absl::StrAppendFormat(&out, "\\u%04x", c);
  } else if (IsHiddenControl(character)) {
    absl::StrAppendFormat(&out, "\\u%04x", HiddenCodePoint(character));
  } else {
    absl::StrAppend(&out, character);
  }
}

void AppendJsonQuoted(absl::string_view s, std::string& out) {
  out += '"';
  while (!s.empty()) {
    const auto plain =
        static_cast<size_t>(std::find_if_not(s.begin(), s.end(), IsPlain) - s.begin());
    out.append(s.data(), plain);
    s.remove_prefix(plain);
    if (!s.empty()) AppendEscaped(s, out);
  }
  out += '"';
}

// As a JSON value: nan and the infinities are no numbers there.
void AppendJsonField(const LogField& field, std::string& out) {
  const bool finite = field.value.find_first_of("ni") == absl::string_view::npos;
  if (field.is_number && finite) {
    absl::StrAppend(&out, field.value);
  } else {
    AppendJsonQuoted(field.value, out);
  }
}

// "2026-01-31T23:59:59.999Z"; a thread formats each second once.
void AppendTime(absl::Time time, std::string& out) {
  thread_local int64_t second = -1;
  thread_local char text[20];  // up to the seconds; no object that a thread's end would destroy
  const int64_t ms = absl::ToUnixMillis(time);
  if (ms / 1000 != second) {
    second = ms / 1000;
    const std::string formatted =
        absl::FormatTime("%Y-%m-%dT%H:%M:%S", absl::FromUnixSeconds(second), absl::UTCTimeZone());
    absl::SNPrintF(text, sizeof(text), "%s", formatted);
  }
  absl::StrAppend(&out, text, ".", absl::Dec(ms % 1000, absl::kZeroPad3), "Z");
}

std::string FormatLine(LogLevel level, absl::string_view message,
                       std::initializer_list<LogField> fields) {
  const absl::string_view name = kNames[static_cast<int>(level)];
  std::string line;
  line.reserve(kUsualLineBytes);
  if (g_format == LogFormat::kJson) {
    line += "{\"time\":\"";
    AppendTime(absl::Now(), line);
    absl::StrAppend(&line, "\",\"level\":\"", name, "\",\"message\":");
    AppendJsonQuoted(message, line);
    for (const LogField& field : fields) {
      absl::StrAppend(&line, ",\"", field.key, "\":");
      AppendJsonField(field, line);
    }
    line += "}\n";
  } else {
    AppendTime(absl::Now(), line);
    absl::StrAppend(&line, " ", name, " ", message);
    for (const LogField& field : fields) {
      absl::StrAppend(&line, " ", field.key, "=");
      if (NeedsQuotes(field.value)) {
        AppendJsonQuoted(field.value, line);
      } else {
        absl::StrAppend(&line, field.value);
      }
    }
    line += "\n";
  }
  return line;
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
  std::string out;
  AppendJsonQuoted(s, out);
  return out;
}

void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields) {
  if (LogEnabled(level)) Waiting().Write(FormatLine(level, message, fields));
}

void LogSoon(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  const std::string line = FormatLine(level, message, fields);
  if (!Waiting().Add(line)) Waiting().Write(line);
}

LogThread::LogThread() {
  Waiting().StartThread();
}

LogThread::~LogThread() {
  Waiting().StopThread();
}

}  // namespace kiln
