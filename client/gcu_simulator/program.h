// A GCU binary as a checked plain structure. The loader refuses whatever proto/gcu/README.md does
// not allow, so what runs a Program need not look at registers, types or labels again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/gcu_simulator/fault.h"

namespace kiln::gcu_simulator {

enum class Code : uint16_t;        // of instructions; instruction_table.h
enum class ElementType : uint8_t;  // instruction_table.h

struct Instruction {
  Code code{};
  uint16_t modifier = 0;
  std::array<uint8_t, 8> registers{};
  int64_t immediate = 0;
};

struct Argument {
  std::string name;
  uint8_t kind = 0;    // 1 pointer to L3, 2 pointer to L2, 3 integer, 4 bits of a number
  uint8_t access = 0;  // bits: 1 read, 2 written
};

struct Kernel {
  std::string name;
  std::vector<Argument> arguments;
  std::vector<Instruction> instructions;
  uint32_t l1_bytes = 0, l2_bytes = 0;
};

struct Program {
  std::string profile;
  std::vector<Kernel> kernels;
};

// Reads a binary into `program`. A fault (kBadBinary) says what is wrong and at which offset;
// `program` is unchanged then.
std::optional<Fault> LoadProgram(const void* data, size_t size, Program& program);

}  // namespace kiln::gcu_simulator
