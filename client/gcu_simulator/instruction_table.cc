#include "client/gcu_simulator/instruction_table.h"

#include <array>

#include "client/gcu_simulator/machine.h"

namespace kiln::gcu_simulator {
namespace {

constexpr InstructionRow kRows[] = {
#define KILN_GCU_ROW(code, name, mnemonic, operands, unit, cycles) \
  {Code::k##name, mnemonic, operands, Unit::k##unit, cycles},
    KILN_GCU_INSTRUCTIONS(KILN_GCU_ROW)
#undef KILN_GCU_ROW
};

constexpr Profile kProfiles[] = {
#define KILN_GCU_ROW(...) Profile{__VA_ARGS__},
    KILN_GCU_PROFILES(KILN_GCU_ROW)
#undef KILN_GCU_ROW
};

constexpr size_t kCodes = 256;  // the table's are below

constexpr std::array<const InstructionRow*, kCodes> RowsByCode() {
  std::array<const InstructionRow*, kCodes> rows{};
  for (const InstructionRow& row : kRows) rows[static_cast<size_t>(row.code)] = &row;
  return rows;
}

constexpr std::array<const InstructionRow*, kCodes> kByCode = RowsByCode();

}  // namespace

const InstructionRow* FindRow(uint16_t code) {
  return code < kCodes ? kByCode[code] : nullptr;
}

const InstructionRow& RowOf(Code code) {
  return *kByCode[static_cast<size_t>(code)];
}

int ElementBytes(ElementType type) {
  switch (type) {
#define KILN_GCU_SIZE(code, name, text, bytes) \
  case ElementType::k##name:                   \
    return bytes;
    KILN_GCU_DTYPES(KILN_GCU_SIZE)
#undef KILN_GCU_SIZE
    default:
      return 1;
  }
}

bool IsKnown(ElementType type) {
  switch (type) {
#define KILN_GCU_KNOWN(code, name, ...) case ElementType::k##name:
    KILN_GCU_DTYPES(KILN_GCU_KNOWN)
#undef KILN_GCU_KNOWN
    return true;
    default:
      return false;
  }
}

const Profile* FindProfile(const std::string& name) {
  for (const Profile& profile : kProfiles) {
    if (name == profile.name) return &profile;
  }
  return nullptr;
}

}  // namespace kiln::gcu_simulator
