// A hash of the sources that all targets share, made by each build (source_hash.cmake).
#pragma once

namespace kiln {

extern const char* const kSourceHash;  // 16 hexadecimal digits

}  // namespace kiln
