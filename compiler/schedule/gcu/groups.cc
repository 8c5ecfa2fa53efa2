#include "compiler/schedule/gcu/groups.h"

namespace kiln::schedule::gcu {

void Group(ir::Module&, const Machine&, const Trial&) {}

}  // namespace kiln::schedule::gcu
