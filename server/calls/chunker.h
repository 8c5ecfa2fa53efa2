// Cuts an artifact into the messages of a stream.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "cache/store.h"
#include "kiln/v1/compile_service.pb.h"

namespace kiln::server {

inline constexpr size_t kChunkBytes = 1 << 20;

// Keeps the entry until the last chunk is out, whatever the cache evicts meanwhile.
class Chunker {
 public:
  Chunker() = default;
  Chunker(cache::EntryPtr entry, absl::string_view source, std::string signature)
      : entry_(std::move(entry)), source_(source), signature_(std::move(signature)) {}

  bool AtEnd() const { return offset_ >= entry_->bytes.size(); }

  // The next ArtifactChunk as it travels; its data is the entry's own memory, which is not copied.
  // REQUIRES: !AtEnd().
  grpc::ByteBuffer NextChunk();
  // The same within a CompileEvent.
  grpc::ByteBuffer NextEvent();

 private:
  struct Parts {
    std::string head;  // the chunk up to its data's first byte
    absl::string_view data;
  };
  Parts Next();

  cache::EntryPtr entry_;
  absl::string_view source_;
  std::string signature_;  // ArtifactSigner's
  size_t offset_ = 0;
};

}  // namespace kiln::server
