#include "proto/base/view_ops.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/strip.h"

namespace kiln {

ViewKind ViewKindOf(absl::string_view op) {
  static const auto* const kinds = [] {
    auto* map = new absl::flat_hash_map<absl::string_view, ViewKind>;
    for (absl::string_view name :
         {"_reshape_alias", "_unsafe_view", "alias", "detach", "expand", "expand_as", "flatten",
          "numpy_T", "permute", "squeeze", "t", "transpose", "unsqueeze", "view"}) {
      (*map)[name] = ViewKind::kWhole;
    }
    for (absl::string_view name : {"as_strided", "diagonal", "select", "slice", "split",
                                   "split_with_sizes", "unbind", "unfold"}) {
      (*map)[name] = ViewKind::kWindow;
    }
    return map;
  }();
  if (!absl::ConsumePrefix(&op, "aten.")) return ViewKind::kNone;
  const auto it = kinds->find(op.substr(0, op.find('.')));
  return it == kinds->end() ? ViewKind::kNone : it->second;
}

}  // namespace kiln
