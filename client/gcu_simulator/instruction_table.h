// The rows of proto/gcu/instructions.inc.h, as C++ sees them.
#pragma once

#include <cstdint>

#include "proto/gcu/instructions.inc.h"

namespace kiln::gcu_simulator {

enum class Code : uint16_t {
#define KILN_GCU_CODE(code, name, ...) k##name = code,
  KILN_GCU_INSTRUCTIONS(KILN_GCU_CODE)
#undef KILN_GCU_CODE
};

enum class ElementType : uint8_t {
  kNone = 0,  // of a tile register that was not described
#define KILN_GCU_CODE(code, name, ...) k##name = code,
  KILN_GCU_DTYPES(KILN_GCU_CODE)
#undef KILN_GCU_CODE
};

enum class Unit : uint8_t { kScalar, kSync, kDma, kVector, kMatrix };

struct InstructionRow {
  Code code;
  const char* mnemonic;
  const char* operands;
  Unit unit;
  int cycles;
};

// Null: there is no such instruction.
const InstructionRow* FindRow(uint16_t code);
const InstructionRow& RowOf(Code code);  // REQUIRES: of the table
int ElementBytes(ElementType type);      // 1 of kNone and unknown ones
bool IsKnown(ElementType type);

}  // namespace kiln::gcu_simulator
