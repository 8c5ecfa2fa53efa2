// Which ATen operators give views, for whoever must know which values of a graph are one memory.
#pragma once

#include "absl/strings/string_view.h"

namespace kiln {

enum class ViewKind : unsigned char {
  kNone,
  kWhole,   // begins where its argument begins
  kWindow,  // may begin elsewhere
};

// Of "aten.NAME.OVERLOAD": whether its results lie in the memory of its first argument. Operators
// that may copy (reshape, contiguous, to) count as none: capture leaves none of them.
ViewKind ViewKindOf(absl::string_view op);

}  // namespace kiln
