#include "compiler/schedule/interpret_queries.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "proto/base/status_macros.h"

namespace kiln::schedule {
using ir::Lane;

absl::Status InterpretFewQueries(const ir::Module& module, const Micro& micro,
                                 const std::vector<int64_t>& sizes, const ReadWindow& read,
                                 const WriteFirst& write) {
  constexpr double kForbidden = -std::numeric_limits<double>::infinity();
  const std::vector<int64_t>& s = sizes;
  const double scale = std::bit_cast<float>(micro.constants[2]);
  const bool has_mask = micro.kind == MicroKind::kAttendMasked;
  const bool is_bool = has_mask && module.buffers[micro.windows[4].buffer].dtype == DType::kBool;

  const auto score = [&](int64_t g, int64_t l, int64_t n) -> absl::StatusOr<double> {
    double product = 0;
    for (int64_t i = 0; i < s[3]; ++i) {
      KILN_ASSIGN_OR_RETURN(const Lane x, read(1, g * s[6] + l * s[7] + i));
      KILN_ASSIGN_OR_RETURN(const Lane y, read(2, n * s[8] + i));
      product += x.f * y.f;
    }
    if (!has_mask) return scale * product;
    KILN_ASSIGN_OR_RETURN(const Lane mask, read(4, g * s[10] + l * s[11] + n * s[12]));
    if (is_bool) return mask.i != 0 ? scale * product : kForbidden;
    return scale * product + mask.f;
  };
  for (int64_t row = 0; row < s[0] * s[1]; ++row) {
    const int64_t g = row / s[1], l = row % s[1];
    std::vector<double> scores(s[2]), sums(s[3]);
    double greatest = kForbidden, all = 0;
    for (int64_t n = 0; n < s[2]; ++n) {
      KILN_ASSIGN_OR_RETURN(scores[n], score(g, l, n));
      greatest = std::max(greatest, scores[n]);
    }
    for (int64_t n = 0; n < s[2]; ++n) {
      const double weight = scores[n] == kForbidden ? 0 : std::exp(scores[n] - greatest);
      all += weight;
      for (int64_t i = 0; i < s[3]; ++i) {
        KILN_ASSIGN_OR_RETURN(const Lane y, read(3, n * s[9] + i));
        sums[i] += weight * y.f;
      }
    }
    for (int64_t i = 0; i < s[3]; ++i) {
      const Lane result{.f = all == 0 ? 0 : sums[i] / all};
      KILN_RETURN_IF_ERROR(write(g * s[4] + l * s[5] + i, result));
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln::schedule
