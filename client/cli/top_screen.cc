#include "client/cli/top_screen.h"

#include <wchar.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "kiln/v1/activity.pb.h"

namespace kiln::cli {
namespace {

constexpr int kSparkPoints = 30;
constexpr int kShortKeyDigits = 12;

enum class Style { kPlain, kBold, kDim, kGood, kBad, kHead };

const char* Code(Style style) {
  switch (style) {
    case Style::kBold:
      return "\033[1m";
    case Style::kDim:
      return "\033[2m";
    case Style::kGood:
      return "\033[32m";
    case Style::kBad:
      return "\033[31m";
    case Style::kHead:
      return "\033[7m";
    case Style::kPlain:
      break;
  }
  return "";
}

// Decodes one character of UTF-8 off the front; U+FFFD for what is none.
char32_t NextCharacter(absl::string_view& text) {
  auto byte = static_cast<unsigned char>(text.front());
  int more = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : 0;
  char32_t c = more == 0 ? byte : byte & (0x3F >> more);
  bool bad = byte >= 0x80 && (more == 0 || byte > 0xF4);
  text.remove_prefix(1);
  for (; more > 0 && !bad; --more) {
    bad = text.empty() || (static_cast<unsigned char>(text.front()) & 0xC0) != 0x80;
    if (bad) break;
    c = c << 6 | (static_cast<unsigned char>(text.front()) & 0x3F);
    text.remove_prefix(1);
  }
  return bad ? 0xFFFD : c;
}

// Columns that a character takes; 0 where it must not reach a terminal: controls, and characters
// that turn the direction of text or join others.
int Columns(char32_t c) {
  if (c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xFFFD) return 0;
  if (c < 0x7F) return 1;
  if ((c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
      (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF) {
    return 0;
  }
  return std::max(wcwidth(static_cast<wchar_t>(c)), 0);
}

struct Cell {
  absl::string_view bytes;
  int columns = 0;
};

std::vector<Cell> Cells(absl::string_view text, bool unicode) {
  std::vector<Cell> cells;
  while (!text.empty()) {
    absl::string_view rest = text;
    char32_t c = NextCharacter(rest);
    int columns = Columns(c);
    bool shown = columns > 0 && (unicode || c < 0x80);
    cells.push_back(shown ? Cell{text.substr(0, text.size() - rest.size()), columns}
                          : Cell{"?", 1});
    text = rest;
  }
  return cells;
}

std::string DurationText(double ms) {
  if (ms <= 0) return "0 ms";
  if (ms < 1) return absl::StrFormat("%.0f us", ms * 1000);
  if (ms < 10) return absl::StrFormat("%.2f ms", ms);
  if (ms < 1000) return absl::StrFormat("%.0f ms", ms);
  if (ms < 60000) return absl::StrFormat("%.1f s", ms / 1000);
  return absl::StrFormat("%.1f min", ms / 60000);
}

std::string CountText(int64_t n) {
  auto x = static_cast<double>(n);
  if (n < 10000) return absl::StrCat(n);
  if (n < 1000000) return absl::StrFormat("%.1fk", x / 1e3);
  return n < 1000000000 ? absl::StrFormat("%.1fM", x / 1e6) : absl::StrFormat("%.1fG", x / 1e9);
}

std::string BytesText(int64_t n) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto x = static_cast<double>(n);
  size_t unit = 0;
  for (; x >= 1024 && unit + 1 < std::size(units); ++unit) x /= 1024;
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, x, units[unit]);
}

std::string AgeText(int64_t us) {
  int64_t s = std::max<int64_t>(us / 1000000, 0);
  if (s < 60) return absl::StrCat(s, " s");
  if (s < 3600) return absl::StrCat(s / 60, " min");
  return s < 86400 ? absl::StrCat(s / 3600, " h") : absl::StrCat(s / 86400, " d");
}

std::string LatencyText(const v1::Latency& latency) {
  if (latency.count() == 0) return "none in 5 min";
  return absl::StrFormat("p50 %-8s p95 %-8s p99 %-8s %s in 5 min", DurationText(latency.p50_ms()),
                         DurationText(latency.p95_ms()), DurationText(latency.p99_ms()),
                         CountText(latency.count()));
}

class Screen {
 public:
  Screen(const v1::Activity& activity, const TopScreen& screen) : a_(activity), s_(screen) {}

