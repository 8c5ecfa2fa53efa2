// Ed25519 (RFC 8032) signatures of what a server stores and sends, by OpenSSL.
//
// Signed is a domain, so that one kind of thing never passes for another, the content's key and its
// digest: "kiln entry v1\0" kind (one byte) key (32 bytes) digest (32 bytes).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/base/digest.h"

namespace kiln {

inline constexpr size_t kPublicKeyBytes = 32;
inline constexpr size_t kSignatureBytes = 64;

// `kind`: the number of cache::EntryKind. Clients see artifacts, and the others in bundles.
inline constexpr uint8_t kArtifactKind = 1;
inline constexpr uint8_t kKernelKind = 2;
inline constexpr uint8_t kDescriptionKind = 3;
inline constexpr uint8_t kChoiceKind = 4;

// A server's private key. Thread-safe.
class SigningKey {
 public:
  ~SigningKey();
  // Of a PEM file (PKCS #8); NOT_FOUND where there is none, INVALID_ARGUMENT for another kind.
  static absl::StatusOr<std::unique_ptr<SigningKey>> Load(const std::string& path);
  // As Load, and makes the file, readable by its owner only, where there is none.
  static absl::StatusOr<std::unique_ptr<SigningKey>> LoadOrCreate(const std::string& path);

  const std::string& public_key() const;  // 32 bytes
  std::string Sign(uint8_t kind, const Digest& key, const Digest& digest) const;

 private:
  struct Impl;
  explicit SigningKey(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// DATA_LOSS where the signature is not one of `public_key` over these; INVALID_ARGUMENT for a key
// that is none.
absl::Status VerifySignature(absl::string_view public_key, uint8_t kind, const Digest& key,
                             const Digest& digest, absl::string_view signature);

// "ed25519:<base64>", as people pass public keys around, and back.
std::string FormatPublicKey(absl::string_view public_key);
absl::StatusOr<std::string> ParsePublicKey(absl::string_view text);

}  // namespace kiln
