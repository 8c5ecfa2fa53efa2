// Which compiler a server has for each target: part of the key of what it compiles.
#pragma once

#include <map>
#include <string>

namespace kiln {
namespace v1 {
class ServerInfo;
}

struct CompilerBuilds {
  std::string fallback;                       // of targets that the map does not name
  std::map<int, std::string> by_target = {};  // by number of kiln.v1.Target
  const std::string& For(int target) const {
    const auto found = by_target.find(target);
    return found == by_target.end() ? fallback : found->second;
  }
};

// A server of before it said so for each target has one for all.
CompilerBuilds BuildsOf(const v1::ServerInfo& server);

}  // namespace kiln
