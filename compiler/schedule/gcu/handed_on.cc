#include "compiler/schedule/gcu/handed_on.h"

#include <utility>

#include "absl/algorithm/container.h"

namespace kiln::schedule::gcu {

using ir::BufferId;
using ir::Inst;
using ir::ScalarOp;

std::vector<BufferId> Handing::Of(size_t begin, size_t end) const {
  std::vector<BufferId> out;
  for (size_t k = begin; k < end; ++k) {
    ir::ForEachInst(std::get<ir::Kernel>(module_.operations[k]), [&](const Inst& inst) {
      if (inst.op != ScalarOp::kStore || !own_[inst.buffer] || LastUse(inst.buffer) >= end) return;
      if (!absl::c_linear_search(out, inst.buffer)) out.push_back(inst.buffer);
    });
  }
  return out;
}

Handing::Peak Handing::PeakOf(const std::vector<BufferId>& kept, size_t begin, size_t end,
                              const std::vector<int64_t>& bytes,
                              const std::vector<bool>& lasting) const {
  std::vector<int64_t> more(end - begin + 1, 0);
  for (size_t i = 0; i < kept.size(); ++i) {
    const bool lasts = !lasting.empty() && lasting[i];
    more[lasts ? 0 : *uses_.StorerOf(kept[i]) - begin] += bytes[i] + 512;
    more[lasts ? end - begin : LastUse(kept[i]) + 1 - begin] -= bytes[i] + 512;
  }
  Peak peak{0, begin};
  int64_t live = 0;
  for (size_t k = begin; k < end; ++k) {
    live += more[k - begin];
    if (live > peak.bytes) peak = {live, k};
  }
  return peak;
}

std::vector<BufferId> Handing::Keep(std::vector<BufferId> kept, size_t begin, size_t end,
                                    std::vector<int64_t> bytes, int64_t room) const {
  for (size_t i = kept.size(); i-- > 0;) {
    if (bytes[i] <= room) continue;
    kept.erase(kept.begin() + static_cast<ptrdiff_t>(i));
    bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(i));
  }
  while (true) {
    const Peak peak = PeakOf(kept, begin, end, bytes);
    if (peak.bytes <= room) return kept;
    double worst = -1;
    size_t out = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      const size_t first = *uses_.StorerOf(kept[i]);
      if (first > peak.kernel || LastUse(kept[i]) < peak.kernel) continue;
      const auto length = static_cast<double>(LastUse(kept[i]) - first + 1);
      const double score = length / static_cast<double>(1 + uses_.LoadersOf(kept[i]).size());
      if (score > worst) {
        worst = score;
        out = i;
      }
    }
    kept.erase(kept.begin() + static_cast<ptrdiff_t>(out));
    bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(out));
  }
}

}  // namespace kiln::schedule::gcu
