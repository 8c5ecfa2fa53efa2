#include "compiler/schedule/micro.h"

#include <bit>
#include <cstdint>
#include <iterator>

namespace kiln::schedule {

using ir::IntContext;
using ir::IntExpr;

namespace {

constexpr MicroInfo kInfos[] = {
#define X(kind, name, constants, windows, sizes) {name, constants, windows, sizes},
    KILN_MICRO_KERNELS(X)
#undef X
};

// Elements from the first to past the last of `rows` by `columns` at these strides.
IntExpr Span(IntContext& ints, IntExpr rows, IntExpr row_stride, IntExpr columns,
             IntExpr column_stride) {
  const IntExpr one = ints.Const(1);
  return ints.Add(ints.Add(ints.Mul(ints.Sub(rows, one), row_stride),
                           ints.Mul(ints.Sub(columns, one), column_stride)),
                  one);
}

// The same of the planes of an image whose rows are contiguous.
IntExpr ImageSpan(IntContext& ints, IntExpr channels, IntExpr channel_stride, IntExpr height,
                  IntExpr row_stride, IntExpr width) {
  return ints.Add(ints.Mul(ints.Sub(channels, ints.Const(1)), channel_stride),
                  Span(ints, height, row_stride, width, ints.Const(1)));
}

}  // namespace

const MicroInfo& Info(MicroKind kind) {
  return kInfos[static_cast<size_t>(kind)];
}

size_t NumWindows(MicroKind kind, const std::vector<int>& constants) {
  size_t count = Info(kind).windows;
  if (IsOfManyQueries(kind) && constants.size() == Info(kind).constants) {
    count += (constants[kAttendMask] != 0 ? 1 : 0) + (constants[kAttendSums] != 0 ? 1 : 0);
  }
  if (kind == MicroKind::kMultiplyRows && constants.size() == Info(kind).constants) {
    count += constants[kRowsInner] != 0 ? 1 : 0;
  }
  return count;
}

float ScaleOf(const std::vector<int>& constants, size_t first) {
  const auto half = [&](size_t i) { return static_cast<uint32_t>(constants[first + i]); };
  return std::bit_cast<float>(half(0) << 16 | half(1));
}

bool AddsTo(MicroKind kind, size_t window) {
  return kind == MicroKind::kAttendGradients && window == OfGradients::kQueries;
}

std::optional<MicroKind> MicroKindFromName(absl::string_view name) {
  for (size_t i = 0; i < std::size(kInfos); ++i) {
    if (kInfos[i].name == name) return static_cast<MicroKind>(i);
  }
  return std::nullopt;
}

Micro PackLanes(IntContext& ints, bool pairs, int width, const Window& to, const Window& from,
                IntExpr lane_stride, IntExpr lanes, IntExpr k) {
  if (pairs) return {MicroKind::kPackPairs, {width}, {to, from}, {lane_stride, lanes, k}};
  return {MicroKind::kPackTransposed, {}, {to, from}, {lane_stride, lanes, k, ints.Const(width)}};
}

std::vector<IntExpr> Reach(IntContext& ints, const Micro& micro) {
  const std::vector<int>& c = micro.constants;
  const std::vector<IntExpr>& s = micro.sizes;
  const IntExpr one = ints.Const(1);
  switch (micro.kind) {
    case MicroKind::kZero:
      return {s[0]};
    case MicroKind::kSort:
    case MicroKind::kSelect:
      return {s[0], s[0]};
    case MicroKind::kCopyRows:
      return {ints.Mul(s[3], c[0]), Span(ints, s[0], s[1], s[3], s[2])};
    case MicroKind::kPackTransposed:
      return {Span(ints, s[2], s[3], s[1], one), Span(ints, s[1], s[0], s[2], one)};
    case MicroKind::kPackPairs:
      return {ints.Mul(s[2], c[0]), Span(ints, s[1], s[0], s[2], one)};
    case MicroKind::kInterleave:
      return {ints.Mul(ints.CeilDiv(s[2], ints.Const(2)), 2 * int64_t{c[0]}),
              Span(ints, s[2], s[0], s[1], one)};
    case MicroKind::kTranspose:
      return {ints.Const(int64_t{c[0]} * c[1]), ints.Const(int64_t{c[0]} * c[1])};
    case MicroKind::kWinogradImage: {
      const IntExpr row = ints.Mul(ints.CeilDiv(s[8], ints.Const(c[0])), c[0]);
      const IntExpr last = ints.Add(ints.Mul(ints.Sub(s[7], one), s[8]), row);
      const IntExpr channel = ints.Mul(ints.Sub(s[0], one), s[9]);
      return {ints.Add(ints.Mul(s[10], 15), ints.Add(channel, last)),
              ImageSpan(ints, s[0], s[1], s[2], s[3], s[4])};
    }
    case MicroKind::kWinogradSums: {
      const int64_t width = int64_t{c[0]} * c[1];
      return {ints.Mul(ints.Mul(s[9], s[10]), width), ints.Mul(s[0], 16 * width),
              ImageSpan(ints, s[2], s[3], s[4], s[5], s[6]), ints.Mul(s[2], 9 * width)};
    }
    case MicroKind::kMultiplyRows:
      if (c[kRowsInner] != 0) {
        return {ints.Const(int64_t{c[0]} * c[1]), Span(ints, s[0], s[3], s[2], s[4]),
                ints.Mul(s[1], s[5]),
                Span(ints, ints.CeilDiv(s[2], ints.Const(c[kRowsGroup])), s[6], ints.Mul(s[1], 2),
                     one)};
      }
      [[fallthrough]];
    case MicroKind::kMultiplyTile:
    case MicroKind::kMultiplyWarps:
      return {ints.Const(int64_t{c[0]} * c[1]), Span(ints, s[0], s[3], s[2], s[4]),
              Span(ints, s[1], s[5], s[2], s[6])};
    case MicroKind::kAttendTile:
    case MicroKind::kAttendWarps: {
      const IntExpr width = ints.Const(c[0]);
      std::vector<IntExpr> reach = {
          Span(ints, s[0], s[3], width, one), Span(ints, s[0], s[4], width, one),
          Span(ints, s[2], s[5], width, one), Span(ints, s[2], s[6], width, one)};
      if (c[kAttendMask] != 0) reach.push_back(Span(ints, s[0], s[7], s[2], one));
      if (c[kAttendSums] != 0) reach.push_back(Span(ints, s[0], s[8], one, one));
      return reach;
    }
    case MicroKind::kAttendGradients: {
      using Of = OfGradients;
      std::vector<IntExpr> reach;
      for (size_t window = Of::kKeys; window <= Of::kDots; ++window) {
        const bool has_lanes = window != Of::kLogSums && window != Of::kDots;
        const IntExpr lanes = has_lanes ? ints.Const(c[Of::kWidth]) : one;
        const IntExpr rows = s[Of::HasHeads(window) ? Of::kNumQueries : Of::kRows];
        reach.push_back(Span(ints, rows, s[Of::RowStride(window)], lanes, one));
        if (!Of::HasHeads(window)) continue;
        const IntExpr heads = ints.Mul(s[Of::HeadStride(window)], int64_t{c[Of::kOfKey]} - 1);
        reach.back() = ints.Add(reach.back(), heads);
      }
      return reach;
    }
    case MicroKind::kAttend:
    case MicroKind::kAttendMasked: {
      const auto rows = [&](size_t strides, IntExpr last, IntExpr stride) {
        return ints.Add(Span(ints, s[0], s[strides], s[1], s[strides + 1]),
                        ints.Mul(ints.Sub(last, one), stride));
      };
      std::vector<IntExpr> reach = {rows(4, s[3], one), rows(6, s[3], one),
                                    Span(ints, s[2], s[8], s[3], one),
                                    Span(ints, s[2], s[9], s[3], one)};
      if (micro.kind == MicroKind::kAttendMasked) reach.push_back(rows(10, s[2], s[12]));
      return reach;
    }
    case MicroKind::kMultiplyPairs:
    case MicroKind::kMultiply: {
      const IntExpr k_stride = micro.kind == MicroKind::kMultiply ? s[2] : one;
      const int64_t width = int64_t{c[0]} * c[2];
      return {ints.Const(c[1] * width), Span(ints, ints.Const(c[1]), s[1], s[0], k_stride),
              ints.Mul(s[0], width)};
    }
  }
  return {};
}

IntExpr Work(IntContext& ints, const Micro& micro) {
  const std::vector<int>& c = micro.constants;
  const std::vector<IntExpr>& s = micro.sizes;
  switch (micro.kind) {
    case MicroKind::kZero:
      return s[0];
    case MicroKind::kSort:
      return ints.Mul(s[0], 10);
    case MicroKind::kSelect:
      return s[0];
    case MicroKind::kCopyRows:
      return ints.Mul(s[3], c[0]);
    case MicroKind::kPackTransposed:
    case MicroKind::kPackPairs:
    case MicroKind::kInterleave:
      return ints.Mul(s[1], s[2]);
    case MicroKind::kTranspose:
      return ints.Const(int64_t{c[0]} * c[1]);
    case MicroKind::kWinogradImage:
      return ints.Mul(ints.Mul(s[0], s[7]), ints.Mul(s[8], 16));
    case MicroKind::kWinogradSums:
      return ints.Mul(ints.Mul(s[9], s[10]), int64_t{4} * c[0] * c[1]);
    case MicroKind::kMultiply:
    case MicroKind::kMultiplyPairs:
      return ints.Mul(s[0], int64_t{c[0]} * c[1] * c[2]);
    case MicroKind::kMultiplyTile:
    case MicroKind::kMultiplyRows:
    case MicroKind::kMultiplyWarps:
      return ints.Mul(s[2], int64_t{c[0]} * c[1]);
    case MicroKind::kAttendTile:
    case MicroKind::kAttendWarps:
      return ints.Mul(ints.Mul(s[0], s[2]), 2 * int64_t{c[0]});
    case MicroKind::kAttendGradients:
      return ints.Mul(ints.Mul(s[OfGradients::kRows], s[OfGradients::kNumQueries]),
                      int64_t{5} * c[OfGradients::kWidth] * c[OfGradients::kOfKey]);
    case MicroKind::kAttend:
    case MicroKind::kAttendMasked:
      return ints.Mul(ints.Mul(ints.Mul(s[0], s[1]), ints.Mul(s[2], s[3])), 2);
  }
  return ints.Const(0);
}

}  // namespace kiln::schedule
