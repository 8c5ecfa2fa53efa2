#include "proto/base/digest.h"

// Of its interfaces the one that has no state of the library's own: threads may still make keys
// when exit() has freed that.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kiln {

std::string Digest::ToHex() const {
  return absl::BytesToHexString(view());
}

std::string Digest::ShortHex() const {
  return ToHex().substr(0, 12);
}

absl::StatusOr<Digest> Digest::FromBytes(absl::string_view raw) {
  Digest d;
  if (raw.size() != d.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a digest has 32 bytes, this one has ", raw.size()));
  }
  std::memcpy(d.bytes.data(), raw.data(), raw.size());
  return d;
}

absl::StatusOr<Digest> Digest::FromHex(absl::string_view hex) {
  bool valid = hex.size() == 64;
  for (char c : hex) valid = valid && absl::ascii_isxdigit(static_cast<unsigned char>(c));
  if (!valid) {
    return absl::InvalidArgumentError("a digest is written as 64 hexadecimal digits");
  }
  return FromBytes(absl::HexStringToBytes(hex));
}

Digest Sha256(absl::string_view data) {
  return Hasher().Raw(data).Finish();
}

struct Hasher::State {
  SHA256_CTX context;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  SHA256_Init(&state_->context);
}

Hasher::~Hasher() = default;

Hasher& Hasher::Raw(absl::string_view data) {
  SHA256_Update(&state_->context, data.data(), data.size());
  return *this;
}

Hasher& Hasher::Str(absl::string_view s) {
  Int(static_cast<int64_t>(s.size()));
  return Raw(s);
}

Hasher& Hasher::Int(int64_t v) {
  char bytes[8];
  auto bits = static_cast<uint64_t>(v);
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(bits >> (8 * i));
  return Raw({bytes, 8});
}

Hasher& Hasher::Float(double v) {
  if (std::isnan(v)) v = std::numeric_limits<double>::quiet_NaN();
  return Int(std::bit_cast<int64_t>(v));
}

Digest Hasher::Finish() {
  Digest d;
  SHA256_Final(d.bytes.data(), &state_->context);
  return d;
}

}  // namespace kiln
