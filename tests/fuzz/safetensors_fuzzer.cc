// Bytes as a .safetensors file: what is taken for a tensor lies inside of it.
#include "client/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes = kiln::fuzz::AsText(data, size);
  const auto entries = kiln::ParseSafetensors(bytes);
  if (!entries.ok()) {
    kiln::fuzz::Require(!entries.status().message().empty(), "an error has a sentence");
    return 0;
  }
  uint64_t total = 0;
  for (const kiln::SafetensorsEntry& entry : *entries) {
    kiln::fuzz::Require(entry.offset <= size && entry.size_bytes <= size - entry.offset,
                        "a tensor lies in the file");
    total += entry.size_bytes;
  }
  kiln::fuzz::Require(total < size, "tensors do not overlap");
  return 0;
}
