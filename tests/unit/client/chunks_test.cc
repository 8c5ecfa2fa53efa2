#include "client/chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kiln/v1/compile_service.pb.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

v1::ArtifactChunk First(const std::string& whole, const std::string& data) {
  v1::ArtifactChunk chunk;
  chunk.set_total_bytes(static_cast<int64_t>(whole.size()));
  chunk.set_digest(std::string(Sha256(whole).view()));
  chunk.set_data(data);
  chunk.set_source("disk");
  return chunk;
}

v1::ArtifactChunk Next(const std::string& data) {
  v1::ArtifactChunk chunk;
  chunk.set_data(data);
  return chunk;
}

TEST(ChunkReader, PutsChunksTogether) {
  ChunkReader reader;
  ASSERT_TRUE(reader.Add(First("hello world", "hello")).ok());
  ASSERT_TRUE(reader.Add(Next(" ")).ok());
  ASSERT_TRUE(reader.Add(Next("world")).ok());
  auto bytes = reader.Finish();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, "hello world");
  EXPECT_EQ(reader.source(), "disk");
}

TEST(ChunkReader, RefusesMissingAndExtraBytes) {
  ChunkReader missing;
  ASSERT_TRUE(missing.Add(First("hello", "hell")).ok());
  EXPECT_THAT(missing.Finish().status().message(), HasSubstr("4 of 5 bytes"));
  ChunkReader extra;
  ASSERT_TRUE(extra.Add(First("hello", "hell")).ok());
  EXPECT_TRUE(absl::IsDataLoss(extra.Add(Next("oo"))));
  ChunkReader nothing;
  EXPECT_TRUE(absl::IsDataLoss(nothing.Finish().status()));
}

TEST(ChunkReader, RefusesAnotherDigest) {
  ChunkReader reader;
  ASSERT_TRUE(reader.Add(First("hello", "hellO")).ok());
  EXPECT_THAT(reader.Finish().status().message(), HasSubstr("digest"));
}

TEST(ChunkReader, RefusesASenselessFirstChunk) {
  v1::ArtifactChunk chunk = First("hello", "hello");
  chunk.set_total_bytes(-1);
  EXPECT_TRUE(absl::IsDataLoss(ChunkReader().Add(chunk)));
  chunk.set_total_bytes(int64_t{1} << 40);
  EXPECT_TRUE(absl::IsDataLoss(ChunkReader().Add(chunk)));
  chunk = First("hello", "hello");
  chunk.set_digest("short");
  EXPECT_TRUE(absl::IsDataLoss(ChunkReader().Add(chunk)));
}

}  // namespace
}  // namespace kiln
