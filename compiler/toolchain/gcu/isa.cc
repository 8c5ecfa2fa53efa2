#include "compiler/toolchain/gcu/isa.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kiln::gcu {
namespace {

struct Named {
  int code;
  const char* text;
};

constexpr Named kSpaces[] = {
#define KILN_GCU_ROW(code, name, text) {code, text},
    KILN_GCU_SPACES(KILN_GCU_ROW)
#undef KILN_GCU_ROW
};

constexpr Named kDtypes[] = {
#define KILN_GCU_ROW(code, name, text, bytes) {code, text},
    KILN_GCU_DTYPES(KILN_GCU_ROW)
#undef KILN_GCU_ROW
};

template <size_t N>
int CodeOf(const Named (&rows)[N], absl::string_view text) {
  for (const Named& row : rows) {
    if (text == row.text) return row.code;
  }
  return -1;
}

template <size_t N>
const char* TextOf(const Named (&rows)[N], int code) {
  for (const Named& row : rows) {
    if (row.code == code) return row.text;
  }
  return nullptr;
}

struct ProfileLimits {
  const char* name;
  int64_t l2_bytes, l1_bytes;
};

constexpr ProfileLimits kProfiles[] = {
#define KILN_GCU_ROW(name, l3, l3_rate, l2, l2_rate, l1, ...) {name, l2, l1},
    KILN_GCU_PROFILES(KILN_GCU_ROW)
#undef KILN_GCU_ROW
};

absl::Status Bad(absl::string_view text) {
  return absl::InvalidArgumentError(text);
}

// Names stand in text between blanks, and before a colon.
bool IsName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
  });
}

int Limit(char letter) {
  switch (letter) {
    case 'S':
    case 'R':
      return KILN_GCU_SCALAR_REGISTERS;
    case 'K':
      return KILN_GCU_TOKENS;
    case 'A':
      return KILN_GCU_MAX_RANK;
    default:
      return KILN_GCU_TILE_REGISTERS;
  }
}

absl::Status CheckInstruction(const Instruction& instruction, size_t count) {
  const OpInfo* info = FindOp(static_cast<uint16_t>(instruction.op));
  if (info == nullptr) return Bad(absl::StrCat("has no code ", static_cast<int>(instruction.op)));
  size_t used = 0;
  bool has_immediate = false, has_modifier = false;
  for (const char* letter = info->operands; *letter != 0; ++letter) {
    if (*letter == 'I' || *letter == 'L') {
      has_immediate = true;
      const bool inside =
          instruction.immediate >= 0 && static_cast<uint64_t>(instruction.immediate) < count;
      if (*letter == 'L' && !inside) return Bad("goes to no instruction of its kernel");
    } else if (*letter == 'M') {
      has_modifier = true;
      if (TileTypeText(instruction.modifier).empty()) return Bad("has an unknown type of tile");
    } else if (instruction.registers[used++] >= Limit(*letter)) {
      return Bad(absl::StrCat("has ", static_cast<int>(instruction.registers[used - 1]),
                              " as operand '", std::string(1, *letter), "', of which there are ",
                              Limit(*letter)));
    }
  }
  const bool is_clean = (has_immediate || instruction.immediate == 0) &&
                        (has_modifier || instruction.modifier == 0) &&
                        std::all_of(instruction.registers.begin() + used,
                                    instruction.registers.end(), [](uint8_t r) { return r == 0; });
  return is_clean ? absl::OkStatus() : Bad("has something in fields that it does not use");
}

bool Ends(Op op) {
  return op == Op::kHalt || op == Op::kJump || op == Op::kTrap;
}

