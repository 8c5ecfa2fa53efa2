#include "compiler/memory/plan_memory.h"

#include <random>

#include "tests/unit/compiler/memory/module_builder.h"

namespace kiln::memory {
namespace {

using ::testing::HasSubstr;

TEST(PlanMemory, BuffersWhoseLivesDoNotMeetShareStorage) {
  Builder b;
  BufferId in = b.Add(BufferKind::kInput, {b.C(1000)});
  BufferId out = b.Add(BufferKind::kOutput, {b.C(1000)});
  // Sizes differ, so nothing is in place.
  BufferId t0 = b.Temp(1000), t1 = b.Temp(999), t2 = b.Temp(998), t3 = b.Temp(997);
  b.Pointwise({in}, {t0});
  b.Pointwise({t0}, {t1});
  b.Pointwise({t1}, {t2});
  b.Pointwise({t2}, {t3});
  b.Pointwise({t3}, {out});
  Plan plan = b.MustPlan();
  EXPECT_EQ(plan.workspace_bytes, b.C(2 * 4032));  // 4000 bytes rounded up to 64, twice
  EXPECT_EQ(plan.offsets[t0], plan.offsets[t2]);
  EXPECT_EQ(plan.offsets[t1], plan.offsets[t3]);
  EXPECT_FALSE(plan.offsets[in]);
  EXPECT_FALSE(plan.offsets[out]);
}

TEST(PlanMemory, AChainOfPointwiseKernelsRunsInPlace) {
  Builder b;
  BufferId in = b.Add(BufferKind::kInput, {b.C(16), b.C(4)});
  BufferId out = b.Add(BufferKind::kOutput, {b.C(16), b.C(4)});
  BufferId t[3];
  for (BufferId& id : t) id = b.Add(BufferKind::kTemp, {b.C(16), b.C(4)});
  b.Pointwise({in}, {t[0]});
  b.Pointwise({t[0]}, {t[1]});
  b.Pointwise({t[1], in}, {t[2]});
  b.Pointwise({t[2]}, {out});
  Plan plan = b.MustPlan();
  EXPECT_EQ(plan.in_place_of[t[0]], -1);
  EXPECT_EQ(plan.in_place_of[t[1]], t[0]);
  EXPECT_EQ(plan.in_place_of[t[2]], t[1]);
  EXPECT_EQ(plan.workspace_bytes, b.C(256));
}

// temp -> kernel -> temp, with everything between left to the test.
struct InPlaceCase : Builder {
  BufferId from, to, out;
  InPlaceCase() {
    BufferId in = Add(BufferKind::kInput, {C(8), C(16)});
    from = Add(BufferKind::kTemp, {C(8), C(16)});
    to = Add(BufferKind::kTemp, {C(8), C(16)});
    out = Add(BufferKind::kOutput, {C(8), C(16)});
    Pointwise({in}, {from});
    Pointwise({from}, {to});
    Pointwise({to}, {out});
  }
  bool InPlace() { return MustPlan().in_place_of[to] == from; }
  // The checker on its own must know what the planner knows.
  absl::Status CheckForced() {
    absl::StatusOr<Plan> plan = PlanMemory(module);
    plan->in_place_of[to] = from;
    plan->offsets[to] = plan->offsets[from];
    return CheckPlan(module, *plan);
  }
};

TEST(PlanMemory, InPlaceNeedsEqualLayoutAndElementSize) {
  EXPECT_TRUE(InPlaceCase().InPlace());
  InPlaceCase dtype;
  dtype.module.buffers[dtype.to].dtype = DType::kF16;
  EXPECT_FALSE(dtype.InPlace());
  EXPECT_THAT(dtype.CheckForced().message(), HasSubstr("layouts differ"));
  InPlaceCase strides;
  strides.module.buffers[strides.to].strides = {strides.C(1), strides.C(8)};
  EXPECT_FALSE(strides.InPlace());
  InPlaceCase same_size;
  same_size.module.buffers[same_size.to].dtype = DType::kI32;
  EXPECT_TRUE(same_size.InPlace());
}

TEST(PlanMemory, InPlaceNeedsEqualIndices) {
  InPlaceCase c;
  Kernel& k = c.kernel(1);
  IntExpr flipped = c.module.ints->Sub(c.C(15), k.outer[1]);
  k.phases[0].body[0].indices[1] = flipped;
  EXPECT_FALSE(c.InPlace());
  EXPECT_THAT(c.CheckForced().message(), HasSubstr("another element"));
}

TEST(PlanMemory, InPlaceNeedsEveryLoadBeforeTheStore) {
  InPlaceCase c;
  std::vector<Inst>& body = c.kernel(1).phases[0].body;
  body.push_back(body[0]);
  EXPECT_FALSE(c.InPlace());
  EXPECT_THAT(c.CheckForced().message(), HasSubstr("after the store"));

  InPlaceCase later;
  Kernel& k = later.kernel(1);
  k.phases.push_back({{}, {k.phases[0].body[0]}});
  EXPECT_FALSE(later.InPlace());
  EXPECT_THAT(later.CheckForced().message(), HasSubstr("after the store"));
}

TEST(PlanMemory, InPlaceNeedsOneElementAnIteration) {
  InPlaceCase c;
  // A loop that the index does not hold: every round of it would read the result of the last.
  c.kernel(1).outer.push_back(c.module.ints->NewVar(c.C(3)));
  EXPECT_FALSE(c.InPlace());
  EXPECT_THAT(c.CheckForced().message(), HasSubstr("several iterations"));
}

// As in the gradient of a factorization, which has the smaller of two sizes as its rows' length.
TEST(PlanMemory, RowsAsLongAsTheSmallerOfTwoSizesAreWrittenInPlace) {
  Builder b;
  ir::IntContext& ints = *b.module.ints;
  const IntExpr m = ints.NewSymbol("m", 2, int64_t{1} << 40, 7);
  const IntExpr n = ints.NewSymbol("n", 2, int64_t{1} << 40, 5);
  const std::vector<IntExpr> sizes = {m, ints.Min(m, n)};
  const BufferId in = b.Add(BufferKind::kInput, sizes), from = b.Add(BufferKind::kTemp, sizes);
  const BufferId to = b.Add(BufferKind::kTemp, sizes), out = b.Add(BufferKind::kOutput, sizes);
  b.Pointwise({in}, {from});
  b.Pointwise({from}, {to});
  b.Pointwise({to}, {out});
  EXPECT_EQ(b.MustPlan().in_place_of[to], from);
}

TEST(PlanMemory, InPlaceNeedsADyingOperand) {
  InPlaceCase c;
  c.kernel(2).phases[0].body.push_back(c.kernel(1).phases[0].body[0]);
  EXPECT_FALSE(c.InPlace());
  EXPECT_THAT(c.CheckForced().message(), HasSubstr("overwritten"));
}

TEST(PlanMemory, AFlattenedLoopMayRunInPlace) {
  InPlaceCase c;
  Kernel& k = c.kernel(1);
  IntExpr flat = c.module.ints->NewVar(c.C(128));
  k.outer = {flat};
  for (Inst& inst : k.phases[0].body) {
    inst.indices = {c.module.ints->FloorDiv(flat, 16), c.module.ints->Mod(flat, 16)};
  }
  EXPECT_TRUE(c.InPlace());
}

// Softmax's shape: the row is reduced first and rewritten last.
TEST(PlanMemory, AnEarlierPhaseMayReadTheSameRow) {
  InPlaceCase c;
  Kernel& k = c.kernel(1);
  ir::IntContext& ints = *c.module.ints;
  IntExpr row = k.outer[0], r0 = ints.NewVar(c.C(16)), r1 = ints.NewVar(c.C(16));
  k.outer = {row};
  k.phases = {{{r0}, {Builder::Load(c.from, {row, r0})}},
              {{r1}, {Builder::Load(c.from, {row, r1}), Builder::Store(c.to, {row, r1})}}};
  EXPECT_TRUE(c.InPlace());
  // Another row belongs to another iteration, which may have rewritten it.
  k.phases[0].body[0].indices[0] = ints.Sub(c.C(7), row);
  EXPECT_FALSE(c.InPlace());
  EXPECT_THAT(c.CheckForced().message(), HasSubstr("another element"));
}

TEST(PlanMemory, AContractionRunsInPlaceOfItsEpiloguesOperandOnly) {
  InPlaceCase c;
  ir::IntContext& ints = *c.module.ints;
  Kernel& k = c.kernel(1);
  k.schedule = ir::Schedule::kContraction;
  BufferId a = c.Add(BufferKind::kInput, {c.C(8), c.C(32)});
  IntExpr r = ints.NewVar(c.C(32));
  std::vector<Inst> epilogue = k.phases[0].body;
  k.phases = {{{r}, {Builder::Load(a, {k.outer[0], r})}}, {{}, epilogue}};
  EXPECT_TRUE(c.InPlace());
  k.phases[0].body.push_back(Builder::Load(c.from, {k.outer[0], ints.FloorDiv(r, 2)}));
  EXPECT_FALSE(c.InPlace());
  EXPECT_THAT(c.CheckForced().message(), HasSubstr("contraction reads it"));
}

TEST(PlanMemory, LibraryOperationsReadAndNeverRunInPlace) {
  Builder b;
  BufferId in = b.Add(BufferKind::kInput, {b.C(64)});
  BufferId t0 = b.Temp(64), t1 = b.Temp(64), t2 = b.Temp(64);
  BufferId made = b.Add(BufferKind::kLibrary, {b.C(64)});
  BufferId out = b.Add(BufferKind::kOutput, {b.C(64)});
  b.Pointwise({in}, {t0});
  b.Pointwise({in}, {t1});
  Library call;
  call.op = "aten.topk.default";
  call.origin = "topk";
  ir::BufferWindow window{t0, {b.C(64)}, {b.C(1)}, b.C(0)};
  ir::BufferWindow nested{t1, {b.C(64)}, {b.C(1)}, b.C(0)};
  call.args.push_back({"", window});
  call.args.push_back({"", ir::LibraryArgs{{"", nested}}});
  call.results = {made};
  b.module.operations.emplace_back(std::move(call));
  b.Pointwise({made}, {t2});
  b.Pointwise({t2}, {out});
  Plan plan = b.MustPlan();
  EXPECT_FALSE(plan.offsets[made]);
  EXPECT_NE(plan.offsets[t0], plan.offsets[t1]);  // both are read by the call
  EXPECT_EQ(plan.workspace_bytes, b.C(512));
  // A nested window counts as a read.
  plan.offsets[t1] = plan.offsets[t0];
  EXPECT_FALSE(CheckPlan(b.module, plan).ok());
}

// (s0 - 1) * (s1 - 1) multiplied out has terms of both signs, whose ranges do not show the sign.
TEST(PlanMemory, AProductOfSizesIsNeverNegative) {
  Builder b;
  ir::IntContext& ints = *b.module.ints;
  const IntExpr s0 = ints.NewSymbol("s0", 1, 1 << 20, 128), s1 = ints.NewSymbol("s1", 1, 512, 100);
  const std::vector<IntExpr> sizes = {ints.Add(s0, -1), ints.Add(s1, -1)};
  const BufferId in = b.Add(BufferKind::kInput, sizes), made = b.Add(BufferKind::kTemp, sizes);
  const BufferId out = b.Add(BufferKind::kOutput, sizes);
  b.Pointwise({in}, {made});
  b.Pointwise({made}, {out});
  const Plan plan = b.MustPlan();
  for (const auto& [rows, bytes] : {std::pair<int64_t, int64_t>{1, 0}, {3, 2 * 9 * 4}}) {
    const int64_t have = ints.Evaluate(plan.workspace_bytes,
                                       [&](IntExpr symbol) { return symbol == s0 ? rows : 10; });
    EXPECT_GE(have, bytes);
    EXPECT_LT(have, bytes + kAlignment);
  }
}

TEST(PlanMemory, SymbolicSizesShareWhereOneProvablyHoldsTheOther) {
  Builder b;
  ir::IntContext& ints = *b.module.ints;
  IntExpr s0 = ints.NewSymbol("s0", 1, 512, 128), s1 = ints.NewSymbol("s1", 1, 512, 100);
  BufferId in = b.Add(BufferKind::kInput, {s0});
  BufferId big = b.Add(BufferKind::kTemp, {s0, b.C(768)});
  BufferId mid = b.Add(BufferKind::kTemp, {s1, b.C(64)});
  BufferId small = b.Add(BufferKind::kTemp, {s0, b.C(64)});
  BufferId other = b.Add(BufferKind::kTemp, {s1});
  BufferId out = b.Add(BufferKind::kOutput, {s0});
  b.Pointwise({in}, {big});
  b.Pointwise({big}, {mid});
  b.Pointwise({mid}, {small});
  b.Pointwise({small}, {other});
  b.Pointwise({other}, {out});
  Plan plan = b.MustPlan();
  EXPECT_EQ(plan.offsets[small], plan.offsets[big]);
  EXPECT_EQ(plan.offsets[other], plan.offsets[mid]);  // 4*s1 fits where 256*s1 was
  EXPECT_NE(plan.offsets[mid], plan.offsets[big]);
  EXPECT_EQ(plan.workspace_bytes, ints.Add(ints.Mul(s0, 768 * 4), ints.Mul(s1, 64 * 4)));
  Plan moved = plan;
  moved.offsets[mid] = plan.offsets[big];  // 256*s1 bytes where 3072*s0 are
  EXPECT_THAT(CheckPlan(b.module, moved).message(), HasSubstr("inside one region"));
  moved = plan;
  moved.offsets[small] = plan.offsets[big];
  b.Pointwise({big}, {b.Add(BufferKind::kOutput, {s0, b.C(768)})});
  moved.offsets.push_back(IntExpr());
  moved.in_place_of.push_back(-1);
  EXPECT_THAT(CheckPlan(b.module, moved).message(), HasSubstr("which @b3 has overwritten"));
}

TEST(PlanMemory, EmptyAndUnusedBuffersCostNothing) {
  Builder b;
  BufferId in = b.Add(BufferKind::kInput, {b.C(0)});
  BufferId empty = b.Add(BufferKind::kTemp, {b.C(0)});
  BufferId unused = b.Temp(100);
  BufferId out = b.Add(BufferKind::kOutput, {b.C(0)});
  b.Pointwise({in}, {empty});
  b.Pointwise({empty}, {out});
  Plan plan = b.MustPlan();
  EXPECT_EQ(plan.workspace_bytes, b.C(0));
  EXPECT_FALSE(plan.offsets[unused]);
  EXPECT_TRUE(plan.offsets[empty]);
}

TEST(PlanMemory, SizesBeyond64BitsAreAnError) {
  Builder b;
  BufferId in = b.Add(BufferKind::kInput, {b.C(1)});
  BufferId huge = b.Add(BufferKind::kTemp, {b.C(int64_t{1} << 40), b.C(int64_t{1} << 40)});
  b.Pointwise({in}, {huge});
  EXPECT_EQ(PlanMemory(b.module).status().code(), absl::StatusCode::kInvalidArgument);
  Builder two;
  in = two.Add(BufferKind::kInput, {two.C(1)});
  BufferId x = two.Temp(int64_t{1} << 60), y = two.Temp(int64_t{1} << 60);
  two.Pointwise({in}, {x});
  two.Pointwise({in}, {y});
  BufferId out = two.Add(BufferKind::kOutput, {two.C(1)});
  two.Pointwise({x, y}, {out});
  EXPECT_EQ(PlanMemory(two.module).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(CheckPlan, RegionsThatOverlapOrLeaveGapsAreAnError) {
  Builder b;
  IntExpr s0 = b.module.ints->NewSymbol("s0", 1, 512, 128);
  BufferId in = b.Add(BufferKind::kInput, {s0});
  BufferId big = b.Add(BufferKind::kTemp, {s0, b.C(16)});
  BufferId out = b.Add(BufferKind::kOutput, {s0});
  b.Pointwise({in}, {big});
  b.Pointwise({big}, {out});
  const Plan plan = b.MustPlan();
  ASSERT_EQ(plan.regions.size(), 2u);
  for (int64_t shift : {-kAlignment, kAlignment}) {
    Plan moved = plan;
    moved.regions[1].begin = b.module.ints->Add(plan.regions[1].begin, shift);
    EXPECT_THAT(CheckPlan(b.module, moved).message(), HasSubstr("begins elsewhere"));
  }
  Plan negative = plan;
  negative.regions[0].size = b.C(-64);
  EXPECT_THAT(CheckPlan(b.module, negative).message(), HasSubstr("negative size"));
}

TEST(CheckPlan, ATemporaryReadBeforeItIsWrittenIsAnError) {
  Builder b;
  BufferId t = b.Temp(16);
  BufferId out = b.Add(BufferKind::kOutput, {b.C(16)});
  b.Pointwise({t}, {out});
  absl::StatusOr<Plan> plan = PlanMemory(b.module);
  ASSERT_THAT(plan.status(), IsOk());
  EXPECT_THAT(CheckPlan(b.module, *plan).message(), HasSubstr("before it is written"));
}

// A module of random kernels: each reads some earlier buffers, equal sizes being common enough for
// buffers in place.
void FillRandom(Builder& b, std::mt19937_64& random) {
  static constexpr int64_t kSizes[] = {16, 16, 16, 64, 100, 1000, 4096};
  std::vector<BufferId> made = {b.Add(BufferKind::kInput, {b.C(1)})};
  size_t n = 3 + random() % 25;
  for (size_t i = 0; i < n; ++i) {
    std::vector<BufferId> reads, writes;
    for (size_t r = 1 + random() % 3; r > 0; --r) {
      size_t back = std::min<size_t>(made.size(), 1 + random() % (random() % 4 == 0 ? 20 : 4));
      reads.push_back(made[made.size() - back]);
    }
    int64_t size = kSizes[random() % std::size(kSizes)];
    for (size_t w = 1 + random() % 2; w > 0; --w) writes.push_back(b.Temp(size));
    b.Pointwise(reads, writes);
    made.insert(made.end(), writes.begin(), writes.end());
  }
  BufferId out = b.Add(BufferKind::kOutput, {b.C(16)});
  b.Pointwise({made.back()}, {out});
}

TEST(PlanMemoryProperty, RandomModulesArePlannedRightAndNoLargerThanTheSum) {
  int64_t in_place = 0, total = 0, sum_total = 0;
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    Builder b;
    FillRandom(b, random);
    absl::StatusOr<Plan> plan = PlanMemory(b.module);
    ASSERT_THAT(plan.status(), IsOk());
    ASSERT_THAT(CheckPlan(b.module, *plan), IsOk()) << "seed " << seed;
    int64_t sum = 0;
    for (size_t i = 0; i < b.module.buffers.size(); ++i) {
      in_place += plan->in_place_of[i] >= 0;
      if (!plan->offsets[i]) continue;
      int64_t bytes = SizeBytes(*b.module.ints, b.module.buffers[i]).value();
      sum += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    ASSERT_LE(plan->workspace_bytes.value(), sum) << "seed " << seed;
    total += plan->workspace_bytes.value();
    sum_total += sum;
  }
  EXPECT_GT(in_place, 100);
  EXPECT_LT(total, sum_total * 2 / 3);
}

// Whether two buffers are ever both needed, worked out by brute force from the definition: some
// operation touches one at or after the first and at or before the last touch of the other.
struct Touches {
  int first = -1, last = -1;
};

std::vector<Touches> FindTouches(const Module& module) {
  std::vector<Touches> touches(module.buffers.size());
  for (size_t i = 0; i < module.operations.size(); ++i) {
    for (const Inst& inst : std::get<Kernel>(module.operations[i]).phases[0].body) {
      Touches& t = touches[inst.buffer];
      if (t.first < 0) t.first = static_cast<int>(i);
      t.last = static_cast<int>(i);
    }
  }
  return touches;
}

TEST(CheckPlanProperty, EveryMoveOntoALiveBufferIsCaught) {
  int caught = 0;
  for (int seed = 0; seed < 120; ++seed) {
    std::mt19937_64 random(seed);
    Builder b;
    FillRandom(b, random);
    absl::StatusOr<Plan> plan = PlanMemory(b.module);
    ASSERT_THAT(plan.status(), IsOk());
    std::vector<Touches> touches = FindTouches(b.module);
    for (size_t x = 0; x < touches.size(); ++x) {
      for (size_t y = 0; y < touches.size(); ++y) {
        if (x == y || !plan->offsets[x] || !plan->offsets[y]) continue;
        // y's contents are read after x is written, while y was written before.
        bool live = touches[y].first < touches[x].first && touches[y].last > touches[x].first;
        if (!live) continue;
        Plan corrupt = *plan;
        corrupt.offsets[x] = plan->offsets[y];
        corrupt.in_place_of[x] = -1;
        ASSERT_FALSE(CheckPlan(b.module, corrupt).ok())
            << "seed " << seed << ": b" << x << " moved onto b" << y;
        corrupt.in_place_of[x] = static_cast<BufferId>(y);
        ASSERT_FALSE(CheckPlan(b.module, corrupt).ok()) << "seed " << seed;
        ++caught;
      }
    }
  }
  EXPECT_GT(caught, 1000);
}

TEST(CheckPlanProperty, ASmallerWorkspaceAWrongAlignmentAndALostOffsetAreCaught) {
  for (int seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    Builder b;
    FillRandom(b, random);
    absl::StatusOr<Plan> plan = PlanMemory(b.module);
    ASSERT_THAT(plan.status(), IsOk());
    Plan smaller = *plan;
    // The last buffer ends within the alignment of the workspace's end.
    smaller.workspace_bytes = b.module.ints->Add(plan->workspace_bytes, -kAlignment);
    EXPECT_THAT(CheckPlan(b.module, smaller).message(), HasSubstr("are not the workspace"));
    smaller.regions.back().size = b.module.ints->Add(smaller.regions.back().size, -kAlignment);
    EXPECT_THAT(CheckPlan(b.module, smaller).message(), HasSubstr("inside one region"));
    for (size_t i = 0; i < b.module.buffers.size(); ++i) {
      if (!plan->offsets[i]) continue;
      Plan moved = *plan;
      moved.offsets[i] = b.module.ints->Add(plan->offsets[i], 4);
      moved.workspace_bytes = b.module.ints->Add(plan->workspace_bytes, 64);
      EXPECT_FALSE(CheckPlan(b.module, moved).ok()) << "seed " << seed << " b" << i;
      Plan lost = *plan;
      lost.offsets[i] = IntExpr();
      EXPECT_FALSE(CheckPlan(b.module, lost).ok()) << "seed " << seed << " b" << i;
    }
  }
}

}  // namespace
}  // namespace kiln::memory
