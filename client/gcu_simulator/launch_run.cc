#include "client/gcu_simulator/launch_run.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "client/gcu_simulator/arithmetic.h"
#include "client/gcu_simulator/core.h"
#include "client/gcu_simulator/races.h"

namespace kiln::gcu_simulator {
namespace {

constexpr int64_t kPicoseconds = 1'000'000'000'000;
constexpr int64_t kLine = 64, kEngineBytesPerCycle = 128;
constexpr int64_t kMostInstructions = int64_t{1} << 32;  // of a launch that is not taken for hung
constexpr int64_t kL3LatencyPs = 500'000, kL2LatencyPs = 100'000;

// For at most 2^24 lines, whose product with 10^12 does not fit 64 bits.
int64_t TimeOfBytes(int64_t bytes, int64_t bytes_per_s) {
  return static_cast<int64_t>((static_cast<__int128>(bytes) * kPicoseconds + bytes_per_s - 1) /
                              bytes_per_s);
}

int64_t Wrapped(Code code, int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  switch (code) {
    case Code::kAdd:
    case Code::kAddImmediate:
      return static_cast<int64_t>(x + y);
    case Code::kSubtract:
      return static_cast<int64_t>(x - y);
    default:
      return static_cast<int64_t>(x * y);
  }
}

// One launch on all cores: events in the order of their times, a core's own before its engine's,
// lower cores first.
class LaunchRun {
 public:
  LaunchRun(const Profile& profile, Memories memories, const Launch& launch, bool with_spans,
            Report& report)
      : profile_(profile),
        memories_(memories),
        launch_(launch),
        with_spans_(with_spans),
        report_(report) {}

  std::optional<Fault> Run() {
    report_.kernel = launch_.kernel->name;
    report_.time_ps = profile_.launch_ns * 1000;
    for (uint32_t z = 0; z < launch_.grid[2]; ++z) {
      for (uint32_t y = 0; y < launch_.grid[1]; ++y) {
        for (uint32_t x = 0; x < launch_.grid[0]; ++x) {
          if (auto fault = RunCell({x, y, z})) return fault;
        }
      }
    }
    return std::nullopt;
  }

 private:
  std::optional<Fault> RunCell(const std::array<uint32_t, 3>& cell) {
    const int64_t begin = report_.time_ps;
    cores_.clear();
    log_l2_.Clear();
    log_l3_.Clear();
    l3_free_ps_ = l2_free_ps_ = begin;
    for (int i = 0; i < profile_.cores; ++i) {
      auto core = std::make_unique<Core>(profile_.l1_bytes);
      core->number = i;
      core->time_ps = core->engine_free_ps = begin;
      const int64_t values[] = {i,       profile_.cores, cell[0],
                                cell[1], cell[2],        static_cast<int64_t>(launch_.l2_begin)};
      std::copy(std::begin(values), std::end(values), core->scalars.begin());
      cores_.push_back(std::move(core));
    }
    while (true) {
      if (auto fault = Settle()) return fault;
      Core* engine = NextEngine();
      Core* core = NextCore();
      if (core == nullptr && engine == nullptr) break;
      if (core == nullptr || (engine != nullptr && AskTime(*engine) < core->time_ps)) {
        BeginCopy(*engine);
      } else if (auto fault = Step(*core)) {
        return fault;
      }
    }
    if (auto fault = CheckRaces()) return fault;
    for (const auto& core : cores_) {
      int64_t end = core->time_ps;
      for (const PendingCopy& copy : core->copies) end = std::max(end, copy.done_ps);
      report_.time_ps = std::max(report_.time_ps, end);
    }
    return std::nullopt;
  }

  // When the engine asks for the channels of its next copy.
  static int64_t AskTime(const Core& core) {
    return std::max(core.copies[core.begun].issued_ps, core.engine_free_ps);
  }

  Core* NextEngine() const {
    Core* next = nullptr;
    for (const auto& core : cores_) {
      if (core->begun == core->copies.size()) continue;
      if (next == nullptr || AskTime(*core) < AskTime(*next)) next = core.get();
    }
    return next;
  }

  Core* NextCore() const {
    Core* next = nullptr;
    for (const auto& core : cores_) {
      if (core->state != Core::State::kRuns) continue;
      if (next == nullptr || core->time_ps < next->time_ps) next = core.get();
    }
    return next;
  }

