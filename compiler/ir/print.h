// The textual form of a module; parse.h reads it back to an equal module.
#pragma once

#include <string>

#include "compiler/ir/module.h"

namespace kiln::ir {

std::string Print(const Module& module);
std::string Print(const Module& module, const Kernel& kernel);

}  // namespace kiln::ir
