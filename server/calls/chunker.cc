#include "server/calls/chunker.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

namespace kiln::server {
namespace {

constexpr uint32_t kLengthDelimited = 2;  // a wire type
constexpr uint32_t kDataTag =
    static_cast<uint32_t>(v1::ArtifactChunk::kDataFieldNumber) << 3 | kLengthDelimited;

// The fields but for the data, then what comes before the data's bytes.
std::string SerializeHead(const v1::ArtifactChunk& head, size_t data_bytes) {
  std::string text;
  google::protobuf::io::StringOutputStream stream(&text);
  google::protobuf::io::CodedOutputStream out(&stream);
  head.SerializeToCodedStream(&out);
  out.WriteTag(kDataTag);
  out.WriteVarint32(static_cast<uint32_t>(data_bytes));
  out.Trim();
  return text;
}

// A piece of the entry's memory that keeps the entry.
grpc::Slice SliceOf(const cache::EntryPtr& entry, absl::string_view data) {
  return grpc::Slice(
      const_cast<char*>(data.data()), data.size(),
      [](void* owner) { delete static_cast<cache::EntryPtr*>(owner); }, new cache::EntryPtr(entry));
}

}  // namespace

void Chunker::FillHeader(v1::ArtifactChunk& chunk) const {
  chunk.set_total_bytes(static_cast<int64_t>(entry_->bytes.size()));
  chunk.set_digest(entry_->digest.bytes.data(), entry_->digest.bytes.size());
  chunk.set_source(std::string(source_));
  chunk.set_signature(signature_);
}

absl::string_view Chunker::NextData() {
  const absl::string_view data = absl::string_view(entry_->bytes).substr(offset_, kChunkBytes);
  offset_ += data.size();
  return data;
}

void Chunker::Next(v1::ArtifactChunk& chunk) {
  chunk.Clear();
  if (offset_ == 0) FillHeader(chunk);
  chunk.set_data(std::string(NextData()));
}

grpc::ByteBuffer Chunker::NextSerialized() {
  v1::ArtifactChunk head;
  if (offset_ == 0) FillHeader(head);
  const absl::string_view data = NextData();
  const grpc::Slice slices[] = {grpc::Slice(SerializeHead(head, data.size())),
                                SliceOf(entry_, data)};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace kiln::server
