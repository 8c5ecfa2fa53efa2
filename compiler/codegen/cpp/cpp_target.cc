#include "compiler/codegen/cpp/cpp_target.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "compiler/codegen/cpp/contraction.h"
#include "compiler/codegen/cpp/loops.h"
#include "compiler/codegen/cpp/vector_plan.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen {

bool DeviceInfo::HasFeature(absl::string_view feature) const {
  return absl::c_binary_search(features, feature,
                               [](absl::string_view a, absl::string_view b) { return a < b; });
}

namespace {

class CppTarget : public Target {
 public:
  explicit CppTarget(DeviceInfo device) : device_(std::move(device)) {}

  absl::string_view name() const override { return "cpp"; }

  absl::StatusOr<EmittedKernel> Emit(ir::Module& module, const ir::Kernel& kernel) const override {
    const cpp::VectorIsa isa = cpp::IsaOf(device_);
    KILN_ASSIGN_OR_RETURN(EmittedKernel emitted,
                          kernel.schedule == ir::Schedule::kContraction
                              ? cpp::EmitContraction(module, kernel, isa, device_)
                              : cpp::EmitLoops(module, kernel, isa, device_));
    emitted.prelude = CppPrelude();
    return emitted;
  }

 private:
  DeviceInfo device_;
};

}  // namespace

std::unique_ptr<Target> MakeCppTarget(DeviceInfo device) {
  return std::make_unique<CppTarget>(std::move(device));
}

}  // namespace kiln::codegen
