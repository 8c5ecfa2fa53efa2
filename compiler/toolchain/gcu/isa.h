// Programs of a GCU as plain structures, and what the instruction table says of them. The
// specification is proto/gcu/README.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/gcu/instructions.inc.h"

namespace kiln::gcu {

enum class Op : uint16_t {
#define KILN_GCU_OP(code, name, ...) k##name = code,
  KILN_GCU_INSTRUCTIONS(KILN_GCU_OP)
#undef KILN_GCU_OP
};

struct OpInfo {
  Op op;
  const char* mnemonic;
  const char* operands;  // a letter each, as the table explains
};
const OpInfo* FindOp(uint16_t code);               // null: there is none
const OpInfo* FindOp(absl::string_view mnemonic);  // null: there is none
inline const OpInfo& Info(Op op) {
  return *FindOp(static_cast<uint16_t>(op));
}
// All of the table, in ascending order of codes.
const std::vector<OpInfo>& AllOps();

struct Instruction {
  Op op = Op::kNop;
  uint16_t modifier = 0;
  std::array<uint8_t, 8> registers{};
  int64_t immediate = 0;

  friend bool operator==(const Instruction&, const Instruction&) = default;
};

enum class ArgumentKind : uint8_t { kL3Pointer = 1, kL2Pointer = 2, kInteger = 3, kBits = 4 };
inline constexpr uint8_t kRead = 1, kWritten = 2;

struct Argument {
  std::string name;
  ArgumentKind kind = ArgumentKind::kInteger;
  uint8_t access = 0;  // kRead | kWritten of pointers, 0 of values

  friend bool operator==(const Argument&, const Argument&) = default;
};

struct Kernel {
  std::string name;
  std::vector<Argument> arguments;
  std::vector<Instruction> instructions;
  uint32_t l1_bytes = 0;  // of each core
  uint32_t l2_bytes = 0;  // of the launch

  friend bool operator==(const Kernel&, const Kernel&) = default;
};

struct Module {
  std::string profile;
  std::vector<Kernel> kernels;

  friend bool operator==(const Module&, const Module&) = default;
};

// A tile's type as the modifier of `tile` has it.
uint16_t TileModifier(int space, int dtype, int rank);
// "l1.f32.2"; empty where the specification has no such type.
std::string TileTypeText(uint16_t modifier);
// The type of that text; nothing where the specification has none.
std::optional<uint16_t> ParseTileType(absl::string_view text);

// Whether the module is one that loaders take: known profile, registers and tokens, labels inside
// of their kernel, unused fields 0, no kernel that runs past its end. INVALID_ARGUMENT with the
// kernel and the number of the instruction.
absl::Status Verify(const Module& module);

}  // namespace kiln::gcu