  std::string Render() {
    Header();
    Figures();
    Tenants();
    Running();
    Recent();
    return std::move(out_);
  }

 private:
  int LinesLeft() const { return s_.height == 0 ? 1000 : s_.height - lines_; }

  void Line(absl::string_view text, Style style = Style::kPlain) {
    if (LinesLeft() <= 0) return;
    std::string fitted = FitText(text, s_.width, s_.unicode);
    bool styled = s_.color && style != Style::kPlain;
    // A reversed line is reversed to its end.
    if (style != Style::kHead || !s_.color) fitted.erase(fitted.find_last_not_of(' ') + 1);
    absl::StrAppend(&out_, styled ? Code(style) : "", fitted, styled ? "\033[0m" : "", "\n");
    ++lines_;
  }

  void Header() {
    bool well = s_.problem.empty();
    std::string state = !well ? s_.problem : a_.draining() ? "draining" : "serving";
    std::string text = absl::StrCat("kiln top  ", s_.server, "  ", state);
    if (well && a_.now_unix_us() > 0) {
      absl::StrAppend(&text, "  version ", a_.version(), "  up ",
                      AgeText(a_.now_unix_us() - a_.started_unix_us()));
    }
    Line(text, well ? Style::kBold : Style::kBad);
  }

  // Lookups of the last slots, a character each.
  std::string Spark() const {
    const char* const unicode[] = {" ",      "\u2581", "\u2582", "\u2583", "\u2584",
                                   "\u2585", "\u2586", "\u2587", "\u2588"};
    const char* const ascii[] = {" ", ".", ".", ":", ":", "-", "=", "+", "#"};
    int64_t most = 0;
    for (const auto& p : a_.history()) most = std::max(most, p.hits() + p.misses());
    std::string out;
    for (int i = std::max(a_.history_size() - kSparkPoints, 0); i < a_.history_size(); ++i) {
      int64_t n = a_.history(i).hits() + a_.history(i).misses();
      auto level = static_cast<size_t>(most == 0 ? 0 : (n * 8 + most - 1) / most);
      out += s_.unicode ? unicode[level] : ascii[level];
    }
    return out;
  }

  void Figures() {
    int64_t hits = 0;
    int64_t misses = 0;
    for (const auto& p : a_.history()) {
      hits += p.hits();
      misses += p.misses();
    }
    std::string rate = "no lookup in 5 min";
    if (hits + misses > 0) {
      // Rounded down: 100 % says that nothing missed.
      double percent =
          std::floor(1000.0 * static_cast<double>(hits) / static_cast<double>(hits + misses)) / 10;
      rate =
          absl::StrFormat("%.1f %% of %s in 5 min  %s", percent, CountText(hits + misses), Spark());
    }
    Line(absl::StrCat("hit rate  ", rate));
    Line(absl::StrCat("hits      ", LatencyText(a_.hit_latency())));
    Line(absl::StrCat("compiles  ", LatencyText(a_.compile_latency())));
    int workers = a_.workers_busy() + a_.workers_idle() + a_.workers_starting();
    Line(absl::StrCat("jobs      ", a_.jobs_running(), " running, ", a_.jobs_queued(), " queued, ",
                      a_.waiters(), " callers waiting; ", a_.workers_busy(), " of ", workers,
                      " workers busy"));
    Line(absl::StrCat("total     ", CountText(a_.hits()), " hits, ", CountText(a_.misses()),
                      " misses, ", CountText(a_.compiles()), " compiles, ",
                      CountText(a_.coalesced()), " joined, ", CountText(a_.failures()), " failed"));
    // By tier, in the order in which the server asks them.
    std::vector<std::pair<std::string, v1::CacheUsage>> tiers;
    for (const v1::CacheUsage& cache : a_.caches()) {
      auto it = std::find_if(tiers.begin(), tiers.end(),
                             [&](const auto& tier) { return tier.first == cache.tier(); });
      if (it == tiers.end()) it = tiers.insert(it, {cache.tier(), v1::CacheUsage()});
      it->second.set_entries(it->second.entries() + cache.entries());
      it->second.set_size_bytes(it->second.size_bytes() + cache.size_bytes());
    }
    std::vector<std::string> caches;
    for (const auto& [name, usage] : tiers) {
      caches.push_back(absl::StrCat(name, " ", CountText(usage.entries()), " entries, ",
                                    BytesText(usage.size_bytes())));
    }
    Line(absl::StrCat("cache     ", absl::StrJoin(caches, "; ")));
  }

