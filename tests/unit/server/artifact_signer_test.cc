#include "server/security/artifact_signer.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/temp_dir.h"

namespace kiln::server {
namespace {

Digest Number(int i) {
  return Sha256(absl::StrCat(i));
}

TEST(ArtifactSigner, SignsWhatTheKeyVerifiesHoweverMuchItForgot) {
  TempDir dir;
  auto key = SigningKey::LoadOrCreate(dir.path() + "/signing.key").value();
  ArtifactSigner signer(key.get(), /*kept=*/3);
  ASSERT_EQ(signer.public_key(), key->public_key());
  std::string first = signer.Sign(Number(0), Number(1));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 20; ++i) {
      std::string signature = signer.Sign(Number(i), Number(i + 1));
      EXPECT_TRUE(
          VerifySignature(key->public_key(), kArtifactKind, Number(i), Number(i + 1), signature)
              .ok());
    }
  }
  EXPECT_EQ(signer.Sign(Number(0), Number(1)), first);
  EXPECT_NE(signer.Sign(Number(0), Number(2)), first) << "another entry under the same key";
}

}  // namespace
}  // namespace kiln::server
