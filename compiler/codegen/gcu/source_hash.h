// A hash of what only this target is made of, made by each build (compiler/source_hash.cmake).
#pragma once

namespace kiln::codegen::gcu {

extern const char* const kSourceHash;  // 16 hexadecimal digits

}  // namespace kiln::codegen::gcu
