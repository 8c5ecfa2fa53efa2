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

TEST(RocksDbFormatTest, IndexRecordsAreTwoLittleEndianWords) {
  EntryInfo info{SampleKey(), 0x0102030405060708, 0x1112131415161718};
  std::string raw = EncodeIndexRecord(info);
  EXPECT_EQ(raw, "\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11");
  auto decoded = DecodeIndexRecord(EncodeKey(info.key), raw);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->key, info.key);
  EXPECT_EQ(decoded->size_bytes, info.size_bytes);
  EXPECT_EQ(decoded->last_used_unix_ms, info.last_used_unix_ms);
}

TEST(RocksDbFormatTest, MalformedBytesAreNoEntry) {
  std::string key = EncodeKey(SampleKey());
  std::string record = EncodeIndexRecord({SampleKey(), 1, 2});
  EXPECT_FALSE(DecodeKey("").has_value());
  EXPECT_FALSE(DecodeKey(key.substr(1)).has_value());
  EXPECT_FALSE(DecodeKey(key + "x").has_value());
  std::string unknown_kind = key;
  unknown_kind[0] = 3;
  EXPECT_FALSE(DecodeKey(unknown_kind).has_value());
  EXPECT_FALSE(DecodeIndexRecord(key, record.substr(1)).has_value());
  EXPECT_FALSE(DecodeIndexRecord(key, record + "x").has_value());
  EXPECT_FALSE(DecodeIndexRecord(unknown_kind, record).has_value());
  EXPECT_FALSE(DecodeIndexRecord(key, EncodeIndexRecord({SampleKey(), -1, 2})).has_value());
}

}  // namespace
}  // namespace kiln::cache
