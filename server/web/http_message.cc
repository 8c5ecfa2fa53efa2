#include "server/web/http_message.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kiln::server {
namespace {

constexpr size_t kMaxHeaders = 100;

const char* Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

bool IsTokenChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::StrContains("!#$%&'*+-.^_`|~", c);
}
bool IsToken(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), &IsTokenChar);
}
bool HasControl(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  });
}

std::string Decode(absl::string_view text, bool form) {
  std::string out;
  auto digit = [](char c) { return absl::ascii_isdigit(c) ? c - '0' : (c | 0x20) - 'a' + 10; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      out.push_back(static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])));
      i += 2;
    } else {
      out.push_back(form && text[i] == '+' ? ' ' : text[i]);
    }
  }
  return out;
}

// 0, or why it is refused.
int ParseRequestLine(absl::string_view line, ParsedRequest& out, bool& old) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != 3 || !IsToken(words[0]) || !absl::StartsWith(words[1], "/")) return 400;
  if (!absl::StartsWith(words[2], "HTTP/1.")) return 505;
  old = words[2] == "HTTP/1.0";
  if (HasControl(words[1])) return 400;
  const std::pair<absl::string_view, absl::string_view> target =
      absl::StrSplit(words[1], absl::MaxSplits('?', 1));
  out.request.method = std::string(words[0]);
  out.request.path = Decode(target.first, false);
  out.request.query = std::string(target.second);
  return HasControl(out.request.path) ? 400 : 0;
}

int ParseHeaders(absl::string_view lines, HttpRequest& request) {
  for (absl::string_view line : absl::StrSplit(lines, "\r\n", absl::SkipEmpty())) {
    if (request.headers.size() == kMaxHeaders) return 431;
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos || !IsToken(line.substr(0, colon)) || HasControl(line)) {
      return 400;
    }
    const absl::string_view name = line.substr(0, colon);
    const bool once =
        absl::EqualsIgnoreCase(name, "host") || absl::EqualsIgnoreCase(name, "content-length");
    if (once && !request.Header(name).empty()) return 400;
    request.headers.emplace_back(name, absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return 0;
}

int ParseBodySize(const HttpRequest& request, size_t& bytes) {
  bytes = 0;
  if (!request.Header("transfer-encoding").empty()) return 413;
  const absl::string_view length = request.Header("content-length");
  if (length.empty()) return 0;
  if (!std::all_of(length.begin(), length.end(), absl::ascii_isdigit)) return 400;
  if (!absl::SimpleAtoi(length, &bytes) || bytes > kMaxHttpBodyBytes) return 413;
  return 0;
}

ParsedRequest Refused(int code) {
  ParsedRequest out;
  out.state = ParsedRequest::State::kRefused;
  out.refusal = code;
  return out;
}

bool HasHeader(const HttpReply& reply, absl::string_view name) {
  return std::any_of(reply.headers.begin(), reply.headers.end(), [&](const auto& header) {
    return absl::EqualsIgnoreCase(header.first, name);
  });
}

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, name)) return value;
  }
  return "";
}

std::string HttpRequest::Parameter(absl::string_view name) const {
  for (absl::string_view pair : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (Decode(parts.first, true) == name) return Decode(parts.second, true);
  }
  return "";
}

ParsedRequest ParseRequest(absl::string_view bytes) {
  const size_t end = bytes.substr(0, kMaxHttpHeadBytes).find("\r\n\r\n");
  if (end == absl::string_view::npos) {
    return bytes.size() >= kMaxHttpHeadBytes ? Refused(431) : ParsedRequest();
  }
  const absl::string_view head = bytes.substr(0, end);
  const size_t line = std::min(head.find("\r\n"), head.size());
  ParsedRequest out;
  bool old = false;
  if (int code = ParseRequestLine(head.substr(0, line), out, old)) return Refused(code);
  if (int code = ParseHeaders(head.substr(line), out.request)) return Refused(code);
  size_t body = 0;
  if (int code = ParseBodySize(out.request, body)) return Refused(code);
  out.bytes = end + 4 + body;
  if (bytes.size() < out.bytes) return ParsedRequest();
  out.state = ParsedRequest::State::kWhole;
  out.keep_alive = !old && !absl::EqualsIgnoreCase(out.request.Header("connection"), "close");
  return out;
}

std::string SerializeReply(const HttpReply& reply, bool with_body, bool keep_alive) {
  std::string text = absl::StrCat("HTTP/1.1 ", reply.code, " ", Reason(reply.code), "\r\n");
  if (reply.code != 304) {
    absl::StrAppend(&text, "Content-Type: ", reply.content_type,
                    "\r\nContent-Length: ", reply.body.size(), "\r\n");
  }
  for (const auto& [name, value] : reply.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
  if (!HasHeader(reply, "Cache-Control")) absl::StrAppend(&text, "Cache-Control: no-store\r\n");
  absl::StrAppend(&text, "X-Content-Type-Options: nosniff\r\nConnection: ",
                  keep_alive ? "keep-alive" : "close", "\r\n\r\n");
  if (with_body && reply.code != 304) text += reply.body;
  return text;
}

std::string HostName(absl::string_view host_header) {
  absl::string_view host = host_header;
  if (absl::ConsumePrefix(&host, "[")) {
    const size_t end = host.find(']');
    return end == absl::string_view::npos ? "" : absl::AsciiStrToLower(host.substr(0, end));
  }
  host = host.substr(0, host.find(':'));
  absl::ConsumeSuffix(&host, ".");
  return absl::AsciiStrToLower(host);
}

bool IsAddress(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 || inet_pton(AF_INET6, host.c_str(), &v6) == 1;
}

}  // namespace kiln::server
