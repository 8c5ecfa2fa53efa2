// Which buffers hold the same values, found by numbering them: two operations store the same where
// they do the same with operands that are the same. Private to compiler/fusion.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/fusion/fusion_graph.h"
#include "compiler/ir/module.h"

namespace kiln::fusion {

class ValueNumbers {
 public:
  // Buffers of both, of equal types and strides, in the order in which they are first stored.
  using Pairs = std::vector<std::pair<ir::BufferId, ir::BufferId>>;
  struct Same {
    int id = -1;   // of the first operation added that does the same
    Pairs stored;  // by that one, and by the one added now
  };

  // Borrows the graph, whose buffers may be renamed to others that hold the same.
  explicit ValueNumbers(FusionGraph& graph);

  // Adds operation `id` and gives the first one added before that does the same, numbers compared
  // by their bits. Takes time linear in the operation's size. REQUIRES: a Kernel or a Repeat;
  // those whose results it reads were added before.
  Same Add(int id);

 private:
  uint64_t Fingerprint(const Op& op) const;
  bool AreSame(const ir::Operation& a, const ir::Operation& b, Pairs& stored);
  bool AreSame(const ir::Kernel& a, const ir::Kernel& b, Pairs& stored);
  bool HoldSame(const ir::Inst& inst, ir::BufferId buffer, Pairs& stored) const;

  FusionGraph& graph_;
  std::vector<ir::BufferId> number_;  // by BufferId: the first that is the same
  absl::flat_hash_map<uint64_t, std::vector<int>> known_;  // by fingerprint
};

}  // namespace kiln::fusion
