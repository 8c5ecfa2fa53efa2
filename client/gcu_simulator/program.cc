#include "client/gcu_simulator/program.h"

#include <cstring>
#include <set>
#include <utility>

#include "client/gcu_simulator/instruction_table.h"
#include "client/gcu_simulator/machine.h"

namespace kiln::gcu_simulator {
namespace {

constexpr uint16_t kFormat = 1, kInstructions = 1;
constexpr size_t kHeader = 80, kChecksum = 72, kProfileSize = 24;

// Little-endian numbers of the file.
class File {
 public:
  File(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  size_t size() const { return size_; }
  uint64_t Number(size_t at, int bytes) const {
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | data_[at + i];
    return value;
  }
  uint32_t Word(size_t at) const { return static_cast<uint32_t>(Number(at, 4)); }
  bool IsZero(size_t at, size_t bytes) const {
    for (size_t i = 0; i < bytes; ++i) {
      if (data_[at + i] != 0) return false;
    }
    return true;
  }
  std::string Text(size_t at, size_t bytes) const {
    return std::string(reinterpret_cast<const char*>(data_) + at, bytes);
  }
  uint64_t Hash() const {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < size_; ++i) {
      hash = (hash ^ (i - kChecksum < 8 ? 0 : data_[i])) * 0x100000001b3;
    }
    return hash;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

struct Table {
  size_t at = 0;
  uint32_t count = 0;
};

bool IsName(const std::string& name) {
  for (char c : name) {
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!is_word && c != '_' && c != '.' && c != '-') return false;
  }
  return !name.empty();
}

class Loader {
 public:
  explicit Loader(File file) : file_(file) {}

  // False: `text` says why not.
  bool Run(Program& program) {
    if (!ReadHeader(program)) return false;
    std::set<std::string> names;
    uint32_t instructions = 0, arguments = 0;
    for (uint32_t k = 0; k < kernels_.count; ++k) {
      const size_t at = kernels_.at + size_t{k} * 32;
      Kernel kernel;
      where_ = "kernel " + std::to_string(k);
      if (!ReadName(at, kernel.name)) return false;
      const uint32_t first = file_.Word(at + 8), count = file_.Word(at + 12);
      const uint32_t first_argument = file_.Word(at + 16), argument_count = file_.Word(at + 20);
      kernel.l1_bytes = file_.Word(at + 24);
      kernel.l2_bytes = file_.Word(at + 28);
      if (!names.insert(kernel.name).second) return No("has another's name");
      if (kernel.l1_bytes > profile_->l1_bytes || kernel.l2_bytes > profile_->l2_bytes) {
        return No("takes more memory than the profile has");
      }
      if (first != instructions || count > instructions_.count - instructions) {
        return No("has instructions that are not its own");
      }
      if (first_argument != arguments || argument_count > arguments_.count - arguments) {
        return No("has arguments that are not its own");
      }
      if (!ReadArguments(first_argument, argument_count, kernel)) return false;
      if (!ReadInstructions(first, count, kernel)) return false;
      instructions += count;
      arguments += argument_count;
      program.kernels.push_back(std::move(kernel));
    }
    where_ = "the file";
    if (instructions != instructions_.count || arguments != arguments_.count ||
        strings_read_ != strings_.count) {
      return No("has parts that no kernel uses");
    }
    return true;
  }

  const std::string& text() const { return text_; }

 private:
  bool No(const std::string& what) {
    text_ = where_ + " " + what;
    return false;
  }

  bool ReadHeader(Program& program) {
    where_ = "the file";
    if (file_.size() < kHeader) return No("is shorter than a header");
    if (file_.Text(0, 4) != "KGCU") return No("does not begin with KGCU");
    if (file_.Number(4, 2) != kFormat)
      return No("has format " + std::to_string(file_.Number(4, 2)));
    if (file_.Number(6, 2) > kInstructions) return No("has newer instructions");
    const std::string padded = file_.Text(8, kProfileSize);
    program.profile = padded.substr(0, padded.find('\0'));
    if (!file_.IsZero(8 + program.profile.size(), kProfileSize - program.profile.size())) {
      return No("has something after its profile's name");
    }
    profile_ = FindProfile(program.profile);
    if (profile_ == nullptr) return No("is for an unknown profile");
    if (file_.Number(32, 8) != file_.size()) return No("has another size than its header says");
    size_t end = kHeader;
    Table* const tables[] = {&kernels_, &arguments_, &instructions_, &strings_};
    const size_t sizes[] = {32, 16, 32, 1};
    for (int i = 0; i < 4; ++i) {
      const uint32_t offset = file_.Word(40 + 8 * i), count = file_.Word(44 + 8 * i);
      if (offset != end || count > (file_.size() - end) / sizes[i]) {
        return No("has section " + std::to_string(i) + " outside of its place");
      }
      *tables[i] = {end, count};
      end += count * sizes[i];
    }
    if (end != file_.size()) return No("goes on after its last section");
    return file_.Number(kChecksum, 8) == file_.Hash() || No("has a wrong checksum");
  }

