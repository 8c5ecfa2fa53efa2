#include "proto/base/compiler_builds.h"

#include "kiln/v1/compile_service.pb.h"

namespace kiln {

CompilerBuilds BuildsOf(const v1::ServerInfo& server) {
  CompilerBuilds builds{.fallback = server.compiler_build(), .by_target = {}};
  for (const v1::TargetBuild& build : server.target_builds()) {
    builds.by_target.emplace(build.target(), build.compiler_build());
  }
  return builds;
}

}  // namespace kiln
