#include "cache/remote/entry_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

// ---- Part of the format in FORMAT.md: numbers and order never change, a new version is added.
constexpr absl::string_view kMagic("KILN", 4);
constexpr char kWholeVersion = 1;
constexpr char kPiecesVersion = 2;
constexpr size_t kVersionAt = 4;
constexpr size_t kKindAt = 5;
constexpr size_t kReservedAt = 6;  // two zeros
constexpr size_t kSizeAt = 8;      // eight bytes, little endian
constexpr size_t kKeyAt = 16;
constexpr size_t kDigestAt = 48;
constexpr size_t kSignerAt = 80;
constexpr size_t kSignatureAt = 112;
static_assert(kSignatureAt + kSignatureBytes == kRemoteHeaderBytes);
// ---- End of the format.

std::string LittleEndian(uint64_t value) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(value >> (8 * i));
  return out;
}

uint64_t ReadLittleEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

absl::Status Bad(const Key& key, absl::string_view why) {
  return absl::DataLossError(absl::StrCat("the shared tier's ", EntryKindName(key.kind), " ",
                                          key.digest.ShortHex(), " is bad: ", why));
}

absl::Status ServerError(const Reply& reply) {
  return absl::UnavailableError(
      absl::StrCat("the shared tier answers: ", reply.text.substr(0, 200)));
}

absl::Status CheckHeader(absl::string_view value, const Key& key) {
  if (value.size() < kRemoteHeaderBytes) return Bad(key, "it is shorter than its header");
  if (value.substr(0, kMagic.size()) != kMagic) return Bad(key, "it is no entry of Kiln");
  const char version = value[kVersionAt];
  if (version != kWholeVersion && version != kPiecesVersion) {
    return Bad(key, absl::StrCat("its version is ", static_cast<uint8_t>(version), ", not 1 or 2"));
  }
  if (value.substr(kReservedAt, 2) != absl::string_view("\0\0", 2)) {
    return Bad(key, "its reserved bytes are set");
  }
  if (value[kKindAt] != static_cast<char>(key.kind) ||
      value.substr(kKeyAt, 32) != key.digest.view()) {
    return Bad(key, "it is another key's");
  }
  const uint64_t size = ReadLittleEndian(value.substr(kSizeAt, 8));
  const bool fits = version == kWholeVersion
                        ? size == value.size() - kRemoteHeaderBytes
                        : size > kPieceBytes && value.size() == kRemoteHeaderBytes;
  if (!fits) return Bad(key, "its length is not the one in its header");
  return absl::OkStatus();
}

}  // namespace

std::string RemoteKeyName(const Key& key) {
  return absl::StrCat("kiln:1:", EntryKindName(key.kind), ":", key.digest.ToHex());
}

std::string LeaseKeyName(const Key& key) {
  return absl::StrCat("kiln:1:lease:", EntryKindName(key.kind), ":", key.digest.ToHex());
}

std::string PieceName(const Digest& digest, int64_t piece) {
  return absl::StrCat("kiln:1:piece:", digest.ToHex(), ":", piece);
}

int64_t PieceCount(int64_t size_bytes) {
  return size_bytes <= kPieceBytes ? 0 : (size_bytes + kPieceBytes - 1) / kPieceBytes;
}

std::string EncodeRemoteEntry(const Key& key, const Entry& entry, const SigningKey& signer) {
  const auto kind = static_cast<uint8_t>(key.kind);
  const bool whole = PieceCount(static_cast<int64_t>(entry.bytes.size())) == 0;
  std::string value;
  value.reserve(kRemoteHeaderBytes + (whole ? entry.bytes.size() : 0));
  value.append(kMagic.data(), kMagic.size());
  value += whole ? kWholeVersion : kPiecesVersion;
  value += static_cast<char>(kind);
  value.append(2, '\0');
  absl::StrAppend(&value, LittleEndian(entry.bytes.size()), key.digest.view(), entry.digest.view(),
                  signer.public_key(), signer.Sign(kind, key.digest, entry.digest));
  if (whole) value += entry.bytes;
  return value;
}

