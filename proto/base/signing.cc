#include "proto/base/signing.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr char kDomain[] = "kiln entry v1";  // its zero is signed, too
constexpr absl::string_view kKeyPrefix = "ed25519:";

struct Deleter {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(FILE* file) const { std::fclose(file); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string Message(uint8_t kind, const Digest& key, const Digest& digest) {
  return absl::StrCat(absl::string_view(kDomain, sizeof(kDomain)),
                      std::string(1, static_cast<char>(kind)), key.view(), digest.view());
}

absl::Status CreateKeyFile(const std::string& path) {
  Owned<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new_id(EVP_PKEY_ED25519, nullptr));
  EVP_PKEY* raw = nullptr;
  if (context == nullptr || EVP_PKEY_keygen_init(context.get()) != 1 ||
      EVP_PKEY_keygen(context.get(), &raw) != 1) {
    return absl::InternalError("OpenSSL makes no Ed25519 key");
  }
  Owned<EVP_PKEY> key(raw);
  // Under a name of its own first: nobody ever reads half a key, and of two servers one wins.
  const std::string temporary = absl::StrCat(path, ".", getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  Owned<FILE> file(fd < 0 ? nullptr : fdopen(fd, "w"));
  bool written =
      file != nullptr &&
      PEM_write_PrivateKey(file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1 &&
      std::fflush(file.get()) == 0 && fsync(fd) == 0;
  written = written && (link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int error = errno;
  unlink(temporary.c_str());
  if (written) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write the signing key ", path));
}

}  // namespace

struct SigningKey::Impl {
  Owned<EVP_PKEY> key;
  std::string public_key;
};

SigningKey::SigningKey(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SigningKey::~SigningKey() = default;

absl::StatusOr<std::unique_ptr<SigningKey>> SigningKey::Load(const std::string& path) {
  Owned<FILE> file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the signing key ", path));
  }
  auto impl = std::make_unique<Impl>();
  impl->key.reset(PEM_read_PrivateKey(file.get(), nullptr, nullptr, nullptr));
  if (impl->key == nullptr || EVP_PKEY_id(impl->key.get()) != EVP_PKEY_ED25519) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds no Ed25519 private key in PEM form"));
  }
  impl->public_key.resize(kPublicKeyBytes);
  size_t size = impl->public_key.size();
  EVP_PKEY_get_raw_public_key(impl->key.get(),
                              reinterpret_cast<unsigned char*>(impl->public_key.data()), &size);
  return std::unique_ptr<SigningKey>(new SigningKey(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<SigningKey>> SigningKey::LoadOrCreate(const std::string& path) {
  absl::StatusOr<std::unique_ptr<SigningKey>> loaded = Load(path);
  if (!absl::IsNotFound(loaded.status())) return loaded;
  KILN_RETURN_IF_ERROR(CreateKeyFile(path));
  return Load(path);
}

const std::string& SigningKey::public_key() const {
  return impl_->public_key;
}

std::string SigningKey::Sign(uint8_t kind, const Digest& key, const Digest& digest) const {
  const std::string message = Message(kind, key, digest);
  std::string signature(kSignatureBytes, '\0');
  size_t size = signature.size();
  Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, impl_->key.get());
  EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                 Bytes(message), message.size());
  return signature;
}

absl::Status VerifySignature(absl::string_view public_key, uint8_t kind, const Digest& key,
                             const Digest& digest, absl::string_view signature) {
  Owned<EVP_PKEY> pkey(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, Bytes(public_key), public_key.size()));
  if (pkey == nullptr) return absl::InvalidArgumentError("not an Ed25519 public key");
  const std::string message = Message(kind, key, digest);
  Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  if (EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, pkey.get()) != 1 ||
      EVP_DigestVerify(context.get(), Bytes(signature), signature.size(), Bytes(message),
                       message.size()) != 1) {
    return absl::DataLossError(absl::StrCat("the signature of ", key.ShortHex(), " is not one of ",
                                            FormatPublicKey(public_key)));
  }
  return absl::OkStatus();
}

std::string FormatPublicKey(absl::string_view public_key) {
  return absl::StrCat(kKeyPrefix, absl::Base64Escape(public_key));
}

absl::StatusOr<std::string> ParsePublicKey(absl::string_view text) {
  std::string key;
  absl::string_view base64 = text;
  if (!absl::ConsumePrefix(&base64, kKeyPrefix) || !absl::Base64Unescape(base64, &key) ||
      key.size() != kPublicKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no public key, as in ", kKeyPrefix, "<44 characters>"));
  }
  return key;
}

}  // namespace kiln
