// The table of micro-kernels: what a schedule may take from a target's prelude as one piece.
#pragma once

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "compiler/ir/int_expr.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// X(kind, name, number of constants, windows, sizes)
#define KILN_MICRO_KERNELS(X)                                                                      \
  /* to[0, count) = 0 */                                                                           \
  X(kZero, "zero", 0, 1, 1)                                                                        \
  /* <MR>(to, from; rows, row_stride, k_stride, k):                                                \
     to[r * k + i] = from[min(r, rows - 1) * row_stride + i * k_stride], r < MR, i < k */          \
  X(kCopyRows, "copy_rows", 1, 2, 4)                                                               \
  /* (to, from; lane_stride, lanes, k, k_stride):                                                  \
     to[i * k_stride + lane] = from[lane * lane_stride + i], lane < lanes, i < k */                \
  X(kPackTransposed, "pack_transposed", 0, 2, 4)                                                   \
  /* <W>(to, from; lane_stride, lanes, k), lane_stride and k even:                                 \
     to[i / 2 * 2 * W + 2 * lane + i % 2] = from[lane * lane_stride + i], lane < lanes <= W, i < k \
   */                                                                                              \
  X(kPackPairs, "pack_pairs", 1, 2, 3)                                                             \
  /* <W>(to, from; k_stride, lanes, k):                                                            \
     to[i / 2 * 2 * W + 2 * lane + i % 2] = from[i * k_stride + lane], lane < lanes <= W, i < k */ \
  X(kInterleave, "interleave", 1, 2, 3)                                                            \
  /* <ROWS, LANES>(to, from): to[lane * ROWS + row] = from[row * LANES + lane]; multiples of 4 */  \
  X(kTranspose, "transpose", 2, 2, 0)                                                              \
  /* <VL>(to, image; channels, channel_stride, height, row_stride, width, first_row,               \
     first_column, tile_rows, tile_columns, pitch, plane), all of f32; d[i, j] = image[c *         \
     channel_stride + (first_row + 2 * y + i) * row_stride + first_column + 2 * x + j], 0 outside  \
     of height and width, B = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}}:         \
     to[(4 * i + j) * plane + c * pitch + y * tile_columns + x] = (B d B^T)[i, j], i and j < 4,    \
     c < channels, y < tile_rows, x < tile_columns <= kMostTileColumns; up to VL - 1 elements      \
     behind a row of tiles are lost, where they are none of the next */                            \
  X(kWinogradImage, "winograd_image", 1, 2, 11)                                                    \
  /* <VL, NV>(to, products, image, panel; pitch, tile_columns, channels, channel_stride, height,   \
     row_stride, width, first_row, first_column, rows, columns), W = VL * NV, all of f32; m[i, j]  \
     = products[((4 * i + j) * pitch + y / 2 * tile_columns + x / 2) * W + lane], A = {{1, 1, 1,   \
     0}, {0, 1, -1, -1}}: to[(y * columns + x) * W + lane] = (A m A^T)[y % 2, x % 2], y < rows,    \
     x < columns; where one of them is not finite all are the sum over c < channels, i and j < 3   \
     of image[c * channel_stride + (first_row + y + i) * row_stride + first_column + x + j], 0     \
     outside of height and width, times panel[(9 * c + 3 * i + j) * W + lane] */                   \
  X(kWinogradSums, "winograd_sums", 2, 4, 11)                                                      \
  /* <VL, MR, NV>(tile, a, panel; k, row_stride, k_stride), W = VL * NV; one type, or a panel of   \
     f16 or bf16 and the others of f32:                                                            \
     tile[r * W + lane] = sum over i < k of a[r * row_stride + i * k_stride] * panel[i * W + lane] \
   */                                                                                              \
  X(kMultiply, "multiply", 3, 3, 3)                                                                \
  /* <VL, MR, NV>(tile, a, panel; k, row_stride), W = VL * NV, k even; a and panel of bf16, the    \
     tile and the sums of f32:                                                                     \
     tile[r * W + lane] = sum over i < k of                                                        \
         a[r * row_stride + i] * panel[i / 2 * 2 * W + 2 * lane + i % 2] */                        \
  X(kMultiplyPairs, "multiply_pairs", 3, 3, 2)                                                     \
  /* <ROWS, COLUMNS, STAGES, TURNS, CLUSTER>(tile, a, b; rows, columns, k, row_stride,             \
     row_k_stride, column_stride, column_k_stride), by all threads of the team; a and b of bf16 or \
     of f16, the tile and the sums of f32; of operands in STAGES steps at a time, tiles in turn by \
     halves of the team where TURNS is 1; of CLUSTER tiles one below the other the columns'        \
     operand is loaded once:                                                                       \
     tile[r * COLUMNS + c] = sum over i < k of a[r * row_stride + i * row_k_stride] *              \
         b[c * column_stride + i * column_k_stride] where r < rows and c < columns, else 0 */      \
  X(kMultiplyTile, "multiply_tile", 5, 3, 7)                                                       \
  /* <ROWS, COLUMNS, STAGES, BOXES, OF_WARP, GROUPS, CLUSTER, INNER, GROUP>, the same of few rows, \
     for which b may be of i8: by groups of warps that take steps of k in turn, and blocks that    \
     share a tile by k. Where INNER is not 0 (tile, a, b, scales; rows, columns, k, row_stride,    \
     row_k_stride, column_words, group_stride): b of i32 and scales of a's type are weights of 4   \
     bits with INNER tiles of a lane and groups of GROUP (ir/packed_weights.h), rounded to a's     \
     type; b takes column_words for each column, and scales group_stride for each group */         \
  X(kMultiplyRows, "multiply_rows", 9, 3, 7)                                                       \
  /* <ROWS, COLUMNS, STAGES, STEP, WARP_ROWS, WARP_COLUMNS, BLOCKS>, as multiply_tile: by warps    \
     that have a part of the tile each, WARP_ROWS by WARP_COLUMNS, in steps of STEP; BLOCKS, how   \
     many tasks may run on a multiprocessor at a time */                                           \
  X(kMultiplyWarps, "multiply_warps", 7, 3, 7)                                                     \
  /* <WIDTH, GROUPS, KEYS, STAGES, TURNS, PLACES, PERSISTENT, CAUSAL, MASK, SUMS, HIGH,            \
     LOW>(result, query, key, value, then mask where MASK is not 0, sums where SUMS is 1; rows,    \
     row, keys, result_stride, query_stride, key_stride, value_stride, mask_stride, sums_stride),  \
     rows of bf16 or f16, WIDTH contiguous elements each; HIGH and                                 \
     LOW: halves of the bits of scale, a float; how it runs is in GROUPS to PERSISTENT             \
     (schedule/ptx/attention.h); scores[r, k] = scale * sum over i < WIDTH of query[r, i] * key[k, \
     i], where MASK is 2 plus mask[r, k], and -inf where mask[r, k] is false and MASK is 1, or k > \
     row + r and CAUSAL is 1: result[r, i] = sum over k < keys of softmax(scores[r])[k] * value[k, \
     i], 0 where all scores are -inf; sums[r] = log(sum over k < keys of exp(scores[r, k])), 0     \
     there, r < rows */                                                                            \
  X(kAttendTile, "attend_tile", 12, 4, 9)                                                          \
  /* <WIDTH, ROWS, WARP_ROWS, KEYS, STAGES, BLOCKS, KEPT, CAUSAL, MASK, SUMS, HIGH, LOW>, as       \
     attend_tile: by warps that have WARP_ROWS of ROWS rows each (schedule/ptx/attention_warps.h)  \
   */                                                                                              \
  X(kAttendWarps, "attend_warps", 12, 4, 9)                                                        \
  /* <WIDTH, QUERIES, STAGES, OF_KEY, CAUSAL, HIGH, LOW>(of_keys, of_values, of_queries, query,    \
     key, value, grad, log_sums, dots; rows, row, queries, the windows' row strides, the head      \
     strides of of_queries, query, grad, log_sums and dots), of bf16 or f16, but of_queries,       \
     log_sums and dots of f32; by steps of QUERIES, in STAGES; HIGH and LOW: as attend_tile's. For \
     h < OF_KEY, q < queries and k < rows: w = exp(scale * sum over i < WIDTH of query[h, q, i] *  \
     key[k, i] - log_sums[h, q]), 0 where row + k > q and CAUSAL is 1; d = w * (sum over i of      \
     grad[h, q, i] * value[k, i] - dots[h, q]): of_values[k, i] = sum over h and q of w *          \
     grad[h, q, i]; of_keys[k, i] = scale * sum over h and q of d * query[h, q, i]; to             \
     of_queries[h, q, i], whose buffer is Tree::zeroed, is added the sum over k of d * key[k, i]   \
   */                                                                                              \
  X(kAttendGradients, "attend_gradients", 7, 9, 17)                                                \
  /* <STAGES, CLUSTER, SCALE>(out, q, k, v; groups, queries, keys, width, out_group, out_query,    \
     q_group, q_query, k_key, v_key), by all threads of the team; SCALE the bits of a float; all   \
     of 16 bits. For g < groups and l < queries, out from g * out_group + l * out_query on: the    \
     sum over n < keys of w[n] * v[n * v_key + i] for i < width, w = softmax over n of SCALE *     \
     sum over i of q[g * q_group + l * q_query + i] * k[n * k_key + i] */                          \
  X(kAttend, "attend", 3, 4, 10)                                                                   \
  /* (..., mask; ..., mask_group, mask_query, mask_key), the same with mask[g * mask_group + l *   \
     mask_query + n * mask_key] added to what softmax is of, or, of bool, with keys left out where \
     it is false; zeros where all are */                                                           \
  X(kAttendMasked, "attend_masked", 3, 5, 13)                                                      \
  /* (row, scratch; count): row[0, count) of i64 in ascending order */                             \
  X(kSort, "sort", 0, 2, 1)                                                                        \
  /* (row, scratch; count, k): row[0, min(k, count)) = the least of row[0, count), ascending; the  \
     rest is lost */                                                                               \
  X(kSelect, "select", 0, 2, 2)

