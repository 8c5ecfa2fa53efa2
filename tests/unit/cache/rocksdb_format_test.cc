// What is on disk, byte by byte: a change here needs another kFormatVersion.
#include "cache/rocksdb_format.h"

#include <gtest/gtest.h>

#include "tests/unit/cache/entries.h"

namespace kiln::cache {
namespace {

Key SampleKey() {
  Key key{EntryKind::kKernel, {}};
  for (size_t i = 0; i < kDigestBytes; ++i) key.digest.bytes[i] = static_cast<uint8_t>(0xe0 + i);
  return key;
}

TEST(RocksDbFormatTest, KeysAreKindThenDigest) {
  std::string raw = EncodeKey(SampleKey());
  ASSERT_EQ(raw.size(), 33u);
  EXPECT_EQ(raw[0], 2);
  EXPECT_EQ(static_cast<uint8_t>(raw[1]), 0xe0);
  EXPECT_EQ(static_cast<uint8_t>(raw[32]), 0xff);
  EXPECT_EQ(DecodeKey(raw), SampleKey());
  EXPECT_EQ(EncodeKey(ArtifactKeyOf(1))[0], 1);
}

TEST(RocksDbFormatTest, IndexRecordsAreTwoLittleEndianWordsAndFlags) {
  EntryInfo info{SampleKey(), 0x0102030405060708, 0x1112131415161718};
  std::string raw = EncodeIndexRecord(info);
  EXPECT_EQ(raw,
            std::string("\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11\0", 17));
  auto decoded = DecodeIndexRecord(EncodeKey(info.key), raw);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->key, info.key);
  EXPECT_EQ(decoded->size_bytes, info.size_bytes);
  EXPECT_EQ(decoded->last_used_unix_ms, info.last_used_unix_ms);
  EXPECT_FALSE(decoded->pinned);
  EXPECT_FALSE(decoded->own_file);
  info.pinned = true;
  EXPECT_EQ(EncodeIndexRecord(info).back(), 1);
  info.own_file = true;
  EXPECT_EQ(EncodeIndexRecord(info).back(), 3);
  decoded = DecodeIndexRecord(EncodeKey(info.key), EncodeIndexRecord(info));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_TRUE(decoded->pinned);
  EXPECT_TRUE(decoded->own_file);
}

TEST(RocksDbFormatTest, FilesAreNamedByKindAndKey) {
  std::string name = FileNameOf(SampleKey());
  EXPECT_EQ(name, "2-" + SampleKey().digest.ToHex());
  EXPECT_EQ(KeyOfFileName(name), SampleKey());
  for (const std::string& other : {std::string(""), std::string("2-"), "9" + name.substr(1),
                                   name + "0", name.substr(1), std::string("..")}) {
    EXPECT_FALSE(KeyOfFileName(other).has_value()) << other;
  }
}

TEST(RocksDbFormatTest, AFileTakesWholeBlocks) {
  EXPECT_EQ(SizeOnDisk(4064), 4096 + 320);
  EXPECT_EQ(SizeOnDisk(4065), 8192 + 320);
  EXPECT_EQ(SizeOnDisk(0), 288);
}

TEST(RocksDbFormatTest, MalformedBytesAreNoEntry) {
  std::string key = EncodeKey(SampleKey());
  std::string record = EncodeIndexRecord({SampleKey(), 1, 2});
  EXPECT_FALSE(DecodeKey("").has_value());
  EXPECT_FALSE(DecodeKey(key.substr(1)).has_value());
  EXPECT_FALSE(DecodeKey(key + "x").has_value());
  std::string unknown_kind = key;
  unknown_kind[0] = 0x7f;
  EXPECT_FALSE(DecodeKey(unknown_kind).has_value());
  EXPECT_FALSE(DecodeIndexRecord(key, record.substr(1)).has_value());
  EXPECT_FALSE(DecodeIndexRecord(key, record + "x").has_value());
  EXPECT_FALSE(DecodeIndexRecord(unknown_kind, record).has_value());
  std::string unknown_flag = record;
  unknown_flag.back() = 4;
  EXPECT_FALSE(DecodeIndexRecord(key, unknown_flag).has_value());
  EXPECT_FALSE(DecodeIndexRecord(key, EncodeIndexRecord({SampleKey(), -1, 2})).has_value());
}

}  // namespace
}  // namespace kiln::cache
