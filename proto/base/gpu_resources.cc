#include "proto/base/gpu_resources.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {
namespace {

constexpr int64_t kWarp = 32;
// CUDA's programming guide, "Technical specifications per compute capability", and its occupancy
// calculator: of sm_80 and later, registers are given to warps in portions, on four partitions.
constexpr int64_t kRegisters = 65536, kPartitions = 4, kRegisterPortion = 256;
constexpr int64_t kSharedPortion = 128, kSharedOfSystem = 1024;

struct Multiprocessor {
  absl::string_view arch;
  int64_t warps, blocks, shared_bytes;
};

constexpr Multiprocessor kMultiprocessors[] = {
    {"sm_80", 64, 32, 164 << 10}, {"sm_86", 48, 16, 100 << 10},  {"sm_89", 48, 24, 100 << 10},
    {"sm_90", 64, 32, 228 << 10}, {"sm_90a", 64, 32, 228 << 10},
};

constexpr uint16_t kElfMachineCuda = 190;
constexpr uint32_t kMostBytes = 1 << 30;  // what is more is no kernel's

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool IsNumber(const v1::SymInt& size) {
  return !size.has_expr();
}

// The launch's threads of a block, 0 where symbols decide.
int64_t ThreadsOf(const v1::Grid& grid) {
  int64_t threads = 1;
  for (const v1::SymInt& size : grid.threads()) threads *= IsNumber(size) ? size.value() : 0;
  return threads;
}

const v1::Grid* FirstGrid(const v1::Program& program, const std::string& symbol) {
  for (const v1::Step& step : program.steps()) {
    if (step.launch().kernel() == symbol && step.launch().has_grid()) return &step.launch().grid();
  }
  return nullptr;
}

template <typename T>
bool Read(absl::string_view bytes, uint64_t at, T& out) {
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) return false;
  std::memcpy(&out, bytes.data() + at, sizeof(T));
  return true;
}

bool ReadSection(absl::string_view elf, const Elf64_Ehdr& header, uint16_t number,
                 Elf64_Shdr& out) {
  if (number >= header.e_shnum || header.e_shoff > elf.size()) return false;
  return Read(elf, header.e_shoff + number * sizeof(Elf64_Shdr), out);
}

// "" for a section that lies outside of the file, or has nothing there.
absl::string_view Contents(absl::string_view elf, const Elf64_Shdr& section) {
  if (section.sh_type == SHT_NOBITS || section.sh_offset > elf.size()) return "";
  if (section.sh_size > elf.size() - section.sh_offset) return "";
  return elf.substr(section.sh_offset, section.sh_size);
}

// A section .nv.info: attributes of a format, a kind, and the size of a value or the value itself;
// those here are pairs of a function's symbol and a number.
void ReadAttributes(absl::string_view info, KernelResources& out) {
  constexpr uint8_t kSizedValue = 0x04, kFrameSize = 0x11, kRegisterCount = 0x2f;
  struct {
    uint8_t format, kind;
    uint16_t size;
  } attribute;
  for (uint64_t at = 0; Read(info, at, attribute);) {
    at += sizeof(attribute);
    if (attribute.format != kSizedValue) continue;
    uint32_t value = 0;
    if (attribute.size == 8 && Read(info, at + 4, value) && value <= kMostBytes) {
      if (attribute.kind == kRegisterCount) out.registers = std::max<int64_t>(out.registers, value);
      if (attribute.kind == kFrameSize) out.stack_bytes = std::max<int64_t>(out.stack_bytes, value);
    }
    at += attribute.size;
  }
}

// Modules by kernel, of an archive as clients load it: lines "// kernel NAME OFFSET SIZE" up to an
// empty one, and the modules' bytes after that. What is outside of it is left out.
std::map<std::string, absl::string_view> ModulesOf(absl::string_view archive) {
  std::map<std::string, absl::string_view> out;
  const size_t end = archive.find("\n\n");
  if (end == archive.npos) return out;
  const absl::string_view modules = archive.substr(end + 2);
  for (absl::string_view line : absl::StrSplit(archive.substr(0, end), '\n')) {
    if (!absl::ConsumePrefix(&line, "// kernel ")) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    uint64_t offset = 0, size = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[1], &offset) ||
        !absl::SimpleAtoi(words[2], &size) || offset > modules.size()) {
      continue;
    }
    out[std::string(words[0])] = modules.substr(offset, size);
  }
  return out;
}