absl::StatusOr<RemoteValue> DecodeRemoteValue(std::string value, const Key& key,
                                              const std::vector<std::string>& trusted) {
  KILN_RETURN_IF_ERROR(CheckHeader(value, key));
  const absl::string_view header = value;
  const absl::string_view signer = header.substr(kSignerAt, kPublicKeyBytes);
  RemoteValue decoded;
  KILN_ASSIGN_OR_RETURN(decoded.digest, Digest::FromBytes(header.substr(kDigestAt, 32)));
  decoded.size_bytes = static_cast<int64_t>(ReadLittleEndian(header.substr(kSizeAt, 8)));
  if (!VerifySignature(signer, static_cast<uint8_t>(key.kind), key.digest, decoded.digest,
                       header.substr(kSignatureAt, kSignatureBytes))
           .ok()) {
    return Bad(key, "its signature is wrong");
  }
  if (std::find(trusted.begin(), trusted.end(), signer) == trusted.end()) {
    return absl::PermissionDeniedError(FormatPublicKey(signer));
  }
  if (header[kVersionAt] == kPiecesVersion) return decoded;
  value.erase(0, kRemoteHeaderBytes);
  KILN_ASSIGN_OR_RETURN(decoded.entry, EntryOfPieces(key, decoded, std::move(value)));
  return decoded;
}

absl::Status AddPiece(const Reply& reply, const Key& key, const RemoteValue& value,
                      std::string& bytes) {
  if (reply.type == Reply::Type::kNil) return absl::NotFoundError("a piece is gone");
  if (reply.is_error() && reply.text.rfind("WRONGTYPE", 0) != 0) return ServerError(reply);
  const int64_t left = value.size_bytes - static_cast<int64_t>(bytes.size());
  if (reply.type != Reply::Type::kString ||
      static_cast<int64_t>(reply.text.size()) != std::min(kPieceBytes, left)) {
    return Bad(key, "a piece of it is none");
  }
  bytes += reply.text;
  return absl::OkStatus();
}

absl::StatusOr<EntryPtr> EntryOfPieces(const Key& key, const RemoteValue& value,
                                       std::string bytes) {
  auto entry = std::make_shared<Entry>();
  entry->digest = value.digest;
  entry->bytes = std::move(bytes);
  if (Sha256(entry->bytes) != entry->digest) return Bad(key, "digest mismatch");
  return entry;
}

absl::StatusOr<RemoteValue> ValueOfReply(Reply reply, const Key& key,
                                         const std::vector<std::string>& trusted) {
  switch (reply.type) {
    case Reply::Type::kNil:
      return absl::NotFoundError("not in the shared tier");
    case Reply::Type::kString:
      return DecodeRemoteValue(std::move(reply.text), key, trusted);
    case Reply::Type::kError:
      // Somebody put a list or a hash where our entry would be.
      if (reply.text.rfind("WRONGTYPE", 0) == 0) return Bad(key, "it is no string");
      return ServerError(reply);
    case Reply::Type::kStatus:
    case Reply::Type::kInteger:
    case Reply::Type::kArray:
      break;
  }
  return Bad(key, absl::StrCat("the answer is of type ", ReplyTypeName(reply.type)));
}

absl::StatusOr<RemoteValue> ValueOfReplyBytes(absl::string_view bytes, const Key& key,
                                              const std::vector<std::string>& trusted) {
  KILN_ASSIGN_OR_RETURN(Reply reply, ParseReply(bytes, EntryReplyLimits()));
  return ValueOfReply(std::move(reply), key, trusted);
}

ReplyLimits EntryReplyLimits() {
  constexpr int64_t kFrameBytes = 64;  // "$<size>\r\n" and the end
  return {kPieceBytes + static_cast<int64_t>(kRemoteHeaderBytes) + kFrameBytes, 0};
}

}  // namespace kiln::cache
