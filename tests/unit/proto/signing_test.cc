#include "proto/base/signing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/temp_dir.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

TEST(Signing, AKeyIsMadeOnceAndReadableByItsOwnerOnly) {
  TempDir dir;
  std::string path = dir.path() + "/signing.key";
  EXPECT_TRUE(absl::IsNotFound(SigningKey::Load(path).status()));
  auto made = SigningKey::LoadOrCreate(path);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*SigningKey::LoadOrCreate(path))->public_key(), (*made)->public_key());
  EXPECT_EQ((*made)->public_key().size(), kPublicKeyBytes);
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    ++files;
  }
  EXPECT_EQ(files, 1) << "the temporary file is gone";
}

TEST(Signing, AFileThatIsNoKeyIsAnErrorAndStays) {
  TempDir dir;
  std::string path = dir.path() + "/signing.key";
  std::ofstream(path) << "something else";
  absl::Status status = SigningKey::LoadOrCreate(path).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(path));
  std::string text;
  std::getline(std::ifstream(path), text);
  EXPECT_EQ(text, "something else");
}

TEST(Signing, OnlyWhatWasSignedVerifies) {
  TempDir dir;
  auto key = SigningKey::LoadOrCreate(dir.path() + "/a").value();
  auto other = SigningKey::LoadOrCreate(dir.path() + "/b").value();
  Digest name = Sha256("key"), digest = Sha256("bytes");
  std::string signature = key->Sign(kArtifactKind, name, digest);
  ASSERT_EQ(signature.size(), kSignatureBytes);
  const std::string& who = key->public_key();
  EXPECT_TRUE(VerifySignature(who, kArtifactKind, name, digest, signature).ok());
  auto refused = [&](absl::string_view by, uint8_t kind, const Digest& k, const Digest& d,
                     absl::string_view s) {
    return absl::IsDataLoss(VerifySignature(by, kind, k, d, s));
  };
  EXPECT_TRUE(refused(other->public_key(), kArtifactKind, name, digest, signature));
  EXPECT_TRUE(refused(who, 2, name, digest, signature)) << "a kernel's is no artifact's";
  EXPECT_TRUE(refused(who, kArtifactKind, digest, digest, signature));
  EXPECT_TRUE(refused(who, kArtifactKind, name, name, signature));
  EXPECT_TRUE(refused(who, kArtifactKind, digest, name, signature)) << "exchanged";
  EXPECT_TRUE(refused(who, kArtifactKind, name, digest, ""));
  EXPECT_TRUE(refused(who, kArtifactKind, name, digest, signature.substr(1)));
  for (size_t byte : {size_t{0}, size_t{31}, size_t{32}, size_t{63}}) {
    std::string bent = signature;
    bent[byte] = static_cast<char>(bent[byte] ^ 1);
    EXPECT_TRUE(refused(who, kArtifactKind, name, digest, bent)) << byte;
  }
  EXPECT_TRUE(
      absl::IsInvalidArgument(VerifySignature("short", kArtifactKind, name, digest, signature)));
}

TEST(Signing, PublicKeysTravelAsText) {
  TempDir dir;
  auto key = SigningKey::LoadOrCreate(dir.path() + "/a").value();
  std::string text = FormatPublicKey(key->public_key());
  EXPECT_THAT(text, HasSubstr("ed25519:"));
  EXPECT_EQ(*ParsePublicKey(text), key->public_key());
  for (const std::string& bad : {std::string(), std::string("ed25519:"), text.substr(8),
                                 text.substr(0, 20), text + "AAAA", "rsa:" + text.substr(8)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePublicKey(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace kiln
