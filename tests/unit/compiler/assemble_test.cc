#include "compiler/assemble.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "compiler/ir/parse.h"
#include "compiler/kernel_interface.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A kernel over n elements, in blocks of 128 threads.
class AssembleTest : public ::testing::Test {
 protected:
  AssembleTest() {
    module_ = *ir::Parse(R"(module {
      symbol n [1, 1000] hint 8
      buffer @x f32[n] strides[1] input(0)
      buffer @y f32[n] strides[1] output
      kernel @copy (d0: n) {
        phase () {
          %0 = load f32 @x[d0]
          store f32 @y[d0], %0
        }
      }
      output @y sizes[n] strides[1] offset 0
    })");
    v1::Symbol& symbol = *graph_.add_symbols();
    symbol.set_name("n");
    symbol.set_max(1000);
    kernel_.symbol = "kiln_copy";
    kernel_.emitted.buffers = {0, 1};
    n_ = module_.buffers[0].sizes[0];
  }

  absl::StatusOr<v1::Program> Program() {
    auto plan = memory::PlanMemory(module_);
    if (!plan.ok()) return plan.status();
    return Assemble(graph_, module_, *plan, {kernel_});
  }

  void LaunchOverGrid() {
    ir::IntContext& ints = *module_.ints;
    kernel_.emitted.grid = {.blocks = {ints.FloorDiv(ints.Add(n_, 127), 128), ints.Const(2)},
                            .threads = {ints.Const(128)},
                            .shared_bytes = ints.Const(4096)};
    kernel_.emitted.binary = 1;
  }

  v1::Graph graph_;
  ir::Module module_;
  ir::IntExpr n_;
  NamedKernel kernel_;
};

TEST_F(AssembleTest, ALaunchWithoutAGridIsAsBeforeThereWereGrids) {
  const auto program = Program();
  ASSERT_TRUE(program.ok()) << program.status();
  const v1::LaunchStep& launch = program->steps(0).launch();
  EXPECT_FALSE(launch.has_grid());
  EXPECT_EQ(launch.binary(), 0u);
}

TEST_F(AssembleTest, ALaunchHasTheGridAndTheBinaryThatWereEmitted) {
  LaunchOverGrid();
  const auto program = Program();
  ASSERT_TRUE(program.ok()) << program.status();
  const v1::LaunchStep& launch = program->steps(0).launch();
  EXPECT_EQ(launch.binary(), 1u);
  ASSERT_EQ(launch.grid().blocks_size(), 2);
  EXPECT_EQ(launch.grid().blocks(0).expr().kind(), v1::SymExpr::KIND_FLOOR_DIV);
  EXPECT_EQ(launch.grid().blocks(1).value(), 2);
  ASSERT_EQ(launch.grid().threads_size(), 1);
  EXPECT_EQ(launch.grid().threads(0).value(), 128);
  EXPECT_EQ(launch.grid().shared_bytes().value(), 4096);
}

TEST_F(AssembleTest, AGridOfTheWrongShapeIsAnError) {
  LaunchOverGrid();
  kernel_.emitted.grid.threads.clear();
  EXPECT_TRUE(absl::IsInternal(Program().status()));
  kernel_.emitted.grid.threads.assign(4, module_.ints->Const(1));
  EXPECT_THAT(std::string(Program().status().message()), HasSubstr("2 sizes of blocks and 4"));
}

TEST_F(AssembleTest, AnInterfaceStatesTheGridInTheLaunchsOwnSymbols) {
  LaunchOverGrid();
  auto text = InterfaceOf(module_, KernelsOf(module_.operations[0]), kernel_.emitted);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, testing::Not(HasSubstr("\n")));
  v1::KernelInterface interface;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(*text, &interface));
  EXPECT_THAT(kernel_.emitted.symbols, ElementsAre(0));
  ASSERT_EQ(interface.sizes_size(), 1);
  EXPECT_EQ(interface.sizes(0).max(), 1000);
  ASSERT_EQ(interface.grid().blocks_size(), 2);
  EXPECT_EQ(interface.grid().threads(0).value(), 128);
}

}  // namespace
}  // namespace kiln
