// An entry as the shared tier holds it: a header, a signature, the bytes (FORMAT.md); those of a
// large one in pieces under names of their own. Pure: the tier is not trusted, and what comes from
// it is checked here and nowhere else.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/remote/reply.h"
#include "cache/store.h"
#include "proto/base/signing.h"

namespace kiln::cache {

inline constexpr size_t kRemoteHeaderBytes = 176;
// Entries with more bytes are in pieces, all of this size but the last: no value keeps a server
// busy for long, and a read can tell a slow one from one that stalls.
inline constexpr int64_t kPieceBytes = int64_t{1} << 20;

// "kiln:1:artifact:<64 hex digits>", "kiln:1:lease:artifact:<...>", and "kiln:1:piece:<SHA-256 of
// all bytes>:<number>": names in the shared tier.
std::string RemoteKeyName(const Key& key);
std::string LeaseKeyName(const Key& key);
std::string PieceName(const Digest& digest, int64_t piece);

// 0 for an entry that is in its key's value.
int64_t PieceCount(int64_t size_bytes);

// The value of the entry's key.
std::string EncodeRemoteEntry(const Key& key, const Entry& entry, const SigningKey& signer);

// What a key's value says.
struct RemoteValue {
  EntryPtr entry;  // null where the bytes are in pieces
  Digest digest;   // of the bytes
  int64_t size_bytes = 0;
};

// Checks everything: header, key, length, signature, that the signer is one of `trusted` (public
// keys of 32 bytes), digest. PERMISSION_DENIED, saying which key, where all that is wrong is that
// the signer is not trusted; DATA_LOSS, saying what is wrong, otherwise.
absl::StatusOr<RemoteValue> DecodeRemoteValue(std::string value, const Key& key,
                                              const std::vector<std::string>& trusted);

// What the answer to GET means: NOT_FOUND for nil, UNAVAILABLE for an error of the server,
// otherwise as DecodeRemoteValue errs.
absl::StatusOr<RemoteValue> ValueOfReply(Reply reply, const Key& key,
                                         const std::vector<std::string>& trusted);

// As a connection does it from the bytes that it received: ParseReply, then ValueOfReply.
absl::StatusOr<RemoteValue> ValueOfReplyBytes(absl::string_view bytes, const Key& key,
                                              const std::vector<std::string>& trusted);

// Adds the answer to GET for the next piece to `bytes`, which are those before it; errors as
// ValueOfReply has them.
absl::Status AddPiece(const Reply& reply, const Key& key, const RemoteValue& value,
                      std::string& bytes);
// Of all pieces: DATA_LOSS where they do not match the digest.
absl::StatusOr<EntryPtr> EntryOfPieces(const Key& key, const RemoteValue& value, std::string bytes);

// Limits of the answers to GET for keys and pieces.
ReplyLimits EntryReplyLimits();

}  // namespace kiln::cache
