#include "tests/unit/compiler/codegen/check_module.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify.h"
#include "compiler/prepare/prepare.h"
#include "compiler/schedule/interpret.h"
#include "compiler/schedule/parse.h"
#include "compiler/schedule/print.h"
#include "compiler/schedule/ptx/schedule.h"
#include "compiler/schedule/verify.h"
#include "compiler/schedule/windowed.h"
#include "proto/base/status_macros.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

uint16_t HalfBits(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
}

uint16_t Bf16Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

template <typename T>
void Put(std::string& data, T value) {
  data.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

HostTensor MakeInput(ir::Module& module, const ir::Buffer& buffer, const CheckOptions& options,
                     std::mt19937_64& random) {
  HostTensor tensor;
  tensor.dtype = buffer.dtype;
  auto value = [&](ir::IntExpr e) {
    return module.ints->Evaluate(e, [&](ir::IntExpr leaf) { return options.symbols[leaf.id()]; });
  };
  for (ir::IntExpr size : buffer.sizes) tensor.sizes.push_back(value(size));
  for (ir::IntExpr stride : buffer.strides) tensor.strides.push_back(value(stride));
  const int64_t count = value(SizeBytes(*module.ints, buffer)) / DTypeSize(buffer.dtype);
  std::normal_distribution<double> normal(0, options.scale);
  std::uniform_int_distribution<int64_t> uniform(options.int_min, options.int_max - 1);
  for (int64_t i = 0; i < count; ++i) {
    double x = normal(random);
    if (options.integral_floats) x = std::round(x);
    if (options.nan_every && i % options.nan_every == options.nan_every - 1) x = std::nan("");
    const int64_t n = uniform(random);
    switch (buffer.dtype) {
      case DType::kF64:
        Put(tensor.data, x);
        break;
      case DType::kF32:
        Put(tensor.data, static_cast<float>(x));
        break;
      case DType::kF16:
        Put(tensor.data, HalfBits(static_cast<float>(x)));
        break;
      case DType::kBF16:
        Put(tensor.data, Bf16Bits(static_cast<float>(x)));
        break;
      case DType::kI64:
        Put(tensor.data, n);
        break;
      case DType::kI32:
        Put(tensor.data, static_cast<int32_t>(n));
        break;
      case DType::kI16:
        Put(tensor.data, static_cast<int16_t>(n));
        break;
      case DType::kBool:
        Put(tensor.data, static_cast<uint8_t>(n & 1));
        break;
      default:
        Put(tensor.data, static_cast<uint8_t>(n));
        break;
    }
  }
  return tensor;
}

// Verifies the module's schedules for `device`, reads their text back, and interprets them.
void CheckSchedules(ir::Module& module, const DeviceInfo& device,
                    const std::vector<HostTensor>& inputs, const CheckOptions& options,
                    const std::vector<ir::ReferenceTensor>& expected, const std::string& isa) {
  std::vector<schedule::Tree> trees;
  for (const ir::Operation& operation : module.operations) {
    auto tree = TestTarget(device)->Schedule(module, operation);
    ASSERT_TRUE(tree.ok()) << tree.status();
    trees.push_back(*std::move(tree));
    const absl::Status verified = schedule::Verify(module, trees.back());
    ASSERT_TRUE(verified.ok()) << verified << "\n" << schedule::Print(module, trees.back());
  }
  const auto in_place = [](const schedule::Tree& tree) {
    return std::any_of(tree.reasons.begin(), tree.reasons.end(), [](const std::string& reason) {
      return absl::StrContains(reason, "read in place");
    });
  };
  const std::string text = schedule::Print(module, trees);
  const int packed = isa == kPtxIsa ? 0 : options.packed;
  EXPECT_EQ(std::count_if(trees.begin(), trees.end(), in_place), packed) << isa << text;
  auto parsed = schedule::Parse(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status() << "\n" << text;
  EXPECT_EQ(schedule::Print(parsed->module, parsed->trees), text);
  for (const schedule::Tree& tree : parsed->trees) {
    const absl::Status verified = schedule::Verify(parsed->module, tree);
    ASSERT_TRUE(verified.ok()) << verified << "\n" << text;
  }
  for (int threads : {1, 3}) {
    auto actual = schedule::Interpret(
        parsed->module, parsed->trees, inputs, options.symbols, {},
        {.seed = options.seed + static_cast<uint64_t>(threads), .threads = threads});
    ASSERT_TRUE(actual.ok()) << actual.status() << "\n" << text;
    for (size_t i = 0; i < actual->size(); ++i) {
      ExpectSame((*actual)[i], expected[i], 1e-9,
                 isa + ", schedule, output " + std::to_string(i) + "\n" + text);
    }
  }
}

// Whether the kernels of `isa` may differ from those of the one before it.
bool IsOfUse(const std::string& isa, const std::string& text) {
  return isa != kAmxIsa || absl::StrContains(text, "bf16");
}

DeviceInfo DeviceFor(const std::string& isa, const CheckOptions& options) {
  DeviceInfo device = TestDevice(isa);
  device.rank = options.rank;
  device.l2_bytes = options.l2_bytes;
  device.l3_bytes = options.l3_bytes;
  return device;
}

void ExpectSameText(const std::string& made) {
  absl::StatusOr<ir::Module> again = ir::Parse(made);
  EXPECT_TRUE(again.ok()) << again.status() << "\n" << made;
  if (again.ok()) EXPECT_EQ(ir::Print(*again), made);
}

// The module as it is scheduled for `device`: with what is prepared and with the repeats that the
// target makes of it, which are verified and whose text is read back.
ir::Module ParseFor(const std::string& text, const DeviceInfo& device,
                    const CheckOptions& options) {
  ir::Module module = *ir::Parse(text);
  const std::unique_ptr<Target> target = TestTarget(device);
  if (options.prepare_bytes > 0) {
    const absl::Status prepared = prepare::Prepare(*target, options.prepare_bytes, module);
    EXPECT_TRUE(prepared.ok()) << prepared;
  }
  if (options.window_bytes > 0) {
    schedule::TileByWindows(module, options.window_bytes);
  } else if (options.repeats > 0 || target->name() != "cpp") {
    target->Tile(module);
  }
  const absl::Status verified = ir::Verify(module);
  const std::string made = ir::Print(module);
  EXPECT_TRUE(verified.ok()) << verified << "\n" << made;
  const auto is_repeat = [](const ir::Operation& operation) {
    return std::holds_alternative<ir::Repeat>(operation);
  };
  const auto repeats = std::count_if(module.operations.begin(), module.operations.end(), is_repeat);
  if (target->name() != "gcu") {  // which makes one of what it can
    EXPECT_EQ(repeats, target->name() == "ptx" ? 0 : options.repeats) << made;
  }
  ExpectSameText(made);
  return module;
}

// Target ptx has no repeats.
bool RunsOnPtx(const ir::Module& module, const CheckOptions& options) {
  if (options.window_bytes > 0) return false;
  return absl::c_all_of(module.operations, [](const ir::Operation& operation) {
    return absl::c_all_of(KernelsOf(operation), [](const ir::Kernel& kernel) {
      return schedule::ptx::Lacks(kernel).empty();
    });
  });
}

}  // namespace

void ExpectSame(const ir::ReferenceTensor& actual, const ir::ReferenceTensor& expected,
                double tolerance, const std::string& where) {
  ASSERT_EQ(actual.sizes, expected.sizes) << where;
  ASSERT_EQ(actual.ints.size(), expected.ints.size()) << where;
  for (size_t i = 0; i < expected.ints.size(); ++i) {
    ASSERT_EQ(actual.ints[i], expected.ints[i]) << where << " element " << i;
  }
  ASSERT_EQ(actual.floats.size(), expected.floats.size()) << where;
  if (expected.dtype == DType::kBF16) tolerance = std::max(tolerance, 0.01);
  if (expected.dtype == DType::kF16) tolerance = std::max(tolerance, 0.002);
  for (size_t i = 0; i < expected.floats.size(); ++i) {
    const double a = actual.floats[i], e = expected.floats[i];
    if (std::isnan(a) && std::isnan(e)) continue;
    if (a == e) continue;
    ASSERT_LE(std::abs(a - e), tolerance * (1 + std::abs(e)))
        << where << " element " << i << ": " << a << " instead of " << e;
  }
}

std::vector<HostTensor> MakeInputs(ir::Module& module, const CheckOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<HostTensor> inputs;
  for (const ir::Buffer& buffer : module.buffers) {
    if (buffer.kind != ir::BufferKind::kInput) continue;
    inputs.resize(std::max<size_t>(inputs.size(), buffer.index + 1));
    inputs[buffer.index] = MakeInput(module, buffer, options, random);
  }
  return inputs;
}

void CheckModule(const std::string& text, const CheckOptions& options) {
  absl::StatusOr<ir::Module> module = ir::Parse(text);
  ASSERT_TRUE(module.ok()) << module.status() << "\n" << text;
  const absl::Status verified = ir::Verify(*module);
  ASSERT_TRUE(verified.ok()) << verified << "\n" << text;

  const std::vector<HostTensor> inputs = MakeInputs(*module, options);
  auto expected = ir::Interpret(*module, inputs, options.symbols, {});
  ASSERT_TRUE(expected.ok()) << expected.status();

  for (const std::string& isa : {"sse2", "avx2", "avx512", "avx512bf16", "amx", "ptx"}) {
    if (!IsOfUse(isa, text)) continue;
    if (isa == kPtxIsa ? !RunsOnPtx(*module, options) : options.only_ptx) continue;
    const DeviceInfo device = DeviceFor(isa, options);
    ir::Module tiled = ParseFor(text, device, options);
    CheckSchedules(tiled, device, inputs, options, *expected, isa);
    if (::testing::Test::HasFailure()) return;
  }
  for (const std::string& isa : RunnableIsas()) {
    if (!IsOfUse(isa, text)) continue;
    if (isa == kPtxIsa ? !RunsOnPtx(*module, options) : options.only_ptx) continue;
    if (isa == kGcuIsa && options.window_bytes > 0) continue;  // no such repeats there
    const DeviceInfo device = DeviceFor(isa, options);
    ir::Module tiled = ParseFor(text, device, options);
    auto native = NativeModule::Build(tiled, device);
    ASSERT_TRUE(native.ok()) << isa << ": " << native.status();
    for (int threads : options.threads) {
      auto actual = (*native)->Run(inputs, options.symbols, threads);
      const std::string where = isa + ", " + std::to_string(threads) + " threads";
      ASSERT_TRUE(actual.ok()) << where << ": " << actual.status();
      ASSERT_EQ(actual->size(), expected->size());
      for (size_t i = 0; i < actual->size(); ++i) {
        ExpectSame((*actual)[i], (*expected)[i], options.tolerance,
                   where + ", output " + std::to_string(i));
      }
      if (::testing::Test::HasFailure()) {
        for (const EmittedKernel& kernel : (*native)->kernels()) {
          ADD_FAILURE() << "source:\n" << kernel.source;
        }
        return;
      }
    }
  }
}

int CheckWindows(const std::string& text, const CheckOptions& options) {
  absl::StatusOr<ir::Module> module = ir::Parse(text);
  EXPECT_TRUE(module.ok()) << module.status() << "\n" << text;
  if (!module.ok()) return 0;
  EXPECT_EQ(ir::Verify(*module), absl::OkStatus()) << text;
  const std::vector<HostTensor> inputs = MakeInputs(*module, options);
  const auto expected = ir::Interpret(*module, inputs, options.symbols, {});
  schedule::TileByWindows(*module, options.window_bytes);
  const std::string made = ir::Print(*module);
  EXPECT_EQ(ir::Verify(*module), absl::OkStatus()) << made;
  ExpectSameText(made);
  const auto actual = ir::Interpret(*module, inputs, options.symbols, {});
  EXPECT_TRUE(expected.ok()) << expected.status();
  EXPECT_TRUE(actual.ok()) << actual.status();
  if (!expected.ok() || !actual.ok()) return 0;
  for (size_t i = 0; i < expected->size(); ++i) {
    ExpectSame((*actual)[i], (*expected)[i], 1e-12, absl::StrCat("output ", i, "\n", made));
  }
  return static_cast<int>(absl::c_count_if(module->operations, [](const ir::Operation& operation) {
    return std::holds_alternative<ir::Repeat>(operation);
  }));
}

std::string OpsModule(const std::string& type, const std::vector<std::string>& ops, int arity,
                      const std::string& result, int size) {
  const std::string shape = absl::StrCat("[", size, "] strides[1]");
  std::string text = absl::StrCat("module {\n buffer @x ", type, shape, " input(0)\n buffer @y ",
                                  type, shape, " input(1)\n");
  for (size_t i = 0; i < ops.size(); ++i) {
    absl::StrAppend(&text, " buffer @o", i, " ", result, shape, " output\n");
  }
  absl::StrAppend(&text, " kernel @k (d0: ", size, ") {\n phase () {\n  %0 = load ", type,
                  " @x[d0]\n  %1 = load ", type, " @y[d0]\n");
  for (size_t i = 0; i < ops.size(); ++i) {
    absl::StrAppend(&text, "  %", i + 2, " = ", ops[i], " ", result, arity == 1 ? " %0" : " %0, %1",
                    "\n  store ", result, " @o", i, "[d0], %", i + 2, "\n");
  }
  absl::StrAppend(&text, " }\n }\n");
  for (size_t i = 0; i < ops.size(); ++i) {
    absl::StrAppend(&text, " output @o", i, " sizes[", size, "] strides[1] offset 0\n");
  }
  return text + "}\n";
}

absl::StatusOr<std::string> EmitText(const std::string& text, const DeviceInfo& device) {
  KILN_ASSIGN_OR_RETURN(ir::Module module, ir::Parse(text));
  KILN_ASSIGN_OR_RETURN(
      EmittedKernel kernel,
      TestTarget(device)->Emit(module, std::get<ir::Kernel>(module.operations[0])));
  return kernel.source;
}

}  // namespace kiln::codegen