  void BeginCopy(Core& core) {
    int64_t begin = AskTime(core);
    PendingCopy& copy = core.copies[core.begun++];
    if (copy.l3_lines > 0) begin = std::max(begin, l3_free_ps_);
    if (copy.l2_lines > 0) begin = std::max(begin, l2_free_ps_);
    const int64_t l3 = TimeOfBytes(copy.l3_lines * kLine, profile_.l3_bytes_per_s);
    const int64_t l2 = TimeOfBytes(copy.l2_lines * kLine, profile_.l2_bytes_per_s);
    const int64_t own =
        TimeOfBytes(CeilDivide(copy.bytes, kEngineBytesPerCycle), profile_.clock_hz);
    const int64_t l3_end = EndBeside(begin, l3, launch_.l3_taken);
    if (l3 > 0) l3_free_ps_ = l3_end;
    if (l2 > 0) l2_free_ps_ = begin + l2;
    core.engine_free_ps = std::max(l3_end, begin + std::max(l2, own));
    copy.done_ps = core.engine_free_ps + (copy.l3_lines > 0 ? kL3LatencyPs : kL2LatencyPs);
    report_.l3_busy_ps += l3;
    report_.l2_busy_ps += l2;
    report_.dma_ps += core.engine_free_ps - begin;
    const auto count = [&](const Tile& tile, int64_t& of_l3, int64_t& of_l2) {
      if (tile.space == Space::kL3) of_l3 += copy.l3_lines * kLine;
      if (tile.space == Space::kL2) of_l2 += copy.l2_lines * kLine;
    };
    count(copy.read[0], report_.l3_read_bytes, report_.l2_read_bytes);
    count(copy.written[0], report_.l3_written_bytes, report_.l2_written_bytes);
    AddSpan(core, "dma", copy.instruction, begin, core.engine_free_ps, copy.bytes);
  }

  void AddSpan(const Core& core, const char* engine, uint32_t instruction, int64_t begin,
               int64_t end, int64_t bytes) {
    if (!with_spans_) return;
    const char* name = RowOf(launch_.kernel->instructions[instruction].code).mnemonic;
    report_.spans.push_back({core.number, engine, name, begin, end, bytes});
  }

  // Lets those go on that need not wait any longer.
  std::optional<Fault> Settle() {
    size_t at_barrier = 0, halted = 0, waiting = 0;
    for (const auto& core : cores_) {
      if (core->state == Core::State::kWaits) FinishWait(*core);
      at_barrier += core->state == Core::State::kAtBarrier ? 1 : 0;
      halted += core->state == Core::State::kHalted ? 1 : 0;
      waiting += core->state == Core::State::kWaits ? 1 : 0;
    }
    if (at_barrier == 0 || at_barrier + halted + waiting < cores_.size() || waiting > 0)
      return std::nullopt;
    if (halted > 0) {
      return Misfit("kernel '" + launch_.kernel->name + "': " + std::to_string(halted) +
                    " cores have halted and " + std::to_string(at_barrier) + " wait at a barrier");
    }
    if (auto fault = CheckRaces()) return fault;
    int64_t time = 0;
    for (const auto& core : cores_) time = std::max(time, core->time_ps);
    report_.barriers_ps.push_back(time);
    for (const auto& core : cores_) {
      report_.waiting_ps += time - core->time_ps;
      core->time_ps = time;
      core->state = Core::State::kRuns;
      // What was not waited for goes on after the barrier.
      for (const PendingCopy& copy : core->copies) LogAccesses(*core, copy);
    }
    return std::nullopt;
  }

  void FinishWait(Core& core) {
    const int token = core.waits_for;
    int64_t done = core.time_ps;
    for (const PendingCopy& copy : core.copies) {
      if (token >= 0 && copy.token != token) continue;
      if (copy.done_ps < 0) return;
      done = std::max(done, copy.done_ps);
    }
    report_.waiting_ps += done - core.time_ps;
    core.time_ps = done;
    core.state = Core::State::kRuns;
    if (token >= 0) return Retire(core, token);
    while (!core.copies.empty()) Retire(core, core.copies.front().token);
  }

  void LogAccesses(const Core& core, const PendingCopy& copy) {
    const auto log = [&](const std::vector<Tile>& tiles, bool writes) {
      for (const Tile& tile : tiles) {
        if (tile.space == Space::kL1 || tile.Elements() == 0) continue;
        (tile.space == Space::kL2 ? log_l2_ : log_l3_)
            .Add(tile, core.number, copy.instruction, writes);
      }
    };
    log(copy.read, false);
    log(copy.written, true);
  }

  std::optional<Fault> CheckRaces() {
    for (const auto& [log, name] : {std::pair(&log_l2_, "L2"), std::pair(&log_l3_, "L3")}) {
      if (std::optional<Conflict> conflict = log->FindConflict()) {
        const auto describe = [&](const AccessedRun& run) {
          return "core " + std::to_string(run.core) + ", instruction " +
                 std::to_string(run.instruction) + (run.writes ? " writes" : " reads") + " [" +
                 std::to_string(run.begin) + ", " + std::to_string(run.end) + ")";
        };
        return Fault{FaultCode::kRace, "kernel '" + launch_.kernel->name +
                                           "': no barrier is between two accesses of " + name +
                                           ": " + describe(conflict->a) + "; " +
                                           describe(conflict->b)};
      }
      AddFootprint(*log);
      log->Clear();
    }
    return std::nullopt;
  }

