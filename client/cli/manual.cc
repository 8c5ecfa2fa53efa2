#include "client/cli/manual.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands.h"
#include "kiln/kiln.h"

namespace kiln::cli {
namespace {

constexpr size_t kColumn = 36;
constexpr absl::string_view kExitCodes[] = {
    "0 done",
    "1 failed",
    "2 wrong use",
    "3 the server cannot be reached",
    "4 the graph was refused",
    "5 no cache had it and --fail-on-miss forbade a compile",
};

std::string Joined(absl::string_view name, absl::string_view value) {
  return value.empty() ? std::string(name) : absl::StrCat(name, " ", value);
}

void AppendFlags(const std::vector<Flag>& flags, std::string& out) {
  for (const Flag& flag : flags) {
    std::string left = absl::StrCat("  ", Joined(flag.name, flag.value));
    left.resize(std::max(left.size() + 2, kColumn), ' ');
    absl::StrAppend(&out, left, flag.help, "\n");
  }
}

// Text of a roff page: nothing in it begins a request or an escape.
std::string Roff(absl::string_view text) {
  std::string out = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"'", "\\(aq"}});
  return absl::StartsWith(out, ".") ? absl::StrCat("\\&", out) : out;
}

void AppendRoff(const std::vector<Flag>& flags, std::string& out) {
  for (const Flag& flag : flags) {
    absl::StrAppend(&out, ".TP\n\\fB", Roff(flag.name), "\\fR");
    if (!flag.value.empty()) absl::StrAppend(&out, " \\fI", Roff(flag.value), "\\fR");
    absl::StrAppend(&out, "\n", Roff(flag.help), "\n");
  }
}

std::string ManualPage() {
  std::string page =
      absl::StrCat(".TH KILN 1 \"\" \"kiln ", kiln_version(), "\" \"User Commands\"\n",
                   ".SH NAME\nkiln \\- compiles and runs tensor graphs\n",
                   ".SH SYNOPSIS\n.B kiln\n\\fICOMMAND\\fR [flags]\n.SH COMMANDS\n");
  for (const Command& command : Commands()) {
    absl::StrAppend(&page, ".SS kiln ", Roff(Joined(command.name, command.arguments)), "\n",
                    Roff(command.summary), "\n");
    AppendRoff(command.flags, page);
  }
  absl::StrAppend(&page, ".SH OPTIONS OF EVERY COMMAND\n");
  AppendRoff(CommonFlags(), page);
  absl::StrAppend(&page, ".SH EXIT STATUS\n");
  for (absl::string_view code : kExitCodes) {
    absl::StrAppend(&page, ".TP\n", code.substr(0, 1), "\n", Roff(code.substr(2)), "\n");
  }
  return page;
}

std::string Names(const std::vector<Flag>& flags) {
  std::vector<absl::string_view> names;
  for (const Flag& flag : flags) names.push_back(flag.name);
  return absl::StrJoin(names, " ");
}

// What may follow a flag or a command, where the table says so: "a|b|c".
std::string Choices(absl::string_view value) {
  const bool listed = absl::StrContains(value, "|") &&
                      std::none_of(value.begin(), value.end(),
                                   [](char c) { return absl::ascii_isupper(c) || c == '['; });
  return listed ? absl::StrReplaceAll(value, {{"|", " "}}) : "";
}

std::string BashScript() {
  std::vector<absl::string_view> names;
  std::string cases;
  std::string choices;
  auto add_choices = [&choices](const std::vector<Flag>& flags) {
    for (const Flag& flag : flags) {
      const std::string line =
          absl::StrCat("    ", flag.name, ") words=\"", Choices(flag.value), "\" ;;\n");
      if (!Choices(flag.value).empty() && !absl::StrContains(choices, line)) choices += line;
    }
  };
  for (const Command& command : Commands()) {
    names.push_back(command.name);
    std::vector<absl::string_view> words;
    for (absl::string_view word : absl::StrSplit(command.arguments, '|', absl::SkipEmpty())) {
      word = word.substr(0, word.find(' '));
      if (absl::ascii_islower(word[0])) words.push_back(word);
    }
    absl::StrAppend(&cases, "    ", command.name, ") words=\"", absl::StrJoin(words, " "), " ",
                    Names(command.flags), " ", Names(CommonFlags()), "\" ;;\n");
    add_choices(command.flags);
  }
  return absl::StrCat(
      "_kiln() {\n"
      "  local words=\"\" word=\"${COMP_WORDS[COMP_CWORD]}\" "
      "before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words=\"",
      absl::StrJoin(names, " "), "\"\n  else\n    case \"${COMP_WORDS[1]}\" in\n", cases,
      "    esac\n    case \"$before\" in\n", choices,
      "    esac\n  fi\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "}\n"
      "complete -o default -F _kiln kiln\n");
}

}  // namespace

std::string HelpOfAll() {
  std::string text =
      "usage: kiln COMMAND [flags]        kiln COMMAND --help says what its flags are\n\n";
  for (const Command& command : Commands()) {
    absl::StrAppend(&text, "  kiln ", Joined(command.name, command.arguments), "\n      ",
                    command.summary, "\n");
  }
  absl::StrAppend(&text, "\nEvery command:\n");
  AppendFlags(CommonFlags(), text);
  absl::StrAppend(&text, "\nExit codes: ", absl::StrJoin(kExitCodes, ", "), ".\n");
  return text;
}

std::string HelpOf(const Command& command) {
  std::string text = absl::StrCat("usage: kiln ", Joined(command.name, command.arguments),
                                  " [flags]\n\n", command.summary, "\n\n");
  if (!command.flags.empty()) {
    AppendFlags(command.flags, text);
    absl::StrAppend(&text, "\n");
  }
  absl::StrAppend(&text, "Every command:\n");
  AppendFlags(CommonFlags(), text);
  return text;
}

Outcome RunCompletion(const Args& args) {
  if (args.positional() != std::vector<std::string>{"bash"}) {
    return Usage("kiln completion takes 'bash'");
  }
  std::fputs(BashScript().c_str(), stdout);
  return Ok();
}

Outcome RunManual(const Args& args) {
  if (!args.positional().empty()) return Usage("kiln manual takes no arguments");
  std::fputs(ManualPage().c_str(), stdout);
  return Ok();
}

}  // namespace kiln::cli
