// A simulated device that runs programs given as text.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "client/gcu_simulator/machine.h"
#include "compiler/toolchain/gcu/assembly.h"
#include "compiler/toolchain/gcu/binary.h"
#include "gtest/gtest.h"

namespace kiln::gcu_simulator {

class Device {
 public:
  explicit Device(const char* profile = "gcu-16m") : machine(*FindProfile(profile)) {}

  uint64_t Put(const void* data, size_t bytes, Space space = Space::kL3) {
    const uint64_t address = machine.Allocate(space, bytes);
    EXPECT_FALSE(machine.Write(space, address, data, bytes));
    return address;
  }
  template <typename T>
  uint64_t Put(const std::vector<T>& values, Space space = Space::kL3) {
    return Put(values.data(), values.size() * sizeof(T), space);
  }
  template <typename T>
  std::vector<T> Get(uint64_t address, size_t count) {
    std::vector<T> values(count);
    EXPECT_FALSE(machine.Read(Space::kL3, address, values.data(), count * sizeof(T)));
    return values;
  }

  // Runs `body` as a kernel with that many arguments.
  std::optional<Fault> Run(const std::string& body, std::vector<uint64_t> arguments = {},
                           std::array<uint32_t, 3> grid = {1, 1, 1}, bool with_spans = false) {
    std::string text =
        std::string(".gcu 1\n.profile ") + machine.profile().name + "\n.kernel test\n";
    for (size_t i = 0; i < arguments.size(); ++i) text += ".arg a" + std::to_string(i) + " int\n";
    const absl::StatusOr<gcu::Module> module =
        gcu::Assemble(text + ".l1 0\n.l2 0\n" + body + "\n.end\n");
    EXPECT_TRUE(module.ok()) << module.status();
    if (!module.ok()) return Fault{FaultCode::kBadBinary, ""};
    const absl::StatusOr<std::string> binary = gcu::Encode(*module);
    EXPECT_TRUE(binary.ok()) << binary.status();
    Program program;
    if (auto fault = LoadProgram(binary->data(), binary->size(), program)) return fault;
    Launch launch;
    launch.kernel = &program.kernels[0];
    std::copy(grid.begin(), grid.end(), launch.grid);
    launch.arguments = std::move(arguments);
    return machine.Run(launch, with_spans, report);
  }

  Machine machine;
  Report report;
};

inline std::string TextOf(const std::optional<Fault>& fault) {
  return fault ? fault->text : "no fault";
}

}  // namespace kiln::gcu_simulator
