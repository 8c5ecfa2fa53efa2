#include "proto/base/program_stamp.h"

#include <elf.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cstring>

#include "kiln/v1/artifact.pb.h"

namespace kiln {
namespace {

constexpr size_t kStampBytes = 32;

uint64_t RoundUp4(uint64_t n) {
  return (n + 3) & ~uint64_t{3};
}

// Where the build id of that size lies in one segment of notes.
std::optional<size_t> FindInNotes(absl::string_view image, uint64_t at, uint64_t size) {
  if (at > image.size() || size > image.size() - at) return std::nullopt;
  const uint64_t end = at + size;
  Elf64_Nhdr note;
  while (end - at >= sizeof(note)) {
    std::memcpy(&note, image.data() + at, sizeof(note));
    const uint64_t name = at + sizeof(note);
    const uint64_t content = name + RoundUp4(note.n_namesz);
    const uint64_t next = content + RoundUp4(note.n_descsz);
    if (next > end) return std::nullopt;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_descsz == kStampBytes && note.n_namesz == 4 &&
        std::memcmp(image.data() + name, ELF_NOTE_GNU, 4) == 0) {
      return content;
    }
    at = next;
  }
  return std::nullopt;
}

std::optional<size_t> FindStamp(absl::string_view image) {
  Elf64_Ehdr header;
  if (image.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, image.data(), sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > image.size() ||
      header.e_phnum > (image.size() - header.e_phoff) / sizeof(Elf64_Phdr)) {
    return std::nullopt;
  }
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, image.data() + header.e_phoff + i * sizeof(segment), sizeof(segment));
    if (segment.p_type != PT_NOTE) continue;
    if (auto found = FindInNotes(image, segment.p_offset, segment.p_filesz)) return found;
  }
  return std::nullopt;
}

}  // namespace

bool StampProgram(absl::string_view program, std::string& image) {
  const std::optional<size_t> at = FindStamp(image);
  if (!at) return false;
  const Digest digest = Sha256(program);
  std::memcpy(image.data() + *at, digest.view().data(), kStampBytes);
  return true;
}

std::optional<Digest> ReadProgramStamp(absl::string_view image) {
  const std::optional<size_t> at = FindStamp(image);
  if (!at) return std::nullopt;
  auto digest = Digest::FromBytes(image.substr(*at, kStampBytes));
  return digest.ok() ? std::optional<Digest>(*digest) : std::nullopt;
}

std::optional<absl::string_view> ProgramBytes(absl::string_view artifact) {
  using google::protobuf::internal::WireFormatLite;
  if (artifact.size() > INT32_MAX) return std::nullopt;
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(artifact.data()),
                                            static_cast<int>(artifact.size()));
  std::optional<absl::string_view> found;
  while (const uint32_t tag = in.ReadTag()) {
    if (WireFormatLite::GetTagFieldNumber(tag) != v1::Artifact::kProgramFieldNumber) {
      if (!WireFormatLite::SkipField(&in, tag)) return std::nullopt;
      continue;
    }
    uint32_t size = 0;
    if (found || WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED ||
        !in.ReadVarint32(&size)) {
      return std::nullopt;
    }
    const auto at = static_cast<size_t>(in.CurrentPosition());
    if (size > artifact.size() - at || !in.Skip(static_cast<int>(size))) return std::nullopt;
    found = artifact.substr(at, size);
  }
  return found;
}

}  // namespace kiln
