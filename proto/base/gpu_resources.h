// What a kernel takes of an NVIDIA GPU's multiprocessor, and how many of its blocks fit in one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class Artifact;
}  // namespace v1

struct Occupancy {
  int blocks = 0;  // at a time, of one multiprocessor; 0 where not one fits
  int warps = 0;   // of those blocks
  int max_warps = 0;
  const char* bound = "";  // what there would have to be more of: "registers", "shared memory", ...
};

// Of blocks of `threads` threads, each with so many registers, and so many bytes of shared memory.
// Nothing for an architecture whose multiprocessor is not known here, or where `threads` or
// `registers` is not positive.
std::optional<Occupancy> OccupancyOf(absl::string_view arch, int64_t threads, int64_t registers,
                                     int64_t shared_bytes);

// What a cubin says of its kernel.
struct KernelResources {
  int64_t registers = 0;     // of a thread
  int64_t shared_bytes = 0;  // of a block; a launch may add to them
  int64_t stack_bytes = 0;   // of a thread: where what has no register is spilled
};

// Nothing where `cubin` is no ELF file for CUDA with a section .nv.info that names registers. The
// most of each function that it defines. Reads nothing outside of `cubin`, whatever it holds.
std::optional<KernelResources> ReadCubin(absl::string_view cubin);

// "40 registers, 1024 bytes of shared memory, no stack, 48 of 64 warps (6 blocks of 256 threads,
// bound by registers)" by kernel of an artifact with cubins; those of other artifacts have none.
// Blocks are those of the kernel's first launch, where their size depends on no symbol.
std::map<std::string, std::string> DescribeResources(const v1::Artifact& artifact);

}  // namespace kiln
