// Who may call, and as what: the text of --access-file, one name a line.
//
//   # NAME            ROLE     SHA-256 OF THE TOKEN, OR "certificate"  TENANT (may be left out)
//   trainer           compile  9f86d081884c7d659a2feaa0c55ad015a3bf...  team-a
//   ops.example.com   admin    certificate
//   *                 read     certificate
//
// A certificate's line names its common name or one of its subject alternative names, exactly; the
// first line of the file that names one of them counts. "*" stands for every certificate that the
// server's CA vouches for. A name may have several tokens, so that a new one can be handed out
// before the old one goes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/base/digest.h"
#include "server/security/caller.h"

namespace kiln::server {

inline constexpr int kMaxAccessLines = 4096;  // every call with a token walks them all
inline constexpr size_t kMaxTokenBytes = 4096;

struct Identity {
  std::string name;
  Role role = Role::kNone;
  std::string tenant;  // empty: the call's own header says
};

// Immutable.
class AccessList {
 public:
  // INVALID_ARGUMENT, naming `source` and the line, for a line that is none, a token that stands
  // twice, or too many lines.
  static absl::StatusOr<AccessList> Parse(absl::string_view text, absl::string_view source);

  // Null where no line knows it. How long it takes does not tell how much of a token is right.
  const Identity* FindToken(absl::string_view token) const;
  // `names`: every name of one verified certificate.
  const Identity* FindCertificate(absl::Span<const std::string> names) const;

  // Whether some line gives its callers this tenant.
  bool HasTenant(absl::string_view name) const { return tenants_.contains(name); }

  size_t tokens() const { return tokens_.size(); }
  size_t certificates() const { return certificates_.size(); }

 private:
  struct Token {
    Digest digest;
    Identity identity;
  };
  absl::Status AddLine(absl::string_view line);

  std::vector<Token> tokens_;
  std::vector<Identity> certificates_;
  absl::flat_hash_set<std::string> tenants_;
};

// "none", "read", "compile", "admin"; INVALID_ARGUMENT otherwise.
absl::StatusOr<Role> ParseRole(absl::string_view name);

}  // namespace kiln::server
