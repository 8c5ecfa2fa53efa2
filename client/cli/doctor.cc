// `kiln doctor`: a screen that says what works here.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "kiln/kiln.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/device.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/target_name.h"

namespace kiln::cli {
namespace {

constexpr int kElements = 1024;
constexpr int kFeaturesShown = 12;

// y = relu(x): small, and compiled like everything else.
v1::Graph SmallGraph() {
  v1::TensorType tensor;
  tensor.set_dtype(v1::DTYPE_FLOAT32);
  tensor.add_sizes()->set_value(kElements);
  tensor.add_strides()->set_value(1);
  v1::Graph graph;
  graph.set_format_version(1);
  graph.set_name("doctor");
  v1::Input& input = *graph.add_inputs();
  input.set_name("x");
  input.set_role(v1::Input::ROLE_USER);
  *input.mutable_type()->mutable_tensor() = tensor;
  v1::Node& node = *graph.add_nodes();
  node.set_name("y");
  node.set_op("aten.relu.default");
  node.add_args()->set_value(0);
  *node.add_results()->mutable_tensor() = tensor;
  graph.add_outputs()->set_value(1);
  return graph;
}

void PrintDevice(const v1::Device& device) {
  std::vector<std::string> features(device.features().begin(), device.features().end());
  const size_t more = features.size() > kFeaturesShown ? features.size() - kFeaturesShown : 0;
  features.resize(features.size() - more);
  std::printf("device     %s for %s, %d threads\n", device.arch().c_str(),
              std::string(TargetName(device.target())).c_str(), device.processors());
  std::printf("features   %s%s\n", absl::StrJoin(features, " ").c_str(),
              more > 0 ? absl::StrCat(" and ", more, " more").c_str() : "");
}

}  // namespace

Outcome RunDoctor(const Args& args) {
  if (!args.positional().empty()) return Usage("kiln doctor takes no arguments");
  auto client = MakeClient(args, false);
  if (!client.ok()) return Usage(client.status());
  std::printf("kiln       %s\n", kiln_version());
  PrintDevice((*client)->device());
  std::printf("server     %s\n", (*client)->server().c_str());
  auto info = (*client)->GetServerInfo();
  if (!info.ok()) return Failed(info.status());
  std::printf("           answers: version %s, compiler %s, %d workers\n", info->version().c_str(),
              info->compiler_build().c_str(), info->workers());
  PrintCaches(*info);
  auto compiled = (*client)->Compile(SmallGraph());
  if (!compiled.ok()) return Failed(compiled.status());
  std::printf("compile    %s in %.1f ms, loaded in %.1f ms\n", compiled->source,
              compiled->fetch_ms + compiled->compile_ms, compiled->load_ms);
  return Ok();
}

}  // namespace kiln::cli
