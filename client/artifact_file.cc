// Files that hold graphs and artifacts.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/graph_inputs.h"
#include "kiln/client.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/digest.h"

namespace kiln {
namespace {

constexpr absl::string_view kMagic = "KILNART1";
constexpr size_t kHeaderBytes = 8 + 32;
constexpr int64_t kMostGraphBytes = int64_t{1} << 30;

}  // namespace

absl::StatusOr<Graph> Graph::Parse(absl::string_view bytes) {
  auto graph = std::make_shared<v1::Graph>();
  if (bytes.size() > kMostGraphBytes ||
      !graph->ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      graph->format_version() == 0) {
    return absl::InvalidArgumentError("the bytes are no saved graph (.kgraph)");
  }
  return Graph(std::move(graph));
}

size_t Graph::num_inputs() const {
  return static_cast<size_t>(message_->inputs_size());
}

absl::string_view Graph::input_name(size_t input, size_t which) const {
  const std::string* name = InputName(*message_, input, which);
  return name == nullptr ? "" : absl::string_view(*name);
}

absl::StatusOr<Graph> LoadGraph(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(
        absl::StrCat("cannot read the graph '", path, "': ", std::strerror(errno)));
  }
  in.seekg(0, std::ios::end);
  if (in.tellg() > kMostGraphBytes) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is too large for a graph"));
  }
  in.seekg(0);
  auto graph = std::make_shared<v1::Graph>();
  if (!graph->ParseFromIstream(&in) || graph->format_version() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is no saved graph (.kgraph)"));
  }
  return Graph(std::move(graph));
}

std::string ToArtifactFile(absl::string_view artifact_bytes) {
  return absl::StrCat(kMagic, Sha256(artifact_bytes).view(), artifact_bytes);
}

bool IsArtifactFile(absl::string_view data) {
  return absl::StartsWith(data, kMagic);
}

absl::StatusOr<absl::string_view> FromArtifactFile(absl::string_view data) {
  if (!IsArtifactFile(data)) return absl::DataLossError("this is no artifact file");
  if (data.size() < kHeaderBytes) return absl::DataLossError("the artifact file is cut off");
  absl::string_view bytes = data.substr(kHeaderBytes);
  if (Sha256(bytes).view() != data.substr(kMagic.size(), 32)) {
    return absl::DataLossError("the artifact file is damaged: its digest does not match");
  }
  return bytes;
}

}  // namespace kiln