struct MicroInfo {
  absl::string_view name;
  size_t constants, windows, sizes;
};
const MicroInfo& Info(MicroKind kind);
// How many windows it has with these constants: of attention of many queries and kMultiplyRows more
// than its Info says.
size_t NumWindows(MicroKind kind, const std::vector<int>& constants);
inline bool IsOfManyQueries(MicroKind kind) {
  return kind == MicroKind::kAttendTile || kind == MicroKind::kAttendWarps;
}
// Constants of attention of many queries, by number.
inline constexpr size_t kAttendCausal = 7, kAttendMask = 8, kAttendSums = 9, kAttendScale = 10;
// Windows, constants and sizes of kAttendGradients.
struct OfGradients {
  enum Window : size_t { kKeys, kValues, kQueries, kQuery, kKey, kValue, kGrad, kLogSums, kDots };
  enum Constant : size_t { kWidth, kStep, kStages, kOfKey, kCausal, kScale };
  enum Size : size_t { kRows, kRow, kNumQueries, kRowStrides };
  // The stride of its rows, and of its heads, among the sizes; of heads alone of what has some.
  static constexpr size_t RowStride(size_t window) { return kRowStrides + window; }
  static constexpr size_t HeadStride(size_t window) {
    constexpr size_t kFirst = size_t{kRowStrides} + kDots + 1;
    return window == kQueries ? kFirst
           : window == kQuery ? kFirst + 1
                              : kFirst + window - kGrad + 2;
  }
  static constexpr bool HasHeads(size_t window) {
    return window == kQueries || window == kQuery || window >= kGrad;
  }
};
// The float whose bits' halves are constants number `first` and the next one.
float ScaleOf(const std::vector<int>& constants, size_t first);
// Whether it adds to its window number `window`.
bool AddsTo(MicroKind kind, size_t window);
// kMultiplyPairs of a multiple of so many rows is by matrix instructions, where a device has them.
inline constexpr int kMatrixRows = 16;
// Of kWinogradImage: tiles side by side.
inline constexpr int64_t kMostTileColumns = 64;
inline bool IsOfWinograd(MicroKind kind) {
  return kind == MicroKind::kWinogradImage || kind == MicroKind::kWinogradSums;
}
// Constants of kMultiplyRows, by number.
inline constexpr size_t kRowsInner = 7, kRowsGroup = 8;
std::optional<MicroKind> MicroKindFromName(absl::string_view name);
inline bool IsOfFewQueries(MicroKind kind) {
  return kind == MicroKind::kAttend || kind == MicroKind::kAttendMasked;
}
// Whether it is a product of matrices on a GPU's tensor cores.
inline bool IsOfTensorCores(MicroKind kind) {
  return kind == MicroKind::kMultiplyTile || kind == MicroKind::kMultiplyRows ||
         kind == MicroKind::kMultiplyWarps;
}

// [k][lane] with `width` lanes, or of `pairs` [k / 2][lane][k % 2], from what is contiguous along
// k.
Micro PackLanes(ir::IntContext& ints, bool pairs, int width, const Window& to, const Window& from,
                ir::IntExpr lane_stride, ir::IntExpr lanes, ir::IntExpr k);

// How many elements of each window it reaches, from the window's index on; none where a size is 0.
std::vector<ir::IntExpr> Reach(ir::IntContext& ints, const Micro& micro);

// Multiply-adds, or elements moved.
ir::IntExpr Work(ir::IntContext& ints, const Micro& micro);

}  // namespace kiln::schedule
