#include "server/web/pages.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kiln/v1/activity.pb.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/page.pb.h"
#include "proto/base/digest.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"
#include "server/web/web_assets.h"

namespace kiln::server {
namespace {

constexpr char kCompilesPath[] = "/api/v1/compiles/";
constexpr size_t kKeyDigits = 64;
// A page of another origin cannot send it without the server's consent, which never comes.
constexpr char kPageHeader[] = "Kiln-Page";

// Scripts, styles and data come from this server and nowhere else; nothing is inline.
const std::pair<std::string, std::string> kPageHeaders[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"X-Frame-Options", "DENY"},
};

HttpReply Secured(HttpReply reply) {
  for (const auto& header : kPageHeaders) reply.headers.push_back(header);
  return reply;
}

int HttpCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kFailedPrecondition:
      return 503;
    default:
      return 500;
  }
}

HttpReply Problem(const absl::Status& status) {
  return Secured({.code = HttpCode(status),
                  .content_type = "application/json",
                  .body = absl::StrCat("{\"error\":", JsonQuote(status.message()), "}\n")});
}

HttpReply Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  auto printed = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!printed.ok()) return Problem(absl::InternalError("the answer has no form as JSON"));
  return Secured({.content_type = "application/json", .body = std::move(text)});
}

// What never changes under its key, so that a browser asks once: `tag` names it.
HttpReply Unchanging(const HttpRequest& request, const std::string& tag, HttpReply reply) {
  std::string quoted = absl::StrCat("\"", tag, "\"");
  if (request.Header("If-None-Match") == quoted) reply = {.code = 304};
  reply.headers.emplace_back("ETag", quoted);
  reply.headers.emplace_back("Cache-Control", "no-cache");
  return Secured(std::move(reply));
}

absl::StatusOr<int> CountParameter(const HttpRequest& request, absl::string_view name) {
  std::string text = request.Parameter(name);
  int value = 0;
  if (text.empty() || (absl::SimpleAtoi(text, &value) && value >= 0)) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("the parameter '", name, "' is no number of compiles"));
}

HttpReply AnswerActivity(const ActivitySources& sources, const HttpRequest& request) {
  auto recent = CountParameter(request, "recent");
  auto slowest = CountParameter(request, "slowest");
  if (!recent.ok()) return Problem(recent.status());
  if (!slowest.ok()) return Problem(slowest.status());
  v1::GetActivityRequest wanted;
  wanted.set_recent(*recent);
  wanted.set_slowest(*slowest);
  v1::Activity activity;
  absl::Status reported = ReportActivity(sources, wanted, activity);
  return reported.ok() ? Json(activity) : Problem(reported);
}

// /api/v1/compiles/KEY[/...], taken apart.
struct CompilePath {
  std::string key;
  std::vector<std::string> rest;
};

absl::StatusOr<CompilePath> ParseCompilePath(absl::string_view path) {
  CompilePath out;
  out.rest = absl::StrSplit(absl::StripPrefix(path, kCompilesPath), '/');
  out.key = out.rest.front();
  out.rest.erase(out.rest.begin());
  if (out.key.size() == kKeyDigits &&
      std::all_of(out.key.begin(), out.key.end(), absl::ascii_isxdigit)) {
    return out;
  }
  return absl::InvalidArgumentError("a compile's key has 64 hexadecimal digits");
}

HttpReply AnswerDetails(CompileDetails& details, const std::string& key, bool start) {
  v1::CompileDetailState state;
  absl::Status looked = details.Look(key, start, state);
  if (!looked.ok()) return Problem(looked);
  HttpReply reply = Json(state);
  if (state.state() == "working") reply.code = 202;
  return reply;
}

// "ir/2", "kernels/0/source", "kernels/0/assembly", "kernels/0/machine_code".
absl::StatusOr<std::string> FindText(const v1::Artifact& artifact,
                                     const std::vector<std::string>& rest) {
  const v1::Debug& debug = artifact.debug();
  int index = -1;
  if (rest.size() >= 2 && absl::SimpleAtoi(rest[1], &index) && index >= 0) {
    if (rest.size() == 2 && rest[0] == "ir" && index < debug.ir_size()) {
      return debug.ir(index).text();
    }
    const int routine = index - debug.kernels_size();
    if (rest.size() == 3 && rest[0] == "kernels" && routine < debug.routines_size()) {
      const v1::Debug::KernelSource& kernel =
          routine < 0 ? debug.kernels(index) : debug.routines(routine);
      if (rest[2] == "source") return kernel.source();
      if (rest[2] == "assembly") return kernel.assembly();
      if (rest[2] == "machine_code") return kernel.machine_code();
    }
  }
  return absl::NotFoundError("this compile has no such text");
}

HttpReply AnswerText(CompileDetails& details, const CompilePath& path, const HttpRequest& request) {
  auto artifact = details.Artifact(path.key);
  if (!artifact.ok()) return Problem(artifact.status());
  auto text = FindText(**artifact, path.rest);
  if (!text.ok()) return Problem(text.status());
  std::string tag = Sha256(*text).ToHex();
  return Unchanging(request, tag, {.body = *std::move(text)});
}

HttpReply AnswerCompile(ActivityLog& log, CompileDetails& details, const HttpRequest& request) {
  auto path = ParseCompilePath(request.path);
  if (!path.ok()) return Problem(path.status());
  if (path->rest.empty()) {
    v1::CompileRecord record;
    if (log.FindRecord(path->key, record)) return Json(record);
    return Problem(absl::NotFoundError("no recent compile has this key"));
  }
  if (path->rest.size() == 1 && path->rest[0] == "details") {
    return AnswerDetails(details, path->key, false);
  }
  return AnswerText(details, *path, request);
}

// Only the details are made on demand.
HttpReply StartDetails(CompileDetails& details, const HttpRequest& request) {
  auto path = ParseCompilePath(request.path);
  if (!path.ok()) return Problem(path.status());
  if (path->rest != std::vector<std::string>{"details"}) {
    return Problem(absl::NotFoundError("only a compile's details can be asked for"));
  }
  if (request.Header(kPageHeader).empty()) {
    return Problem(absl::PermissionDeniedError(
        absl::StrCat("the request lacks the header ", kPageHeader, ", which has any value")));
  }
  return AnswerDetails(details, path->key, true);
}

}  // namespace

HttpRoutes WithPage(HttpRoutes routes, const ActivitySources* sources, CompileDetails* details) {
  for (const WebAsset& asset : WebAssets()) {
    HttpReply reply{.content_type = std::string(asset.content_type),
                    .body = std::string(asset.text)};
    routes[std::string(asset.path)].get =
        [reply, tag = Sha256(asset.text).ToHex()](const HttpRequest& request) {
          return Unchanging(request, tag, reply);
        };
  }
  routes["/api/v1/activity"].get = [sources](const HttpRequest& request) {
    return AnswerActivity(*sources, request);
  };
  HttpRoute& compiles = routes[kCompilesPath];
  compiles.get = [sources, details](const HttpRequest& request) {
    return AnswerCompile(sources->log, *details, request);
  };
  compiles.post = [details](const HttpRequest& request) { return StartDetails(*details, request); };
  return routes;
}

}  // namespace kiln::server
