// Command line arguments: --name value, --name=value and positional ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kiln::cli {

// Flags of one command. A name stands with its dashes ("--server", "-o").
struct FlagNames {
  std::vector<absl::string_view> with_value;
  std::vector<absl::string_view> switches;
  std::vector<absl::string_view> repeated;  // of those with a value, which may come several times
};

class Args {
 public:
  // INVALID_ARGUMENT with a sentence for an unknown flag, one without its value, or one given
  // twice that may not be. "--" ends the flags.
  static absl::StatusOr<Args> Parse(absl::Span<char* const> args, const FlagNames& names);

  const std::vector<std::string>& positional() const { return positional_; }
  bool Has(absl::string_view name) const { return values_.contains(std::string(name)); }
  std::string Get(absl::string_view name, absl::string_view fallback) const;
  // Every value of a repeated flag, in order.
  std::vector<std::string> All(absl::string_view name) const;
  // INVALID_ARGUMENT unless the value is a number in [min, max].
  absl::StatusOr<int64_t> GetInt(absl::string_view name, int64_t fallback, int64_t min,
                                 int64_t max) const;
  // INVALID_ARGUMENT unless it is one of `allowed`.
  absl::StatusOr<std::string> GetChoice(absl::string_view name, absl::string_view fallback,
                                        absl::Span<const absl::string_view> allowed) const;

 private:
  std::vector<std::string> positional_;
  std::map<std::string, std::vector<std::string>> values_;
};

}  // namespace kiln::cli
