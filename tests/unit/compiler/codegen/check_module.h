// Runs a textual module natively, in every way this machine can, and compares with the reference
// interpreter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/codegen/target.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/module.h"
#include "proto/base/random_inputs.h"

namespace kiln::codegen {

struct CheckOptions {
  std::vector<int64_t> symbols;
  uint64_t seed = 1;
  int64_t int_min = 0, int_max = 2;  // integer inputs are uniform in [int_min, int_max)
  double scale = 1;                  // deviation of floating inputs
  int nan_every = 0;                 // every so many-th floating input is a NaN
  bool integral_floats = false;      // small whole numbers, which make ties
  double tolerance = 2e-5;           // of |difference| / (1 + |reference|)
  std::vector<int> threads = {1, 3};
  // Of what each target prepares (compiler/prepare/prepare.h) before it schedules; 0: nothing. As
  // many contractions must then read what is prepared in place.
  int64_t prepare_bytes = 0;
  int packed = 0;
  int64_t l2_bytes = 1 << 20;  // of the device that the kernels are for
  int64_t l3_bytes = 16 << 20;
  int repeats = 0;           // what Target::Tile must make, where it is to be called
  bool only_ptx = false;     // for no other machine
  int rank = 0;              // DeviceInfo::rank
  int64_t window_bytes = 0;  // what schedule::TileByWindows is called with instead; 0: it is not
};

// Random contents of the module's inputs.
std::vector<HostTensor> MakeInputs(ir::Module& module, const CheckOptions& options);

// Fails the current test at the first element that differs; 16-bit numbers have a tolerance of
// their own.
void ExpectSame(const ir::ReferenceTensor& actual, const ir::ReferenceTensor& expected,
                double tolerance, const std::string& where);

// Fails the current test with the instruction set, the output and the place of the worst
// difference.
void CheckModule(const std::string& text, const CheckOptions& options = {});

// Interprets the module as it is and with what schedule::TileByWindows makes of it, which is
// verified and whose text is read back, and fails the current test where they differ. Returns how
// many repeats it made.
int CheckWindows(const std::string& text, const CheckOptions& options);

// A module with "a op b" for each of `ops`, every result in a buffer of its own.
std::string OpsModule(const std::string& type, const std::vector<std::string>& ops, int arity,
                      const std::string& result, int size);

// The source of a module's first kernel.
absl::StatusOr<std::string> EmitText(const std::string& text, const DeviceInfo& device);

}  // namespace kiln::codegen
