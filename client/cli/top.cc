// `kiln top`: what the server does, live in a terminal.
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/time/clock.h"
#include "client/cli/command.h"
#include "client/cli/top_screen.h"
#include "kiln/v1/activity.pb.h"

namespace kiln::cli {
namespace {

constexpr int kRecent = 100;
// A server that hangs must not hold up the keys.
constexpr absl::Duration kAskLimit = absl::Seconds(2);

std::atomic<bool> g_ended{false};

// The terminal as the command wants it, and as it was at the end, whatever ends the command.
class LiveTerminal {
 public:
  LiveTerminal() {
    tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    Write("\033[?1049h\033[?25l\033[?7l");  // another screen, no cursor, no wrapping
  }
  ~LiveTerminal() {
    Write("\033[?7h\033[?25h\033[?1049l");
    tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  LiveTerminal(const LiveTerminal&) = delete;
  LiveTerminal& operator=(const LiveTerminal&) = delete;

  // From the first line down, and nothing below.
  void Show(absl::string_view lines) {
    std::string text = "\033[H";
    for (char c : lines) {
      if (c == '\n') text += "\033[K\r";
      text += c;
    }
    // The last line's end would scroll a full screen.
    if (!text.empty() && text.back() == '\n') text.resize(text.size() - 2);
    Write(text + "\033[J");
  }

 private:
  static void Write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  termios before_ = {};
};

void NoteSignals() {
  struct sigaction action = {};
  action.sa_handler = +[](int) { g_ended = true; };
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
  // Only so that a wait for a key ends: the size is asked for at each drawing.
  action.sa_handler = +[](int) {};
  sigaction(SIGWINCH, &action, nullptr);
}

TopScreen MakeScreen(const Client& client, bool terminal) {
  TopScreen screen;
  screen.server = client.server();
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  bool dumb = term == nullptr || std::strcmp(term, "dumb") == 0;
  screen.color = terminal && !dumb && (no_color == nullptr || *no_color == '\0');
  setlocale(LC_CTYPE, "");
  screen.unicode = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  screen.height = 0;
  return screen;
}

void TakeSize(TopScreen& screen) {
  winsize size = {};
  bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  screen.width = known ? size.ws_col : 80;
  screen.height = known ? size.ws_row : 24;
}

// True where a key that ends the command came, or a signal did. Ends early at a new size.
bool WaitForEnd(absl::Duration timeout) {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  // Up, not down: nothing is drawn again and again in the last millisecond.
  const absl::Duration rounded = absl::Ceil(timeout, absl::Milliseconds(1));
  int ready = poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(rounded)));
  if (g_ended) return true;
  if (ready <= 0) return false;
  char keys[32];
  ssize_t count = read(STDIN_FILENO, keys, sizeof(keys));
  if (count <= 0) return true;  // the terminal has gone
  for (ssize_t i = 0; i < count; ++i) {
    if (keys[i] == 'q' || keys[i] == 'Q' || keys[i] == '\003') return true;
  }
  return false;
}

Outcome RunLive(Client& client, TopScreen screen, v1::Activity activity, absl::Duration interval) {
  NoteSignals();
  LiveTerminal terminal;
  absl::Time next = absl::Now() + interval;
  while (true) {
    TakeSize(screen);
    terminal.Show(RenderTop(activity, screen));
    if (WaitForEnd(std::max(next - absl::Now(), absl::ZeroDuration()))) return Ok();
    if (absl::Now() < next) continue;
    next = absl::Now() + interval;
    auto latest = client.GetActivity(kRecent, 0, kAskLimit);
    screen.problem = latest.ok() ? "" : std::string(latest.status().message());
    if (latest.ok()) activity = *std::move(latest);
  }
}

}  // namespace

Outcome RunTop(const Args& args) {
  if (!args.positional().empty()) return Usage("kiln top takes no arguments");
  auto seconds = args.GetInt("--interval", 1, 1, 3600);
  if (!seconds.ok()) return Usage(seconds.status());
  auto client = MakeClient(args, false);
  if (!client.ok()) return Usage(client.status());
  auto activity = (*client)->GetActivity(kRecent, 0);
  if (!activity.ok()) return Failed(activity.status());
  if (args.Has("--json")) {
    PrintJson(*activity);
    return Ok();
  }
  bool terminal = isatty(STDOUT_FILENO) != 0;
  TopScreen screen = MakeScreen(**client, terminal);
  if (!args.Has("--once") && terminal && isatty(STDIN_FILENO) != 0) {
    return RunLive(**client, std::move(screen), *std::move(activity), absl::Seconds(*seconds));
  }
  if (terminal) TakeSize(screen);
  // Once: all of it, in a width that does not depend on where it goes to.
  screen.height = 0;
  if (!terminal) screen.width = 120;
  std::fputs(RenderTop(*activity, screen).c_str(), stdout);
  return Ok();
}

}  // namespace kiln::cli
