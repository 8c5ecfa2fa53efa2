// Programs of a GCU: the first byte chooses text for the assembler (even), or a binary for the
// assembler's reader and the simulator's, which agree on what is one: as it is (1), or with the
// size and the checksum that it should have (3).
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

std::string WithSizeAndChecksum(absl::string_view input) {
  std::string binary(input);
  if (binary.size() < 80) return binary;
  const auto put = [&](size_t at, uint64_t value) {
    for (int i = 0; i < 8; ++i) binary[at + i] = static_cast<char>(value >> (8 * i));
  };
  put(32, binary.size());
  put(72, 0);
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : binary) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  put(72, hash);
  return binary;
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
  std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool is_binary = data[0] % 2 != 0;
  if (data[0] % 4 == 3) input = WithSizeAndChecksum(input);
  const auto module = is_binary ? kiln::gcu::Decode(input) : kiln::gcu::Assemble(input);
  if (is_binary) Require(module.ok() == Loads(input), "both readers agree on a binary");
  if (module.ok()) Survives(*module);
  return 0;
}
