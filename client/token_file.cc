#include "client/token_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/error_detail.h"
#include "proto/base/signing.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

}  // namespace

absl::Status CheckToken(absl::string_view token, absl::string_view source) {
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (!token.empty() && token.size() <= kMaxTokenBytes && printable) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(source, " is no token: 1 to 4096 printable characters without spaces"));
}

absl::StatusOr<TokenFile> ParseTokenFile(absl::string_view text, absl::string_view source) {
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
  TokenFile file;
  if (!words.empty()) file.token = words[0];
  KILN_RETURN_IF_ERROR(CheckToken(file.token, source));
  for (size_t i = 1; i < words.size(); ++i) {
    auto key = ParsePublicKey(words[i]);
    KILN_RETURN_IF_ERROR(Annotate(key.status(), absl::StrCat(source, ", after the token")));
    file.public_keys.push_back(*std::move(key));
  }
  return file;
}

absl::StatusOr<TokenFile> ReadTokenFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (in) text << in.rdbuf();
  if (!in || text.str().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("token_file: cannot read '", path, "'"));
  }
  KILN_ASSIGN_OR_RETURN(TokenFile file,
                        ParseTokenFile(text.str(), absl::StrCat("what '", path, "' holds")));
  struct stat found = {};
  if (!file.public_keys.empty() &&
      (stat(path.c_str(), &found) != 0 || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0 ||
       (found.st_uid != geteuid() && found.st_uid != 0))) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_file: others may write '", path, "', which has a public key in it"));
  }
  return file;
}

std::string TokenFilePath(const ClientOptions& options) {
  if (!options.token.empty() || !options.token_file.empty()) return options.token_file;
  const char* token = std::getenv("KILN_TOKEN");
  const char* path = std::getenv("KILN_TOKEN_FILE");
  const bool has_token = token != nullptr && *token != '\0';
  return has_token || path == nullptr ? "" : path;
}

}  // namespace kiln