  // Of the eight bytes at `at`.
  bool ReadName(size_t at, std::string& name) {
    const uint32_t offset = file_.Word(at), size = file_.Word(at + 4);
    if (offset != strings_read_ || size > strings_.count - strings_read_)
      return No("has a name out of its place");
    name = file_.Text(strings_.at + offset, size);
    strings_read_ += size;
    return IsName(name) || No("has a name of other characters");
  }

  bool ReadArguments(uint32_t first, uint32_t count, Kernel& kernel) {
    std::set<std::string> names;
    for (uint32_t i = 0; i < count; ++i) {
      const size_t at = arguments_.at + (size_t{first} + i) * 16;
      Argument argument;
      if (!ReadName(at, argument.name)) return false;
      argument.kind = static_cast<uint8_t>(file_.Number(at + 8, 1));
      argument.access = static_cast<uint8_t>(file_.Number(at + 9, 1));
      const bool is_pointer = argument.kind == 1 || argument.kind == 2;
      const bool is_value = argument.kind == 3 || argument.kind == 4;
      const bool has_access =
          is_pointer ? argument.access >= 1 && argument.access <= 3 : argument.access == 0;
      if ((!is_pointer && !is_value) || !has_access || !file_.IsZero(at + 10, 6)) {
        return No("has argument " + std::to_string(i) + " of an unknown kind");
      }
      if (!names.insert(argument.name).second) return No("has two arguments of one name");
      kernel.arguments.push_back(std::move(argument));
    }
    return true;
  }

  bool ReadInstructions(uint32_t first, uint32_t count, Kernel& kernel) {
    for (uint32_t i = 0; i < count; ++i) {
      const size_t at = instructions_.at + (size_t{first} + i) * 32;
      const auto code = static_cast<uint16_t>(file_.Number(at, 2));
      const InstructionRow* row = FindRow(code);
      Instruction instruction{static_cast<Code>(code),
                              static_cast<uint16_t>(file_.Number(at + 2, 2)),
                              {},
                              static_cast<int64_t>(file_.Number(at + 16, 8))};
      for (int r = 0; r < 8; ++r)
        instruction.registers[r] = static_cast<uint8_t>(file_.Number(at + 4 + r, 1));
      if (row == nullptr || !Fits(*row, instruction, count) || !file_.IsZero(at + 12, 4) ||
          !file_.IsZero(at + 24, 8)) {
        return No("has instruction " + std::to_string(i) + ", code " + std::to_string(code) +
                  ", with operands that it cannot have");
      }
      kernel.instructions.push_back(instruction);
    }
    const Code last = count > 0 ? kernel.instructions.back().code : Code::kNop;
    return last == Code::kHalt || last == Code::kJump || last == Code::kTrap ||
           No("goes on after its last instruction");
  }

  static bool Fits(const InstructionRow& row, const Instruction& instruction, uint32_t count) {
    size_t used = 0;
    bool takes_immediate = false, takes_modifier = false;
    for (const char* operand = row.operands; *operand != 0; ++operand) {
      switch (*operand) {
        case 'I':
          takes_immediate = true;
          break;
        case 'L':
          takes_immediate = true;
          if (instruction.immediate < 0 || instruction.immediate >= count) return false;
          break;
        case 'M':
          takes_modifier = true;
          if (!IsTileType(instruction.modifier)) return false;
          break;
        case 'S':
        case 'R':
          if (instruction.registers[used++] >= KILN_GCU_SCALAR_REGISTERS) return false;
          break;
        case 'K':
          if (instruction.registers[used++] >= KILN_GCU_TOKENS) return false;
          break;
        case 'A':
          if (instruction.registers[used++] >= KILN_GCU_MAX_RANK) return false;
          break;
        default:
          if (instruction.registers[used++] >= KILN_GCU_TILE_REGISTERS) return false;
      }
    }
    for (; used < instruction.registers.size(); ++used) {
      if (instruction.registers[used] != 0) return false;
    }
    return (takes_immediate || instruction.immediate == 0) &&
           (takes_modifier || instruction.modifier == 0);
  }

  static bool IsTileType(uint16_t modifier) {
    return (modifier & 15) <= static_cast<int>(Space::kL1) &&
           IsKnown(static_cast<ElementType>(modifier >> 4 & 15)) &&
           modifier >> 8 <= KILN_GCU_MAX_RANK;
  }

  const File file_;
  const Profile* profile_ = nullptr;
  Table kernels_, arguments_, instructions_, strings_;
  uint32_t strings_read_ = 0;
  std::string where_, text_;
};

}  // namespace

std::optional<Fault> LoadProgram(const void* data, size_t size, Program& program) {
  Loader loader(File(static_cast<const uint8_t*>(data), size));
  Program loaded;
  if (!loader.Run(loaded)) return Fault{FaultCode::kBadBinary, "GCU binary: " + loader.text()};
  program = std::move(loaded);
  return std::nullopt;
}

}  // namespace kiln::gcu_simulator
