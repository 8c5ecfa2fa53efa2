#include "compiler/toolchain/gcu/binary.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::gcu {
namespace {

// Changes here change the specification and the versions in it.
constexpr char kMagic[] = "KGCU";
constexpr uint16_t kFormatVersion = 1, kInstructionVersion = 1;
constexpr size_t kProfileBytes = 24, kHeaderBytes = 80, kChecksumAt = 72;
constexpr size_t kKernelBytes = 32, kArgumentBytes = 16, kInstructionBytes = 32;

uint64_t Checksum(absl::string_view binary) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < binary.size(); ++i) {
    const bool is_own = i >= kChecksumAt && i < kChecksumAt + 8;
    hash = (hash ^ (is_own ? 0 : static_cast<uint8_t>(binary[i]))) * 0x100000001b3;
  }
  return hash;
}

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T);
         ++i, bits = static_cast<decltype(bits)>(static_cast<uint64_t>(bits) >> 8)) {
      out_ += static_cast<char>(bits & 0xff);
    }
  }
  void PutBytes(absl::string_view bytes, size_t size) {
    out_.append(bytes.data(), bytes.size());
    out_.append(size - bytes.size(), 0);
  }
  std::string& out() { return out_; }

 private:
  std::string out_;
};

struct Sections {
  Writer kernels, arguments, instructions;
  std::string strings;
  uint32_t num_arguments = 0, num_instructions = 0;

  void PutName(absl::string_view name, Writer& to) {
    to.Put(static_cast<uint32_t>(strings.size()));
    to.Put(static_cast<uint32_t>(name.size()));
    strings.append(name.data(), name.size());
  }

  void Add(const Kernel& kernel) {
    PutName(kernel.name, kernels);
    kernels.Put(num_instructions);
    kernels.Put(static_cast<uint32_t>(kernel.instructions.size()));
    kernels.Put(num_arguments);
    kernels.Put(static_cast<uint32_t>(kernel.arguments.size()));
    kernels.Put(kernel.l1_bytes);
    kernels.Put(kernel.l2_bytes);
    num_instructions += static_cast<uint32_t>(kernel.instructions.size());
    num_arguments += static_cast<uint32_t>(kernel.arguments.size());
    for (const Argument& argument : kernel.arguments) {
      PutName(argument.name, arguments);
      arguments.Put(static_cast<uint8_t>(argument.kind));
      arguments.Put(argument.access);
      arguments.PutBytes("", 6);
    }
    for (const Instruction& instruction : kernel.instructions) {
      instructions.Put(static_cast<uint16_t>(instruction.op));
      instructions.Put(instruction.modifier);
      for (uint8_t r : instruction.registers) instructions.Put(r);
      instructions.Put(uint32_t{0});
      instructions.Put(instruction.immediate);
      instructions.Put(uint64_t{0});
    }
  }
};

absl::Status Bad(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("GCU binary: ", text));
}

// Fields in sequence; whoever reads has checked that they are there.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
      value |= uint64_t{static_cast<uint8_t>(bytes_[i])} << (8 * i);
    bytes_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }
  absl::string_view TakeBytes(size_t size) {
    const absl::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  bool TakeZeros(size_t size) {
    return TakeBytes(size).find_first_not_of('\0') == absl::string_view::npos;
  }

 private:
  absl::string_view bytes_;
};

struct Section {
  absl::string_view bytes;
  uint32_t count = 0;
};

class Decoder {
 public:
  explicit Decoder(absl::string_view binary) : binary_(binary) {}

  absl::StatusOr<Module> Run() {
    KILN_RETURN_IF_ERROR(ReadHeader());
    for (uint32_t k = 0; k < kernels_.count; ++k) {
      const absl::Status status = ReadKernel(Reader(kernels_.bytes.substr(k * kKernelBytes)));
      if (!status.ok()) return Bad(absl::StrCat("kernel ", k, ": ", status.message()));
    }
    if (next_instruction_ != instructions_.count || next_argument_ != arguments_.count ||
        next_string_ != strings_.count) {
      return Bad("holds what no kernel has");
    }
    KILN_RETURN_IF_ERROR(Verify(module_));
    return std::move(module_);
  }

 private:
  absl::Status ReadHeader() {
    if (binary_.size() < kHeaderBytes) return Bad("ends within its header");
    Reader reader(binary_);
    if (reader.TakeBytes(4) != kMagic) return Bad("does not begin with KGCU");
    const auto format = reader.Take<uint16_t>(), instructions = reader.Take<uint16_t>();
    if (format != kFormatVersion || instructions > kInstructionVersion) {
      return Bad(absl::StrCat("has versions ", format, " and ", instructions));
    }
    const absl::string_view profile = reader.TakeBytes(kProfileBytes);
    const size_t length = std::min(profile.find('\0'), profile.size());
    if (profile.substr(length).find_first_not_of('\0') != profile.npos)
      return Bad("has a profile after its end");
    module_.profile = std::string(profile.substr(0, length));
    if (reader.Take<uint64_t>() != binary_.size()) return Bad("has another size than it says");
    size_t at = kHeaderBytes;
    for (const auto& [section, size] :
         {std::pair(&kernels_, kKernelBytes), std::pair(&arguments_, kArgumentBytes),
          std::pair(&instructions_, kInstructionBytes), std::pair(&strings_, size_t{1})}) {
      const auto offset = reader.Take<uint32_t>();
      section->count = reader.Take<uint32_t>();
      const uint64_t bytes = uint64_t{section->count} * size;
      if (offset != at || bytes > binary_.size() - at)
        return Bad("has a section where none can be");
      section->bytes = binary_.substr(at, bytes);
      at += bytes;
    }
    if (at != binary_.size()) return Bad("goes on after its strings");
    return reader.Take<uint64_t>() == Checksum(binary_) ? absl::OkStatus()
                                                        : Bad("has another checksum");
  }

