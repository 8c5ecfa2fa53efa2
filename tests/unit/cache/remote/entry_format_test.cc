#include "cache/remote/entry_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/cache/remote/fakes.h"

namespace kiln::cache {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class EntryFormatTest : public ::testing::Test {
 protected:
  std::string Encode() { return EncodeRemoteEntry(key_, *entry_, *signer_); }
  absl::Status Decode(const std::string& value) {
    return DecodeRemoteValue(value, key_, trusted_).status();
  }

  const std::unique_ptr<SigningKey> signer_ = NewSigningKey();
  const std::vector<std::string> trusted_ = {signer_->public_key()};
  const Key key_ = {EntryKind::kKernel, Sha256("key")};
  const EntryPtr entry_ = MakeEntry("the bytes of a kernel");
};

TEST_F(EntryFormatTest, WhatIsEncodedIsDecoded) {
  const std::string value = Encode();
  EXPECT_EQ(value.size(), kRemoteHeaderBytes + entry_->bytes.size());
  auto decoded = DecodeRemoteValue(value, key_, trusted_);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->entry->bytes, entry_->bytes);
  EXPECT_EQ(decoded->digest, entry_->digest);
}

TEST_F(EntryFormatTest, AnEmptyEntryIsAnEntry) {
  auto decoded =
      DecodeRemoteValue(EncodeRemoteEntry(key_, *MakeEntry(""), *signer_), key_, trusted_);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->entry->bytes, "");
}

TEST_F(EntryFormatTest, HeaderIsAsDescribed) {
  const std::string value = Encode();
  EXPECT_THAT(value, StartsWith(std::string("KILN\x01\x02\0\0\x15\0\0\0\0\0\0\0", 16)));
  EXPECT_EQ(value.substr(16, 32), key_.digest.view());
  EXPECT_EQ(value.substr(48, 32), entry_->digest.view());
  EXPECT_EQ(value.substr(80, 32), signer_->public_key());
}

TEST_F(EntryFormatTest, NoBitCanBeChanged) {
  const std::string value = Encode();
  for (size_t at = 0; at < value.size(); ++at) {
    for (int bit : {0, 7}) {
      std::string changed = value;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      EXPECT_TRUE(absl::IsDataLoss(Decode(changed))) << "byte " << at << " bit " << bit;
    }
  }
}

TEST_F(EntryFormatTest, NoByteCanBeMissingOrAdded) {
  const std::string value = Encode();
  for (size_t size = 0; size < value.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(Decode(value.substr(0, size)))) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(Decode(value + "x")));
}

TEST_F(EntryFormatTest, AnotherKeysEntryIsBad) {
  const std::string value = Encode();
  for (const Key& other : {Key{EntryKind::kArtifact, key_.digest}, Key{key_.kind, Sha256("no")}}) {
    auto decoded = DecodeRemoteValue(value, other, trusted_);
    EXPECT_TRUE(absl::IsDataLoss(decoded.status()));
    EXPECT_THAT(std::string(decoded.status().message()), HasSubstr("another key's"));
  }
}

TEST_F(EntryFormatTest, OnlyTrustedSignersCount) {
  auto other = NewSigningKey();
  const std::string value = EncodeRemoteEntry(key_, *entry_, *other);
  EXPECT_EQ(Decode(value), absl::PermissionDeniedError(FormatPublicKey(other->public_key())));
  // What no key has signed is a stranger's as little as anybody's.
  for (const size_t at : {80, 112}) {
    std::string damaged = value;
    damaged[at] ^= 1;
    EXPECT_TRUE(absl::IsDataLoss(Decode(damaged))) << at;
  }
  EXPECT_TRUE(DecodeRemoteValue(value, key_, {signer_->public_key(), other->public_key()}).ok());
  // A trusted signer's name over another's signature.
  std::string forged = value;
  forged.replace(80, 32, signer_->public_key());
  EXPECT_THAT(std::string(Decode(forged).message()), HasSubstr("signature"));
}

TEST_F(EntryFormatTest, RepliesOfEveryTypeHaveAMeaning) {
  auto of = [&](Reply reply) { return ValueOfReply(std::move(reply), key_, trusted_).status(); };
  EXPECT_TRUE(of(StringReply(Encode())).ok());
  EXPECT_TRUE(absl::IsNotFound(of(NilReply())));
  EXPECT_TRUE(absl::IsUnavailable(of(ErrorReply("LOADING"))));
  EXPECT_TRUE(absl::IsDataLoss(of(ErrorReply("WRONGTYPE Operation against"))));
  for (Reply wrong : {IntegerReply(1), StatusReply("OK"), ArrayReply({}), StringReply("")}) {
    EXPECT_TRUE(absl::IsDataLoss(of(wrong)));
  }
}