  void AddFootprint(const AccessLog& log) {
    const uint64_t own_end = launch_.l2_begin + launch_.l2_bytes;
    for (const AccessedRun& run : log.runs()) {
      if (run.begin >= launch_.l2_begin && run.end <= own_end) continue;
      (run.writes ? report_.footprint.written : report_.footprint.read).Add(run.begin, run.end);
    }
  }

  std::optional<Fault> Step(Core& core) {
    const uint32_t at = core.at++;
    const Instruction& instruction = launch_.kernel->instructions[at];
    if (++report_.instructions > kMostInstructions) {
      return Misfit("kernel '" + launch_.kernel->name + "' does not come to an end");
    }
    std::optional<Fault> fault = Execute(core, at, instruction, RowOf(instruction.code));
    if (!fault) return std::nullopt;
    fault->text = "kernel '" + launch_.kernel->name + "', core " + std::to_string(core.number) +
                  ", instruction " + std::to_string(at) + " (" + RowOf(instruction.code).mnemonic +
                  "): " + fault->text;
    return fault;
  }

  int64_t TimeOfCycles(int64_t cycles) const { return TimeOfBytes(cycles, profile_.clock_hz); }

  std::optional<Fault> Execute(Core& core, uint32_t at, const Instruction& instruction,
                               const InstructionRow& row) {
    const int64_t begin = core.time_ps;
    int64_t cycles = row.cycles, macs = 0;
    const Tiles tiles = TilesOf(core, instruction);
    std::optional<Fault> fault = CheckTiles(core, tiles);
    if (fault) return fault;
    switch (row.unit) {
      case Unit::kScalar:
        fault = RunScalar(core, instruction);
        break;
      case Unit::kSync:
        RunSync(core, instruction);
        break;
      case Unit::kDma:
        cycles = 1;
        fault = IssueCopy(core, at, instruction, tiles);
        break;
      case Unit::kVector:
        fault = RunVector(core, instruction, tiles, cycles);
        break;
      case Unit::kMatrix:
        fault = RunMatrix(core, profile_, instruction, tiles, cycles, macs);
        break;
    }
    if (fault) return fault;
    core.time_ps += TimeOfCycles(cycles);
    report_.macs += macs;
    const int64_t time = core.time_ps - begin;
    if (row.unit == Unit::kVector) {
      report_.vector_ps += time;
      AddSpan(core, "vector", at, begin, core.time_ps, 0);
    } else if (row.unit == Unit::kMatrix) {
      report_.matrix_ps += time;
      AddSpan(core, "matrix", at, begin, core.time_ps, 0);
    } else {
      report_.scalar_ps += time;
    }
    return std::nullopt;
  }

  // Whether every tile is one that some memory could have; what else must hold depends on its use.
  static std::optional<Fault> CheckTiles(const Core& core, const Tiles& tiles) {
    for (const Tile* tile : tiles) {
      const auto name = [&] { return "tile register " + std::to_string(tile - core.tiles.data()); };
      uint64_t begin = 0, end = 0;
      if (tile->type == ElementType::kNone) return Misfit(name() + " was not described");
      if (tile->Elements() > kMostElements) return Misfit(name() + " has too many elements");
      if (!tile->Range(begin, end)) {
        return Fault{FaultCode::kBounds,
                     name() + " has elements where no memory can have them, or begins at " +
                         std::to_string(tile->address) + ", which its type does not divide"};
      }
    }
    return std::nullopt;
  }

  static void RunSync(Core& core, const Instruction& instruction) {
    if (instruction.code == Code::kBarrier) {
      core.state = Core::State::kAtBarrier;
      return;
    }
    core.waits_for = instruction.code == Code::kWait ? instruction.registers[0] : -1;
    const bool is_free =
        core.waits_for < 0 ? core.copies.empty() : core.FindCopy(core.waits_for) == nullptr;
    if (!is_free) core.state = Core::State::kWaits;
  }

  std::optional<Fault> IssueCopy(Core& core, uint32_t at, const Instruction& instruction,
                                 const Tiles& tiles) {
    const int token = instruction.registers[tiles.size()];
    if (core.FindCopy(token) != nullptr) {
      return Misfit("token k" + std::to_string(token) + " is taken by a copy");
    }
    PendingCopy copy;
    copy.token = token;
    copy.instruction = at;
    copy.issued_ps = core.time_ps;
    if (auto fault = RunCopy(core, memories_, instruction, tiles, copy)) return fault;
    LogAccesses(core, copy);
    core.copies.push_back(std::move(copy));
    return std::nullopt;
  }

