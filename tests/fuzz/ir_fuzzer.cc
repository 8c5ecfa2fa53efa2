// Text as a module of the loop IR: what parses and is verified prints to text that parses to the
// same module.
#include "compiler/ir/parse.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto module = kiln::ir::Parse(kiln::fuzz::AsText(data, size));
  if (!module.ok()) {
    kiln::fuzz::Require(absl::IsInvalidArgument(module.status()), "bad text is INVALID_ARGUMENT");
    return 0;
  }
  std::string printed = kiln::ir::Print(*module);  // a broken module prints too
  if (!kiln::ir::Verify(*module).ok()) return 0;
  auto again = kiln::ir::Parse(printed);
  if (!again.ok())
    std::fprintf(stderr, "%s\n%s\n", printed.c_str(), again.status().ToString().c_str());
  kiln::fuzz::Require(again.ok(), "what is printed parses");
  std::string printed_again = kiln::ir::Print(*again);
  if (printed_again != printed)
    std::fprintf(stderr, "%s\n%s\n", printed.c_str(), printed_again.c_str());
  kiln::fuzz::Require(printed_again == printed, "printing and parsing is the identity");
  auto verified = kiln::ir::Verify(*again);
  if (!verified.ok())
    std::fprintf(stderr, "%s\n%s\n", printed.c_str(), verified.ToString().c_str());
  kiln::fuzz::Require(verified.ok(), "what was verified still is");
  return 0;
}
