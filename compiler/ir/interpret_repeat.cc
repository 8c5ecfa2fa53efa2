// A Repeat with windows, tile by tile: each kernel runs its part of its loops, and what an earlier
// tile left in tile buffers is gone.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

class RepeatInterpreter {
 public:
  RepeatInterpreter(const Module& module, const Repeat& repeat, absl::Span<const int64_t> symbols,
                    std::vector<Storage>& storage, const Resources& resources)
      : module_(module),
        repeat_(repeat),
        symbols_(symbols),
        storage_(storage),
        resources_(resources) {}

  absl::Status Run() {
    begins_.assign(repeat_.steps.size(), 0);
    return RunLoop(0);
  }

 private:
  struct Range {
    int64_t begin, end;
  };

  int64_t Evaluate(IntExpr size) const { return ProgramBuilder(module_, symbols_).Evaluate(size); }

  // Iterations of the repeat's own loop.
  int64_t Extent(size_t loop) const {
    return Evaluate(repeat_.kernels.back().outer[loop].extent());
  }

  absl::Status RunLoop(size_t loop) {
    if (loop == repeat_.steps.size()) return RunTile();
    for (int64_t& begin = begins_[loop] = 0; begin < Extent(loop); begin += repeat_.steps[loop]) {
      KILN_RETURN_IF_ERROR(RunLoop(loop + 1));
    }
    return absl::OkStatus();
  }

  absl::Status RunTile() {
    for (size_t b = 0; b < module_.buffers.size(); ++b) {
      if (module_.buffers[b].kind == BufferKind::kTile) Poison(static_cast<BufferId>(b));
    }
    for (size_t k = 0; k < repeat_.kernels.size(); ++k) {
      const absl::Status status =
          InterpretKernel(module_, PartOf(k), symbols_, storage_, resources_);
      if (status.ok()) continue;
      return absl::Status(
          status.code(), absl::StrCat("kernel @", repeat_.kernels[k].name, ": ", status.message()));
    }
    return absl::OkStatus();
  }

  void Poison(BufferId buffer) {
    Lane lane{.i = std::numeric_limits<int64_t>::min() / 3};
    if (IsFloat(module_.buffers[buffer].dtype)) lane.f = std::numeric_limits<double>::quiet_NaN();
    std::fill(storage_[buffer].begin(), storage_[buffer].end(), lane);
  }

  Range RangeOf(size_t kernel, size_t loop) const {
    const TileWindow window = repeat_.WindowOf(kernel, loop);
    const int64_t extent = Evaluate(repeat_.kernels[kernel].outer[loop].extent());
    const int64_t last = std::min(begins_[loop] + repeat_.steps[loop], Extent(loop)) - 1;
    const int64_t begin = window.scale * begins_[loop] + window.low;
    const int64_t end = window.scale * last + window.high + 1;
    return {std::clamp<int64_t>(begin, 0, extent), std::clamp<int64_t>(end, 0, extent)};
  }

  // The kernel with the tile's part of its loops instead of them.
  Kernel PartOf(size_t number) const {
    IntContext& ints = *module_.ints;
    Kernel kernel = repeat_.kernels[number];
    IntContext::VarMap map;
    for (size_t i = 0; i < repeat_.steps.size(); ++i) {
      const Range range = RangeOf(number, i);
      const IntExpr part = ints.NewVar(ints.Const(std::max<int64_t>(0, range.end - range.begin)));
      map[kernel.outer[i]] = ints.Add(part, range.begin);
      kernel.outer[i] = part;
    }
    for (Phase& phase : kernel.phases) {
      for (Inst& inst : phase.body) {
        for (IntExpr& index : inst.indices) index = ints.Substitute(index, map);
        for (IntExpr& check : inst.checks) check = ints.Substitute(check, map);
      }
    }
    return kernel;
  }

  const Module& module_;
  const Repeat& repeat_;
  const absl::Span<const int64_t> symbols_;
  std::vector<Storage>& storage_;
  const Resources& resources_;
  std::vector<int64_t> begins_;  // of the tile at hand
};

}  // namespace

absl::Status InterpretRepeat(const Module& module, const Repeat& repeat,
                             absl::Span<const int64_t> symbols, std::vector<Storage>& storage,
                             const Resources& resources) {
  return RepeatInterpreter(module, repeat, symbols, storage, resources).Run();
}

}  // namespace kiln::ir
