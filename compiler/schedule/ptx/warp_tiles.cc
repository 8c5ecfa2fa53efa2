#include "compiler/schedule/ptx/warp_tiles.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/ptx/cost.h"
#include "compiler/schedule/ptx/team_plan.h"
#include "compiler/schedule/ptx/warp_machine.h"

namespace kiln::schedule::ptx {
namespace {

constexpr int kWarp = 32;
constexpr int64_t kHalfBytes = 2;  // of an element of an operand
constexpr int kFewestStages = 3, kMostStages = 5;

// Tiles and a warp's part of them; `registers` of a thread, and the share of the tensor cores' rate
// at which a multiprocessor multiplies that has as many blocks as it has room for.
struct Candidate {
  int rows, columns, warp_rows, warp_columns, registers;
  double speed;
};
// The shares are those of an H100 (132 multiprocessors), where these kernels were measured: of 96
// times of eight products with bias and gelu, with the stages that sm_80 or sm_90 have room for,
// the model is off by 6 % (root of the mean square) and by 32 % at most; of 16 choices 15 took up
// to 2 % longer than the fastest tiles and one 12 %. They are taken for other devices, too.
constexpr std::array<Candidate, 6> kCandidates = {{
    {256, 128, 64, 64, 255, .77},
    {128, 256, 64, 64, 255, .77},
    {128, 128, 64, 64, 255, .73},
    {128, 64, 64, 32, 168, .57},
    {64, 128, 32, 64, 168, .56},
    {64, 64, 32, 32, 128, .47},
}};

int ThreadsOf(const Candidate& c) {
  return kWarp * (c.rows / c.warp_rows) * (c.columns / c.warp_columns);
}

// With as many blocks as registers allow, and deep steps where three of them fit; no stages where
// nothing does.
WarpTiles TilesOf(const Candidate& c, int64_t shared_bytes) {
  constexpr int kDeep = 64, kShallow = 32, kMostBlocks = 3;
  WarpTiles tiles{c.rows, c.columns, 0, kDeep, c.warp_rows, c.warp_columns, 1};
  const int by_registers = kRegisters / (c.registers * ThreadsOf(c));
  for (int blocks = std::clamp(by_registers, 1, kMostBlocks); blocks > 0; --blocks) {
    const int64_t of_block = shared_bytes / blocks - kSystemBytes;
    for (const int step : {kDeep, kShallow}) {
      const int64_t stages = of_block / ((c.rows + c.columns) * step * kHalfBytes);
      if (stages < kFewestStages) continue;
      tiles.step = step;
      tiles.blocks = blocks;
      tiles.stages = static_cast<int>(std::min<int64_t>(stages, kMostStages));
      return tiles;
    }
  }
  return tiles;
}

struct Rates {
  // A microsecond; of a multiprocessor but for the last.
  double multiply_adds, instructions, l2_bytes, memory_bytes;
};

Rates RatesOf(const DeviceInfo& device, const WarpMachine& machine) {
  constexpr double kUsualBytes = 1e6;  // a microsecond
  constexpr double kL2Bytes = 38;      // a clock, from the second-level cache, by the same fit
  constexpr double kLanes = 128;       // that begin an instruction in a clock
  const double megahertz = machine.megahertz;
  Rates rates{machine.multiply_adds * megahertz, kLanes * megahertz, kL2Bytes * megahertz,
              kUsualBytes};
  for (const MemorySpace& space : device.memory_spaces) {
    if (space.kind != MemoryKind::kGlobal || space.bytes_per_second <= 0) continue;
    constexpr double kReached = .85, kMicroseconds = 1e6;
    rates.memory_bytes = kReached * static_cast<double>(space.bytes_per_second) / kMicroseconds;
  }
  return rates;
}

// How much longer loads of an operand take whose lines are no whole lines of 128 bytes, or no whole
// sectors: the first share assumed, the second by the fit.
double LoadSpeed(const ProductOperand& operand) {
  constexpr double kUneven = .75, kUnaligned = .53;
  constexpr int64_t kLine = 64, kSector = 16;  // elements of 16 bits
  const int64_t pitch = operand.is_turned() ? operand.k_stride : operand.side_stride;
  return pitch % kLine == 0 ? 1 : pitch % kSector == 0 ? kUneven : kUnaligned;
}

double Microseconds(const Candidate& c, const WarpTiles& tiles, const Product& p, int units,
                    const Rates& rates) {
  constexpr double kStart = 1;
  constexpr double kStoreWork = 24;  // instructions for a sum, beside Product::work
  // A block alone where several have room takes more than its share of the time for all.
  constexpr double kAlone = .58;
  const double area = double{1} * c.rows * c.columns;
  const double deep = static_cast<double>(CeilDiv(p.num_k, tiles.step) * tiles.step);
  const double multiplying = area * deep / (rates.multiply_adds * c.speed);
  const double loading = (c.rows + c.columns) * deep * kHalfBytes /
                         (rates.l2_bytes * std::min(LoadSpeed(p.a), LoadSpeed(p.b)));
  const double of_tile =
      std::max(multiplying, loading) + area * (p.work + kStoreWork) / rates.instructions;
  const int64_t count = CeilDiv(p.num_rows, c.rows) * CeilDiv(p.num_columns, c.columns);
  const int64_t of_unit = CeilDiv(count, units), rest = of_unit % tiles.blocks;
  double time = kStart + static_cast<double>(of_unit) * of_tile;
  if (rest > 0) {
    time += of_tile * kAlone * static_cast<double>(tiles.blocks - rest) / tiles.blocks;
  }
  return time;
}

struct Choice {
  double time;
  WarpTiles tiles;
};

// The fastest first.
std::vector<Choice> Ranked(const Product& product, const DeviceInfo& device) {
  const WarpMachine machine = WarpMachineOf(device);
  const Rates rates = RatesOf(device, machine);
  const int units = ComputeUnits(device);
  std::vector<Choice> choices;
  for (const Candidate& c : kCandidates) {
    const WarpTiles tiles = TilesOf(c, machine.shared_bytes);
    if (tiles.stages == 0) continue;
    choices.push_back({Microseconds(c, tiles, product, units, rates), tiles});
  }
  absl::c_stable_sort(choices, [](const Choice& x, const Choice& y) { return x.time < y.time; });
  return choices;
}

// Of a library's product and a kernel that reads its result and writes another one: as long as the
// best of ours would take without work on sums at the library's speed, another launch, and the
// bytes' time.
double LibraryMicroseconds(const Product& product, const DeviceInfo& device) {
  constexpr double kLaunch = 2, kCachedShare = .5, kCachedSpeed = 2, kCopied = 2;
  constexpr int64_t kNoBytes = 0;
  const WarpMachine machine = WarpMachineOf(device);
  const double bytes = 2.0 * kHalfBytes * static_cast<double>(product.num_rows) *
                       static_cast<double>(product.num_columns);
  double moving = bytes / RatesOf(device, machine).memory_bytes;
  // torch copies results whose columns are no octets.
  if (product.num_columns % 8 != 0) {
    moving *= kCopied;
  } else if (bytes <
             kCachedShare * static_cast<double>(MemoryBytes(device, MemoryKind::kL2, kNoBytes))) {
    moving /= kCachedSpeed;
  }
  Product alone = product;
  alone.work = 0;
  return Ranked(alone, device)[0].time * machine.library + kLaunch + moving;
}

std::string Describe(const Choice& choice) {
  const WarpTiles& tiles = choice.tiles;
  return absl::StrCat("tiles of ", tiles.rows, " x ", tiles.columns, " by warps of ",
                      tiles.warp_rows, " x ", tiles.warp_columns, " (", ExpectedText(choice.time),
                      ")");
}

}  // namespace

std::vector<int> WarpTiles::Constants() const {
  return {rows, columns, stages, step, warp_rows, warp_columns, blocks};
}

WarpTiles WarpTiles::FromConstants(const std::vector<int>& c) {
  return {c[0], c[1], c[2], c[3], c[4], c[5], c[6]};
}

int WarpTiles::Threads() const {
  return kWarp * (rows / warp_rows) * (columns / warp_columns);
}

// Results take the place of the stages.
int64_t WarpTiles::SharedBytes() const {
  return int64_t{stages} * (rows + columns) * step * kHalfBytes;
}

WarpTiles ChooseWarpTiles(const Product& product, const DeviceInfo& device,
                          std::vector<std::string>& reasons) {
  const std::vector<Choice> choices = Ranked(product, device);
  const Choice& chosen = choices[std::min<size_t>(device.rank, choices.size() - 1)];
  reasons.push_back(absl::StrCat("a product on the tensor cores by mma.sync, in ", Describe(chosen),
                                 ", ", chosen.tiles.stages, " stages of ", chosen.tiles.step));
  reasons.push_back(absl::StrCat("a library and a kernel for the rest: ",
                                 ExpectedText(LibraryMicroseconds(product, device))));
  reasons.push_back(absl::StrCat("next best: ", Describe(choices[1])));
  return chosen.tiles;
}

bool AreWarpTilesFaster(const Product& product, const DeviceInfo& device) {
  return Ranked(product, device)[0].time < LibraryMicroseconds(product, device);
}

}  // namespace kiln::schedule::ptx
