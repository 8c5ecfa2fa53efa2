#include "server/calls/chunker.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <utility>

namespace kiln::server {
namespace {

using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

// The wire format's tag of a length-delimited field.
constexpr uint32_t TagOf(int field) {
  return static_cast<uint32_t>(field) << 3 | 2;
}

void AppendLength(std::string& text, int field, size_t bytes) {
  StringOutputStream stream(&text);
  CodedOutputStream out(&stream);
  out.WriteTag(TagOf(field));
  out.WriteVarint32(static_cast<uint32_t>(bytes));
}

// A piece of the entry's memory that keeps the entry.
grpc::Slice SliceOf(const cache::EntryPtr& entry, absl::string_view data) {
  return grpc::Slice(
      const_cast<char*>(data.data()), data.size(),
      [](void* owner) { delete static_cast<cache::EntryPtr*>(owner); }, new cache::EntryPtr(entry));
}

grpc::ByteBuffer Join(const std::string& head, grpc::Slice data) {
  const grpc::Slice slices[] = {grpc::Slice(head), std::move(data)};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace

Chunker::Parts Chunker::Next() {
  v1::ArtifactChunk first;
  if (offset_ == 0) {
    first.set_total_bytes(static_cast<int64_t>(entry_->bytes.size()));
    first.set_digest(entry_->digest.bytes.data(), entry_->digest.bytes.size());
    first.set_source(std::string(source_));
    first.set_signature(signature_);
  }
  Parts parts{first.SerializeAsString(),
              absl::string_view(entry_->bytes).substr(offset_, kChunkBytes)};
  AppendLength(parts.head, v1::ArtifactChunk::kDataFieldNumber, parts.data.size());
  offset_ += parts.data.size();
  return parts;
}

grpc::ByteBuffer Chunker::NextChunk() {
  const Parts parts = Next();
  return Join(parts.head, SliceOf(entry_, parts.data));
}

grpc::ByteBuffer Chunker::NextEvent() {
  const Parts parts = Next();
  std::string head;
  AppendLength(head, v1::CompileEvent::kChunkFieldNumber, parts.head.size() + parts.data.size());
  return Join(head + parts.head, SliceOf(entry_, parts.data));
}

}  // namespace kiln::server
