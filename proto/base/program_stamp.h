// The tie between an artifact's machine code and its program: the shared object's build id is the
// digest of the program that it was linked for. Only the machine code says which kernel works on
// what, so a program that was changed later is not its own.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/base/digest.h"

namespace kiln {

// For the linker: a build id of a digest's size, to be overwritten.
inline constexpr absl::string_view kEmptyStampOption =
    "--build-id=0x0000000000000000000000000000000000000000000000000000000000000000";

// Writes the digest of `program`, a serialized kiln.v1.Program. False, and nothing is written, for
// what is no ELF image with room for it.
bool StampProgram(absl::string_view program, std::string& image);

// What StampProgram wrote; nothing for an image without room for it.
std::optional<Digest> ReadProgramStamp(absl::string_view image);

// The bytes of the program in a serialized kiln.v1.Artifact; nothing where it has not just one.
std::optional<absl::string_view> ProgramBytes(absl::string_view artifact);

}  // namespace kiln