  absl::Status ReadName(Reader& reader, std::string& name) {
    const auto offset = reader.Take<uint32_t>(), size = reader.Take<uint32_t>();
    if (offset != next_string_ || size > strings_.count - next_string_) {
      return absl::InvalidArgumentError("a name is not where it must be");
    }
    name = std::string(strings_.bytes.substr(offset, size));
    next_string_ += size;
    return absl::OkStatus();
  }

  absl::Status ReadKernel(Reader reader) {
    Kernel kernel;
    KILN_RETURN_IF_ERROR(ReadName(reader, kernel.name));
    const auto instruction = reader.Take<uint32_t>(), instructions = reader.Take<uint32_t>();
    const auto argument = reader.Take<uint32_t>(), arguments = reader.Take<uint32_t>();
    kernel.l1_bytes = reader.Take<uint32_t>();
    kernel.l2_bytes = reader.Take<uint32_t>();
    if (instruction != next_instruction_ || instructions > instructions_.count - instruction ||
        argument != next_argument_ || arguments > arguments_.count - argument) {
      return absl::InvalidArgumentError("its instructions or arguments are not where they must be");
    }
    next_instruction_ += instructions;
    next_argument_ += arguments;
    for (uint32_t i = 0; i < arguments; ++i) {
      Reader fields(arguments_.bytes.substr((argument + i) * kArgumentBytes));
      Argument& to = kernel.arguments.emplace_back();
      KILN_RETURN_IF_ERROR(ReadName(fields, to.name));
      to.kind = static_cast<ArgumentKind>(fields.Take<uint8_t>());
      to.access = fields.Take<uint8_t>();
      if (!fields.TakeZeros(6))
        return absl::InvalidArgumentError(absl::StrCat("argument ", i, " has unknown fields"));
    }
    for (uint32_t i = 0; i < instructions; ++i) {
      Reader fields(instructions_.bytes.substr((instruction + i) * kInstructionBytes));
      Instruction& to = kernel.instructions.emplace_back();
      to.op = static_cast<Op>(fields.Take<uint16_t>());
      to.modifier = fields.Take<uint16_t>();
      for (uint8_t& r : to.registers) r = fields.Take<uint8_t>();
      const bool is_clean = fields.TakeZeros(4);
      to.immediate = fields.Take<int64_t>();
      if (!is_clean || !fields.TakeZeros(8)) {
        return absl::InvalidArgumentError(absl::StrCat("instruction ", i, " has unknown fields"));
      }
    }
    module_.kernels.push_back(std::move(kernel));
    return absl::OkStatus();
  }

  absl::string_view binary_;
  Module module_;
  Section kernels_, arguments_, instructions_, strings_;
  uint32_t next_instruction_ = 0, next_argument_ = 0, next_string_ = 0;
};

}  // namespace

absl::StatusOr<std::string> Encode(const Module& module) {
  KILN_RETURN_IF_ERROR(Verify(module));
  Sections sections;
  for (const Kernel& kernel : module.kernels) sections.Add(kernel);
  const std::pair<const std::string*, size_t> parts[] = {
      {&sections.kernels.out(), kKernelBytes},
      {&sections.arguments.out(), kArgumentBytes},
      {&sections.instructions.out(), kInstructionBytes},
      {&sections.strings, 1}};
  uint64_t size = kHeaderBytes;
  for (const auto& [bytes, unit] : parts) size += bytes->size();
  if (size > std::numeric_limits<uint32_t>::max()) return Bad("would be larger than 4 GiB");
  Writer writer;
  writer.PutBytes(kMagic, 4);
  writer.Put(kFormatVersion);
  writer.Put(kInstructionVersion);
  writer.PutBytes(module.profile, kProfileBytes);
  writer.Put(size);
  uint32_t at = kHeaderBytes;
  for (const auto& [bytes, unit] : parts) {
    writer.Put(at);
    writer.Put(static_cast<uint32_t>(bytes->size() / unit));
    at += static_cast<uint32_t>(bytes->size());
  }
  writer.Put(uint64_t{0});
  for (const auto& [bytes, unit] : parts) writer.out() += *bytes;
  const uint64_t checksum = Checksum(writer.out());
  Writer field;
  field.Put(checksum);
  writer.out().replace(kChecksumAt, 8, field.out());
  return std::move(writer.out());
}

absl::StatusOr<Module> Decode(absl::string_view binary) {
  return Decoder(binary).Run();
}

}  // namespace kiln::gcu
