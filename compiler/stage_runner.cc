#include "compiler/stage_runner.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln {

absl::Status StageRunner::Run(absl::string_view stage, const std::function<absl::Status()>& body) {
  if (stop_) KILN_RETURN_IF_ERROR(stop_());
  auto start = std::chrono::steady_clock::now();
  absl::Status status = body();
  auto duration = std::chrono::steady_clock::now() - start;
  timings_.push_back(
      {std::string(stage), std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count()});
  if (module_.ints->IsExhausted()) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("the graph's sizes and indices take more than ", module_.ints->budget(),
                     " steps, which is the budget for a graph of its length"));
  }
  return Annotate(status, stage);
}

absl::Status StageRunner::RunOnIr(absl::string_view stage,
                                  const std::function<absl::Status()>& body) {
  KILN_RETURN_IF_ERROR(Run(stage, [&] {
    KILN_RETURN_IF_ERROR(body());
    return ir::Verify(module_);
  }));
  Keep(stage, [&] { return ir::Print(module_); });
  return absl::OkStatus();
}

void StageRunner::Keep(absl::string_view stage, const std::function<std::string()>& text) {
  if (keep_ir_) dumps_.push_back({std::string(stage), text()});
}

}  // namespace kiln
