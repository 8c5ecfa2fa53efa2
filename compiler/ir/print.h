// The textual form of a module; parse.h reads it back to an equal module.
//
// Equal means: the same but for the numbers of loop variables and of indirect operands, and for
// names of symbols and buffers that are missing, taken or no identifiers, which get new ones.
// Print(Parse(Print(m))) == Print(m) for every verified module. A broken module prints too, with
// "?" where something is missing.
#pragma once

#include <functional>
#include <string>

#include "compiler/ir/module.h"

namespace kiln::ir {

std::string Print(const Module& module);
// With `text`, whole lines, in the place of each kernel and repeat.
std::string Print(const Module& module,
                  const std::function<std::string(const Operation& operation)>& text);
std::string Print(const Module& module, const Kernel& kernel);
// One line, without the line's end. REQUIRES: `inst` lies in `kernel`.
std::string Print(const Module& module, const Kernel& kernel, const Inst& inst);

}  // namespace kiln::ir
