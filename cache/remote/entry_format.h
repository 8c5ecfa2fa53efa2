// An entry as the shared tier holds it: a header, a signature, the bytes (FORMAT.md). Pure: the
// tier is not trusted, and what comes from it is checked here and nowhere else.
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

// "kiln:1:artifact:<64 hex digits>", and "kiln:1:lease:artifact:<...>": names in the shared tier.
std::string RemoteKeyName(const Key& key);
std::string LeaseKeyName(const Key& key);

std::string EncodeRemoteEntry(const Key& key, const Entry& entry, const SigningKey& signer);

// Checks everything: header, key, length, that the signer is one of `trusted` (public keys of 32
// bytes), signature, digest. DATA_LOSS, saying what is wrong, otherwise.
absl::StatusOr<EntryPtr> DecodeRemoteEntry(std::string value, const Key& key,
                                           const std::vector<std::string>& trusted);

// What the answer to GET means: NOT_FOUND for nil, UNAVAILABLE for an error of the server,
// DATA_LOSS for anything that is no good entry.
absl::StatusOr<EntryPtr> EntryOfReply(Reply reply, const Key& key,
                                      const std::vector<std::string>& trusted);

// As a connection does it from the bytes that it received: ParseReply, then EntryOfReply.
absl::StatusOr<EntryPtr> EntryOfReplyBytes(absl::string_view bytes, int64_t max_entry_bytes,
                                           const Key& key, const std::vector<std::string>& trusted);

// Limits of the answer to GET for entries of up to `max_entry_bytes`.
ReplyLimits EntryReplyLimits(int64_t max_entry_bytes);

}  // namespace kiln::cache
