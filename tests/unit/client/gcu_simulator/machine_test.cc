#include <cmath>
#include <numeric>
#include <random>

#include "tests/unit/client/gcu_simulator/device.h"

namespace kiln::gcu_simulator {
namespace {

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

void ExpectFault(const std::optional<Fault>& fault, FaultCode code, const std::string& piece) {
  ASSERT_TRUE(fault) << piece;
  EXPECT_EQ(static_cast<int>(fault->code), static_cast<int>(code)) << fault->text;
  EXPECT_NE(fault->text.find(piece), std::string::npos) << fault->text;
}

// Describes t0 as 1024 floats of L3 at argument 0, t1 as 1024 floats of L1 at 0.
constexpr char kTiles[] = R"(
  arg s8, 0
  li s9, 1024
  li s10, 0
  tile t0, l3.f32.1, s8
  dimi t0, 0, s9, 1
  tile t1, l1.f32.1, s10
  dimi t1, 0, s9, 1
)";

// Each core takes its part of argument 2 elements in pieces of 1024, two buffers in turn.
constexpr char kAddOne[] = R"(
  arg s8, 0
  arg s9, 1
  arg s10, 2
  li s20, 1024
  div s11, s10, s20       ; pieces
  mov s12, s0             ; the piece
  li s13, 0
  li s14, 8192
  li s21, 1
  tile t4, l1.f32.1, s14
  dimi t4, 0, s21, 1
  li s22, 0x3f800000
  v.fill t4, s22
  tile t5, l1.f32.1, s14
  dimi t5, 0, s20, 0      ; the same 1 again and again
next:
  jge s12, s11, end
  muli s15, s12, 4096
  add s16, s8, s15
  add s17, s9, s15
  tile t0, l3.f32.1, s16
  dimi t0, 0, s20, 1
  tile t1, l1.f32.1, s13
  dimi t1, 0, s20, 1
  dma t1, t0, k0
  wait k0
  v.add t1, t1, t5
  at t0, s17
  dma t0, t1, k1
  wait k1
  add s12, s12, s1
  jmp next
end:
  halt
)";

TEST(GcuMachineTest, CoresShareALoop) {
  Device device;
  const std::vector<float> x = RandomFloats(40 * 1024, 1);
  const uint64_t from = device.Put(x), to = device.machine.Allocate(Space::kL3, x.size() * 4);
  const auto fault = device.Run(kAddOne, {from, to, x.size()});
  ASSERT_FALSE(fault) << TextOf(fault);
  const std::vector<float> y = device.Get<float>(to, x.size());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], x[i] + 1);
  EXPECT_EQ(device.report.l3_read_bytes, static_cast<int64_t>(x.size() * 4));
  EXPECT_EQ(device.report.l3_written_bytes, static_cast<int64_t>(x.size() * 4));
  // Bytes at the channel's rate are a lower bound, to which the launch is added.
  EXPECT_GE(device.report.time_ps, 10'000'000 + static_cast<int64_t>(x.size()) * 8 * 10);
  EXPECT_EQ(device.report.l3_busy_ps, static_cast<int64_t>(x.size()) * 8 * 10);
}

TEST(GcuMachineTest, TimesAreTheSpecifications) {
  Device device;
  const std::vector<float> x(1024, 1);
  const std::string only_first = "  li s30, 0\n  jne s0, s30, end\n";
  // 12 scalar instructions of 1 cycle and one of 4 (arg), the copy's issue 1, the wait 1, halt 1.
  const auto fault =
      device.Run(only_first + kTiles + "  dma t1, t0, k3\n  wait k3\n  v.exp t1, t1\nend:\n  halt",
                 {device.Put(x)});
  ASSERT_FALSE(fault) << TextOf(fault);
  const int64_t issue = (2 + 4 + 6) * 1000;
  const int64_t copied =
      issue + 4096 * 10 + 500'000;  // 64 lines of 64 bytes at 100 GB/s, then the latency
  const int64_t computed = copied + (4 + 8 * 4) * 1000;  // 8 vectors of 512 bytes, 4 cycles each
  EXPECT_EQ(device.report.time_ps, 10'000'000 + computed + 1000);
  EXPECT_EQ(device.report.vector_ps, (4 + 8 * 4) * 1000);
  EXPECT_EQ(device.report.dma_ps, 4096 * 10);
}

TEST(GcuMachineTest, TheSameLaunchTakesTheSameTime) {
  int64_t times[2];
  for (int64_t& time : times) {
    Device device;
    const std::vector<float> x(40 * 1024, 1);
    const uint64_t from = device.Put(x), to = device.machine.Allocate(Space::kL3, x.size() * 4);
    ASSERT_FALSE(device.Run(kAddOne, {from, to, x.size()}));
    time = device.report.time_ps;
  }
  EXPECT_EQ(times[0], times[1]);
}

