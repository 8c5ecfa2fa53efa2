#include "compiler/schedule/interpret_winograd.h"

#include <cmath>

#include "proto/base/status_macros.h"

namespace kiln::schedule {
namespace {

using ir::Lane;

constexpr int kPoints = 4;  // of a tile along one dimension
constexpr double kOfImage[kPoints][kPoints] = {
    {1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}};
constexpr double kOfSums[2][kPoints] = {{1, 1, 1, 0}, {0, 1, -1, -1}};

struct Image {
  int64_t channel_stride, height, row_stride, width, first_row, first_column;
};

absl::StatusOr<double> ElementOf(const Image& image, size_t window, int64_t channel, int64_t row,
                                 int64_t column, const ReadWindow& read) {
  row += image.first_row;
  column += image.first_column;
  if (row < 0 || row >= image.height || column < 0 || column >= image.width) return 0.0;
  KILN_ASSIGN_OR_RETURN(const Lane element, read(window, channel * image.channel_stride +
                                                             row * image.row_stride + column));
  return element.f;
}

// What is not there counts as 0, not as a product with 0: an infinity elsewhere stays there.
double Times(double factor, double x) {
  return factor == 0 ? 0 : factor * x;
}

}  // namespace

absl::Status InterpretWinogradImage(const std::vector<int64_t>& s, const ReadWindow& read,
                                    const WriteFirst& write) {
  const Image image{s[1], s[2], s[3], s[4], s[5], s[6]};
  for (int64_t c = 0; c < s[0]; ++c) {
    for (int64_t tile = 0; tile < s[7] * s[8]; ++tile) {
      double d[kPoints][kPoints];
      for (int64_t i = 0; i < kPoints * kPoints; ++i) {
        KILN_ASSIGN_OR_RETURN(d[i / kPoints][i % kPoints],
                              ElementOf(image, 1, c, 2 * (tile / s[8]) + i / kPoints,
                                        2 * (tile % s[8]) + i % kPoints, read));
      }
      for (int64_t point = 0; point < kPoints * kPoints; ++point) {
        double sum = 0;
        for (int64_t i = 0; i < kPoints * kPoints; ++i) {
          sum +=
              Times(kOfImage[point / kPoints][i / kPoints] * kOfImage[point % kPoints][i % kPoints],
                    d[i / kPoints][i % kPoints]);
        }
        KILN_RETURN_IF_ERROR(write(point * s[10] + c * s[9] + tile, Lane{.f = sum}));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status InterpretWinogradSums(int64_t width, const std::vector<int64_t>& s,
                                   const ReadWindow& read, const WriteFirst& write) {
  const Image image{s[3], s[4], s[5], s[6], s[7], s[8]};
  const int64_t rows = s[9], columns = s[10];
  const auto transformed = [&](int64_t y, int64_t x, int64_t lane) -> absl::StatusOr<double> {
    double sum = 0;
    for (int64_t point = 0; point < kPoints * kPoints; ++point) {
      const double factor = kOfSums[y % 2][point / kPoints] * kOfSums[x % 2][point % kPoints];
      if (factor == 0) continue;
      const int64_t tile = point * s[0] + y / 2 * s[1] + x / 2;
      KILN_ASSIGN_OR_RETURN(const Lane product, read(1, tile * width + lane));
      sum += factor * product.f;
    }
    return sum;
  };
  const auto direct = [&](int64_t y, int64_t x, int64_t lane) -> absl::StatusOr<double> {
    double sum = 0;
    for (int64_t i = 0; i < 9 * s[2]; ++i) {
      KILN_ASSIGN_OR_RETURN(const double element,
                            ElementOf(image, 2, i / 9, y + i % 9 / 3, x + i % 3, read));
      KILN_ASSIGN_OR_RETURN(const Lane weight, read(3, i * width + lane));
      sum += element * weight.f;
    }
    return sum;
  };
  bool is_finite = true;
  for (const bool by_transform : {true, false}) {
    if (!by_transform && is_finite) break;
    for (int64_t i = 0; i < rows * columns * width; ++i) {
      const int64_t y = i / width / columns, x = i / width % columns;
      KILN_ASSIGN_OR_RETURN(const double sum,
                            by_transform ? transformed(y, x, i % width) : direct(y, x, i % width));
      is_finite &= std::isfinite(sum);
      KILN_RETURN_IF_ERROR(write(i, Lane{.f = sum}));
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln::schedule