  std::optional<Fault> RunScalar(Core& core, const Instruction& instruction) {
    const auto& r = instruction.registers;
    auto& s = core.scalars;
    const int64_t immediate = instruction.immediate;
    const auto jump = [&](bool taken) {
      if (taken) core.at = static_cast<uint32_t>(immediate);
    };
    switch (instruction.code) {
      case Code::kHalt:
        core.state = Core::State::kHalted;
        break;
      case Code::kLoadImmediate:
        s[r[0]] = immediate;
        break;
      case Code::kMove:
        s[r[0]] = s[r[1]];
        break;
      case Code::kLoadArgument:
        if (immediate < 0 || immediate >= static_cast<int64_t>(launch_.arguments.size())) {
          return Misfit("there is no argument " + std::to_string(immediate));
        }
        s[r[0]] = static_cast<int64_t>(launch_.arguments[immediate]);
        break;
      case Code::kAdd:
      case Code::kSubtract:
      case Code::kMultiply:
        s[r[0]] = Wrapped(instruction.code, s[r[1]], s[r[2]]);
        break;
      case Code::kAddImmediate:
      case Code::kMultiplyImmediate:
        s[r[0]] = Wrapped(instruction.code, s[r[1]], immediate);
        break;
      case Code::kFloorDivide:
      case Code::kFloorModulo: {
        const int64_t a = s[r[1]], b = s[r[2]];
        if (b == 0) return Misfit("division by 0");
        const int64_t q = b == -1 ? Wrapped(Code::kMultiply, a, -1) : FloorDivide(a, b);
        s[r[0]] = instruction.code == Code::kFloorDivide ? q : b == -1 ? 0 : a - q * b;
        break;
      }
      case Code::kMinimum:
        s[r[0]] = std::min(s[r[1]], s[r[2]]);
        break;
      case Code::kMaximum:
        s[r[0]] = std::max(s[r[1]], s[r[2]]);
        break;
      case Code::kJump:
        jump(true);
        break;
      case Code::kJumpEqual:
        jump(s[r[0]] == s[r[1]]);
        break;
      case Code::kJumpNotEqual:
        jump(s[r[0]] != s[r[1]]);
        break;
      case Code::kJumpLess:
        jump(s[r[0]] < s[r[1]]);
        break;
      case Code::kJumpGreaterEqual:
        jump(s[r[0]] >= s[r[1]]);
        break;
      case Code::kTrap:
        return Fault{FaultCode::kTrap, "trap " + std::to_string(immediate)};
      default:
        return Describe(core.tiles[r[0]], instruction, s);
    }
    return std::nullopt;
  }

  // tile, dim, dimi, at.
  static std::optional<Fault> Describe(Tile& tile, const Instruction& instruction,
                                       const std::array<int64_t, KILN_GCU_SCALAR_REGISTERS>& s) {
    const auto& r = instruction.registers;
    if (instruction.code == Code::kTile) {
      tile = Tile();
      tile.space = static_cast<Space>(instruction.modifier & 15);
      tile.type = static_cast<ElementType>(instruction.modifier >> 4 & 15);
      tile.rank = instruction.modifier >> 8;
    }
    if (instruction.code == Code::kTile || instruction.code == Code::kAddress) {
      tile.address = static_cast<uint64_t>(s[r[1]]);
    } else if (instruction.code == Code::kDimension ||
               instruction.code == Code::kDimensionImmediate) {
      const int64_t extent = s[r[2]];
      if (r[1] >= tile.rank) return Misfit("the tile has no such dimension");
      if (extent < 0) return Misfit("an extent of " + std::to_string(extent));
      tile.extents[r[1]] = extent;
      tile.strides[r[1]] = instruction.code == Code::kDimension ? s[r[3]] : instruction.immediate;
    }
    return std::nullopt;
  }

  const Profile& profile_;
  const Memories memories_;
  const Launch& launch_;
  const bool with_spans_;
  Report& report_;
  std::vector<std::unique_ptr<Core>> cores_;
  AccessLog log_l2_, log_l3_;
  int64_t l3_free_ps_ = 0, l2_free_ps_ = 0;
};

}  // namespace

std::optional<Fault> RunLaunch(const Profile& profile, Memories memories, const Launch& launch,
                               bool with_spans, Report& report) {
  return LaunchRun(profile, memories, launch, with_spans, report).Run();
}

}  // namespace kiln::gcu_simulator
