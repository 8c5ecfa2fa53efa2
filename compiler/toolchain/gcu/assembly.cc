#include "compiler/toolchain/gcu/assembly.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"

namespace kiln::gcu {
namespace {

using Words = std::vector<absl::string_view>;

struct ArgumentWords {
  const char* text;
  ArgumentKind kind;
  uint8_t access;
};
constexpr ArgumentWords kArgumentWords[] = {
    {"l3 read", ArgumentKind::kL3Pointer, kRead},
    {"l3 write", ArgumentKind::kL3Pointer, kWritten},
    {"l3 readwrite", ArgumentKind::kL3Pointer, kRead | kWritten},
    {"l2 read", ArgumentKind::kL2Pointer, kRead},
    {"l2 write", ArgumentKind::kL2Pointer, kWritten},
    {"l2 readwrite", ArgumentKind::kL2Pointer, kRead | kWritten},
    {"int", ArgumentKind::kInteger, 0},
    {"bits", ArgumentKind::kBits, 0},
};

char PrefixOf(char letter) {
  if (letter == 'S' || letter == 'R') return 's';
  if (letter == 'K') return 'k';
  return letter == 'A' ? 0 : 't';
}

bool ParseNumber(absl::string_view text, int64_t& value) {
  if (!absl::StartsWithIgnoreCase(text, "0x")) return absl::SimpleAtoi(text, &value);
  uint64_t bits = 0;
  if (!absl::SimpleHexAtoi(text, &bits)) return false;
  value = static_cast<int64_t>(bits);
  return true;
}

class Assembler {
 public:
  absl::StatusOr<Module> Run(absl::string_view text) {
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      ++line_;
      line = absl::StripAsciiWhitespace(line.substr(0, line.find(';')));
      if (line.empty()) continue;
      const absl::Status status = AddLine(line);
      if (!status.ok()) return At(line_, status.message());
    }
    if (in_kernel_) return At(line_, absl::StrCat("kernel ", kernel_.name, " has no .end"));
    if (module_.profile.empty()) return At(line_, "there is no .profile");
    KILN_RETURN_IF_ERROR(Verify(module_));
    return std::move(module_);
  }

 private:
  struct Reference {
    size_t instruction;
    std::string label;
    int line;
  };

  static absl::Status Bad(absl::string_view text) { return absl::InvalidArgumentError(text); }
  static absl::Status At(int line, absl::string_view text) {
    return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", text));
  }

  absl::Status AddLine(absl::string_view line) {
    if (line[0] == '.')
      return AddDirective(absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty()));
    if (!in_kernel_) return Bad("an instruction is outside of a kernel");
    if (line.back() == ':')
      return AddLabel(absl::StripAsciiWhitespace(line.substr(0, line.size() - 1)));
    return AddInstruction(line);
  }

  absl::Status AddLabel(absl::string_view name) {
    if (name.empty() || name.find_first_of(" \t,") != name.npos)
      return Bad("a label is one word before a colon");
    const bool is_new = labels_.try_emplace(std::string(name), kernel_.instructions.size()).second;
    return is_new ? absl::OkStatus()
                  : Bad(absl::StrCat("label ", name, " stands twice in its kernel"));
  }

  absl::Status AddDirective(const Words& words) {
    const absl::string_view name = words[0];
    if (name == ".end") return words.size() == 1 ? EndKernel() : Bad(".end takes nothing");
    if (name == ".arg") return AddArgument(words);
    if (words.size() != 2) return Bad(absl::StrCat("expected one word after ", name));
    if (name == ".gcu")
      return words[1] == "1" ? absl::OkStatus() : Bad("this is an assembler of .gcu 1");
    if (name == ".profile") {
      if (!module_.profile.empty()) return Bad(".profile stands twice");
      module_.profile = std::string(words[1]);
      return absl::OkStatus();
    }
    if (name == ".kernel") {
      if (in_kernel_) return Bad(absl::StrCat("kernel ", kernel_.name, " has no .end"));
      kernel_ = Kernel();
      kernel_.name = std::string(words[1]);
      labels_.clear();
      references_.clear();
      in_kernel_ = true;
      return absl::OkStatus();
    }
    if (name != ".l1" && name != ".l2") return Bad(absl::StrCat("unknown directive ", name));
    if (!in_kernel_) return Bad(absl::StrCat(name, " is outside of a kernel"));
    uint32_t bytes = 0;
    if (!absl::SimpleAtoi(words[1], &bytes))
      return Bad(absl::StrCat("expected a number of bytes, got ", words[1]));
    (name == ".l1" ? kernel_.l1_bytes : kernel_.l2_bytes) = bytes;
    return absl::OkStatus();
  }

  absl::Status AddArgument(const Words& words) {
    if (!in_kernel_) return Bad(".arg is outside of a kernel");
    const std::string kind = words.size() == 4   ? absl::StrCat(words[2], " ", words[3])
                             : words.size() == 3 ? std::string(words[2])
                                                 : "";
    for (const ArgumentWords& row : kArgumentWords) {
      if (kind != row.text) continue;
      kernel_.arguments.push_back({std::string(words[1]), row.kind, row.access});
      return absl::OkStatus();
    }
    return Bad("expected .arg NAME, and l3 or l2 with read, write or readwrite, or int, or bits");
  }

  absl::Status EndKernel() {
    if (!in_kernel_) return Bad(".end is outside of a kernel");
    for (const Reference& reference : references_) {
      const auto label = labels_.find(reference.label);
      // Not this line's error, so it says its own line.
      if (label == labels_.end() || label->second == kernel_.instructions.size()) {
        return Bad(absl::StrCat("label ", reference.label, " of line ", reference.line,
                                " stands before no instruction"));
      }
      kernel_.instructions[reference.instruction].immediate = static_cast<int64_t>(label->second);
    }
    module_.kernels.push_back(std::move(kernel_));
    in_kernel_ = false;
    return absl::OkStatus();
  }

