// What an operator who listens beyond this machine should know.
#pragma once

#include <string>
#include <vector>

#include "server/config.h"

namespace kiln::server {

// A sentence each; empty where only this machine can connect.
std::vector<std::string> ExposureWarnings(const Config& config);

}  // namespace kiln::server
