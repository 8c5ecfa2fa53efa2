// Bytes as a Redis-like server sends them: replies, redirections, entries. Nothing is trusted.
#include <string>
#include <vector>

#include "cache/remote/entry_format.h"
#include "cache/remote/reply.h"
#include "cache/remote/slots.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

const kiln::cache::Endpoint kAsked = {"127.0.0.1", 6379};

// All at once and byte by byte give the same replies.
void CheckSplitting(absl::string_view bytes) {
  kiln::cache::ReplyLimits limits = kiln::cache::EntryReplyLimits();
  auto whole = kiln::cache::ParseReply(bytes, limits);
  kiln::cache::ReplyReader reader(limits);
  int replies = 0;
  bool good = true;
  for (size_t i = 0; i < bytes.size() && good; ++i) {
    good = reader.Feed(bytes.substr(i, 1)).ok();
    kiln::cache::Reply reply;
    while (good) {
      auto next = reader.Next(reply);
      good = next.ok();
      if (!good || !*next) break;
      ++replies;
    }
  }
  if (whole.ok()) kiln::fuzz::Require(good && replies == 1, "a reply in pieces is the same reply");
}

void CheckSlots(const kiln::cache::Reply& reply) {
  auto ranges = kiln::cache::SlotRangesOf(reply, kAsked);
  if (!ranges.ok()) return;
  for (const auto& range : *ranges) {
    kiln::fuzz::Require(0 <= range.first && range.first <= range.last && range.last < 16384,
                        "slots are slots");
    kiln::fuzz::Require(range.owner.port > 0 && range.owner.port < 65536, "ports are ports");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view bytes = kiln::fuzz::AsText(data, size);
  CheckSplitting(bytes);
  auto reply = kiln::cache::ParseReply(bytes, kiln::cache::kSlotsReplyLimits);
  if (reply.ok()) {
    CheckSlots(*reply);
    if (reply->is_error()) kiln::cache::ParseRedirection(reply->text, kAsked);
  }
  kiln::cache::ParseRedirection(bytes, kAsked);
  const kiln::cache::Key key{kiln::cache::EntryKind::kArtifact, kiln::Sha256("key")};
  const std::vector<std::string> trusted = {std::string(32, 'k')};
  auto entry = kiln::cache::ValueOfReplyBytes(bytes, key, trusted);
  kiln::fuzz::Require(!entry.ok(), "nobody can sign for a key that is not theirs");
  auto decoded = kiln::cache::DecodeRemoteValue(std::string(bytes), key, trusted);
  kiln::fuzz::Require(absl::IsDataLoss(decoded.status()), "an unsigned entry is DATA_LOSS");
  return 0;
}
