// A hash of clang.cc, clang.h and early_loads.cc, made by each build (compiler/source_hash.cmake).
#pragma once

namespace kiln::toolchain {

extern const char* const kClangSourceHash;  // 16 hexadecimal digits

}  // namespace kiln::toolchain
