// The key of any request: computed without fail, blind to names and to orders that mean nothing.
#include <algorithm>
#include <string>

#include "kiln/v1/compile_service.pb.h"
#include "proto/base/key.h"
#include "proto/base/key_description.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/proto_input.h"

namespace {

kiln::Digest KeyOf(const kiln::v1::CompileRequest& request) {
  return kiln::ArtifactKey(request.graph(), request.device(), request.options(), "build");
}

template <typename Repeated>
void Reverse(Repeated& list) {
  std::reverse(list.begin(), list.end());
}

// Another request that means the same.
void ChangeWhatDoesNotCount(kiln::v1::CompileRequest& request) {
  kiln::v1::Graph& graph = *request.mutable_graph();
  graph.set_name(graph.name() + "-renamed");
  for (auto& input : *graph.mutable_inputs()) input.set_name(input.name() + "-renamed");
  for (auto& constant : *graph.mutable_constants()) constant.set_name(constant.name() + "-renamed");
  for (auto& node : *graph.mutable_nodes()) node.set_name(node.name() + "-renamed");
  kiln::v1::Device& device = *request.mutable_device();
  device.set_index(device.index() + 1);
  device.set_model_name(device.model_name() + "-renamed");
  device.set_processors(device.processors() ^ 1);
  device.set_memory_bytes(device.memory_bytes() ^ 1);
  Reverse(*device.mutable_features());
  Reverse(*request.mutable_options()->mutable_disabled_passes());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kiln::v1::CompileRequest request;
  if (!kiln::fuzz::ParseQuietly(data, size, request)) return -1;
  kiln::Digest key = KeyOf(request);
  kiln::v1::CompileRequest copy = request;
  kiln::fuzz::Require(KeyOf(copy) == key, "equal requests have equal keys");
  ChangeWhatDoesNotCount(copy);
  kiln::fuzz::Require(KeyOf(copy) == key, "names, index and order do not count");
  copy = request;
  copy.mutable_options()->set_debug(!copy.options().debug());
  kiln::fuzz::Require(KeyOf(copy) != key, "an option counts");
  copy = request;
  copy.mutable_device()->set_arch(copy.device().arch() + "x");
  kiln::fuzz::Require(KeyOf(copy) != key, "the architecture counts");
  return 0;
}
