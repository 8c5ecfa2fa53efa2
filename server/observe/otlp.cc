#include "server/observe/otlp.h"

#include <cmath>
#include <type_traits>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/log.h"

namespace kiln::server {
namespace {

constexpr int kStatusOk = 1;
constexpr int kStatusError = 2;

// 64-bit integers are strings in protobuf's JSON.
std::string QuotedNumber(int64_t number) {
  return absl::StrCat("\"", number, "\"");
}

std::string JsonValue(const SpanValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return absl::StrCat("{\"stringValue\":", JsonQuote(v), "}");
        } else if constexpr (std::is_same_v<T, int64_t>) {
          return absl::StrCat("{\"intValue\":", QuotedNumber(v), "}");
        } else if constexpr (std::is_same_v<T, bool>) {
          return absl::StrCat("{\"boolValue\":", v ? "true" : "false", "}");
        } else {
          // JSON has no infinities.
          return absl::StrCat("{\"doubleValue\":", std::isfinite(v) ? v : 0.0, "}");
        }
      },
      value);
}

void AppendAttribute(std::string& out, absl::string_view key, const SpanValue& value) {
  if (!out.empty() && out.back() == '}') out += ',';
  absl::StrAppend(&out, "{\"key\":", JsonQuote(key), ",\"value\":", JsonValue(value), "}");
}

std::string SpanIdHex(const std::array<uint8_t, 8>& id) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(id.data()), id.size()});
}

std::string JsonLinks(const SpanRecord& span) {
  std::string out;
  for (const TraceContext& link : span.links) {
    absl::StrAppend(&out, out.empty() ? "" : ",", "{\"traceId\":\"", link.TraceIdHex(),
                    "\",\"spanId\":\"", link.SpanIdHex(), "\"}");
  }
  return out;
}

std::string JsonStatus(const SpanRecord& span) {
  if (span.status.ok()) return absl::StrCat("{\"code\":", kStatusOk, "}");
  return absl::StrCat("{\"code\":", kStatusError, ",\"message\":",
                      JsonQuote(absl::StrCat(absl::StatusCodeToString(span.status.code()), ": ",
                                             span.status.message().substr(0, 1000))),
                      "}");
}

void AppendSpan(std::string& out, const SpanRecord& span) {
  std::string attributes;
  for (const auto& [key, value] : span.attributes) AppendAttribute(attributes, key, value);
  absl::StrAppend(&out, "{\"traceId\":\"", span.context.TraceIdHex(), "\",\"spanId\":\"",
                  span.context.SpanIdHex(), "\"");
  if (span.parent_span_id != std::array<uint8_t, 8>{}) {
    absl::StrAppend(&out, ",\"parentSpanId\":\"", SpanIdHex(span.parent_span_id), "\"");
  }
  absl::StrAppend(&out, ",\"name\":", JsonQuote(span.name),
                  ",\"kind\":", static_cast<int>(span.kind),
                  ",\"startTimeUnixNano\":", QuotedNumber(absl::ToUnixNanos(span.start)),
                  ",\"endTimeUnixNano\":", QuotedNumber(absl::ToUnixNanos(span.end)));
  absl::StrAppend(&out, ",\"attributes\":[", attributes, "],\"links\":[", JsonLinks(span),
                  "],\"status\":", JsonStatus(span), "}");
}

}  // namespace

std::string EncodeOtlpJson(const TraceResource& resource, absl::Span<const SpanRecord> spans) {
  std::string attributes;
  AppendAttribute(attributes, "service.name", resource.service_name);
  AppendAttribute(attributes, "service.version", resource.service_version);
  AppendAttribute(attributes, "service.instance.id", resource.instance_id);
  AppendAttribute(attributes, "host.name", resource.host_name);
  std::string list;
  for (const SpanRecord& span : spans) {
    if (!list.empty()) list += ',';
    AppendSpan(list, span);
  }
  return absl::StrCat("{\"resourceSpans\":[{\"resource\":{\"attributes\":[", attributes,
                      "]},\"scopeSpans\":[{\"scope\":{\"name\":\"kiln\",\"version\":",
                      JsonQuote(resource.service_version), "},\"spans\":[", list, "]}]}]}");
}

}  // namespace kiln::server