absl::Status CheckKernel(const Kernel& kernel, const ProfileLimits& profile) {
  if (kernel.l1_bytes > profile.l1_bytes || kernel.l2_bytes > profile.l2_bytes) {
    return Bad("takes more L1 or L2 than the profile has");
  }
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    const Argument& argument = kernel.arguments[i];
    const bool is_pointer =
        argument.kind == ArgumentKind::kL3Pointer || argument.kind == ArgumentKind::kL2Pointer;
    const bool is_value =
        argument.kind == ArgumentKind::kInteger || argument.kind == ArgumentKind::kBits;
    if (!IsName(argument.name)) return Bad(absl::StrCat("argument ", i, " has no proper name"));
    if (!is_pointer && !is_value) return Bad(absl::StrCat("argument ", i, " has an unknown kind"));
    if (is_value ? argument.access != 0
                 : argument.access == 0 || argument.access > (kRead | kWritten)) {
      return Bad(absl::StrCat("argument ", i, " has an access that its kind has not"));
    }
    for (size_t j = 0; j < i; ++j) {
      if (kernel.arguments[j].name == argument.name) {
        return Bad(absl::StrCat("arguments ", j, " and ", i, " have one name"));
      }
    }
  }
  const size_t count = kernel.instructions.size();
  for (size_t i = 0; i < count; ++i) {
    const absl::Status status = CheckInstruction(kernel.instructions[i], count);
    if (!status.ok()) return Bad(absl::StrCat("instruction ", i, " ", status.message()));
  }
  if (count == 0 || !Ends(kernel.instructions.back().op)) {
    return Bad("does not end with halt, jmp or trap");
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<OpInfo>& AllOps() {
  static const auto* ops = new std::vector<OpInfo>{
#define KILN_GCU_ROW(code, name, mnemonic, operands, unit, cycles) \
  {Op::k##name, mnemonic, operands},
      KILN_GCU_INSTRUCTIONS(KILN_GCU_ROW)
#undef KILN_GCU_ROW
  };
  return *ops;
}

const OpInfo* FindOp(uint16_t code) {
  const std::vector<OpInfo>& ops = AllOps();
  const auto it = std::lower_bound(
      ops.begin(), ops.end(), code,
      [](const OpInfo& info, uint16_t wanted) { return static_cast<uint16_t>(info.op) < wanted; });
  return it != ops.end() && static_cast<uint16_t>(it->op) == code ? &*it : nullptr;
}

const OpInfo* FindOp(absl::string_view mnemonic) {
  for (const OpInfo& info : AllOps()) {
    if (mnemonic == info.mnemonic) return &info;
  }
  return nullptr;
}

uint16_t TileModifier(int space, int dtype, int rank) {
  return static_cast<uint16_t>(space | dtype << 4 | rank << 8);
}

std::string TileTypeText(uint16_t modifier) {
  const char* space = TextOf(kSpaces, modifier & 15);
  const char* dtype = TextOf(kDtypes, modifier >> 4 & 15);
  const int rank = modifier >> 8;
  if (space == nullptr || dtype == nullptr || rank > KILN_GCU_MAX_RANK) return "";
  return absl::StrCat(space, ".", dtype, ".", rank);
}

std::optional<uint16_t> ParseTileType(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  if (parts.size() != 3) return std::nullopt;
  const int space = CodeOf(kSpaces, parts[0]), dtype = CodeOf(kDtypes, parts[1]);
  const int rank = parts[2].size() == 1 ? parts[2][0] - '0' : -1;
  if (space < 0 || dtype < 0 || rank < 0 || rank > KILN_GCU_MAX_RANK) return std::nullopt;
  return TileModifier(space, dtype, rank);
}

absl::Status Verify(const Module& module) {
  const auto* profile =
      std::find_if(std::begin(kProfiles), std::end(kProfiles),
                   [&](const ProfileLimits& p) { return module.profile == p.name; });
  if (profile == std::end(kProfiles))
    return Bad(absl::StrCat("there is no profile '", module.profile, "'"));
  for (size_t i = 0; i < module.kernels.size(); ++i) {
    const Kernel& kernel = module.kernels[i];
    if (!IsName(kernel.name)) return Bad(absl::StrCat("kernel ", i, " has no proper name"));
    for (size_t j = 0; j < i; ++j) {
      if (module.kernels[j].name == kernel.name)
        return Bad(absl::StrCat("two kernels are named ", kernel.name));
    }
    const absl::Status status = CheckKernel(kernel, *profile);
    if (!status.ok()) return Bad(absl::StrCat("kernel ", kernel.name, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace kiln::gcu
