#include "client/cli/args.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kiln::cli {
namespace {

bool Contains(const std::vector<absl::string_view>& list, absl::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

absl::StatusOr<Args> Args::Parse(absl::Span<char* const> args, const FlagNames& names) {
  Args out;
  bool flags_ended = false;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (flags_ended || arg.size() < 2 || arg[0] != '-') {
      out.positional_.emplace_back(arg);
      continue;
    }
    if (arg == "--") {
      flags_ended = true;
      continue;
    }
    size_t equals = arg.find('=');
    std::string name(arg.substr(0, equals));
    bool takes_value = Contains(names.with_value, name);
    if (!takes_value && !Contains(names.switches, name)) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", name));
    }
    std::string value;
    if (equals != absl::string_view::npos) {
      if (!takes_value) return absl::InvalidArgumentError(absl::StrCat(name, " takes no value"));
      value = std::string(arg.substr(equals + 1));
    } else if (takes_value) {
      if (i + 1 == args.size()) {
        return absl::InvalidArgumentError(absl::StrCat(name, " needs a value"));
      }
      value = args[++i];
    }
    std::vector<std::string>& values = out.values_[name];
    if (!values.empty() && !Contains(names.repeated, name)) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is given twice"));
    }
    values.push_back(std::move(value));
  }
  return out;
}

std::string Args::Get(absl::string_view name, absl::string_view fallback) const {
  auto it = values_.find(std::string(name));
  return it == values_.end() ? std::string(fallback) : it->second.front();
}

std::vector<std::string> Args::All(absl::string_view name) const {
  auto it = values_.find(std::string(name));
  return it == values_.end() ? std::vector<std::string>() : it->second;
}

absl::StatusOr<int64_t> Args::GetInt(absl::string_view name, int64_t fallback, int64_t min,
                                     int64_t max) const {
  if (!Has(name)) return fallback;
  int64_t value = 0;
  std::string text = Get(name, "");
  if (!absl::SimpleAtoi(text, &value) || value < min || value > max) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is '", text, "'; expected a number from ", min, " to ", max));
  }
  return value;
}

absl::StatusOr<std::string> Args::GetChoice(absl::string_view name, absl::string_view fallback,
                                            absl::Span<const absl::string_view> allowed) const {
  std::string value = Get(name, fallback);
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is '", value, "'; expected ", absl::StrJoin(allowed, ", ")));
}

}  // namespace kiln::cli
