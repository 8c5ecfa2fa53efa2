// A compile as the web page shows it.
#pragma once

namespace kiln {
namespace v1 {
class Artifact;
class CompileDetail;
class Graph;
}  // namespace v1

namespace server {

// `artifact` is the compile of `graph` with CompileOptions.debug. Nothing in the graph is trusted:
// what does not refer to anything is left out.
void DescribeCompile(const v1::Graph& graph, const v1::Artifact& artifact, v1::CompileDetail& out);

}  // namespace server
}  // namespace kiln
