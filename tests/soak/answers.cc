#include "tests/soak/answers.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

struct Kind {
  absl::string_view code, reason;
};

bool Holds(absl::Span<const Kind> kinds, absl::string_view code, absl::string_view reason) {
  return std::any_of(kinds.begin(), kinds.end(), [&](const Kind& kind) {
    return kind.code == code && (kind.reason == "*" || kind.reason == reason);
  });
}

constexpr Kind kNobodysFault[] = {
    {"INTERNAL", "REASON_WORKER_CRASHED"},
    {"FAILED_PRECONDITION", "REASON_WORKER_CRASHED"},
    {"RESOURCE_EXHAUSTED", "REASON_QUEUE_FULL"},
};
constexpr Kind kTheRequests[] = {
    {"INVALID_ARGUMENT", "*"},
    {"UNIMPLEMENTED", "*"},
    {"RESOURCE_EXHAUSTED", "*"},  // its bytes, its time, a worker's memory
};
constexpr Kind kItLeft[] = {{"CANCELLED", "*"}, {"DEADLINE_EXCEEDED", "*"}};

}  // namespace

void TakeLine(World& world, absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
  if (words[0] == "answer" && words.size() == 3) {
    world.ledger.Count("right answers");
    world.ledger.Count(absl::StrCat("answers: ", words[1]));
    int64_t took_us = 0;
    if ((words[1] == "memory" || words[1] == "disk") && absl::SimpleAtoi(words[2], &took_us)) {
      world.ledger.Hit(words[1], absl::Microseconds(took_us));
    }
  } else if (words[0] == "error" && words.size() == 4) {
    TakeError(world, words[1], words[2], words[3]);
  } else if (words[0] != "paused") {
    world.ledger.Breach(absl::StrCat("a client says: ", line));
  }
}

void TakeError(World& world, absl::string_view code, absl::string_view reason,
               absl::string_view text) {
  const std::string kind = absl::StrCat(code, " ", reason);
  world.ledger.Count("errors: " + kind);
  if (Holds(kNobodysFault, code, reason)) return;
  world.ledger.Breach(absl::StrCat("a client got ", kind, ": ", text));
}

void TakeAnswer(World& world, absl::string_view who, const integration::Answer& answer,
                bool leaves) {
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(answer.status.error_code()));
  const std::string reason = answer.detail.reason() == v1::ErrorDetail::REASON_UNSPECIFIED
                                 ? "-"
                                 : v1::ErrorDetail::Reason_Name(answer.detail.reason());
  world.ledger.Count(absl::StrCat(who, ": ", code));
  if (answer.ok() || Holds(kNobodysFault, code, reason) || Holds(kTheRequests, code, reason) ||
      (leaves && Holds(kItLeft, code, reason))) {
    return;
  }
  world.ledger.Breach(
      absl::StrCat(who, " got ", code, " ", reason, ": ", answer.status.error_message()));
}

}  // namespace kiln::soak
