#include "server/security/credentials.h"

#include <grpcpp/security/server_credentials.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"
#include "server/security/complaint.h"
#include "server/security/tls.h"

namespace kiln::server {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(1);
constexpr int64_t kMaxFileBytes = int64_t{1} << 20;
constexpr absl::Duration kExpiryWarning = absl::Hours(24 * 7);

// `setting` for messages: "--tls-key". Empty for no file.
absl::StatusOr<std::string> ReadFile(const std::string& path, const char* setting) {
  if (path.empty()) return "";
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(setting, ": cannot read ", path, ": ", std::strerror(errno)));
  }
  if (info.st_size > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(setting, ": ", path, " is over 1 MiB"));
  }
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (in) text << in.rdbuf();
  if (!in || text.str().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(setting, ": ", path, " is empty or cannot be read"));
  }
  return text.str();
}

void WarnWhereOthersRead(const std::string& path, const char* setting) {
  struct stat info = {};
  if (path.empty() || stat(path.c_str(), &info) != 0 || (info.st_mode & S_IROTH) == 0) return;
  Log(LogLevel::kWarning, "a secret is readable by every user of this machine",
      {{"setting", setting}, {"file", path}});
}

bool TellsCallersApart(const SecurityConfig& security) {
  return !security.access_file.empty() || !security.tls_client_ca.empty();
}

absl::Status CheckSettings(const SecurityConfig& security, bool loopback_only) {
  if (security.tls_cert.empty() != security.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key come together");
  }
  if (!security.tls_client_ca.empty() && security.tls_cert.empty()) {
    return absl::InvalidArgumentError("--tls-client-ca needs --tls-cert and --tls-key");
  }
  if (security.client_cert_required && security.tls_client_ca.empty()) {
    return absl::InvalidArgumentError("--tls-client-auth needs --tls-client-ca");
  }
  if (AnonymousRole(security) == Role::kNone && !TellsCallersApart(security) &&
      !UsesLocalToken(security, loopback_only)) {
    return absl::InvalidArgumentError(
        "nobody could call this server: it listens beyond this machine or shows a certificate, so "
        "that callers must say who they are, and nothing tells them apart; give --access-file, "
        "--tls-client-ca, or --anonymous-role=compile to let everybody in");
  }
  return absl::OkStatus();
}

ClientCertificates Clients(const SecurityConfig& security) {
  if (security.tls_client_ca.empty()) return ClientCertificates::kIgnored;
  return security.client_cert_required.value_or(true) ? ClientCertificates::kRequired
                                                      : ClientCertificates::kOptional;
}

