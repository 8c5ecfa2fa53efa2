// Bytes as a .npz archive of inputs, and as one .npy array.
#include "client/cli/npz.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view bytes = kiln::fuzz::AsText(data, size);
  auto arrays = kiln::cli::ParseNpz(bytes);
  if (!arrays.ok()) {
    kiln::fuzz::Require(!arrays.status().message().empty(), "an error has a sentence");
  }
  auto array = kiln::cli::ParseNpy(bytes);
  if (!array.ok()) {
    kiln::fuzz::Require(!array.status().message().empty(), "an error has a sentence");
  }
  return 0;
}