TEST(GcuMachineTest, CopiesOverlapWithComputing) {
  Device device;
  const std::string load = std::string(kTiles) + "  dma t1, t0, k0\n", work = "  v.exp t2, t2\n";
  const std::string other = R"(
  li s11, 8192
  tile t2, l1.f32.1, s11
  dimi t2, 0, s9, 1
  li s12, 0
  v.fill t2, s12
)";
  const uint64_t x = device.Put(std::vector<float>(1024, 1));
  ASSERT_FALSE(device.Run(load + other + work + "  wait k0\n  halt", {x}));
  const int64_t beside = device.report.time_ps;
  ASSERT_FALSE(device.Run(load + "  wait k0\n" + other + work + "  halt", {x}));
  EXPECT_LT(beside, device.report.time_ps);
}

TEST(GcuMachineTest, ChannelsAreShared) {
  Device device;
  const uint64_t x = device.Put(std::vector<float>(1024, 1));
  const std::string copy = std::string(kTiles) + "  dma t1, t0, k0\n  wait k0\n";
  ASSERT_FALSE(device.Run(copy + "  halt", {x}));
  const int64_t all = device.report.time_ps;
  ASSERT_FALSE(device.Run("  li s30, 0\n  jne s0, s30, end\n" + copy + "end:\n  halt", {x}));
  EXPECT_EQ(all - device.report.time_ps,
            11 * 4096 * 10 - 2000);  // eleven more, less the two instructions
}

TEST(GcuMachineTest, ProductsAreThoseOfDoubles) {
  Device device;
  const int m = 37, k = 45, n = 21;
  const std::vector<float> a = RandomFloats(m * k, 2), b = RandomFloats(k * n, 3);
  const uint64_t pa = device.Put(a), pb = device.Put(b),
                 pc = device.machine.Allocate(Space::kL3, m * n * 4);
  const auto fault = device.Run(R"(
  li s30, 0
  jne s0, s30, end
  arg s8, 0
  arg s9, 1
  arg s10, 2
  li s11, 37
  li s12, 45
  li s13, 21
  li s14, 65536
  li s15, 131072
  tile t0, l3.f32.2, s8
  dimi t0, 0, s11, 45
  dimi t0, 1, s12, 1
  tile t1, l3.f32.2, s9
  dimi t1, 0, s12, 21
  dimi t1, 1, s13, 1
  tile t2, l3.f32.2, s10
  dimi t2, 0, s11, 21
  dimi t2, 1, s13, 1
  tile t3, l1.f32.2, s30
  dimi t3, 0, s11, 1      ; transposed in L1
  dimi t3, 1, s12, 37
  tile t4, l1.f32.2, s14
  dimi t4, 0, s12, 24
  dimi t4, 1, s13, 1
  tile t5, l1.f32.2, s15
  dimi t5, 0, s11, 21
  dimi t5, 1, s13, 1
  dma t3, t0, k0
  dma t4, t1, k1
  waitall
  m.mul t5, t3, t4
  m.acc t5, t3, t4
  dma t2, t5, k0
end:
  halt
)",
                                {pa, pb, pc});
  ASSERT_FALSE(fault) << TextOf(fault);
  const std::vector<float> c = device.Get<float>(pc, m * n);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int r = 0; r < k; ++r) sum += 2 * double{a[i * k + r]} * double{b[r * n + j]};
      ASSERT_NEAR(c[i * n + j], sum, 1e-4);
    }
  }
  EXPECT_EQ(device.report.macs, 2 * m * k * n);
  EXPECT_EQ(device.report.matrix_ps, 2 * (16 + 37 * 3 * 2) * 1000);
}

TEST(GcuMachineTest, BarriersOrderCores) {
  // Core 0 writes to L2, all read after the barrier and write to their own places.
  const std::string body = R"(
  arg s8, 0
  arg s9, 1
  li s10, 0
  li s11, 16
  tile t0, l2.f32.1, s9
  dimi t0, 0, s11, 1
  tile t1, l1.f32.1, s10
  dimi t1, 0, s11, 1
  jne s0, s10, shared
  li s12, 0x40400000
  v.fill t1, s12
  dma t0, t1, k0
  wait k0
shared:
  BARRIER
  li s13, 256
  tile t2, l1.f32.1, s13
  dimi t2, 0, s11, 1
  dma t2, t0, k1
  wait k1
  muli s14, s0, 64
  add s14, s14, s8
  tile t3, l3.f32.1, s14
  dimi t3, 0, s11, 1
  dma t3, t2, k2
  halt
)";
  const auto with = [&](const std::string& order) {
    std::string text = body;
    return text.replace(text.find("BARRIER"), 7, order);
  };
  Device device;
  const uint64_t out = device.machine.Allocate(Space::kL3, 12 * 64),
                 l2 = device.Put(std::vector<float>(16), Space::kL2);
  const auto fault = device.Run(with("barrier"), {out, l2});
  ASSERT_FALSE(fault) << TextOf(fault);
  EXPECT_EQ(device.Get<float>(out, 12 * 16), std::vector<float>(12 * 16, 3));
  ExpectFault(device.Run(with("nop"), {out, l2}), FaultCode::kRace,
              "no barrier is between two accesses of L2");
}