absl::StatusOr<TlsMaterial> ReadTls(const SecurityConfig& security) {
  TlsMaterial material;
  KILN_ASSIGN_OR_RETURN(material.certificates, ReadFile(security.tls_cert, "--tls-cert"));
  KILN_ASSIGN_OR_RETURN(material.private_key, ReadFile(security.tls_key, "--tls-key"));
  KILN_ASSIGN_OR_RETURN(material.client_ca, ReadFile(security.tls_client_ca, "--tls-client-ca"));
  return material;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SigningKey>> OpenSigningKey(const SecurityConfig& security,
                                                           const std::string& data_dir) {
  const std::string& given = security.signing_key;
  const std::string path = given.empty() ? absl::StrCat(data_dir, "/signing.key") : given;
  // A path with a slip of the pen must not become a new identity.
  auto key = given.empty() ? SigningKey::LoadOrCreate(path) : SigningKey::Load(path);
  KILN_RETURN_IF_ERROR(Annotate(key.status(), "--signing-key"));
  WarnWhereOthersRead(path, "--signing-key");
  return key;
}

Role AnonymousRole(const SecurityConfig& security) {
  return security.anonymous_role.value_or(Role::kNone);
}

bool UsesLocalToken(const SecurityConfig& security, bool loopback_only) {
  return loopback_only && security.tls_cert.empty() && !TellsCallersApart(security) &&
         !security.anonymous_role;
}

struct Credentials::Impl {
  explicit Impl(const SecurityConfig& security)
      : security(security), anonymous_role(AnonymousRole(security)) {}

  // Logs what is wrong once so many looks in a row found it.
  absl::Status Look(int looks) ABSL_LOCKS_EXCLUDED(look_mutex);
  absl::Status LookAtTls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(look_mutex);
  absl::Status LookAtAccess() ABSL_EXCLUSIVE_LOCKS_REQUIRED(look_mutex);
  void Watch();

  AccessRules Rules() const {
    absl::ReaderMutexLock lock(&rules_mutex);
    return {list, anonymous_role, local_token};
  }

  const SecurityConfig security;
  const Role anonymous_role;
  TlsSource tls;
  std::shared_ptr<grpc::ServerCredentials> server_credentials;
  std::unique_ptr<Authenticator> authenticator;

  absl::Mutex look_mutex;                                // one look at a time
  TlsMaterial tls_material ABSL_GUARDED_BY(look_mutex);  // in use
  std::string access_text ABSL_GUARDED_BY(look_mutex);   // in use
  Complaint complaint ABSL_GUARDED_BY(look_mutex);

  mutable absl::Mutex rules_mutex;
  std::optional<absl::Time> certificate_expiry ABSL_GUARDED_BY(rules_mutex);
  std::shared_ptr<const AccessList> list ABSL_GUARDED_BY(rules_mutex);
  std::optional<Digest> local_token ABSL_GUARDED_BY(rules_mutex);

  absl::Mutex stop_mutex;
  bool stopping ABSL_GUARDED_BY(stop_mutex) = false;
  std::thread watcher;
};

absl::Status Credentials::Impl::LookAtTls() {
  if (security.tls_cert.empty()) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(TlsMaterial material, ReadTls(security));
  if (material == tls_material) return absl::OkStatus();
  auto expiry = CheckTlsMaterial(material);
  KILN_RETURN_IF_ERROR(
      Annotate(expiry.status(), absl::StrCat(security.tls_cert, ", ", security.tls_key)));
  const bool soon = *expiry < absl::Now() + kExpiryWarning;
  Log(soon ? LogLevel::kWarning : LogLevel::kInfo, "certificate loaded",
      {{"file", security.tls_cert}, {"expires", absl::FormatTime(*expiry, absl::UTCTimeZone())}});
  WarnWhereOthersRead(security.tls_key, "--tls-key");
  tls_material = material;
  tls.Replace(std::move(material));
  absl::MutexLock lock(&rules_mutex);
  certificate_expiry = *expiry;
  return absl::OkStatus();
}

absl::Status Credentials::Impl::LookAtAccess() {
  if (security.access_file.empty()) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(std::string text, ReadFile(security.access_file, "--access-file"));
  if (text == access_text) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(AccessList parsed, AccessList::Parse(text, security.access_file));
  Log(LogLevel::kInfo, "access file loaded",
      {{"file", security.access_file},
       {"tokens", absl::StrCat(parsed.tokens())},
       {"certificates", absl::StrCat(parsed.certificates())}});
  WarnWhereOthersRead(security.access_file, "--access-file");
  access_text = std::move(text);
  absl::MutexLock lock(&rules_mutex);
  list = std::make_shared<const AccessList>(std::move(parsed));
  return absl::OkStatus();
}

absl::Status Credentials::Impl::Look(int looks) {
  absl::MutexLock lock(&look_mutex);
  absl::Status tls_status = LookAtTls();
  absl::Status access_status = LookAtAccess();
  absl::Status status = tls_status.ok() ? access_status : tls_status;
  std::string why(status.message());
  if (complaint.IsDue(why, looks)) {
    Log(LogLevel::kError, "credentials not reloaded; those read before stay", {{"why", why}});
  }
  return status;
}

void Credentials::Impl::Watch() {
  absl::MutexLock lock(&stop_mutex);
  while (!stop_mutex.AwaitWithTimeout(absl::Condition(&stopping), kLookInterval)) {
    stop_mutex.Unlock();
    Look(/*looks=*/2).IgnoreError();  // logged, and looked at again
    stop_mutex.Lock();
  }
}

absl::StatusOr<std::unique_ptr<Credentials>> Credentials::Load(const SecurityConfig& security,
                                                               bool loopback_only) {
  KILN_RETURN_IF_ERROR(CheckSettings(security, loopback_only));
  auto owned = std::make_unique<Impl>(security);
  Impl& impl = *owned;
  std::unique_ptr<Credentials> credentials(new Credentials(std::move(owned)));
  {
    absl::MutexLock lock(&impl.look_mutex);
    KILN_RETURN_IF_ERROR(impl.LookAtTls());
    KILN_RETURN_IF_ERROR(impl.LookAtAccess());
  }
  impl.server_credentials = security.tls_cert.empty()
                                ? grpc::InsecureServerCredentials()
                                : MakeTlsCredentials(&impl.tls, Clients(security));
  impl.authenticator =
      MakeAuthenticator([&impl] { return impl.Rules(); }, security.max_tenant_names);
  if (!security.tls_cert.empty() || !security.access_file.empty()) {
    impl.watcher = std::thread([&impl] { impl.Watch(); });
  }
  return credentials;
}

Credentials::Credentials(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Credentials::~Credentials() {
  {
    absl::MutexLock lock(&impl_->stop_mutex);
    impl_->stopping = true;
  }
  if (impl_->watcher.joinable()) impl_->watcher.join();
}

std::shared_ptr<grpc::ServerCredentials> Credentials::server_credentials() const {
  return impl_->server_credentials;
}

Authenticator& Credentials::authenticator() const {
  return *impl_->authenticator;
}

std::optional<absl::Time> Credentials::certificate_expiry() const {
  absl::ReaderMutexLock lock(&impl_->rules_mutex);
  return impl_->certificate_expiry;
}

void Credentials::SetLocalToken(const Digest& sha256) {
  absl::MutexLock lock(&impl_->rules_mutex);
  impl_->local_token = sha256;
}

absl::Status Credentials::Reload() {
  return impl_->Look(/*looks=*/1);  // who asks has replaced them all
}

}  // namespace kiln::server
