#include "tests/unit/compiler/codegen/gcu_launches.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify.h"
#include "compiler/schedule/gcu/groups.h"
#include "tests/unit/compiler/codegen/gcu_device.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {

const schedule::gcu::Machine& Reference() {
  static const auto* machine = new schedule::gcu::Machine(*schedule::gcu::FindMachine("gcu-16m"));
  return *machine;
}

std::string Chain(int images, int channels, int size, int depth) {
  const std::string shape =
      absl::StrCat("f32[", images, ",", channels, ",", size, ",", size, "] strides[",
                   channels * size * size, ",", size * size, ",", size, ",1]");
  std::string text = absl::StrCat("module {\n buffer @t0 ", shape, " input(0)\n");
  for (int i = 0; i < depth; ++i) {
    absl::StrAppend(&text, " buffer @w", i, " f32[", channels, ",", channels, ",3,3] strides[",
                    channels * 9, ",9,3,1] input(", i + 1, ")\n buffer @t", i + 1, " ", shape,
                    i + 1 == depth ? " output\n" : " temp\n");
  }
  for (int i = 0; i < depth; ++i) {
    absl::StrAppend(
        &text, " kernel @k", i, " contraction (d0: ", images, ", d1: ", channels, ", d2: ", size,
        ", d3: ", size, ") {\n phase (r0: ", channels, ", r1: 3, r2: 3) {\n %0 = load f32 @w", i,
        "[d1, r0, r1, r2]\n %1 = index i64 d2 + r1 - 1\n %2 = const i64 0\n %3 = ge bool %1, %2\n"
        " %4 = const i64 ",
        size,
        "\n %5 = lt bool %1, %4\n %6 = and bool %3, %5\n"
        " %7 = index i64 d3 + r2 - 1\n %8 = ge bool %7, %2\n %9 = and bool %6, %8\n"
        " %10 = lt bool %7, %4\n %11 = and bool %9, %10\n %12 = load f32 @t",
        i,
        "[d0, r0, d2 + r1 - 1, d3 + r2 - 1] if %11 else 0\n %13 = mul f32 %0, %12\n"
        " %14 = reduce.sum f32 %13\n }\n phase () {\n %15 = const f32 0\n"
        " %16 = max f32 %15, %14\n store f32 @t",
        i + 1, "[d0, d1, d2, d3], %16\n }\n }\n");
  }
  return absl::StrCat(text, " output @t", depth, " sizes[", images, ",", channels, ",", size, ",",
                      size, "] strides[", channels * size * size, ",", size * size, ",", size,
                      ",1] offset 0\n}\n");
}

void GroupFor(ir::Module& module, const schedule::gcu::Machine& machine,
              const std::vector<std::string>& without) {
  schedule::gcu::Group(module, machine, without, [&](const ir::Operation& operation) {
    return gcu::MakeLaunch(module, operation, machine).status();
  });
  ASSERT_EQ(ir::Verify(module), absl::OkStatus()) << ir::Print(module);
}

void Group(ir::Module& module, const std::vector<std::string>& without) {
  GroupFor(module, Reference(), without);
}

ir::Module CheckGroups(const std::string& text, int64_t l2_bytes,
                       const std::vector<std::string>& without, const CheckOptions& options) {
  absl::StatusOr<ir::Module> module = ir::Parse(text);
  EXPECT_TRUE(module.ok()) << module.status() << "\n" << text;
  if (!module.ok()) return ir::Module();
  const std::vector<HostTensor> inputs = MakeInputs(*module, options);
  const auto expected = ir::Interpret(*module, inputs, options.symbols, {});
  schedule::gcu::Machine machine = Reference();
  machine.l2_bytes = l2_bytes;
  GroupFor(*module, machine, without);
  if (::testing::Test::HasFailure()) return *std::move(module);
  for (const ir::Operation& operation : module->operations) {
    const auto launch = gcu::MakeLaunch(*module, operation, machine);
    EXPECT_TRUE(launch.ok()) << launch.status();
    if (launch.ok()) EXPECT_LE(launch->kernel.l2_bytes, static_cast<uint64_t>(l2_bytes));
  }
  const auto interpreted = ir::Interpret(*module, inputs, options.symbols, {});
  auto native = NativeModule::Build(*module, TestDevice(kGcuIsa));
  EXPECT_TRUE(native.ok()) << native.status();
  if (!native.ok()) return *std::move(module);
  const auto simulated = (*native)->Run(inputs, options.symbols, 1);
  EXPECT_TRUE(expected.ok()) << expected.status();
  EXPECT_TRUE(interpreted.ok()) << interpreted.status();
  EXPECT_TRUE(simulated.ok()) << simulated.status() << "\n" << ir::Print(*module);
  if (::testing::Test::HasFailure()) return *std::move(module);
  for (size_t i = 0; i < expected->size(); ++i) {
    ExpectSame((*interpreted)[i], (*expected)[i], 1e-12, absl::StrCat("interpreted, output ", i));
    ExpectSame((*simulated)[i], (*expected)[i], options.tolerance,
               absl::StrCat("simulated, output ", i, "\n", ir::Print(*module)));
  }
  return *std::move(module);
}

double Simulate(const ir::Module& module, const gcu::Launch& launch,
                const schedule::gcu::Machine& machine) {
  std::vector<std::string> data;
  for (ir::BufferId buffer : launch.buffers) {
    const int64_t bytes = ir::SizeBytes(*module.ints, module.buffers[buffer]).value();
    data.emplace_back(static_cast<size_t>(bytes), '\0');
  }
  std::vector<HostBuffer> buffers;
  for (std::string& bytes : data) buffers.push_back({bytes.data(), bytes.size()});
  GcuDevice device(machine.profile);
  const absl::StatusOr<GcuTimes> times = device.Run(launch.kernel, buffers, {});
  EXPECT_TRUE(times.ok()) << times.status();
  return times.ok() ? times->seconds : 0;
}

}  // namespace kiln::codegen