  absl::Status AddInstruction(absl::string_view line) {
    const size_t blank = line.find_first_of(" \t");
    const absl::string_view mnemonic = line.substr(0, blank);
    const OpInfo* info = FindOp(mnemonic);
    if (info == nullptr) return Bad(absl::StrCat("unknown instruction ", mnemonic));
    Words operands;
    if (blank != line.npos) {
      for (absl::string_view word : absl::StrSplit(line.substr(blank), ',')) {
        operands.push_back(absl::StripAsciiWhitespace(word));
      }
    }
    const size_t expected = std::char_traits<char>::length(info->operands);
    if (operands.size() != expected) {
      return Bad(absl::StrCat(mnemonic, " takes ", expected, " operands, got ", operands.size()));
    }
    Instruction instruction;
    instruction.op = info->op;
    size_t used = 0;
    for (size_t i = 0; i < expected; ++i) {
      KILN_RETURN_IF_ERROR(AddOperand(info->operands[i], operands[i], used, instruction));
    }
    kernel_.instructions.push_back(instruction);
    return absl::OkStatus();
  }

  absl::Status AddOperand(char letter, absl::string_view text, size_t& used,
                          Instruction& instruction) {
    if (letter == 'L') {
      references_.push_back({kernel_.instructions.size(), std::string(text), line_});
      return absl::OkStatus();
    }
    if (letter == 'I') {
      return ParseNumber(text, instruction.immediate)
                 ? absl::OkStatus()
                 : Bad(absl::StrCat("expected a number, got '", text, "'"));
    }
    if (letter == 'M') return AddTileType(text, instruction);
    const char prefix = PrefixOf(letter);
    absl::string_view digits = text;
    int64_t number = 0;
    const bool has_prefix =
        prefix == 0 || absl::ConsumePrefix(&digits, absl::string_view(&prefix, 1));
    if (!has_prefix || !ParseNumber(digits, number) || number < 0 || number > 255) {
      return Bad(absl::StrCat("expected ",
                              prefix == 0
                                  ? "a small number"
                                  : absl::StrCat("a register ", std::string(1, prefix), "0 and up"),
                              ", got '", text, "'"));
    }
    instruction.registers[used++] = static_cast<uint8_t>(number);
    return absl::OkStatus();
  }

  static absl::Status AddTileType(absl::string_view text, Instruction& instruction) {
    if (const std::optional<uint16_t> modifier = ParseTileType(text)) {
      instruction.modifier = *modifier;
      return absl::OkStatus();
    }
    return Bad(absl::StrCat("expected a tile's type as l1.f32.2, got '", text, "'"));
  }

  Module module_;
  Kernel kernel_;
  bool in_kernel_ = false;
  absl::flat_hash_map<std::string, size_t> labels_;
  std::vector<Reference> references_;
  int line_ = 0;
};

std::string OperandText(char letter, const Instruction& instruction, size_t& used,
                        const std::map<int64_t, std::string>& labels) {
  if (letter == 'L') return labels.at(instruction.immediate);
  if (letter == 'I') return absl::StrCat(instruction.immediate);
  if (letter == 'M') return TileTypeText(instruction.modifier);
  const char prefix = PrefixOf(letter);
  const int number = instruction.registers[used++];
  return prefix == 0 ? absl::StrCat(number) : absl::StrCat(std::string(1, prefix), number);
}

std::map<int64_t, std::string> LabelsOf(const Kernel& kernel) {
  std::map<int64_t, std::string> labels;
  for (const Instruction& instruction : kernel.instructions) {
    if (absl::StrContains(Info(instruction.op).operands, 'L')) labels[instruction.immediate];
  }
  int number = 0;
  for (auto& [at, name] : labels) name = absl::StrCat("L", number++);
  return labels;
}

void AppendKernel(const Kernel& kernel, std::string& out) {
  absl::StrAppend(&out, ".kernel ", kernel.name, "\n");
  for (const Argument& argument : kernel.arguments) {
    for (const ArgumentWords& row : kArgumentWords) {
      if (row.kind != argument.kind || row.access != argument.access) continue;
      absl::StrAppend(&out, ".arg ", argument.name, " ", row.text, "\n");
    }
  }
  absl::StrAppend(&out, ".l1 ", kernel.l1_bytes, "\n.l2 ", kernel.l2_bytes, "\n");
  const std::map<int64_t, std::string> labels = LabelsOf(kernel);
  for (size_t i = 0; i < kernel.instructions.size(); ++i) {
    const Instruction& instruction = kernel.instructions[i];
    if (const auto label = labels.find(static_cast<int64_t>(i)); label != labels.end()) {
      absl::StrAppend(&out, label->second, ":\n");
    }
    const OpInfo& info = Info(instruction.op);
    absl::StrAppend(&out, "  ", info.mnemonic);
    size_t used = 0;
    for (const char* letter = info.operands; *letter != 0; ++letter) {
      absl::StrAppend(&out, letter == info.operands ? " " : ", ",
                      OperandText(*letter, instruction, used, labels));
    }
    out += '\n';
  }
  out += ".end\n";
}

}  // namespace

absl::StatusOr<Module> Assemble(absl::string_view text) {
  return Assembler().Run(text);
}

std::string Disassemble(const Module& module) {
  std::string out = absl::StrCat(".gcu 1\n.profile ", module.profile, "\n");
  for (const Kernel& kernel : module.kernels) AppendKernel(kernel, out);
  return out;
}

}  // namespace kiln::gcu
