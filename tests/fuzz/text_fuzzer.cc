// Short texts from strangers and from files that people write: trace headers, keys, tokens, access
// lists, addresses. The first byte chooses the reader.
#include <string>

#include "absl/strings/match.h"
#include "cache/remote/endpoint.h"
#include "proto/base/signing.h"
#include "proto/base/trace_context.h"
#include "server/address.h"
#include "server/security/access_list.h"
#include "server/web/http_guard.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using kiln::fuzz::Require;

void Trace(absl::string_view text) {
  kiln::TraceContext context = kiln::ParseTraceparent(text);
  if (!context.valid()) return;
  kiln::TraceContext again = kiln::ParseTraceparent(kiln::FormatTraceparent(context));
  Require(again.valid() && again.trace_id == context.trace_id && again.span_id == context.span_id &&
              again.sampled == context.sampled,
          "a trace context survives its text");
}

void PublicKey(absl::string_view text) {
  auto key = kiln::ParsePublicKey(text);
  if (!key.ok()) return;
  Require(key->size() == kiln::kPublicKeyBytes, "a public key has its size");
  auto again = kiln::ParsePublicKey(kiln::FormatPublicKey(*key));
  Require(again.ok() && *again == *key, "a public key survives its text");
}

void Access(absl::string_view text) {
  auto list = kiln::server::AccessList::Parse(text, "the file");
  if (!list.ok()) {
    Require(absl::IsInvalidArgument(list.status()) &&
                absl::StrContains(list.status().message(), "the file"),
            "a bad access file is named");
    return;
  }
  Require(list->FindToken("a token that nobody has") == nullptr, "strangers stay strangers");
}

void Addresses(absl::string_view text) {
  auto address = kiln::server::ParseAddress(text);
  if (address.ok()) {
    auto again = kiln::server::ParseAddress(address->ToString());
    Require(again.ok() && again->host == address->host && again->port == address->port,
            "an address survives its text");
  }
  auto url = kiln::cache::ParseRemoteUrl(text);
  if (url.ok()) Require(!url->seeds.empty(), "a shared tier has an address");
}

void Token(absl::string_view text) {
  Require(!kiln::server::ShowsToken(text, std::string(32, '\0')), "no token has a digest of zeros");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static constexpr void (*kReaders[])(absl::string_view) = {&Trace, &PublicKey, &Access, &Addresses,
                                                            &Token};
  if (size == 0) return -1;
  kReaders[data[0] % std::size(kReaders)](kiln::fuzz::AsText(data + 1, size - 1));
  return 0;
}
