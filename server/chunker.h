// Cuts an artifact into the messages of a stream.
#pragma once

#include <algorithm>
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

  // REQUIRES: !AtEnd().
  void Next(v1::ArtifactChunk& chunk) {
    chunk.Clear();
    if (offset_ == 0) {
      chunk.set_total_bytes(static_cast<int64_t>(entry_->bytes.size()));
      chunk.set_digest(entry_->digest.bytes.data(), entry_->digest.bytes.size());
      chunk.set_source(std::string(source_));
      chunk.set_signature(signature_);
    }
    size_t size = std::min(kChunkBytes, entry_->bytes.size() - offset_);
    chunk.set_data(entry_->bytes.data() + offset_, size);
    offset_ += size;
  }

 private:
  cache::EntryPtr entry_;
  absl::string_view source_;
  std::string signature_;  // ArtifactSigner's
  size_t offset_ = 0;
};

}  // namespace kiln::server