TEST(GcuMachineTest, RacesOfACopyAreFaults) {
  Device device;
  const uint64_t x = device.Put(std::vector<float>(1024, 1));
  const std::string start =
      std::string(kTiles) + "  li s11, 8192\n  tile t2, l1.f32.1, s11\n  dimi t2, 0, s9, 1\n";
  ExpectFault(device.Run(start + "  dma t1, t0, k0\n  v.neg t2, t1\n  halt", {x}), FaultCode::kRace,
              "is read while a copy writes to it");
  ExpectFault(device.Run(start + "  dma t1, t0, k0\n  v.fill t1, s10\n  halt", {x}),
              FaultCode::kRace, "is written while a copy uses it");
  const std::string out = start + "  v.fill t1, s10\n  dma t0, t1, k0\n";
  const std::string first = "  jne s0, s30, end\n";
  ExpectFault(device.Run(first + out + "  v.fill t1, s10\nend:\n  halt", {x}), FaultCode::kRace,
              "is written while a copy uses it");
  // Reading what a copy reads is no race, and after the wait nothing is.
  auto fault =
      device.Run(first + out + "  v.neg t2, t1\n  wait k0\n  v.fill t1, s10\nend:\n  halt", {x});
  EXPECT_FALSE(fault) << TextOf(fault);
  ExpectFault(device.Run(out + "  halt", {x}), FaultCode::kRace,
              "no barrier is between two accesses of L3");
  // A copy that is under way is no better after a barrier.
  ExpectFault(
      device.Run(start +
                     "  jne s0, s30, other\n  v.fill t1, s10\n  dma t0, t1, k0\n  barrier\n  halt\n"
                     "other:\n  barrier\n  dma t1, t0, k0\n  halt",
                 {x}),
      FaultCode::kRace, "no barrier is between two accesses of L3");
  ExpectFault(device.Run(start + "  dma t1, t0, k0\n  dma t2, t0, k0\n  halt", {x}),
              FaultCode::kProgram, "token k0 is taken");
}

TEST(GcuMachineTest, WhatWasNotWrittenIsPoison) {
  Device device;
  const uint64_t undefined = device.machine.Allocate(Space::kL3, 4096);
  ExpectFault(device.Run(std::string(kTiles) + "  dma t1, t0, k0\n  halt", {undefined}),
              FaultCode::kPoison, "a copy reads what was not written before");
  ExpectFault(device.Run(std::string(kTiles) + "  v.neg t1, t1\n  halt", {undefined}),
              FaultCode::kPoison, "was not written before");
  // L1 keeps nothing from one launch to the next.
  ASSERT_FALSE(device.Run(std::string(kTiles) + "  v.fill t1, s10\n  halt", {undefined}));
  ExpectFault(device.Run(std::string(kTiles) + "  v.neg t1, t1\n  halt", {undefined}),
              FaultCode::kPoison, "core 0, instruction 7 (v.neg)");
}

TEST(GcuMachineTest, AccessesOutsideOfMemoryAreFaults) {
  Device device;
  const uint64_t x = device.Put(std::vector<float>(1000, 1));
  ExpectFault(device.Run(std::string(kTiles) + "  dma t1, t0, k0\n  halt", {x}), FaultCode::kBounds,
              "are not in one allocation");
  ExpectFault(device.Run(std::string(kTiles) + "  dma t1, t0, k0\n  halt", {8}), FaultCode::kBounds,
              "L3 has no allocation at 8");
  const std::pair<const char*, const char*> cases[] = {
      {"  li s10, 1048572\n  at t1, s10\n", "is not inside of L1"},
      {"  li s10, -4\n  at t1, s10\n", "where no memory can have them"},
      {"  li s10, 2\n  at t1, s10\n", "begins at 2, which its type does not divide"},
      {"  li s10, 0x7fffffffffffffff\n  at t1, s10\n", "where no memory can have them"},
      {"  li s9, 3\n  dimi t1, 0, s9, 0x4000000000000000\n", "where no memory can have them"},
      {"  dimi t1, 0, s9, -1\n", "where no memory can have them"},
  };
  for (const auto& [place, text] : cases) {
    ExpectFault(device.Run(std::string(kTiles) + place + "  v.fill t1, s9\n  halt", {x}),
                FaultCode::kBounds, text);
  }
  ExpectFault(
      device.Run(std::string(kTiles) +
                     "  li s9, 0x7fffffffffffffff\n  dimi t1, 0, s9, 0\n  v.fill t1, s9\n  halt",
                 {x}),
      FaultCode::kProgram, "has too many elements");
}

