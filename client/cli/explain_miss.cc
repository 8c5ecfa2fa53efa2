// `kiln explain-miss`: in what a graph's key differs from the nearest one that the server knows.
#include <cstdio>

#include "client/cli/command.h"
#include "kiln/v1/compile_service.pb.h"

namespace kiln::cli {
namespace {

void PrintDifference(const v1::KeyDifference& difference) {
  const char* nothing = "(nothing)";
  std::printf("%s\n  asked    %s\n  nearest  %s\n", difference.component().c_str(),
              difference.asked().empty() ? nothing : difference.asked().c_str(),
              difference.nearest().empty() ? nothing : difference.nearest().c_str());
}

void PrintText(const v1::ExplainMissResponse& answer) {
  std::printf("key      %s\n", answer.key().c_str());
  if (answer.hit()) {
    std::printf("hit: the server has this artifact\n");
    return;
  }
  if (answer.nearest_key().empty()) {
    std::printf("miss: the server knows no other key to compare with\n");
    return;
  }
  if (answer.differences().empty()) {
    std::printf("miss: the server had this very artifact and evicted or removed it\n");
    return;
  }
  std::printf("nearest  %s (%s), of %lld compared\n\n", answer.nearest_key().c_str(),
              answer.nearest_graph().c_str(), static_cast<long long>(answer.compared()));
  for (const v1::KeyDifference& difference : answer.differences()) PrintDifference(difference);
}

}  // namespace

Outcome RunExplainMiss(const Args& args) {
  if (args.positional().size() != 1) return Usage("kiln explain-miss takes one GRAPH");
  v1::SavedGraph::Asked asked;
  auto graph = GraphArgument(args, &asked);
  if (!graph.ok()) return Failed(graph.status());
  auto client = MakeClient(args, false, asked);
  if (!client.ok()) return Usage(client.status());
  auto answer = (*client)->ExplainMiss(*graph);
  if (!answer.ok()) return Failed(answer.status());
  if (args.Has("--json")) {
    PrintJson(*answer);
  } else {
    PrintText(*answer);
  }
  return Ok();
}

}  // namespace kiln::cli
