#include "tests/unit/server/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstdlib>

#include "absl/strings/str_join.h"

namespace kiln::testing {
namespace {

struct Deleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

std::string TextOf(const Owned<BIO>& memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string Pem(X509* certificate) {
  Owned<BIO> memory(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(memory.get(), certificate);
  return TextOf(memory);
}

std::string Pem(EVP_PKEY* key) {
  Owned<BIO> memory(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(memory.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return TextOf(memory);
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr) std::abort();
  X509_add_ext(certificate, extension.get(), -1);
}

void SetName(X509_NAME* name, const std::string& common_name) {
  if (common_name.empty()) return;
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
}

// Not signed yet.
Owned<X509> Blank(const Subject& subject, EVP_PKEY* key) {
  Owned<X509> certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  unsigned char serial[8];
  RAND_bytes(serial, sizeof(serial));
  serial[0] &= 0x7f;
  BIGNUM* number = BN_bin2bn(serial, sizeof(serial), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -absl::ToInt64Seconds(subject.age));
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), absl::ToInt64Seconds(subject.left));
  SetName(X509_get_subject_name(certificate.get()), subject.common_name);
  X509_set_pubkey(certificate.get(), key);
  return certificate;
}

}  // namespace

struct Authority::Keys {
  Owned<EVP_PKEY> key;
  Owned<X509> certificate;
};

Subject ServerSubject(const std::string& common_name) {
  return {.common_name = common_name, .alternative_names = {"IP:127.0.0.1", "DNS:localhost"}};
}

Authority::Authority(const std::string& name) : keys_(std::make_unique<Keys>()) {
  keys_->key.reset(EVP_EC_gen("P-256"));
  keys_->certificate = Blank({.common_name = name}, keys_->key.get());
  X509* certificate = keys_->certificate.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
  X509_sign(certificate, keys_->key.get(), EVP_sha256());
  certificate_ = Pem(certificate);
}

Authority::~Authority() = default;

Pair Authority::Issue(const Subject& subject) const {
  Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  Owned<X509> certificate = Blank(subject, key.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(keys_->certificate.get()));
  if (!subject.alternative_names.empty()) {
    AddExtension(certificate.get(), keys_->certificate.get(), NID_subject_alt_name,
                 absl::StrJoin(subject.alternative_names, ","));
  }
  X509_sign(certificate.get(), keys_->key.get(), EVP_sha256());
  return {Pem(certificate.get()), Pem(key.get())};
}

}  // namespace kiln::testing
