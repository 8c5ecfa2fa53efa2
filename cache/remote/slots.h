// Redis Cluster's addressing: 16384 slots, each owned by one node
// (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/remote/endpoint.h"
#include "cache/remote/reply.h"

namespace kiln::cache {

inline constexpr int kSlots = 16384;

// CRC-16 (XMODEM) of the key, or of its hash tag, the text between the first '{' and the next '}'
// where that is not empty.
int KeySlot(absl::string_view key);

struct Redirection {
  bool ask = false;  // for this command only, after ASKING; else the slot has moved for good
  int slot = 0;
  Endpoint endpoint;
};

// Of "MOVED 3999 127.0.0.1:6381" or "ASK ..."; nothing for any other error. A host that is
// empty or "?" is that of `asked`.
std::optional<Redirection> ParseRedirection(absl::string_view error, const Endpoint& asked);

struct SlotRange {
  int first = 0;
  int last = 0;  // inclusive
  Endpoint owner;
};

// The masters in the answer to CLUSTER SLOTS; hosts that are
// empty, nil or "?" are that of `asked`.
// DATA_LOSS, naming the element, where it is no such answer; UNIMPLEMENTED where the server is no
// cluster; UNAVAILABLE where it does not say.
absl::StatusOr<std::vector<SlotRange>> SlotRangesOf(const Reply& reply, const Endpoint& asked);

// Limits of the answer to CLUSTER SLOTS: every slot a range of its own, with a few replicas.
inline constexpr ReplyLimits kSlotsReplyLimits = {16 << 20, 1 << 19};

}  // namespace kiln::cache
