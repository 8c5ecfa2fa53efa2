// Programs of a GCU: the first byte chooses text for the assembler, or a binary for the assembler's
// reader and the simulator's, which agree on what is one.
#include <string>

#include "client/gcu_simulator/program.h"
#include "compiler/toolchain/gcu/assembly.h"
#include "compiler/toolchain/gcu/binary.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using kiln::fuzz::Require;

bool Loads(absl::string_view binary) {
  kiln::gcu_simulator::Program program;
  return !kiln::gcu_simulator::LoadProgram(binary.data(), binary.size(), program);
}

void Survives(const kiln::gcu::Module& module) {
  const auto text = kiln::gcu::Assemble(kiln::gcu::Disassemble(module));
  Require(text.ok() && *text == module, "a program survives its text");
  const auto binary = kiln::gcu::Encode(module);
  Require(binary.ok(), "a program has a binary");
  const auto again = kiln::gcu::Decode(*binary);
  Require(again.ok() && *again == module, "a program survives its binary");
  Require(Loads(*binary), "the simulator takes a binary of the assembler");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto module = data[0] % 2 == 0 ? kiln::gcu::Assemble(input) : kiln::gcu::Decode(input);
  if (data[0] % 2 != 0) Require(module.ok() == Loads(input), "both readers agree on a binary");
  if (module.ok()) Survives(*module);
  return 0;
}
