#include "compiler/schedule/ptx/few_rows.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/ptx/cost.h"

namespace kiln::schedule::ptx {
namespace {

constexpr int kLineBytes = 128;       // of a box along what is contiguous
constexpr int kPackedLineBytes = 64;  // the same of packed weights
constexpr int kHalfBytes = 2;         // of an element of the first operand
constexpr int kHalfBits = 16, kPackedBits = 4;
constexpr int kEight = 8, kSixteen = 16;  // rows and columns of an instruction
constexpr int64_t kAlignment = 1024;
constexpr int64_t kMostStages = 64;

// A shape for any number of rows, and of its time, microseconds: `start`; then what takes longer,
// reading `weights` of them and `rows` of the first operand, millions of bytes a microsecond, or
// multiplying, for each stage of a block `step` and `row` for each row. Fitted to measurements on
// an H100 (132 multiprocessors), each kernel after another of the kind, weights in no cache: of ten
// sizes of weights by 1 to 64 rows the choice takes 1.6 % longer than the fastest in the mean, 13 %
// at most.
struct Candidate {
  int columns, boxes, of_warp, groups, cluster;
  double start, weights, rows, step, row;
};
constexpr Candidate kOfHalves[] = {
    {16, 2, 1, 4, 1, 1.01, 3.135, 20.2, .0895, .00202},
    {32, 2, 1, 2, 1, 1.34, 3.127, 25.3, .1028, .00252},
    {32, 2, 1, 4, 2, 1.64, 3.073, 6.9, .0031, .00671},
    {48, 2, 1, 2, 1, 1.16, 2.912, 22.5, .1054, .00538},
    {64, 2, 1, 2, 1, 1.32, 2.864, 30.5, .1058, .00688},
    {112, 1, 1, 2, 1, 3.90, 2.868, 36.9, .0990, .00451},
};
constexpr Candidate kOfBytes[] = {
    {16, 1, 1, 8, 1, 1.30, 1.716, 74.4, .0769, .00246},
    {32, 1, 1, 4, 1, 2.00, 2.812, 20.4, .0869, .00177},
    {48, 1, 1, 4, 1, 1.81, 2.429, 58.8, .1070, .00500},
    {64, 1, 1, 4, 2, 2.62, 2.542, 20.9, .0945, .00948},
    {96, 1, 1, 2, 2, 2.57, 2.259, 11.6, .1076, .01020},
    {128, 1, 2, 2, 1, 3.41, 2.858, 12.7, .3933, .00482},
};
// Of eight sizes of weights by 8 to 64 rows the choice takes 0.4 % longer than the fastest of 23
// shapes in the mean, 7 % at most.
constexpr Candidate kOfPacked[] = {
    {16, 2, 1, 8, 1, 1.60, 2.039, 36.5, .0325, .00530},
    {32, 1, 1, 4, 1, 1.67, 1.870, 24.8, .0361, .00313},
    {32, 2, 1, 4, 1, 2.19, 2.556, 19.1, .0000, .00878},
    {32, 2, 1, 8, 1, 2.56, 3.018, 17.7, .0937, .00974},
    {32, 4, 1, 4, 1, 2.99, 3.808, 12.7, .1373, .01836},
    {32, 2, 1, 4, 2, 1.65, 1.714, 4.6, .1365, .00809},
    {48, 2, 1, 4, 1, 3.65, 2.937, 21.2, .0027, .01007},
    {128, 2, 1, 2, 1, 3.47, 3.035, 8.5, .6139, .01052},
};

int64_t SumBytes(const RowsShape& s, int bits) {
  const int64_t pitch = s.columns / s.cluster + (bits == kHalfBits ? 8 : 4);
  return int64_t{s.cluster} * s.groups * s.rows * pitch * 4;
}

int BitsOf(const Product& product) {
  return WeightBits(product.b.dtype);
}

double WeightBytes(const Product& product) {
  constexpr double kByte = 8;
  const double bits = BitsOf(product);
  // A scale and a zero for each group.
  const double more =
      product.packed ? 2.0 * kHalfBits / static_cast<double>(product.packed->group) : 0;
  return static_cast<double>(product.num_columns * product.num_k) * (bits + more) / kByte;
}

// With as many stages as fit, which all groups take equally often; 0 where none do.
RowsShape ShapeOf(const Candidate& c, const Product& product) {
  const auto rows = static_cast<int>(CeilDiv(product.num_rows, kEight) * kEight);
  RowsShape shape{rows, c.columns, 0, c.boxes, c.of_warp, c.groups, c.cluster};
  if (product.packed) {
    shape.inner = static_cast<int>(product.packed->inner);
    shape.group = static_cast<int>(product.packed->group);
  }
  const int bits = BitsOf(product);
  const int64_t others = shape.SharedBytes(bits);
  shape.stages = 1;
  const int64_t fitting = (kMostShared - others) / (shape.SharedBytes(bits) - others);
  shape.stages = static_cast<int>(std::min(fitting, kMostStages)) / c.groups * c.groups;
  return shape;
}

double Microseconds(const Candidate& c, const Product& product, int units) {
  constexpr double kMillion = 1e6;
  const RowsShape shape = ShapeOf(c, product);
  const int64_t depth = shape.Depth(BitsOf(product));
  const int64_t all = CeilDiv(product.num_columns, c.columns) * c.cluster;
  const int64_t blocks = std::min<int64_t>(all, units), waves = CeilDiv(all, units);
  const auto steps = static_cast<double>(waves * CeilDiv(CeilDiv(product.num_k, depth), c.cluster));
  const double of_rows = static_cast<double>(blocks * shape.rows * depth * kHalfBytes) * steps;
  // Where some blocks have no tile left, the others read faster, but not by as much.
  const double longest = static_cast<double>(waves * blocks) / static_cast<double>(all);
  const double reading = WeightBytes(product) * (1 + longest) / 2 / (c.weights * kMillion) +
                         of_rows / (c.rows * kMillion);
  return c.start + std::max(reading, steps * (c.step + c.row * shape.rows));
}

// Whether a thread has the registers for its sums: each of a multiprocessor's four parts has as
// many for a quarter of the block's warps.
bool FitsRegisters(const RowsShape& shape) {
  constexpr int kWarp = 32, kParts = 4, kOfPart = 16384, kOthers = 50, kOthersOfPacked = 70;
  constexpr double kOfRow = .9, kOfPackedRow = 1;
  const auto warps = static_cast<int>(CeilDiv(shape.Threads(), kWarp * kParts));
  const bool is_packed = shape.inner > 0;
  return (is_packed ? kOthersOfPacked : kOthers) +
             (is_packed ? kOfPackedRow : kOfRow) * shape.rows * shape.of_warp <=
         kOfPart / (warps * kWarp);
}

std::span<const Candidate> CandidatesOf(const Product& product) {
  if (product.packed) return kOfPacked;
  if (BitsOf(product) == kHalfBits) return kOfHalves;
  return kOfBytes;
}

// The fastest first.
std::vector<std::pair<double, const Candidate*>> Ranked(const Product& product, int units) {
  constexpr int kFewestStages = 2;
  const std::span<const Candidate> all = CandidatesOf(product);
  std::vector<std::pair<double, const Candidate*>> costs;
  for (const Candidate& c : all) {
    const RowsShape shape = ShapeOf(c, product);
    if (shape.stages < std::max(kFewestStages, c.groups) || !FitsRegisters(shape)) continue;
    costs.emplace_back(Microseconds(c, product, units), &c);
  }
  std::stable_sort(costs.begin(), costs.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  return costs;
}

// Of cuBLAS, by the same measurements, or of torch's kernel for packed weights, which reads them
// once for every 16 rows and the rows for every 8 columns, and of a kernel after it where it
// `goes_on`.
double LibraryMicroseconds(const Product& product, bool goes_on) {
  constexpr double kMore = 2;
  const double more = goes_on ? kMore : 0;
  if (product.packed) {
    constexpr double kStart = 2.2, kBytes = 1.94e6, kRow = 5.9e-8;
    return kStart + more + WeightBytes(product) / kBytes +
           kRow * static_cast<double>((product.num_rows - 1) * product.num_columns * product.num_k);
  }
  constexpr double kStart = 4.2, kBytes = 2.77e6;
  return kStart + more + WeightBytes(product) / kBytes;
}

std::string Describe(const Candidate& c, double microseconds) {
  return absl::StrCat("tiles of ", c.columns, " columns by ", c.groups, " groups of ",
                      c.columns / kSixteen / c.of_warp, " warps",
                      c.cluster > 1 ? absl::StrCat(" in clusters of ", c.cluster) : "", " (",
                      ExpectedText(microseconds), ")");
}

}  // namespace

std::vector<int> RowsShape::Constants() const {
  return {rows, columns, stages, boxes, of_warp, groups, cluster, inner, group};
}

RowsShape RowsShape::FromConstants(const std::vector<int>& c) {
  return {c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]};
}

int RowsShape::Threads() const {
  constexpr int kWarp = 32;
  return kWarp * (columns / (kSixteen * of_warp) * groups + 1);
}

int RowsShape::Depth(int bits) const {
  constexpr int kByte = 8;
  return boxes * (bits == kPackedBits ? kPackedLineBytes : kLineBytes) * kByte / bits;
}

int64_t RowsShape::StageBytes(int bits) const {
  const int64_t of_rows = int64_t{Depth(bits)} * kHalfBytes * rows;
  if (bits != kPackedBits) return of_rows + int64_t{boxes} * kLineBytes * columns;
  constexpr int64_t kOfBox = 32;  // columns, whose scales are a line for each group
  const int64_t groups = std::max(1, Depth(bits) / group);
  const int64_t of_scales = CeilDiv(groups * kLineBytes, kAlignment) * kAlignment;
  return of_rows + int64_t{boxes} * kPackedLineBytes * columns +
         CeilDiv(columns, kOfBox) * of_scales;
}

int64_t RowsShape::SharedBytes(int bits) const {
  constexpr int64_t kBarriers = 16;  // bytes, of a stage
  return stages * (StageBytes(bits) + kBarriers) + SumBytes(*this, bits) + kAlignment;
}

int WeightBits(DType dtype) {
  constexpr int kByte = 8;
  return dtype == DType::kI32 ? kPackedBits : static_cast<int>(DTypeSize(dtype)) * kByte;
}

bool HasFewRows(const Product& product) {
  return !product.by_warps && product.num_rows <= kMostFewRows && !product.a.is_turned() &&
         !product.b.is_turned();
}

RowsShape ChooseRowsShape(const Product& product, int units, int rank,
                          std::vector<std::string>& reasons) {
  const auto costs = Ranked(product, units);
  const auto& [time, candidate] = costs[std::min<size_t>(rank, costs.size() - 1)];
  const RowsShape shape = ShapeOf(*candidate, product);
  reasons.push_back(absl::StrCat("a product of few rows on the tensor cores, in ",
                                 Describe(*candidate, time), ", ", shape.stages, " stages"));
  reasons.push_back(absl::StrCat("next best: ", Describe(*costs[1].second, costs[1].first)));
  reasons.push_back(absl::StrCat("a library: ", ExpectedText(LibraryMicroseconds(product, false))));
  return shape;
}

bool AreFewRowsFaster(const Product& product, bool goes_on, int units) {
  // With many rows the fit is less sure, and a library at its best.
  constexpr double kSafety = .001;  // for each row
  const double safe = 1 + kSafety * static_cast<double>(product.num_rows);
  return Ranked(product, units)[0].first * safe < LibraryMicroseconds(product, goes_on);
}

}  // namespace kiln::schedule::ptx
