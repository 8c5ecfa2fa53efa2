#include "client/credentials.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/token_file.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsChannelCredentialsOptions;

constexpr unsigned kFileIntervalSeconds = 10;
constexpr absl::Duration kTokenInterval = absl::Seconds(10);

std::string OrVariable(const std::string& given, const char* variable) {
  if (!given.empty()) return given;
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> ReadFile(const std::string& path, const char* option) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (in) text << in.rdbuf();
  if (!in || text.str().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": cannot read '", path, "'"));
  }
  return text.str();
}

absl::Status CheckPem(const std::string& path, const char* option, absl::string_view what) {
  if (path.empty()) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(std::string text, ReadFile(path, option));
  if (absl::StrContains(text, "-----BEGIN ") && absl::StrContains(text, what)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": '", path, "' holds no ", what, " in PEM form"));
}

// Where systems keep the certificates that everybody trusts; empty leaves the choice to gRPC.
std::string SystemCa() {
  const char* given = std::getenv("SSL_CERT_FILE");
  for (const char* path : {given, "/etc/ssl/certs/ca-certificates.crt",
                           "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}) {
    if (path != nullptr && std::ifstream(path)) return path;
  }
  return "";
}

std::shared_ptr<grpc::ChannelCredentials> MakeTls(const std::string& ca, const std::string& cert,
                                                  const std::string& key) {
  const std::string roots = ca.empty() ? SystemCa() : ca;
  TlsChannelCredentialsOptions options;
  if (!roots.empty() || !cert.empty()) {
    options.set_certificate_provider(
        std::make_shared<FileWatcherCertificateProvider>(key, cert, roots, kFileIntervalSeconds));
    if (!roots.empty()) options.watch_root_certs();
    if (!cert.empty()) options.watch_identity_key_cert_pairs();
  }
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace

ServerName SplitScheme(absl::string_view server) {
  ServerName name;
  if (absl::ConsumePrefix(&server, "https://")) {
    name.scheme = Scheme::kTls;
  } else if (absl::ConsumePrefix(&server, "http://")) {
    name.scheme = Scheme::kPlain;
  }
  // As pasted from a browser.
  if (name.scheme != Scheme::kUnsaid) absl::ConsumeSuffix(&server, "/");
  name.address = std::string(server);
  return name;
}

bool IsLocal(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "localhost:") || absl::StartsWith(address, "[::1]:");
}

Credentials::~Credentials() = default;

absl::StatusOr<std::shared_ptr<Credentials>> Credentials::Load(const ClientOptions& options) {
  std::shared_ptr<Credentials> out(new Credentials());
  out->tls_ca_ = OrVariable(options.tls_ca, "KILN_TLS_CA");
  out->tls_cert_ = OrVariable(options.tls_cert, "KILN_TLS_CERT");
  out->tls_key_ = OrVariable(options.tls_key, "KILN_TLS_KEY");
  if (out->tls_cert_.empty() != out->tls_key_.empty()) {
    return absl::InvalidArgumentError("tls_cert and tls_key come together");
  }
  KILN_RETURN_IF_ERROR(CheckPem(out->tls_ca_, "tls_ca", "CERTIFICATE"));
  KILN_RETURN_IF_ERROR(CheckPem(out->tls_cert_, "tls_cert", "CERTIFICATE"));
  KILN_RETURN_IF_ERROR(CheckPem(out->tls_key_, "tls_key", "PRIVATE KEY"));
  out->connection_key_ = absl::StrJoin({out->tls_ca_, out->tls_cert_, out->tls_key_}, "\n");

  absl::MutexLock lock(&out->mu_);
  // What the caller gives goes before what the environment has, whichever way it is given.
  const bool given = !options.token.empty() || !options.token_file.empty();
  if (!options.token.empty() && !options.token_file.empty()) {
    return absl::InvalidArgumentError("token and token_file are given; one is enough");
  }
  out->token_ = given ? options.token : OrVariable("", "KILN_TOKEN");
  if (!out->token_.empty()) {
    KILN_RETURN_IF_ERROR(CheckToken(out->token_, "token"));
    return out;
  }
  out->token_file_ = TokenFilePath(options);
  if (!out->token_file_.empty()) KILN_RETURN_IF_ERROR(out->ReadToken());
  return out;
}

absl::Status Credentials::ReadToken() const {
  token_read_ = absl::Now();
  KILN_ASSIGN_OR_RETURN(TokenFile file, ReadTokenFile(token_file_));
  token_ = std::move(file.token);
  return absl::OkStatus();
}

absl::Status Credentials::CheckServer(absl::string_view server) const {
  const ServerName name = SplitScheme(server);
  absl::MutexLock lock(&mu_);
  if (token_.empty() || UsesTls(server) || name.scheme == Scheme::kPlain || IsLocal(name.address)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the token would travel to ", name.address, " in the clear; use https://",
                   name.address, ", or http://", name.address, " if that is meant"));
}

bool Credentials::UsesTls(absl::string_view server) const {
  const ServerName name = SplitScheme(server);
  if (name.scheme != Scheme::kUnsaid) return name.scheme == Scheme::kTls;
  return !absl::StartsWith(name.address, "unix:") && (!tls_ca_.empty() || !tls_cert_.empty());
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::ForServer(absl::string_view server) const {
  if (!UsesTls(server)) return grpc::InsecureChannelCredentials();
  absl::MutexLock lock(&mu_);
  if (tls_ == nullptr) tls_ = MakeTls(tls_ca_, tls_cert_, tls_key_);
  return tls_;
}

void Credentials::Apply(grpc::ClientContext& context, const std::string& otherwise) const {
  absl::MutexLock lock(&mu_);
  if (!token_file_.empty() && absl::Now() - token_read_ > kTokenInterval) {
    if (absl::Status status = ReadToken(); !status.ok()) {
      Log(LogLevel::kWarning, "the token read before stays",
          {{"why", std::string(status.message())}});
    }
  }
  const std::string& token = token_.empty() ? otherwise : token_;
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
}

}  // namespace kiln
