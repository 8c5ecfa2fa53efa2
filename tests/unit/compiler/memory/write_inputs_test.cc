#include "compiler/memory/write_inputs.h"

#include "tests/unit/compiler/memory/module_builder.h"

namespace kiln::memory {
namespace {

using ::testing::HasSubstr;

// x becomes what `Update` computes from it; the copy into x ends the module, as lowering writes it.
struct Updating : Builder {
  BufferId x, y, value;
  explicit Updating(BufferKind kind = BufferKind::kTemp) {
    x = Add(BufferKind::kInput, {C(8), C(16)});
    y = Add(BufferKind::kInput, {C(8), C(16)});
    value = Add(kind, {C(8), C(16)});
  }

  Kernel& Update() { return Pointwise({x, y}, {value}); }

  void Copy(BufferId from, BufferId to) {
    Kernel& kernel = Pointwise({from}, {to});
    kernel.num_values = 1;
    kernel.phases[0].body[0].result = 0;
    kernel.phases[0].body[1].operands = {0};
  }

  BufferId Output() { return Add(BufferKind::kOutput, {C(8), C(16)}); }

  static Inst Indirect(Builder& b, BufferId buffer) {
    return Load(buffer, {b.module.ints->Indirect(0, b.C(8)), b.C(0)});
  }

  // Whether the update is written into x, in a plan that is sound.
  bool InPlace() {
    const size_t operations = module.operations.size();
    const Plan plan = MustPlan();
    const bool in_place = plan.in_place_of[value] == x;
    EXPECT_EQ(module.operations.size(), operations - (in_place ? 1 : 0));
    EXPECT_EQ(static_cast<bool>(plan.offsets[value]),
              !in_place && module.buffers[value].kind == BufferKind::kTemp);
    return in_place;
  }
};

TEST(WriteInputs, TheKernelThatMakesAValueWritesIt) {
  Updating m;
  m.Update();
  m.Pointwise({m.value}, {m.Output()});
  m.Copy(m.value, m.x);
  EXPECT_TRUE(m.InPlace());
}

TEST(WriteInputs, NotWhereTheOldValueIsReadLater) {
  Updating m;
  m.Update();
  m.Pointwise({m.x}, {m.Output()});
  m.Copy(m.value, m.x);
  EXPECT_FALSE(m.InPlace());
}

TEST(WriteInputs, NotWhereAnOutputShowsTheOldValue) {
  Updating m;
  m.Update();
  m.Copy(m.value, m.x);
  const Buffer& x = m.module.buffers[m.x];
  m.module.outputs.push_back({ir::BufferWindow{m.x, x.sizes, x.strides, m.C(0)}});
  EXPECT_FALSE(m.InPlace());
}

TEST(WriteInputs, NotWhereAnotherElementIsRead) {
  Updating m;
  Kernel& kernel = m.Update();
  kernel.phases[0].body[0].indices[0] = m.C(0);
  m.Copy(m.value, m.x);
  EXPECT_FALSE(m.InPlace());
}

TEST(WriteInputs, NotWhereTheLayoutsDiffer) {
  Updating m;
  std::swap(m.module.buffers[m.value].strides[0], m.module.buffers[m.value].strides[1]);
  m.Update();
  m.Copy(m.value, m.x);
  EXPECT_FALSE(m.InPlace());
}

TEST(WriteInputs, NotWhereTheValueIsAnOutputToo) {
  Updating m(BufferKind::kOutput);
  m.Update();
  m.Copy(m.value, m.x);
  EXPECT_FALSE(m.InPlace());
}

TEST(WriteInputs, NotBeforeALibraryStepWhichMayFail) {
  for (const bool after : {false, true}) {
    Updating m;
    const BufferId made = m.Add(BufferKind::kLibrary, {m.C(8)});
    const Library library{"aten.inverse.default", "inverse", {}, {made}, {}};
    if (!after) m.module.operations.emplace_back(library);
    m.Update();
    if (after) m.module.operations.emplace_back(library);
    m.Copy(m.value, m.x);
    EXPECT_EQ(m.InPlace(), !after);
  }
}

TEST(WriteInputs, NotWithOrBeforeAnIndexThatIsChecked) {
  for (const int at : {0, 1, 2}) {
    Updating m;
    const BufferId looked_up = m.Add(BufferKind::kTemp, {m.C(8), m.C(16)});
    if (at == 0) m.Pointwise({m.y}, {looked_up});
    m.Update();
    if (at == 2) m.Pointwise({m.y}, {looked_up});
    const int kernel = at == 2 ? 1 : 0;
    m.kernel(kernel).phases[0].body[0] = Updating::Indirect(m, m.y);
    m.Copy(m.value, m.x);
    EXPECT_EQ(m.InPlace(), at == 0) << at;
  }
}

TEST(WriteInputs, OfTwoInputsThatSwapOneIsCopied) {
  Updating m;
  const BufferId to_y = m.Add(BufferKind::kTemp, {m.C(8), m.C(16)});
  m.Pointwise({m.y}, {m.value});
  m.Pointwise({m.x}, {to_y});
  m.Copy(m.value, m.x);
  m.Copy(to_y, m.y);
  const Plan plan = m.MustPlan();
  EXPECT_EQ(plan.in_place_of[m.value], -1);
  EXPECT_EQ(plan.in_place_of[to_y], m.y);
  EXPECT_EQ(m.module.operations.size(), 3u);
}

TEST(WriteInputs, OneValueForTwoInputsIsWrittenOnceAndCopiedOnce) {
  Updating m;
  m.Update();
  m.Copy(m.value, m.x);
  m.Copy(m.value, m.y);
  const Plan plan = m.MustPlan();
  EXPECT_EQ(plan.in_place_of[m.value], m.x);
  EXPECT_EQ(m.module.operations.size(), 2u);
}

TEST(WriteInputs, OfNoElements) {
  Updating m;
  for (const BufferId b : {m.x, m.y, m.value}) m.module.buffers[b].sizes[0] = m.C(0);
  m.Update();
  m.Copy(m.value, m.x);
  EXPECT_TRUE(m.InPlace());
}

// The checker on its own must know what the planner knows.
TEST(CheckPlan, AnInputThatIsOverwrittenTooEarlyIsAnError) {
  const auto forced = [](Updating& m) {
    absl::StatusOr<Plan> plan = PlanMemory(m.module);
    EXPECT_EQ(plan->in_place_of[m.value], -1);
    plan->in_place_of[m.value] = m.x;
    plan->offsets[m.value] = IntExpr();
    return std::string(CheckPlan(m.module, *plan).message());
  };
  Updating read_later;
  read_later.Update();
  read_later.Pointwise({read_later.x}, {read_later.Output()});
  EXPECT_THAT(forced(read_later), HasSubstr("which @b2 has overwritten"));

  Updating shown;
  shown.Update();
  const Buffer& x = shown.module.buffers[shown.x];
  shown.module.outputs.push_back({ir::BufferWindow{shown.x, x.sizes, x.strides, shown.C(0)}});
  EXPECT_THAT(forced(shown), HasSubstr("which @b2 has overwritten"));

  Updating shifted;
  shifted.Update().phases[0].body[0].indices[0] = shifted.C(0);
  EXPECT_THAT(forced(shifted), HasSubstr("another element"));

  Updating failing;
  failing.Update();
  failing.module.operations.emplace_back(Library{"aten.inverse.default", "inverse", {}, {}, {}});
  EXPECT_THAT(forced(failing), HasSubstr("may fail after"));
}

}  // namespace
}  // namespace kiln::memory
