// What `kiln` says about itself, made of the table of its commands.
#pragma once

#include <string>

#include "client/cli/command.h"

namespace kiln::cli {

struct Command;

std::string HelpOfAll();
std::string HelpOf(const Command& command);

Outcome RunCompletion(const Args& args);  // a script for bash
Outcome RunManual(const Args& args);      // roff, as man(7) has it

}  // namespace kiln::cli
