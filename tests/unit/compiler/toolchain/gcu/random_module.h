// Modules that Verify accepts, with every instruction of the table.
#pragma once

#include <random>
#include <string>

#include "compiler/toolchain/gcu/isa.h"

namespace kiln::gcu {

inline Instruction RandomInstruction(const OpInfo& info, size_t count, std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<uint8_t>(random() % n); };
  Instruction instruction;
  instruction.op = info.op;
  size_t used = 0;
  for (const char* letter = info.operands; *letter != 0; ++letter) {
    uint8_t* next = &instruction.registers[used];
    switch (*letter) {
      case 'L':
        instruction.immediate = static_cast<int64_t>(random() % count);
        continue;
      case 'I':
        instruction.immediate = static_cast<int64_t>(uint64_t{random()} << 32 | random());
        continue;
      case 'M':
        instruction.modifier = TileModifier(below(3), 1 + below(6), below(5));
        continue;
      case 'S':
      case 'R':
        *next = below(KILN_GCU_SCALAR_REGISTERS);
        break;
      case 'K':
        *next = below(KILN_GCU_TOKENS);
        break;
      case 'A':
        *next = below(KILN_GCU_MAX_RANK);
        break;
      default:
        *next = below(KILN_GCU_TILE_REGISTERS);
    }
    ++used;
  }
  return instruction;
}

// A kernel with each instruction of the table once, in some order, and `halt` after them.
inline Kernel RandomKernel(std::string name, std::mt19937& random) {
  constexpr std::pair<ArgumentKind, uint8_t> kKinds[] = {
      {ArgumentKind::kL3Pointer, kRead},
      {ArgumentKind::kL2Pointer, kRead | kWritten},
      {ArgumentKind::kInteger, 0},
      {ArgumentKind::kBits, 0}};
  Kernel kernel;
  kernel.name = std::move(name);
  for (size_t i = random() % 5; i-- > 0;) {
    const auto [kind, access] = kKinds[random() % 4];
    kernel.arguments.push_back({"a" + std::to_string(i), kind, access});
  }
  kernel.l1_bytes = random() % (1 << 20);
  kernel.l2_bytes = random() % (16 << 20);
  std::vector<OpInfo> ops = AllOps();
  std::shuffle(ops.begin(), ops.end(), random);
  for (const OpInfo& info : ops)
    kernel.instructions.push_back(RandomInstruction(info, ops.size(), random));
  kernel.instructions.push_back({Op::kHalt});
  return kernel;
}

inline Module RandomModule(std::mt19937& random) {
  Module module{random() % 2 == 0 ? "gcu-16m" : "gcu-s60", {}};
  for (size_t i = random() % 4; i-- > 0;)
    module.kernels.push_back(RandomKernel("k." + std::to_string(i), random));
  return module;
}

}  // namespace kiln::gcu
