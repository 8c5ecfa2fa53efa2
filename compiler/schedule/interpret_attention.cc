#include "compiler/schedule/interpret_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compiler/schedule/micro.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule {

absl::Status InterpretAttention(
    const std::vector<int>& constants, const std::vector<int64_t>& sizes,
    const std::function<absl::StatusOr<ir::Lane>(size_t window, int64_t index)>& read,
    const std::function<absl::Status(size_t window, int64_t index, double value)>& write) {
  constexpr size_t kResult = 0, kQuery = 1, kKey = 2, kValue = 3, kMask = 4;
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const auto scale = static_cast<double>(AttendScale(constants));
  const int64_t width = constants[0], keys = sizes[2];
  const int mask_kind = constants[kAttendMask];
  for (int64_t r = 0; r < sizes[0]; ++r) {
    const bool is_causal = constants[kAttendCausal] != 0;
    const int64_t seen = is_causal ? std::min(keys, sizes[1] + r + 1) : keys;
    std::vector<double> scores(keys, kNever);
    for (int64_t k = 0; k < seen; ++k) {
      ir::Lane mask;
      if (mask_kind != 0) {
        KILN_ASSIGN_OR_RETURN(mask, read(kMask, r * sizes[7] + k));
      }
      if (mask_kind == 1 && mask.i == 0) continue;
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) {
        KILN_ASSIGN_OR_RETURN(const ir::Lane x, read(kQuery, r * sizes[4] + i));
        KILN_ASSIGN_OR_RETURN(const ir::Lane y, read(kKey, k * sizes[5] + i));
        sum += x.f * y.f;
      }
      scores[k] = sum * scale + (mask_kind == 2 ? mask.f : 0);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    const bool is_empty = most == kNever;
    double total = 0;
    for (double& score : scores) total += score = is_empty ? 0 : std::exp(score - most);
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < seen; ++k) {
        KILN_ASSIGN_OR_RETURN(const ir::Lane value, read(kValue, k * sizes[6] + i));
        sum += scores[k] * value.f;
      }
      KILN_RETURN_IF_ERROR(write(kResult, r * sizes[3] + i, is_empty ? 0 : sum / total));
    }
    if (constants[kAttendSums] == 0) continue;
    const size_t sums = kMask + (mask_kind != 0 ? 1 : 0);
    KILN_RETURN_IF_ERROR(write(sums, r * sizes[8], is_empty ? 0 : most + std::log(total)));
  }
  return absl::OkStatus();
}

}  // namespace kiln::schedule
