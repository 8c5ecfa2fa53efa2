// Programs of a GCU on the simulated machine: bytes become tiles and instructions that go forward.
// Whatever they say, the launch ends with a fault that has a text or with a report, and a second
// machine does the same.
#include <algorithm>
#include <string>
#include <vector>

#include "client/gcu_simulator/instruction_table.h"
#include "client/gcu_simulator/machine.h"
#include "client/gcu_simulator/program.h"
#include "compiler/toolchain/gcu/binary.h"
#include "compiler/toolchain/gcu/isa.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using kiln::fuzz::Require;
using kiln::gcu::Instruction;
using kiln::gcu::Op;
using kiln::gcu_simulator::Space;

constexpr uint64_t kBlockBytes = 8192, kL1Bytes = 65536;
constexpr int kTiles = 6, kFirstAddress = 8, kScratch = 20, kMostInstructions = 48, kMostLarge = 4;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ == size_; }
  uint8_t Next() { return at_ < size_ ? data_[at_++] : 0; }
  uint8_t Below(int n) { return static_cast<uint8_t>(Next() % n); }
  // Small ones, and a few that overflow something.
  int64_t Number() {
    constexpr int64_t kOdd[] = {INT64_MAX,           INT64_MIN,
                                int64_t{1} << 62,    int64_t{1} << 32,
                                int64_t{1} << 24,    (int64_t{1} << 24) + 1,
                                -(int64_t{1} << 40), 65536};
    const uint8_t byte = Next();
    if (byte < 240) return byte - 40;
    return byte < 248 ? kOdd[byte - 240] : Next() * 256 + Next();
  }

 private:
  const uint8_t* data_;
  const size_t size_;
  size_t at_ = 0;
};

class Maker {
 public:
  explicit Maker(Bytes& bytes) : bytes_(bytes) {
    kernel_.name = "fuzz";
    for (const char* name : {"a", "b"}) {
      kernel_.arguments.push_back(
          {name, kiln::gcu::ArgumentKind::kL3Pointer, kiln::gcu::kRead | kiln::gcu::kWritten});
    }
    kernel_.l1_bytes = kL1Bytes;
    kernel_.l2_bytes = kBlockBytes;
  }

  kiln::gcu::Module Make() {
    // Addresses of both arguments, of L1 and of the launch's own L2; L1 is filled.
    Add(Op::kLoadArgument, {kFirstAddress}, 0);
    Add(Op::kLoadArgument, {kFirstAddress + 1}, 1);
    Add(Op::kMove, {kFirstAddress + 3, 5});
    Add(Op::kLoadImmediate, {kScratch}, kBlockBytes);
    Add(Op::kTile, {kTiles, kFirstAddress + 2}, 0, kiln::gcu::TileModifier(2, 6, 1));
    Add(Op::kDimensionImmediate, {kTiles, 0, kScratch}, 1);
    Add(Op::kFill, {kTiles, kScratch});
    for (uint8_t tile = 0; tile < kTiles; ++tile) AddTile(tile);
    int large = 0;
    const size_t first = kernel_.instructions.size();
    while (!bytes_.empty() && kernel_.instructions.size() < first + kMostInstructions) {
      const std::vector<kiln::gcu::OpInfo>& ops = kiln::gcu::AllOps();
      const kiln::gcu::OpInfo& info = ops[bytes_.Next() % ops.size()];
      if (static_cast<uint16_t>(info.op) >= 64 && ++large > kMostLarge) break;
      AddAny(info);
    }
    // Jumps go a few instructions on: all the way to the end there are places to go to.
    for (int i = 0; i < 9; ++i) Add(Op::kHalt);
    kiln::gcu::Module module;
    module.profile = "gcu-16m";
    module.kernels.push_back(std::move(kernel_));
    return module;
  }

 private:
  void Add(Op op, std::initializer_list<int> registers = {}, int64_t immediate = 0,
           uint16_t modifier = 0) {
    Instruction instruction;
    instruction.op = op;
    instruction.modifier = modifier;
    instruction.immediate = immediate;
    std::copy(registers.begin(), registers.end(), instruction.registers.begin());
    kernel_.instructions.push_back(instruction);
  }

