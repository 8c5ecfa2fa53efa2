#include "server/security/access_list.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"
#include "server/security/auth.h"

namespace kiln::server {
namespace {

absl::StatusOr<Digest> ParseTokenDigest(absl::string_view text) {
  bool hex = text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
               return absl::ascii_isxdigit(static_cast<unsigned char>(c));
             });
  if (!hex) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is neither the SHA-256 of a token (64 hex digits) nor ", "'certificate'"));
  }
  KILN_ASSIGN_OR_RETURN(Digest digest, Digest::FromBytes(absl::HexStringToBytes(text)));
  if (digest == Sha256("")) return absl::InvalidArgumentError("that is the SHA-256 of nothing");
  return digest;
}

}  // namespace

absl::StatusOr<Role> ParseRole(absl::string_view name) {
  for (Role role : {Role::kNone, Role::kRead, Role::kCompile, Role::kAdmin}) {
    if (name == RoleName(role)) return role;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no role; expected none, read, compile or admin"));
}

absl::Status AccessList::AddLine(absl::string_view line) {
  std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.size() != 3 && words.size() != 4) {
    return absl::InvalidArgumentError("expected NAME ROLE SHA256-OF-TOKEN|certificate [TENANT]");
  }
  Identity identity;
  identity.name = std::string(words[0]);
  KILN_ASSIGN_OR_RETURN(identity.role, ParseRole(words[1]));
  if (words.size() == 4) {
    if (!IsTenantName(words[3])) {
      return absl::InvalidArgumentError(absl::StrCat("'", words[3], "' is no tenant's name"));
    }
    identity.tenant = std::string(words[3]);
    tenants_.insert(identity.tenant);
  }
  if (words[2] == "certificate") {
    certificates_.push_back(std::move(identity));
    return absl::OkStatus();
  }
  KILN_ASSIGN_OR_RETURN(Digest digest, ParseTokenDigest(words[2]));
  for (const Token& token : tokens_) {
    if (token.digest == digest) {
      return absl::InvalidArgumentError(
          absl::StrCat("the token is that of '", token.identity.name, "' as well"));
    }
  }
  tokens_.push_back({digest, std::move(identity)});
  return absl::OkStatus();
}

absl::StatusOr<AccessList> AccessList::Parse(absl::string_view text, absl::string_view source) {
  AccessList list;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    KILN_RETURN_IF_ERROR(Annotate(list.AddLine(line), absl::StrCat(source, " line ", number)));
    if (list.tokens_.size() + list.certificates_.size() > kMaxAccessLines) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, " has more than ", kMaxAccessLines, " names"));
    }
  }
  return list;
}

const Identity* AccessList::FindToken(absl::string_view token) const {
  if (token.empty() || token.size() > kMaxTokenBytes) return nullptr;
  const Digest digest = Sha256(token);
  const Identity* found = nullptr;
  for (const Token& known : tokens_) {
    if (CRYPTO_memcmp(known.digest.bytes.data(), digest.bytes.data(), digest.bytes.size()) == 0) {
      found = &known.identity;  // goes on to the end, as for any other token
    }
  }
  return found;
}

const Identity* AccessList::FindCertificate(absl::Span<const std::string> names) const {
  for (const Identity& identity : certificates_) {
    if (identity.name == "*" ||
        std::find(names.begin(), names.end(), identity.name) != names.end()) {
      return &identity;
    }
  }
  return nullptr;
}

}  // namespace kiln::server
