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
#include "server/web/http_message.h"
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

void Http(absl::string_view text) {
  using kiln::server::ParsedRequest;
  const ParsedRequest parsed = kiln::server::ParseRequest(text);
  if (parsed.state != ParsedRequest::State::kWhole) return;
  Require(parsed.bytes <= text.size(), "a request ends where its bytes do");
  const ParsedRequest again = kiln::server::ParseRequest(text.substr(0, parsed.bytes));
  Require(again.state == parsed.state && again.bytes == parsed.bytes &&
              again.request.path == parsed.request.path,
          "what follows a request does not change it");
  Require(kiln::server::ParseRequest(text.substr(0, parsed.bytes - 1)).state ==
              ParsedRequest::State::kIncomplete,
          "a part of a request is none");
  for (const auto& [name, value] : parsed.request.headers) {
    Require(!name.empty() && value.find('\n') == std::string::npos, "a header is one line");
  }
  kiln::server::HostName(parsed.request.Header("host"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static constexpr void (*kReaders[])(absl::string_view) = {&Trace,     &PublicKey, &Access,
                                                            &Addresses, &Token,     &Http};
  if (size == 0) return -1;
  kReaders[data[0] % std::size(kReaders)](kiln::fuzz::AsText(data + 1, size - 1));
  return 0;
}
