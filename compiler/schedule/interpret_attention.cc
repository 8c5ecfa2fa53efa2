#include "compiler/schedule/interpret_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "compiler/schedule/micro.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule {

absl::Status InterpretAttention(const std::vector<int>& constants,
                                const std::vector<int64_t>& sizes, const ReadWindow& read,
                                const WriteWindow& write) {
  constexpr size_t kResult = 0, kQuery = 1, kKey = 2, kValue = 3, kMask = 4;
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const auto scale = static_cast<double>(ScaleOf(constants, kAttendScale));
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

absl::Status InterpretGradients(
    const std::vector<int>& constants, const std::vector<int64_t>& sizes, const ReadWindow& read,
    const WriteWindow& write, const std::function<absl::Status(int64_t index, double value)>& add) {
  using Of = OfGradients;
  const auto scale = static_cast<double>(ScaleOf(constants, Of::kScale));
  const int64_t width = constants[Of::kWidth], rows = sizes[Of::kRows];
  const auto place = [&](size_t window, int64_t head, int64_t row) {
    const int64_t of_heads = Of::HasHeads(window) ? head * sizes[Of::HeadStride(window)] : 0;
    return of_heads + row * sizes[Of::RowStride(window)];
  };
  const auto vector = [&](size_t window, int64_t head, int64_t row,
                          std::vector<double>& out) -> absl::Status {
    for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
      KILN_ASSIGN_OR_RETURN(const ir::Lane lane, read(window, place(window, head, row) + i));
      out[i] = lane.f;
    }
    return absl::OkStatus();
  };
  const auto product = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  std::vector<double> query(width), grad(width), key(width), value(width), log_sum(1), dot(1);
  for (int64_t k = 0; k < rows; ++k) {
    KILN_RETURN_IF_ERROR(vector(Of::kKey, 0, k, key));
    KILN_RETURN_IF_ERROR(vector(Of::kValue, 0, k, value));
    std::vector<double> of_key(width), of_value(width);
    for (int64_t h = 0; h < constants[Of::kOfKey]; ++h) {
      const int64_t first = constants[Of::kCausal] != 0 ? sizes[Of::kRow] + k : 0;
      for (int64_t q = first; q < sizes[Of::kNumQueries]; ++q) {
        KILN_RETURN_IF_ERROR(vector(Of::kQuery, h, q, query));
        KILN_RETURN_IF_ERROR(vector(Of::kGrad, h, q, grad));
        KILN_RETURN_IF_ERROR(vector(Of::kLogSums, h, q, log_sum));
        KILN_RETURN_IF_ERROR(vector(Of::kDots, h, q, dot));
        const double weight = std::exp(scale * product(query, key) - log_sum[0]);
        const double slope = weight * (product(grad, value) - dot[0]);
        for (int64_t i = 0; i < width; ++i) {
          of_value[i] += weight * grad[i];
          of_key[i] += slope * query[i];
          KILN_RETURN_IF_ERROR(add(place(Of::kQueries, h, q) + i, slope * key[i]));
        }
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      KILN_RETURN_IF_ERROR(write(Of::kKeys, place(Of::kKeys, 0, k) + i, scale * of_key[i]));
      KILN_RETURN_IF_ERROR(write(Of::kValues, place(Of::kValues, 0, k) + i, of_value[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln::schedule
