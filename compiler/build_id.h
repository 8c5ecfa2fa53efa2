// A hash of the compiler's own sources, made by each build (source_hash.cmake).
#pragma once

namespace kiln {

extern const char* const kSourceHash;  // 16 hexadecimal digits

}  // namespace kiln
