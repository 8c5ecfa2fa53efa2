#include "compiler/schedule/tree.h"

namespace kiln::schedule {

absl::string_view SpaceName(Space space) {
  switch (space) {
    case Space::kRegister:
      return "reg";
    case Space::kL1:
      return "l1";
    case Space::kL2:
      return "l2";
    case Space::kGlobal:
      return "global";
  }
  return "";
}

}  // namespace kiln::schedule
