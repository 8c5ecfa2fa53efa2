#include "compiler/codegen/cpp/cpp_target.h"

#include <utility>

#include "compiler/codegen/cpp/kernel_printer.h"
#include "compiler/schedule/cpu/schedule.h"

namespace kiln::codegen {
namespace {

class CppTarget : public Target {
 public:
  explicit CppTarget(DeviceInfo device) : device_(std::move(device)) {}

  absl::string_view name() const override { return "cpp"; }

  absl::StatusOr<schedule::Tree> Schedule(ir::Module& module,
                                          const ir::Kernel& kernel) const override {
    return schedule::cpu::ScheduleKernel(module, kernel, device_);
  }

  absl::StatusOr<EmittedKernel> Print(ir::Module& module,
                                      const schedule::Tree& tree) const override {
    EmittedKernel emitted = cpp::PrintKernel(module, tree);
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