  // n * factor + addend in 64 bits.
  static int64_t Wrapped(int64_t n, uint64_t factor, uint64_t addend) {
    return static_cast<int64_t>(static_cast<uint64_t>(n) * factor + addend);
  }

  void AddTile(uint8_t tile) {
    const int place = bytes_.Below(5), rank = bytes_.Below(5);
    const int space = place < 2 ? 0 : place == 3 ? 1 : 2;
    Add(Op::kLoadImmediate, {kScratch}, Wrapped(bytes_.Number(), 4, 0));
    Add(Op::kAdd, {kScratch, kScratch, kFirstAddress + (place == 4 ? 2 : place)});
    Add(Op::kTile, {tile, kScratch}, 0, kiln::gcu::TileModifier(space, 1 + bytes_.Below(6), rank));
    for (int axis = 0; axis < rank; ++axis) {
      Add(Op::kLoadImmediate, {kScratch}, Wrapped(bytes_.Number(), 1, 40));
      Add(Op::kDimensionImmediate, {tile, axis, kScratch}, bytes_.Number());
    }
  }

  void AddAny(const kiln::gcu::OpInfo& info) {
    Instruction instruction;
    instruction.op = info.op;
    size_t used = 0;
    for (const char* letter = info.operands; *letter != 0; ++letter) {
      uint8_t& next = instruction.registers[used];
      switch (*letter) {
        case 'L':
          instruction.immediate =
              static_cast<int64_t>(kernel_.instructions.size()) + 1 + bytes_.Below(8);
          continue;
        case 'I':
          instruction.immediate = bytes_.Number();
          continue;
        case 'M': {
          const int space = bytes_.Below(3), type = 1 + bytes_.Below(6);
          instruction.modifier = kiln::gcu::TileModifier(space, type, bytes_.Below(5));
          continue;
        }
        case 'S':
        case 'R':
          next = bytes_.Below(24);
          break;
        case 'K':
        case 'A':
          next = bytes_.Below(4);
          break;
        default:
          next = bytes_.Below(kTiles + 1);
      }
      ++used;
    }
    kernel_.instructions.push_back(instruction);
  }

  Bytes& bytes_;
  kiln::gcu::Kernel kernel_;
};

struct Outcome {
  std::string fault;
  std::vector<uint8_t> memory;
  int64_t time_ps = 0;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome RunOn(const kiln::gcu_simulator::Profile& profile,
              const kiln::gcu_simulator::Kernel& kernel) {
  kiln::gcu_simulator::Machine machine(profile);
  kiln::gcu_simulator::Launch launch;
  launch.kernel = &kernel;
  std::vector<uint8_t> block(kBlockBytes);
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint8_t>(i * 7);
  for (int i = 0; i < 2; ++i) {
    launch.arguments.push_back(machine.Allocate(Space::kL3, kBlockBytes));
    Require(!machine.Write(Space::kL3, launch.arguments.back(), block.data(), kBlockBytes),
            "memory that was allocated can be written");
  }
  launch.l2_begin = machine.Allocate(Space::kL2, kBlockBytes);
  kiln::gcu_simulator::Report report;
  Outcome outcome;
  if (const auto fault = machine.Run(launch, true, report)) {
    Require(!fault->text.empty(), "a fault has a text");
    outcome.fault = fault->text;
  }
  outcome.time_ps = report.time_ps;
  for (const uint64_t address : launch.arguments) {
    Require(!machine.Read(Space::kL3, address, block.data(), kBlockBytes), "memory can be read");
    outcome.memory.insert(outcome.memory.end(), block.begin(), block.end());
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  const kiln::gcu::Module module = Maker(bytes).Make();
  const auto binary = kiln::gcu::Encode(module);
  Require(binary.ok(), "what is made here has a binary");
  kiln::gcu_simulator::Program program;
  Require(!kiln::gcu_simulator::LoadProgram(binary->data(), binary->size(), program),
          "the simulator takes it");
  // Small, so that a launch costs little.
  kiln::gcu_simulator::Profile profile = *kiln::gcu_simulator::FindProfile("gcu-16m");
  profile.cores = 2;
  profile.l1_bytes = kL1Bytes;
  Require(RunOn(profile, program.kernels[0]) == RunOn(profile, program.kernels[0]),
          "a program does the same each time");
  return 0;
}
