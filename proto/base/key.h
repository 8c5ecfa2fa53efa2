// The two cache keys. Client and server compute an artifact's equally; a kernel's is the server's.
//
// A key is SHA-256 over a canonical encoding defined here and in key.cc, never over protobuf bytes:
// protobuf promises no stable serialization. It has what alters the result and nothing else. Of an
// artifact's key:
//
//   counts       operators, arguments, dtypes, sizes, strides, storage offsets, roles, constants,
//                outputs and mutations; symbols' ranges and hints; every field that KeyedDevice
//                and KeyedOptions leave; the compiler build
//   does not     names of graph, nodes, inputs, symbols and constants; source locations; what
//                KeyedDevice and KeyedOptions take away; the order of Device.features,
//                Device.libraries, Device.memory_spaces, Device.binary_formats, keyword arguments
//                and disabled_passes; unused symbols
//
// Symbols are numbered by first use, so that renaming or reordering them changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/base/digest.h"

namespace kiln {
namespace v1 {
class CompileOptions;
class Device;
class Graph;
}  // namespace v1

// Raised whenever the encoding changes, so that no old entry is found by a new key.
inline constexpr int kKeyEncodingVersion = 2;

// What CompileOptions.optimization_level 0 stands for.
inline constexpr int kDefaultOptimizationLevel = 2;

// `device` and `options` with nothing in them that no compile reads. The keys are made of these,
// and the server gives its workers nothing more: the compiler cannot come to read what is in no
// key. Of a device go index, model_name, driver_version, processors (the client's threads),
// memory_bytes and the global memory's size; of options, optimization level 0 becomes the level
// that it stands for.
v1::Device KeyedDevice(const v1::Device& device);
v1::CompileOptions KeyedOptions(const v1::CompileOptions& options);

// Never fails: a graph that no compiler would accept still has a key. Linear in the graph's size;
// nesting of lists and expressions deeper than 64 is cut off (import refuses such graphs).
Digest GraphFingerprint(const v1::Graph& graph);
Digest DeviceFingerprint(const v1::Device& device);
Digest OptionsFingerprint(const v1::CompileOptions& options);

// Key of a whole artifact. `compiler_build` is that of the device's target (compiler_builds.h).
Digest ArtifactKey(const v1::Graph& graph, const v1::Device& device,
                   const v1::CompileOptions& options, absl::string_view compiler_build);

// Key of one kernel's object: `toolchain`, which compiler it is, down to how it is called;
// `arguments`, everything that the compiler is told; `sources`, every text that it reads, in order.
// A caller makes it of the very values that it compiles from (compiler/toolchain/clang.h).
Digest KernelKey(absl::string_view toolchain, absl::Span<const std::string> arguments,
                 absl::Span<const absl::string_view> sources);

// What may be launched: a kernel, by its key, with these sizes. A kernel may be one for all sizes,
// of which not all are the fastest with the same one.
struct Candidate {
  Digest kernel;
  std::vector<std::optional<int64_t>> sizes;  // none where only a run knows it
};

// Key of which of these is the fastest on such a device. Of `options` it has how kernels are
// compiled, and not what else is asked for.
Digest ChoiceKey(const v1::Device& device, const v1::CompileOptions& options,
                 absl::Span<const Candidate> candidates);

}  // namespace kiln
