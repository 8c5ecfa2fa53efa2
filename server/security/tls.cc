#include "server/security/tls.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

struct Deleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

Owned<BIO> Reader(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Every certificate of `text` must parse; the first is returned.
absl::StatusOr<Owned<X509>> FirstCertificate(const std::string& text, const char* what) {
  Owned<BIO> reader = Reader(text);
  Owned<X509> first;
  while (Owned<X509> next{PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)}) {
    if (first == nullptr) first = std::move(next);
  }
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (first == nullptr || !ended) {
    return absl::InvalidArgumentError(absl::StrCat(what, " holds no certificates in PEM form"));
  }
  return first;
}

// Without a callback OpenSSL would ask for a pass phrase on the terminal.
int NoPassPhrase(char*, int, int, void*) {
  return 0;
}

absl::StatusOr<absl::Time> ExpiryOf(const X509* certificate) {
  tm broken_down = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &broken_down) != 1) {
    return absl::InvalidArgumentError("the certificate has no date of expiry");
  }
  return absl::FromTM(broken_down, absl::UTCTimeZone());
}

grpc_ssl_client_certificate_request_type RequestType(ClientCertificates clients) {
  switch (clients) {
    case ClientCertificates::kIgnored:
      return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    case ClientCertificates::kOptional:
      return GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
    case ClientCertificates::kRequired:
      break;
  }
  return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
}

// gRPC's own watcher of files takes what it finds: between a new certificate and its new key every
// handshake would fail. This one is only ever given what was checked.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  TlsCredentials(TlsSource* source, ClientCertificates clients)
      : credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(RequestType(clients),
                                                                            &Fetch, source))) {}
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // Before each handshake; one at a time.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* user_data, grpc_ssl_server_certificate_config** config) {
    std::unique_ptr<TlsMaterial> material = static_cast<TlsSource*>(user_data)->TakeNew();
    if (material == nullptr) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {material->private_key.c_str(),
                                             material->certificates.c_str()};
    // gRPC insists on roots here, also where it asks clients for nothing and so never uses them.
    const std::string& roots =
        material->client_ca.empty() ? material->certificates : material->client_ca;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

absl::StatusOr<absl::Time> CheckTlsMaterial(const TlsMaterial& material) {
  KILN_ASSIGN_OR_RETURN(Owned<X509> certificate,
                        FirstCertificate(material.certificates, "the server's certificate"));
  Owned<BIO> reader = Reader(material.private_key);
  Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(reader.get(), nullptr, &NoPassPhrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        "the server's key is no private key in PEM form without a pass phrase");
  }
  const bool match = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (!match) return absl::InvalidArgumentError("the server's key is not its certificate's");
  if (!material.client_ca.empty()) {
    KILN_RETURN_IF_ERROR(FirstCertificate(material.client_ca, "the clients' CA").status());
  }
  return ExpiryOf(certificate.get());
}

void TlsSource::Replace(TlsMaterial material) {
  absl::MutexLock lock(&mu_);
  new_ = std::make_unique<TlsMaterial>(std::move(material));
}

std::unique_ptr<TlsMaterial> TlsSource::TakeNew() {
  absl::MutexLock lock(&mu_);
  return std::move(new_);
}

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(TlsSource* source,
                                                            ClientCertificates clients) {
  return std::make_shared<TlsCredentials>(source, clients);
}

}  // namespace kiln::server