  // A table's head, after an empty line; false where there is no room for it and one row.
  bool Head(absl::string_view text) {
    if (LinesLeft() < 3) return false;
    Line("");
    Line(text, Style::kHead);
    return true;
  }

  int NameWidth(int other_columns) const { return std::clamp(s_.width - other_columns, 8, 60); }

  void Tenants() {
    // One tenant is everybody; more are worth their lines where there are enough.
    if (a_.tenants_size() < 2 || LinesLeft() < 16 ||
        !Head("TENANT                QUEUED  RUNNING  COMPILES      HITS  REFUSED")) {
      return;
    }
    int shown = 0;
    for (const v1::TenantActivity& t : a_.tenants()) {
      if (++shown > 6)
        return Line(absl::StrCat("and ", a_.tenants_size() - 6, " more"), Style::kDim);
      Line(absl::StrFormat("%s %6d  %7d  %8s  %8s  %7s", FitText(t.tenant(), 21, s_.unicode),
                           t.queued(), t.running(), CountText(t.compiles()), CountText(t.hits()),
                           CountText(t.refused())));
    }
  }

  void Running() {
    if (a_.running_size() == 0) return;
    int name = NameWidth(44);
    if (!Head(absl::StrCat(FitText("RUNNING", name, false),
                           " TENANT       STAGE         TIME    WAITERS")))
      return;
    // Half of what is left: the finished ones are below.
    int rows = std::max(LinesLeft() / 2, 1);
    for (const v1::CompileRecord& r : a_.running()) {
      if (rows-- == 0) return;
      bool started = r.started_unix_us() > 0;
      int64_t since = started ? r.started_unix_us() : r.queued_unix_us();
      Line(absl::StrCat(
          FitText(Name(r), name, s_.unicode), " ", FitText(r.tenant(), 12, s_.unicode), " ",
          FitText(started ? r.stage() : "queued", 13, s_.unicode), " ",
          FitText(DurationText(static_cast<double>(a_.now_unix_us() - since) / 1e3), 8, s_.unicode),
          " ", r.waiters()));
    }
  }

  void Recent() {
    int name = NameWidth(59);
    if (!Head(absl::StrCat(FitText("COMPILES", name, false),
                           " KEY          TENANT     AGO     TOOK     OUTCOME"))) {
      return;
    }
    if (a_.recent_size() == 0) Line("none yet", Style::kDim);
    for (const v1::CompileRecord& r : a_.recent()) {
      double took_ms = static_cast<double>(r.finished_unix_us() - r.started_unix_us()) / 1e3;
      std::string outcome = r.outcome() == "OK" ? r.source() : r.outcome();
      Line(absl::StrCat(
               FitText(Name(r), name, s_.unicode), " ", r.key().substr(0, kShortKeyDigits), " ",
               FitText(r.tenant(), 10, s_.unicode), " ",
               FitText(AgeText(a_.now_unix_us() - r.finished_unix_us()), 7, s_.unicode), " ",
               FitText(r.started_unix_us() > 0 ? DurationText(took_ms) : "-", 8, s_.unicode), " ",
               outcome),
           r.outcome() == "OK" ? Style::kPlain : Style::kBad);
    }
  }

  static std::string Name(const v1::CompileRecord& r) {
    return r.graph().empty() ? "(unnamed)" : r.graph();
  }

  const v1::Activity& a_;
  const TopScreen& s_;
  std::string out_;
  int lines_ = 0;
};

}  // namespace

std::string FitText(absl::string_view text, int width, bool unicode) {
  if (width <= 0) return "";
  std::vector<Cell> cells = Cells(text, unicode);
  int total = 0;
  for (const Cell& cell : cells) total += cell.columns;
  bool cut = total > width;
  int room = cut ? width - 1 : width;
  std::string out;
  int used = 0;
  for (const Cell& cell : cells) {
    if (used + cell.columns > room) break;
    absl::StrAppend(&out, cell.bytes);
    used += cell.columns;
  }
  if (cut) {
    out += unicode ? "\u2026" : "~";
    ++used;
  }
  out.append(static_cast<size_t>(width - used), ' ');
  return out;
}

std::string RenderTop(const v1::Activity& activity, const TopScreen& screen) {
  return Screen(activity, screen).Render();
}

}  // namespace kiln::cli