TEST(GcuMachineTest, ProgramsThatGoWrongSaySo) {
  Device device;
  const uint64_t x = device.Put(std::vector<float>(1024, 1));
  const std::pair<const char*, const char*> cases[] = {
      {"  trap 42\n", "trap 42"},
      {"  div s9, s9, s10\n", "division by 0"},
      {"  jne s0, s10, end\n  barrier\nend:\n", "11 cores have halted and 1 wait at a barrier"},
      {"  arg s9, 7\n", "there is no argument 7"},
      {"  v.neg t9, t1\n", "tile register 9 was not described"},
      {"  li s9, 4\n  dimi t1, 1, s9, 1\n", "the tile has no such dimension"},
      {"  li s9, -4\n  dimi t1, 0, s9, 1\n", "an extent of -4"},
      {"  dimi t1, 0, s9, 0\n  v.fill t1, s9\n", "has an element twice"},
      {"  tile t2, l1.f16.1, s10\n  dimi t2, 0, s9, 1\n  dma t2, t0, k0\n", "different types"},
      {"  li s11, 5\n  dimi t1, 0, s11, 1\n  dma t1, t0, k0\n", "different extents"},
      {"  v.and t1, t1, t1\n", "the instruction has no such type"},
      {"  m.mul t1, t1, t1\n", "the extents of a product do not fit"},
      {"  v.neg t1, t0\n", "is not in L1"},
  };
  for (const auto& [body, text] : cases) {
    const auto fault = device.Run(std::string(kTiles) + body + "  halt", {x});
    ASSERT_TRUE(fault) << body;
    EXPECT_NE(fault->text.find(text), std::string::npos) << fault->text;
    EXPECT_NE(fault->text.find("kernel 'test'"), std::string::npos) << fault->text;
  }
  EXPECT_FALSE(device.Run(std::string(kTiles) + "  halt", {x}));  // the device goes on
}

TEST(GcuMachineTest, FreedMemoryIsHandedOutAgain) {
  Device device;
  Machine& machine = device.machine;
  const uint64_t all = machine.Allocate(Space::kL2, 16 << 20);
  EXPECT_NE(all, 0U);
  EXPECT_EQ(machine.Allocate(Space::kL2, 1), 0U);
  EXPECT_TRUE(machine.Free(Space::kL2, all));
  EXPECT_FALSE(machine.Free(Space::kL2, all));
  const uint64_t a = machine.Allocate(Space::kL2, 1000), b = machine.Allocate(Space::kL2, 1000);
  EXPECT_TRUE(machine.Free(Space::kL2, a));
  EXPECT_EQ(machine.Allocate(Space::kL2, 512), a);
  EXPECT_EQ(machine.Used(Space::kL2), 512U + 1024U);
  EXPECT_EQ(machine.Peak(Space::kL2), 16U << 20);
  EXPECT_TRUE(machine.Free(Space::kL2, b));
}

TEST(GcuMachineTest, GridsRunCellByCell) {
  Device device;
  const uint64_t out = device.machine.Allocate(Space::kL3, 64);
  const auto fault = device.Run(R"(
  li s30, 0
  jne s0, s30, end
  arg s8, 0
  muli s9, s3, 4
  add s9, s9, s2
  muli s9, s9, 4
  add s8, s8, s9
  li s11, 1
  tile t0, l3.i32.1, s8
  dimi t0, 0, s11, 1
  tile t1, l1.i32.1, s30
  dimi t1, 0, s11, 1
  v.fill t1, s9
  dma t0, t1, k0
end:
  halt
)",
                                {out}, {4, 3, 1}, true);
  ASSERT_FALSE(fault) << TextOf(fault);
  std::vector<int32_t> expected(12);
  for (int i = 0; i < 12; ++i) expected[i] = 4 * i;
  EXPECT_EQ(device.Get<int32_t>(out, 12), expected);
  EXPECT_EQ(std::count_if(device.report.spans.begin(), device.report.spans.end(),
                          [](const Span& span) { return span.engine == std::string("dma"); }),
            12);
}

}  // namespace
}  // namespace kiln::gcu_simulator
