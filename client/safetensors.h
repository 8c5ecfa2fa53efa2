// The header of a .safetensors file: its length in 8 bytes, JSON, then the tensors' bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/base/dtype.h"

namespace kiln {

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as the file has it: "F32"
  std::optional<DType> dtype;  // none for one that Kiln does not know
  std::vector<int64_t> sizes;  // elements; contiguous
  uint64_t offset = 0;         // bytes, from the file's start
  uint64_t size_bytes = 0;
};

// Every tensor of the file whose bytes `file` is, in the header's order. INVALID_ARGUMENT, naming
// the tensor where one is at fault, for anything but a sound file: a header beyond the file's end
// or over 100 MB, a name twice, bytes that overlap, leave a gap, lie outside or are more or fewer
// than type and shape say. The bytes of tensors are not read.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(absl::string_view file);

// A file's text as it may be shown on a terminal.
std::string Shown(absl::string_view text);

}  // namespace kiln
