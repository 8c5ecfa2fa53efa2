#include "proto/base/trace_context.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

constexpr size_t kTraceparentBytes = 55;

bool IsLowerHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

template <size_t N>
std::string ToHex(const std::array<uint8_t, N>& bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), N});
}

template <size_t N>
void FromHex(absl::string_view hex, std::array<uint8_t, N>& bytes) {
  const std::string raw = absl::HexStringToBytes(hex);
  std::copy(raw.begin(), raw.end(), bytes.begin());
}

template <size_t N>
void FillRandomly(std::array<uint8_t, N>& bytes) {
  thread_local absl::BitGen random;
  do {
    for (uint8_t& byte : bytes) byte = absl::Uniform<uint8_t>(random);
  } while (bytes == std::array<uint8_t, N>{});
}

}  // namespace

bool TraceContext::valid() const {
  return trace_id != decltype(trace_id){} && span_id != decltype(span_id){};
}

std::string TraceContext::TraceIdHex() const {
  return ToHex(trace_id);
}

std::string TraceContext::SpanIdHex() const {
  return ToHex(span_id);
}

TraceContext ParseTraceparent(absl::string_view text) {
  // version "-" trace-id "-" parent-id "-" flags; versions after 00 may have more behind.
  TraceContext context;
  if (text.size() < kTraceparentBytes) return {};
  const absl::string_view version = text.substr(0, 2), trace = text.substr(3, 32),
                          span = text.substr(36, 16), flags = text.substr(53, 2);
  if (text[2] != '-' || text[35] != '-' || text[52] != '-') return {};
  if (!IsLowerHex(version) || version == "ff") return {};
  if (text.size() > kTraceparentBytes && (version == "00" || text[kTraceparentBytes] != '-')) {
    return {};
  }
  if (!IsLowerHex(trace) || !IsLowerHex(span) || !IsLowerHex(flags)) return {};
  FromHex(trace, context.trace_id);
  FromHex(span, context.span_id);
  std::array<uint8_t, 1> flag_bits{};
  FromHex(flags, flag_bits);
  context.sampled = (flag_bits[0] & 1) != 0;
  return context.valid() ? context : TraceContext{};
}

std::string FormatTraceparent(const TraceContext& context) {
  return absl::StrCat("00-", context.TraceIdHex(), "-", context.SpanIdHex(), "-",
                      context.sampled ? "01" : "00");
}

TraceContext ChildOf(const TraceContext& parent) {
  TraceContext child = parent;
  if (!parent.valid()) {
    FillRandomly(child.trace_id);
    child.sampled = true;
  }
  FillRandomly(child.span_id);
  return child;
}

}  // namespace kiln
