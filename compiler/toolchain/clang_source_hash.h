// A hash of clang.cc and clang.h, made by each build (compiler/source_hash.cmake).
#pragma once

namespace kiln::toolchain {

extern const char* const kClangSourceHash;  // 16 hexadecimal digits

}  // namespace kiln::toolchain
