// A file that says who its user is, and whose signatures the user takes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/client.h"

namespace kiln {

// The text is "TOKEN", then any number of public keys as "ed25519:BASE64", apart by spaces or
// lines.
struct TokenFile {
  std::string token;                     // 1 to 4096 printable characters
  std::vector<std::string> public_keys;  // 32 bytes each
};

// INVALID_ARGUMENT, beginning with `source`, where the text is none such.
absl::StatusOr<TokenFile> ParseTokenFile(absl::string_view text, absl::string_view source);

// INVALID_ARGUMENT for a file that cannot be read or is none such, and for one with keys that
// anybody but this user and root may write.
absl::StatusOr<TokenFile> ReadTokenFile(const std::string& path);

// INVALID_ARGUMENT, beginning with `source`.
absl::Status CheckToken(absl::string_view token, absl::string_view source);

// The path of the token file that `options` and the environment name; empty where they name none or
// give a token. What the caller gives goes before what the environment has, either way.
std::string TokenFilePath(const ClientOptions& options);

}  // namespace kiln
