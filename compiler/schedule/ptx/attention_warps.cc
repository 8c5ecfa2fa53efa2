#include "compiler/schedule/ptx/attention_warps.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/ptx/cost.h"
#include "compiler/schedule/ptx/team_plan.h"
#include "compiler/schedule/ptx/warp_machine.h"

namespace kiln::schedule::ptx {

using ir::IntContext;

namespace {

constexpr int kWarp = 32;
constexpr int64_t kHalfBytes = 2;  // of an element
constexpr int kFewestStages = 2, kMostStages = 4;

enum class Use : uint8_t { kAll, kPlain, kMasked };

// Tiles of heads that are `width` wide; `registers` of a thread, and the share of the tensor cores'
// rate (WarpMachine) at which a multiprocessor multiplies that has as many blocks as registers
// allow.
struct Candidate {
  int width, rows, warp_rows, keys, registers;
  double speed;
  bool is_kept;
  Use use;  // masks take registers
};
// A warp with 32 rows loads half as much from shared memory for each of them. The shares are from
// an H100 (132 multiprocessors, 1.98 GHz), of 2048 keys; where another shape was the fastest one of
// its width, guessed from that. They are taken for other devices, too.
constexpr std::array<Candidate, 16> kCandidates = {{
    {64, 128, 32, 64, 255, .51, false, Use::kPlain},
    {64, 128, 32, 32, 168, .47, false, Use::kPlain},
    {64, 64, 16, 64, 168, .42, true, Use::kPlain},
    {64, 128, 32, 64, 255, .29, false, Use::kMasked},
    {64, 64, 16, 64, 168, .27, true, Use::kMasked},
    {96, 128, 32, 32, 255, .47, false, Use::kPlain},
    {96, 64, 16, 64, 255, .42, true, Use::kPlain},
    {96, 128, 32, 32, 255, .3, false, Use::kMasked},
    {96, 64, 16, 64, 255, .29, true, Use::kMasked},
    {128, 128, 32, 32, 255, .51, false, Use::kPlain},
    {128, 64, 16, 64, 168, .46, true, Use::kPlain},
    {128, 64, 16, 64, 255, .31, true, Use::kMasked},
    {256, 64, 16, 64, 255, .46, false, Use::kPlain},
    {256, 128, 16, 64, 255, .39, false, Use::kPlain},
    {256, 128, 16, 32, 255, .30, false, Use::kMasked},
    {256, 64, 16, 32, 255, .30, false, Use::kAll},
}};

int ThreadsOf(const Candidate& c) {
  return kWarp * (c.rows / c.warp_rows);
}

int BlocksByRegisters(const Candidate& c) {
  constexpr int kMostBlocks = 4;
  return std::clamp(kRegisters / (c.registers * ThreadsOf(c)), 1, kMostBlocks);
}

// With as many blocks as registers and shared memory allow; no stages where nothing fits.
AttentionWarps WarpsOf(const AttentionForm& form, const Candidate& c, int64_t shared_bytes) {
  AttentionWarps warps{form, c.rows, c.warp_rows, c.keys, 0, 1, c.is_kept};
  const int64_t row = c.width * kHalfBytes;
  for (int blocks = BlocksByRegisters(c); blocks > 0; --blocks) {
    const int64_t of_ring = shared_bytes / blocks - kSystemBytes - c.rows * row;
    const int64_t stages = of_ring / (c.keys * row);
    if (stages < kFewestStages) continue;
    warps.blocks = blocks;
    warps.stages = static_cast<int>(std::min<int64_t>(stages, kMostStages));
    break;
  }
  return warps;
}

struct Choice {
  double time;
  AttentionWarps warps;
};

// Multiply-adds of a tile's rows with all keys that they see, on average.
double Work(const IntContext& ints, const Attention& attention, int rows, int keys) {
  const int64_t num_keys = ints.EvaluateAtHints(attention.keys);
  double seen = static_cast<double>(CeilDiv(num_keys, keys) * keys);
  if (attention.is_causal) {
    const auto last = static_cast<double>(KeysOf(ints, attention));
    seen = std::min(seen, (last + std::max(rows, keys)) / 2);
  }
  return 2.0 * rows * seen * static_cast<double>(attention.width);
}

double Microseconds(const IntContext& ints, const Attention& attention, const Candidate& c,
                    const AttentionWarps& warps, int units, const WarpMachine& machine) {
  // A tile's ends; other blocks of the multiprocessor work meanwhile.
  constexpr double kLaunch = 2, kEnds = 1.5;
  // A block alone where several have room takes more than its share of the time for all, and so do
  // as many as shared memory allows where that is fewer than registers do.
  constexpr double kAlone = .58, kFewer = .86;
  const double share = warps.blocks < BlocksByRegisters(c) ? c.speed * kFewer : c.speed;
  const double of_tile =
      kEnds / warps.blocks +
      Work(ints, attention, c.rows, c.keys) / (machine.multiply_adds * machine.megahertz * share);
  const int64_t of_unit = CeilDiv(TilesOf(ints, attention, c.rows), units);
  const int64_t rest = of_unit % warps.blocks;
  double time = kLaunch + static_cast<double>(of_unit) * of_tile;
  if (rest > 0) {
    time += of_tile * kAlone * static_cast<double>(warps.blocks - rest) / warps.blocks;
  }
  return time;
}

// Those that the device has room for, the fastest first.
std::vector<Choice> Ranked(const ir::Module& module, const Attention& attention,
                           const DeviceInfo& device) {
  const AttentionForm form = FormOf(module, attention);
  const WarpMachine machine = WarpMachineOf(device);
  const int units = ComputeUnits(device);
  std::vector<Choice> choices;
  for (const Candidate& c : kCandidates) {
    if (c.width != form.width || c.use == (form.mask != 0 ? Use::kPlain : Use::kMasked)) continue;
    const AttentionWarps warps = WarpsOf(form, c, machine.shared_bytes);
    if (warps.stages == 0) continue;
    choices.push_back({Microseconds(*module.ints, attention, c, warps, units, machine), warps});
  }
  absl::c_stable_sort(choices, [](const Choice& x, const Choice& y) { return x.time < y.time; });
  return choices;
}

// Without a mask the library's kernel is one by mma.sync, as ours, or has instructions of its own;
// with one it is torch's memory-efficient one, for which a kernel makes 16 bits of a mask of bools.
// On an H100 these reached 0.43 to 0.52 and, with a mask, 0.1 to 0.18 of the rate.
double LibraryMicroseconds(const ir::Module& module, const Attention& attention,
                           const DeviceInfo& device) {
  constexpr double kLaunch = 4, kFlash = .52, kEfficient = .18, kMore = 4;
  constexpr int kRows = 64, kKeys = 64;
  const IntContext& ints = *module.ints;
  const WarpMachine machine = WarpMachineOf(device);
  const int mask = FormOf(module, attention).mask;
  const double work =
      Work(ints, attention, kRows, kKeys) * static_cast<double>(TilesOf(ints, attention, kRows));
  const double rate = machine.multiply_adds * machine.megahertz * ComputeUnits(device);
  return kLaunch + work / (rate * (mask != 0 ? kEfficient : kFlash)) + (mask == 1 ? kMore : 0);
}

std::string Describe(const Choice& choice) {
  const AttentionWarps& warps = choice.warps;
  return absl::StrCat("tiles of ", warps.rows, " queries by warps of ", warps.warp_rows,
                      " and steps of ", warps.keys, " keys (", ExpectedText(choice.time), ")");
}

}  // namespace

int AttentionWarps::Threads() const {
  return kWarp * (rows / warp_rows);
}

// Results take the place of the queries.
int64_t AttentionWarps::SharedBytes() const {
  return (rows + int64_t{stages} * keys) * width * kHalfBytes;
}

std::vector<int> AttentionWarps::Constants() const {
  std::vector<int> constants = {width, rows, warp_rows, keys, stages, blocks, is_kept};
  AddConstants(constants);
  return constants;
}

AttentionWarps AttentionWarps::FromConstants(const std::vector<int>& c) {
  return {AttentionForm::FromConstants(c), c[1], c[2], c[3], c[4], c[5], c[6] != 0};
}

bool AttendsByWarps(const ir::Module& module, const Attention& attention,
                    const DeviceInfo& device) {
  return MultipliesByWarps(device) && IsOfHalves(module, attention) &&
         !Ranked(module, attention, device).empty();
}

bool AreWarpsFaster(const ir::Module& module, const Attention& attention,
                    const DeviceInfo& device) {
  // Without a mask a library has the same instructions, and was written for each device. A tile of
  // fewer queries does little with its keys.
  constexpr int64_t kFewestQueries = 64;
  if (!attention.mask || module.ints->EvaluateAtHints(attention.queries) < kFewestQueries) {
    return false;
  }
  return Ranked(module, attention, device)[0].time < LibraryMicroseconds(module, attention, device);
}

Tree ScheduleAttentionByWarps(ir::Module& module, const ir::Repeat& repeat,
                              const Attention& attention, const DeviceInfo& device) {
  const std::vector<Choice> choices = Ranked(module, attention, device);
  const Choice& chosen = choices[std::min<size_t>(device.rank, choices.size() - 1)];
  const AttentionWarps& warps = chosen.warps;
  Tree tree = MakeAttentionTree(module, repeat, attention, MicroKind::kAttendWarps,
                                warps.Constants(), warps.rows, warps.Threads());
  tree.reasons.push_back(absl::StrCat("attention on the tensor cores by mma.sync, in ",
                                      Describe(chosen), ", ", warps.stages, " stages"));
  tree.reasons.push_back(
      absl::StrCat("a library: ", ExpectedText(LibraryMicroseconds(module, attention, device))));
  if (choices.size() > 1) {
    tree.reasons.push_back(absl::StrCat("next best: ", Describe(choices[1])));
  }
  return tree;
}

}  // namespace kiln::schedule::ptx
