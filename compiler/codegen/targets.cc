#include "compiler/codegen/targets.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/cpp/cpp_target.h"
#include "compiler/codegen/gcu/gcu_target.h"
#include "compiler/codegen/null/null_target.h"
#include "compiler/codegen/ptx/ptx_target.h"

namespace kiln::codegen {

const std::vector<TargetKind>& Targets() {
  static const auto* targets = new std::vector<TargetKind>{
      CppTargetKind(),
      GcuTargetKind(),
      NullTargetKind(),
      PtxTargetKind(),
  };
  return *targets;
}

absl::StatusOr<const TargetKind*> FindTarget(absl::string_view name) {
  for (const TargetKind& target : Targets()) {
    if (target.name == name) return &target;
  }
  return absl::UnimplementedError(
      absl::StrCat("this build has no target ", name, "; it has ",
                   absl::StrJoin(Targets(), ", ", [](std::string* out, const TargetKind& target) {
                     absl::StrAppend(out, target.name);
                   })));
}

}  // namespace kiln::codegen
