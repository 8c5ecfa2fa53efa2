// Bundle files: what is written is read, and what is damaged is named and skipped.
#include "client/bundle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/signing.h"
#include "tests/temp_dir.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kHeaderBytes = 196;
constexpr size_t kStartBytes = 12;

class BundleTest : public ::testing::Test {
 protected:
  BundleTest() {
    key_ = SigningKey::LoadOrCreate(folder_.path() + "/signing.key").value();
    std::filesystem::remove(folder_.path() + "/signing.key");
    path_ = folder_.path() + "/cache.bundle";
  }

  static std::string KeyOf(int number) {
    return std::string(Sha256(absl::StrCat("key ", number)).view());
  }
  static std::string BytesOf(int number) {
    return std::string(static_cast<size_t>(number) * 100, static_cast<char>('a' + number));
  }

  // Entries 0 to 3, of 0 to 300 bytes, each in two records.
  void WriteBundle() {
    std::filesystem::remove(path_);
    auto writer = BundleWriter::Create(path_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (int i = 0; i < 4; ++i) {
      std::string bytes = BytesOf(i);
      v1::CacheRecord record;
      record.set_kind(i % 2 ? "kernel" : "artifact");
      record.set_key(KeyOf(i));
      record.set_digest(std::string(Sha256(bytes).view()));
      record.set_total_bytes(static_cast<int64_t>(bytes.size()));
      record.set_public_key(key_->public_key());
      record.set_signature(key_->Sign(i % 2 ? kKernelKind : kArtifactKind,
                                      Digest::FromBytes(KeyOf(i)).value(), Sha256(bytes)));
      record.set_data(bytes.substr(0, bytes.size() / 2));
      ASSERT_TRUE((*writer)->Add(record).ok());
      if (bytes.empty()) continue;
      v1::CacheRecord rest;
      rest.set_data(bytes.substr(bytes.size() / 2));
      ASSERT_TRUE((*writer)->Add(rest).ok());
    }
    EXPECT_FALSE(std::filesystem::exists(path_)) << "no half bundle has the name";
    ASSERT_TRUE((*writer)->Finish().ok());
    EXPECT_EQ((*writer)->entries(), 4);
    EXPECT_EQ((*writer)->size_bytes(), static_cast<int64_t>(std::filesystem::file_size(path_)));
  }
  std::string Contents() {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void SetContents(const std::string& contents) {
    std::ofstream(path_, std::ios::binary) << contents;
  }
  // Where entry `number` begins.
  static size_t OffsetOf(int number) {
    size_t offset = kStartBytes;
    for (int i = 0; i < number; ++i) offset += kHeaderBytes + BytesOf(i).size();
    return offset;
  }

  // The numbers of the entries that are read; what is wrong goes to damage_.
  std::vector<int> Read() {
    damage_.clear();
    std::vector<int> numbers;
    auto reader =
        BundleReader::Open(path_, [this](const std::string& what) { damage_.push_back(what); });
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return numbers;
    while (auto entry = (*reader)->Next()) {
      for (int i = 0; i < 4; ++i) {
        if (entry->key != KeyOf(i)) continue;
        numbers.push_back(i);
        EXPECT_EQ(entry->bytes, BytesOf(i));
        EXPECT_EQ(entry->digest, Sha256(BytesOf(i)));
        EXPECT_EQ(entry->kind, i % 2 ? "kernel" : "artifact");
        EXPECT_TRUE(CheckSigner(*entry, {key_->public_key()}).ok());
      }
    }
    return numbers;
  }

  const TempDir folder_;
  std::string path_;
  std::unique_ptr<SigningKey> key_;
  std::vector<std::string> damage_;
};

TEST_F(BundleTest, WhatIsWrittenIsRead) {
  ASSERT_NO_FATAL_FAILURE(WriteBundle());
  EXPECT_THAT(Read(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(damage_, IsEmpty());
}

TEST_F(BundleTest, AFlippedByteInAValueIsNamedAndTheRestIsRead) {
  ASSERT_NO_FATAL_FAILURE(WriteBundle());
  std::string contents = Contents();
  contents[OffsetOf(2) + kHeaderBytes + 5] ^= 1;
  SetContents(contents);
  EXPECT_THAT(Read(), ElementsAre(0, 1, 3));
  EXPECT_THAT(damage_, ElementsAre(HasSubstr(absl::BytesToHexString(KeyOf(2)))));
}

TEST_F(BundleTest, AFlippedByteInAHeaderIsNamedByItsPlaceAndTheRestIsRead) {
  ASSERT_NO_FATAL_FAILURE(WriteBundle());
  const std::string contents = Contents();
  // Mark, kind, key, digest, signer, signature, count, check.
  for (size_t byte : {0, 5, 30, 60, 90, 150, 182, 195}) {
    std::string damaged = contents;
    damaged[OffsetOf(1) + byte] ^= 0x40;
    SetContents(damaged);
    EXPECT_THAT(Read(), ElementsAre(0, 2, 3)) << byte;
    EXPECT_THAT(damage_, ElementsAre(HasSubstr(absl::StrCat("byte ", OffsetOf(1))))) << byte;
  }
}

TEST_F(BundleTest, AFileThatEndsEarlyGivesWholeEntriesOnlyWhereverItEnds) {
  ASSERT_NO_FATAL_FAILURE(WriteBundle());
  const std::string contents = Contents();
  for (size_t size = kStartBytes; size < contents.size(); size += 3) {
    SetContents(contents.substr(0, size));
    std::vector<int> numbers = Read();
    for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<int>(i));
    int whole = 0;
    while (whole < 4 && OffsetOf(whole + 1) <= size) ++whole;
    EXPECT_EQ(static_cast<int>(numbers.size()), whole) << "cut to " << size;
    EXPECT_THAT(damage_, ElementsAre(HasSubstr("early"))) << "cut to " << size;
  }
}

TEST_F(BundleTest, MissingBytesInTheMiddleCostOneEntry) {
  ASSERT_NO_FATAL_FAILURE(WriteBundle());
  std::string contents = Contents();
  contents.erase(OffsetOf(2) + kHeaderBytes + 50, 20);
  SetContents(contents);
  EXPECT_THAT(Read(), ElementsAre(0, 1, 3));
  EXPECT_THAT(damage_, ElementsAre(HasSubstr(absl::BytesToHexString(KeyOf(2)))));
}

TEST_F(BundleTest, AWholeEntryCutOutIsMissed) {
  ASSERT_NO_FATAL_FAILURE(WriteBundle());
  std::string contents = Contents();
  contents.erase(OffsetOf(1), OffsetOf(2) - OffsetOf(1));
  SetContents(contents);
  EXPECT_THAT(Read(), ElementsAre(0, 2, 3));
  EXPECT_THAT(damage_, ElementsAre(HasSubstr("1 of 4 entries")));
}

TEST_F(BundleTest, OtherFilesAndOtherVersionsAreRefusedWithASentence) {
  auto open = [this] { return BundleReader::Open(path_, [](const std::string&) {}).status(); };
  EXPECT_EQ(open().code(), absl::StatusCode::kNotFound);
  for (const char* other : {"", "KILN", "KILNART1 and more bytes"}) {
    SetContents(other);
    EXPECT_EQ(open().code(), absl::StatusCode::kInvalidArgument) << other;
  }
  ASSERT_NO_FATAL_FAILURE(WriteBundle());
  std::string contents = Contents();
  contents[8] = 1;
  SetContents(contents);
  EXPECT_THAT(std::string(open().message()), HasSubstr("version 1"));
}

TEST_F(BundleTest, ForgedEntriesAreToldFromOthers) {
  ASSERT_NO_FATAL_FAILURE(WriteBundle());
  auto reader = BundleReader::Open(path_, [](const std::string&) {});
  ASSERT_TRUE(reader.ok());
  const BundleEntry entry = (*reader)->Next().value();
  const std::vector<std::string> keys = {std::string(32, 'x'), key_->public_key()};
  EXPECT_TRUE(CheckSigner(entry, keys).ok());
  const absl::Status stranger = CheckSigner(entry, {std::string(32, 'x')});
  EXPECT_EQ(stranger.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(stranger.message()), HasSubstr(FormatPublicKey(key_->public_key())));
  const auto forged = [&](const std::function<void(BundleEntry&)>& change) {
    BundleEntry changed = entry;
    change(changed);
    return CheckSigner(changed, keys).code();
  };
  using enum absl::StatusCode;
  EXPECT_EQ(forged([](BundleEntry& e) { e.kind = "kernel"; }), kDataLoss);
  EXPECT_EQ(forged([](BundleEntry& e) { e.kind = "other"; }), kDataLoss);
  EXPECT_EQ(forged([](BundleEntry& e) { e.key[0] ^= 1; }), kDataLoss);
  EXPECT_EQ(forged([](BundleEntry& e) { e.digest = Sha256("other bytes"); }), kDataLoss);
  EXPECT_EQ(forged([](BundleEntry& e) { e.signature[5] ^= 1; }), kDataLoss);
  EXPECT_EQ(forged([](BundleEntry& e) { e.public_key = std::string(32, 'x'); }), kDataLoss);
}

TEST_F(BundleTest, RecordsThatDoNotFitTogetherAreRefusedAndLeaveNoFile) {
  v1::CacheRecord record;
  record.set_kind("artifact");
  record.set_key(KeyOf(1));
  record.set_digest(KeyOf(2));
  record.set_public_key(key_->public_key());
  record.set_signature(std::string(kSignatureBytes, 's'));
  record.set_total_bytes(10);
  record.set_data("12345");
  {
    auto writer = BundleWriter::Create(path_);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Add(record).ok());
    EXPECT_EQ((*writer)->Add(record).code(), absl::StatusCode::kDataLoss) << "half an entry";
    EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kDataLoss);
  }
  {
    auto writer = BundleWriter::Create(path_);
    ASSERT_TRUE(writer.ok());
    record.set_total_bytes(4);
    EXPECT_EQ((*writer)->Add(record).code(), absl::StatusCode::kDataLoss) << "more than it said";
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

}  // namespace
}  // namespace kiln
