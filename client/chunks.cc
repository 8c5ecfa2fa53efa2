#include "client/chunks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr int64_t kMostArtifactBytes = 256 << 20;
constexpr int64_t kMostReserved = 1 << 20;  // memory is for bytes that came, not for announced ones

}  // namespace

absl::Status ChunkReader::Add(const v1::ArtifactChunk& chunk) {
  if (!started_) {
    started_ = true;
    total_ = chunk.total_bytes();
    if (total_ <= 0 || total_ > kMostArtifactBytes) {
      return absl::DataLossError(absl::StrCat("the server announced ", total_,
                                              " bytes; expected 1 to ", kMostArtifactBytes));
    }
    auto digest = Digest::FromBytes(chunk.digest());
    if (!digest.ok()) return absl::DataLossError("the server sent no digest of the artifact");
    digest_ = *digest;
    source_ = chunk.source();
    signature_ = chunk.signature();
    bytes_.reserve(std::min(total_, kMostReserved));
  }
  if (static_cast<int64_t>(chunk.data().size()) > total_ - static_cast<int64_t>(bytes_.size())) {
    return absl::DataLossError("the server sent more bytes than it announced");
  }
  bytes_.append(chunk.data());
  return absl::OkStatus();
}

absl::StatusOr<std::string> ChunkReader::Finish() {
  if (static_cast<int64_t>(bytes_.size()) != total_ || !started_) {
    return absl::DataLossError(
        absl::StrCat("the server sent ", bytes_.size(), " of ", total_, " bytes"));
  }
  if (Sha256(bytes_) != digest_) {
    return absl::DataLossError("the artifact was damaged on its way: its digest does not match");
  }
  return std::move(bytes_);
}

}  // namespace kiln
