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
    Inst load = Load(buffer, {b.module.ints->Indirect(0, b.C(8)), b.C(0)});
    load.operands = {7};  // which is computed somehow
    return load;
  }

  // One row of a copy of x, which the input `place` names, becomes y's first.
  Kernel& UpdateRow(BufferId place) {
    Kernel kernel;
    kernel.name = "row" + std::to_string(module.operations.size());
    kernel.num_values = 3;
    kernel.outer = {module.ints->NewVar(C(16))};
    const IntExpr row = module.ints->NewVar(C(8)), column = kernel.outer[0];
    Inst load = Load(x, {row, column}), store = Store(value, {row, column});
    load.result = 0;
    store.operands = {0};
    kernel.phases.push_back({{row}, {load, store}});
    Inst where = Load(place, {}), taken = Load(y, {C(0), column});
    where.result = 1;
    taken.result = 2;
    Inst scatter = Store(value, {module.ints->Indirect(0, C(8)), column});
    scatter.operands = {1, 2};
    kernel.phases.push_back({{}, {where, taken, scatter}});
    return AddKernel(std::move(kernel));
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

TEST(WriteInputs, NotWithOrBeforeADivisorThatIsChecked) {
  for (const int at : {0, 1, 2}) {
    Updating m;
    const BufferId divided = m.Add(BufferKind::kTemp, {m.C(8), m.C(16)});
    if (at == 0) m.Pointwise({m.y}, {divided});
    m.Update();
    if (at == 2) m.Pointwise({m.y}, {divided});
    Inst check;
    check.op = ir::ScalarOp::kNonzero;
    check.dtype = DType::kI64;
    check.operands = {0};
    Kernel& kernel = m.kernel(at == 2 ? 1 : 0);
    check.result = kernel.num_values++;
    kernel.phases[0].body.push_back(check);
    m.Copy(m.value, m.x);
    EXPECT_EQ(m.InPlace(), at == 0) << at;
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

TEST(WriteInputs, ARowThatAnInputNamesIsCheckedBeforeAllOthers) {
  Updating m;
  const BufferId place = m.Add(BufferKind::kInput, {}, DType::kI64);
  m.Pointwise({m.y}, {m.Output()});
  m.UpdateRow(place);
  m.Pointwise({m.value}, {m.Output()});
  m.Copy(m.value, m.x);
  const Plan plan = m.MustPlan();
  EXPECT_EQ(plan.in_place_of[m.value], m.x);
  ASSERT_EQ(m.module.operations.size(), 4u);
  const Kernel& check = m.kernel(0);
  EXPECT_EQ(check.name, "check_indices");
  ASSERT_EQ(check.phases.size(), 1u);
  EXPECT_EQ(check.phases[0].body[0].buffer, place);
  EXPECT_EQ(check.phases[0].body[1].buffer, place);
  ASSERT_EQ(check.phases[0].body[1].checks.size(), 1u);
  EXPECT_EQ(check.phases[0].body[1].checks[0].extent(), m.C(8));
  // The copy of x has gone, the scatter stays.
  ASSERT_EQ(m.kernel(2).phases.size(), 1u);
  EXPECT_EQ(m.kernel(2).phases[0].body.size(), 3u);
  // Without the kernel in front the scatter may fail.
  m.module.operations.erase(m.module.operations.begin());
  EXPECT_THAT(std::string(CheckPlan(m.module, plan).message()), HasSubstr("may fail after"));
}

// What a look-up computes of inputs, its index among the loops or another table's element, is
// computed in front as well; one that takes what another kernel makes is not known there.
TEST(WriteInputs, IndicesThatAreComputedAreCheckedBefore) {
  enum class Of { kInput, kTwoInputs, kTable, kOnlyChecked, kTemp };
  for (const Of of : {Of::kInput, Of::kTwoInputs, Of::kTable, Of::kOnlyChecked, Of::kTemp}) {
    Updating m;
    const BufferId place = m.Add(BufferKind::kInput, {}, DType::kI64);
    const BufferId places = m.Add(BufferKind::kInput, {m.C(8)}, DType::kI64);
    const BufferId computed = m.Add(BufferKind::kTemp, {m.C(8)}, DType::kI64);
    m.Pointwise({places}, {computed});
    m.UpdateRow(place);
    Kernel& kernel = m.Pointwise({m.y}, {m.Output()});
    std::vector<Inst>& body = kernel.phases[0].body;
    const IntExpr row = kernel.outer[0], column = kernel.outer[1];
    Inst first = Builder::Load(of == Of::kTemp ? computed : places, {row});
    Inst second = Builder::Load(place, {});
    if (of == Of::kTable) {
      second = Builder::Load(places, {m.module.ints->Indirect(0, m.C(8))});
      second.operands = {0};
    }
    Inst sum;
    sum.op = ir::ScalarOp::kAdd;
    first.dtype = second.dtype = sum.dtype = DType::kI64;
    sum.operands = {0, of == Of::kInput || of == Of::kTemp ? 0 : 1};
    first.result = 0;
    second.result = 1;
    sum.result = 2;
    Inst look_up = Builder::Load(m.y, {m.module.ints->Indirect(0, m.C(8)), column});
    if (of == Of::kOnlyChecked) {
      look_up.indices[0] = m.C(0);
      look_up.checks = {m.module.ints->Indirect(0, m.C(8))};
    }
    look_up.operands = {2};
    look_up.result = 3;
    Inst store = body[1];
    store.operands = {3};
    kernel.num_values = 4;
    body = {first, second, sum, look_up, store};
    m.Copy(m.value, m.x);
    const Plan plan = m.MustPlan();
    EXPECT_EQ(plan.in_place_of[m.value] == m.x, of != Of::kTemp);
    if (of == Of::kTemp) continue;
    // The row's place and the look-up's index, of a table also that of its element.
    const Kernel& check = m.kernel(0);
    ASSERT_EQ(check.name, "check_indices");
    ASSERT_EQ(check.phases.size(), of == Of::kTable ? 3u : 2u);
    const ir::Phase& last = check.phases.back();
    ASSERT_EQ(last.inner.size(), 1u) << "not over columns";
    EXPECT_EQ(last.inner[0].extent(), m.C(8));
    EXPECT_EQ(last.body.back().checks.size(), 1u);
    EXPECT_EQ(last.body.size(), of == Of::kInput ? 3u : 4u);
    m.module.operations.erase(m.module.operations.begin());
    EXPECT_THAT(std::string(CheckPlan(m.module, plan).message()), HasSubstr("may fail after"));
  }
}

TEST(WriteInputs, ARowIsNotWrittenInPlaceWhere) {
  const auto in_place = [](auto change) {
    Updating m;
    const BufferId place = m.Add(BufferKind::kInput, {}, DType::kI64);
    const BufferId computed = m.Add(BufferKind::kTemp, {}, DType::kI64);
    change(m, m.UpdateRow(place), computed);
    m.Copy(m.value, m.x);
    return m.MustPlan().in_place_of[m.value] == m.x;
  };
  EXPECT_TRUE(in_place([](Updating&, Kernel&, BufferId) {}));
  // ... its place is computed,
  EXPECT_FALSE(in_place([](Updating& m, Kernel& kernel, BufferId computed) {
    kernel.phases[1].body[0].buffer = computed;
    Kernel copy;
    copy.phases.push_back({{}, {Builder::Store(computed, {})}});
    m.module.operations.insert(m.module.operations.begin(), copy);
  }));
  // ... another element of x is read,
  EXPECT_FALSE(in_place(
      [](Updating& m, Kernel& kernel, BufferId) { kernel.phases[1].body[1].buffer = m.x; }));
  // ... what it copies lands elsewhere,
  EXPECT_FALSE(in_place(
      [](Updating& m, Kernel& kernel, BufferId) { kernel.phases[0].body[0].indices[0] = m.C(0); }));
  // ... the copy comes last.
  EXPECT_FALSE(in_place(
      [](Updating&, Kernel& kernel, BufferId) { std::swap(kernel.phases[0], kernel.phases[1]); }));
}

TEST(WriteInputs, DimensionsOfOneElementNeedNoLoop) {
  Builder m;
  const BufferId x = m.Add(BufferKind::kInput, {m.C(1), m.C(16)});
  const BufferId value = m.Add(BufferKind::kTemp, {m.C(1), m.C(16)});
  for (const auto& [from, to] : {std::pair(x, value), std::pair(value, x)}) {
    Kernel& kernel = m.Pointwise({from}, {to});
    kernel.outer.erase(kernel.outer.begin());
    Inst &load = kernel.phases[0].body[0], &store = kernel.phases[0].body[1];
    load.indices[0] = store.indices[0] = m.C(0);
    load.result = 0;
    store.operands = {0};
  }
  EXPECT_EQ(m.MustPlan().in_place_of[value], x);
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
