// Reassembly of an artifact that arrives in chunks.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/digest.h"

namespace kiln {
namespace v1 {
class ArtifactChunk;
}

class ChunkReader {
 public:
  // DATA_LOSS where the first chunk lacks a sane size or digest, or more bytes come than announced.
  absl::Status Add(const v1::ArtifactChunk& chunk);
  // The artifact's bytes; DATA_LOSS where some are missing or the digest differs. Once.
  absl::StatusOr<std::string> Finish();

  const std::string& source() const { return source_; }
  const Digest& digest() const { return digest_; }
  const std::string& signature() const { return signature_; }

 private:
  bool started_ = false;
  int64_t total_ = 0;
  Digest digest_;
  std::string bytes_;
  std::string source_;
  std::string signature_;
};

}  // namespace kiln
