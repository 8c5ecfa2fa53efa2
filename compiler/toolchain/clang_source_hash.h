// A hash of the files that decide what CompileCpp makes, made by each build
// (compiler/source_hash.cmake).
#pragma once

namespace kiln::toolchain {

extern const char* const kClangSourceHash;  // 16 hexadecimal digits

}  // namespace kiln::toolchain
