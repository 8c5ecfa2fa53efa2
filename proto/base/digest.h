// SHA-256 (FIPS 180-4), as content address of everything that Kiln stores.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

// A value type; compares and hashes by its 32 bytes.
struct Digest {
  std::array<uint8_t, 32> bytes{};

  friend bool operator==(const Digest&, const Digest&) = default;
  friend auto operator<=>(const Digest&, const Digest&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Digest& d) {
    return H::combine_contiguous(std::move(h), d.bytes.data(), d.bytes.size());
  }

  absl::string_view view() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // 64 lower-case hex digits.
  std::string ToHex() const;
  // The first 12 hex digits: for logs.
  std::string ShortHex() const;
  // INVALID_ARGUMENT unless `raw` has 32 bytes.
  static absl::StatusOr<Digest> FromBytes(absl::string_view raw);
  // INVALID_ARGUMENT unless `hex` is 64 hex digits.
  static absl::StatusOr<Digest> FromHex(absl::string_view hex);
};

Digest Sha256(absl::string_view data);

// Incremental SHA-256 with a canonical encoding of typed fields: every field is written with its
// length, so that no two different sequences of calls give the same bytes. Not thread-safe.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  Hasher& Raw(absl::string_view data);
  Hasher& Str(absl::string_view s);  // length, then bytes
  Hasher& Int(int64_t v);            // eight bytes, little endian
  Hasher& Float(double v);           // its IEEE-754 bits; every NaN counts as one
  Digest Finish();                   // once, as the last call

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kiln
