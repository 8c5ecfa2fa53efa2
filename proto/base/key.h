// The two cache keys, computed equally by client and server.
//
// A key is SHA-256 over a canonical encoding defined here and in key.cc, never over protobuf bytes:
// protobuf promises no stable serialization. What counts and what does not:
//
//   counts       operators, arguments, dtypes, sizes, strides, storage offsets, roles, constants,
//                outputs and mutations; symbols' ranges and hints; every Device field but the two
//                below; every CompileOptions field; the compiler build
//   does not     names of graph, nodes, inputs, symbols and constants; source locations;
//                Device.index and Device.model_name; the order of Device.features,
//                Device.libraries, keyword arguments and disabled_passes; unused symbols
//
// Symbols are numbered by first use, so that renaming or reordering them changes nothing.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "proto/base/digest.h"

namespace kiln {
namespace v1 {
class CompileOptions;
class Device;
class Graph;
}  // namespace v1

// Raised whenever the encoding changes, so that no old entry is found by a new key.
inline constexpr int kKeyEncodingVersion = 1;

// Never fails: a graph that no compiler would accept still has a key. Linear in the graph's size;
// nesting of lists and expressions deeper than 64 is cut off (import refuses such graphs).
Digest GraphFingerprint(const v1::Graph& graph);
Digest DeviceFingerprint(const v1::Device& device);
Digest OptionsFingerprint(const v1::CompileOptions& options);

// Key of a whole artifact. `compiler_build` is ServerInfo.compiler_build.
Digest ArtifactKey(const v1::Graph& graph, const v1::Device& device,
                   const v1::CompileOptions& options, absl::string_view compiler_build);

// Key of one kernel's object: its own source text, the device's target, arch and features, the
// flags that reach the compiler, and `toolchain`: the versions of the tools, and the digest of the
// text that many kernels start with where `source` leaves that out.
Digest KernelKey(absl::string_view source, const v1::Device& device,
                 const v1::CompileOptions& options, absl::string_view toolchain);

}  // namespace kiln
