// Which values of a graph are one memory in eager mode: what a user who writes into an output sees.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"

namespace kiln::lowering {

struct Storage {
  // By value: the value whose memory it lies in, itself where it is no view.
  std::vector<int> root;
  // By value: true of a root that two outputs or more lie in, and that a node makes. Such a value
  // has a buffer of its own, however cheap it is to compute, so that its outputs can share it.
  std::vector<bool> is_shared;
};

Storage FindStorage(const graph::Graph& graph);

}  // namespace kiln::lowering
