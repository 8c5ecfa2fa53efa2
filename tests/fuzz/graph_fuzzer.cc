// Bytes as a kiln.v1.Graph, through import: any bytes give a graph or an error with a place.
#include "compiler/graph/import.h"
#include "compiler/ir/int_expr.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/error_detail.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/proto_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kiln::v1::Graph proto;
  if (!kiln::fuzz::ParseQuietly(data, size, proto)) return -1;
  kiln::ir::IntContext ints;
  auto graph = kiln::graph::Import(proto, ints);
  if (!graph.ok()) {
    kiln::fuzz::Require(absl::IsInvalidArgument(graph.status()), "a bad graph is INVALID_ARGUMENT");
    kiln::fuzz::Require(!graph.status().message().empty(), "an error has a sentence");
    kiln::fuzz::Require(!kiln::graph::Import(proto, ints).ok(), "a bad graph stays one");
    return 0;
  }
  kiln::fuzz::Require(kiln::graph::CheckCounts(proto).ok(), "an imported graph is within limits");
  for (const kiln::graph::Node& node : graph->nodes) {
    for (kiln::graph::ValueRef result : node.results) {
      kiln::fuzz::Require(result.id >= 0 && result.id < static_cast<int>(graph->values.size()),
                          "results are numbered values");
    }
  }
  return 0;
}