TEST_F(EntryFormatTest, ReadsTheBytesOfAReply) {
  const std::string value = Encode();
  const std::string wire = absl::StrCat("$", value.size(), "\r\n", value, "\r\n");
  auto of = [&](const std::string& bytes) {
    return ValueOfReplyBytes(bytes, key_, trusted_).status();
  };
  EXPECT_TRUE(of(wire).ok()) << of(wire);
  EXPECT_TRUE(absl::IsDataLoss(of(wire.substr(0, wire.size() - 1))));
  EXPECT_TRUE(absl::IsDataLoss(of("*1\r\n" + wire)));
  EXPECT_TRUE(absl::IsDataLoss(of("*2147483647\r\n")));
  EXPECT_FALSE(of("$1999999\r\n").ok());
  EXPECT_TRUE(absl::IsNotFound(of("$-1\r\n")));
}

class PiecesTest : public EntryFormatTest {
 protected:
  static std::string LargeBytes() {
    std::string bytes(2 * kPieceBytes + 5, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 251);
    return bytes;
  }
  std::string Piece(int64_t i) const {
    return large_->bytes.substr(static_cast<size_t>(i * kPieceBytes), kPieceBytes);
  }
  RemoteValue Head() const {
    return DecodeRemoteValue(EncodeRemoteEntry(key_, *large_, *signer_), key_, trusted_).value();
  }
  const EntryPtr large_ = MakeEntry(LargeBytes());
};

TEST_F(PiecesTest, ALargeEntryIsAHeaderAndPieces) {
  const std::string value = EncodeRemoteEntry(key_, *large_, *signer_);
  EXPECT_EQ(value.size(), kRemoteHeaderBytes);
  EXPECT_EQ(value[4], 2);
  const RemoteValue head = Head();
  EXPECT_EQ(head.entry, nullptr);
  EXPECT_EQ(head.digest, large_->digest);
  EXPECT_EQ(head.size_bytes, static_cast<int64_t>(large_->bytes.size()));
  ASSERT_EQ(PieceCount(head.size_bytes), 3);
  std::string bytes;
  for (int64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(AddPiece(StringReply(Piece(i)), key_, head, bytes).ok()) << i;
  }
  auto entry = EntryOfPieces(key_, head, bytes);
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ((*entry)->bytes, large_->bytes);
}

TEST_F(PiecesTest, OnlyLargeEntriesAreInPieces) {
  EXPECT_EQ(PieceCount(0), 0);
  EXPECT_EQ(PieceCount(kPieceBytes), 0);
  EXPECT_EQ(PieceCount(kPieceBytes + 1), 2);
  const std::string header = Encode().substr(0, kRemoteHeaderBytes);
  std::string small = header;
  small[4] = 2;
  EXPECT_TRUE(absl::IsDataLoss(Decode(small))) << "its bytes belong into its value";
}

TEST_F(PiecesTest, WrongPiecesAreNoEntry) {
  const RemoteValue head = Head();
  std::string bytes;
  EXPECT_TRUE(absl::IsNotFound(AddPiece(NilReply(), key_, head, bytes)));
  EXPECT_TRUE(absl::IsUnavailable(AddPiece(ErrorReply("LOADING"), key_, head, bytes)));
  for (const Reply& wrong :
       {IntegerReply(1), ErrorReply("WRONGTYPE"), StringReply(""), StringReply(Piece(2)),
        StringReply(Piece(0).substr(1)), StringReply(Piece(0) + "x")}) {
    EXPECT_TRUE(absl::IsDataLoss(AddPiece(wrong, key_, head, bytes)));
  }
  EXPECT_EQ(bytes, "");
  for (int64_t i : {1, 0, 2}) {
    ASSERT_TRUE(AddPiece(StringReply(Piece(i)), key_, head, bytes).ok());
  }
  EXPECT_TRUE(absl::IsDataLoss(EntryOfPieces(key_, head, bytes).status())) << "their order counts";
}

TEST_F(EntryFormatTest, NamesAreStable) {
  EXPECT_EQ(PieceName(key_.digest, 12), "kiln:1:piece:" + key_.digest.ToHex() + ":12");

  EXPECT_EQ(RemoteKeyName(key_), "kiln:1:kernel:" + key_.digest.ToHex());
  EXPECT_EQ(LeaseKeyName({EntryKind::kArtifact, key_.digest}),
            "kiln:1:lease:artifact:" + key_.digest.ToHex());
}

}  // namespace
}  // namespace kiln::cache
