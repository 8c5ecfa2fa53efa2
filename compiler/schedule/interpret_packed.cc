#include "compiler/schedule/interpret_packed.h"

#include <array>

#include "compiler/ir/packed_weights.h"
#include "compiler/schedule/micro.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule {

absl::Status InterpretPackedRows(const ir::Module& module, const Micro& micro,
                                 const std::vector<int64_t>& sizes, const ReadWindow& read,
                                 const WriteFirst& write) {
  constexpr uint64_t kMask = 15;
  const int rows = micro.constants[0], columns = micro.constants[1];
  const int64_t inner = micro.constants[kRowsInner], group = micro.constants[kRowsGroup];
  const int64_t depth = sizes[2], column_words = sizes[5], group_stride = sizes[6];
  ir::IntContext& ints = *module.ints;
  const auto element = [&](int64_t column, int64_t k) -> absl::StatusOr<double> {
    const auto [octet, tiles, lane, word] =
        ir::PackedWord(ints, inner, ints.Const(column), ints.Const(k));
    const int64_t of_lane = inner / 2, of_tiles = ir::kPackedLanes * of_lane;
    KILN_ASSIGN_OR_RETURN(
        const ir::Lane packed,
        read(2, octet.value() * ir::kPackedColumns * column_words + tiles.value() * of_tiles +
                    lane.value() * of_lane + word.value()));
    const int64_t shift = ir::PackedShift(ints, ints.Const(k)).value();
    const auto number =
        static_cast<double>(static_cast<uint64_t>(packed.i) >> shift & kMask) - ir::kPackedMiddle;
    const int64_t of_group = k / group * group_stride + 2 * column;
    KILN_ASSIGN_OR_RETURN(const ir::Lane scale, read(3, of_group));
    KILN_ASSIGN_OR_RETURN(const ir::Lane zero, read(3, of_group + 1));
    return number * scale.f + zero.f;
  };
  for (int64_t column = 0; column < columns; ++column) {
    std::vector<double> weights;
    for (int64_t k = 0; column < sizes[1] && k < depth; ++k) {
      KILN_ASSIGN_OR_RETURN(const double weight, element(column, k));
      weights.push_back(weight);
    }
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t k = 0; r < sizes[0] && k < static_cast<int64_t>(weights.size()); ++k) {
        KILN_ASSIGN_OR_RETURN(const ir::Lane x, read(1, r * sizes[3] + k * sizes[4]));
        sum += x.f * weights[k];
      }
      KILN_RETURN_IF_ERROR(write(r * columns + column, ir::Lane{.f = sum}));
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln::schedule