std::string Describe(const v1::Artifact& artifact, const std::string& symbol,
                     const KernelResources& takes) {
  const v1::Grid* const grid = FirstGrid(artifact.program(), symbol);
  const bool shared_known = grid != nullptr && IsNumber(grid->shared_bytes());
  const int64_t shared = takes.shared_bytes + (shared_known ? grid->shared_bytes().value() : 0);
  std::string out =
      absl::StrCat(takes.registers, " registers, ", shared, " bytes of shared memory, ");
  if (takes.stack_bytes == 0) {
    absl::StrAppend(&out, "no stack");
  } else {
    absl::StrAppend(&out, takes.stack_bytes, " bytes of stack (spills, or arrays)");
  }
  if (!shared_known) return out;
  const int64_t threads = ThreadsOf(*grid);
  const auto occupancy = OccupancyOf(artifact.header().arch(), threads, takes.registers, shared);
  if (!occupancy.has_value()) return out;
  return absl::StrCat(out, ", ", occupancy->warps, " of ", occupancy->max_warps, " warps (",
                      occupancy->blocks, " blocks of ", threads, " threads, bound by ",
                      occupancy->bound, ")");
}

}  // namespace

std::optional<Occupancy> OccupancyOf(absl::string_view arch, int64_t threads, int64_t registers,
                                     int64_t shared_bytes) {
  const auto* const end = std::end(kMultiprocessors);
  const auto* const of = std::find_if(std::begin(kMultiprocessors), end,
                                      [&](const Multiprocessor& m) { return m.arch == arch; });
  if (of == end || threads <= 0 || registers <= 0) return std::nullopt;
  const int64_t warps = RoundUp(threads, kWarp) / kWarp;
  const int64_t warp_registers = RoundUp(registers * kWarp, kRegisterPortion);
  const struct {
    int64_t blocks;
    const char* bound;
  } limits[] = {
      {of->warps / warps, "threads"},
      {kRegisters / kPartitions / warp_registers * kPartitions / warps, "registers"},
      {of->shared_bytes / RoundUp(shared_bytes + kSharedOfSystem, kSharedPortion), "shared memory"},
      {of->blocks, "blocks"},
  };
  const auto* const least =
      std::min_element(std::begin(limits), std::end(limits),
                       [](const auto& a, const auto& b) { return a.blocks < b.blocks; });
  return Occupancy{static_cast<int>(least->blocks), static_cast<int>(least->blocks * warps),
                   static_cast<int>(of->warps), least->bound};
}

std::optional<KernelResources> ReadCubin(absl::string_view cubin) {
  Elf64_Ehdr header;
  if (!Read(cubin, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kElfMachineCuda) {
    return std::nullopt;
  }
  Elf64_Shdr names_section;
  if (!ReadSection(cubin, header, header.e_shstrndx, names_section)) return std::nullopt;
  const absl::string_view names = Contents(cubin, names_section);
  KernelResources out;
  for (uint16_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!ReadSection(cubin, header, i, section)) return std::nullopt;
    if (section.sh_name >= names.size()) continue;
    const absl::string_view rest = names.substr(section.sh_name);
    const absl::string_view name = rest.substr(0, rest.find('\0'));
    if (name == ".nv.info") ReadAttributes(Contents(cubin, section), out);
    if (absl::StartsWith(name, ".nv.shared.") && section.sh_size <= kMostBytes) {
      out.shared_bytes = std::max(out.shared_bytes, static_cast<int64_t>(section.sh_size));
    }
  }
  if (out.registers == 0) return std::nullopt;
  return out;
}

std::map<std::string, std::string> DescribeResources(const v1::Artifact& artifact) {
  std::map<std::string, std::string> out;
  for (const v1::Binary& binary : artifact.binaries()) {
    if (binary.kind() != v1::BINARY_KIND_CUBIN) continue;
    for (const auto& [symbol, cubin] : ModulesOf(binary.data())) {
      const std::optional<KernelResources> takes = ReadCubin(cubin);
      if (takes.has_value()) out[symbol] = Describe(artifact, symbol, *takes);
    }
  }
  return out;
}

}  // namespace kiln
