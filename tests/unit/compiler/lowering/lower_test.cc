#include "compiler/lowering/lower.h"

#include "absl/strings/str_cat.h"
#include "compiler/ir/verify.h"
#include "compiler/lowering/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/dtype.h"
#include "proto/base/error_detail.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::Contains;
using testing::HasSubstr;

GraphMaker ModeGraph() {
  GraphMaker g;
  const int x = g.Input({3, 2}, {1, 2, 3, 4, 5, 6});
  const int t = g.Node("aten.permute.default", {Value(x), IntList({1, 0})}, {2, 3});
  g.Output(g.Node("aten.mode.default", {Value(t), Int(-1)}, {2, 3}));
  g.MoreResult({2, 3}, v1::DTYPE_INT64);
  return g;
}

TEST(Lower, AnUnknownOperatorNamesOpAndNodeWhereTheClientHasNoLibrary) {
  ir::Module module;
  const absl::Status status = ModeGraph().Lower(module);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("aten.mode.default"));
  const auto detail = GetDetail(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->reason(), v1::ErrorDetail::REASON_UNSUPPORTED);
  EXPECT_EQ(detail->node(), "n2");
}

// The graph records the permuted tensor as contiguous (as if it had been cloned), so that the
// operator must see a contiguous copy.
TEST(Lower, ALibraryStepSeesTheRecordedStrides) {
  ir::Module module;
  ASSERT_TRUE(ModeGraph().Lower(module, true).ok());
  ASSERT_TRUE(ir::Verify(module).ok()) << ir::Verify(module);
  ASSERT_EQ(module.operations.size(), 2u);
  const auto& step = std::get<ir::Library>(module.operations[1]);
  EXPECT_EQ(step.op, "aten.mode.default");
  ASSERT_EQ(step.results.size(), 1u);
  EXPECT_EQ(module.buffers[step.results[0]].kind, ir::BufferKind::kLibrary);
  const auto& window = std::get<ir::BufferWindow>(step.args[0].value);
  EXPECT_TRUE(window.strides[0].is_const(3));
  EXPECT_TRUE(window.strides[1].is_const(1));
}

// A graph may declare types that no operator gives; what becomes of it is sound or refused.
TEST(Lower, TypesThatAnOperatorNeverGivesAreDeclined) {
  const v1::DType types[] = {v1::DTYPE_FLOAT32, v1::DTYPE_INT64, v1::DTYPE_BOOL};
  for (const auto& [name, lowering] : Lowerings()) {
    for (size_t arity = 1; arity <= 3; ++arity) {
      for (const v1::DType in : types) {
        for (const v1::DType out : types) {
          GraphMaker g;
          const int x = g.Input({2, 3}, {1, 0, 1, 0, 1, 1}, in);
          const std::string op = absl::StrCat(name.starts_with("prims.") ? "" : "aten.", name);
          g.Output(g.Node(op, std::vector<v1::Argument>(arity, Value(x)), {2, 3}, out));
          ir::Module module;
          const absl::Status status = g.Lower(module);
          if (status.ok()) {
            EXPECT_TRUE(ir::Verify(module).ok())
                << op << " of " << arity << ", " << v1::DType_Name(in) << " to "
                << v1::DType_Name(out) << ": " << ir::Verify(module);
          } else {
            EXPECT_TRUE(absl::IsUnimplemented(status) || absl::IsInvalidArgument(status))
                << op << ": " << status;
          }
        }
      }
    }
  }
}

TEST(Lower, ALibraryStepTakesTheResultsThatAreUsed) {
  ir::Module first;
  GraphMaker values = ModeGraph();
  ASSERT_TRUE(values.Lower(first, true).ok());
  EXPECT_THAT(std::get<ir::Library>(first.operations[1]).positions, testing::IsEmpty());

  ir::Module second;
  GraphMaker indices = ModeGraph();
  indices.proto().mutable_outputs(0)->set_value(indices.proto().outputs(0).value() + 1);
  ASSERT_TRUE(indices.Lower(second, true).ok());
  ASSERT_TRUE(ir::Verify(second).ok()) << ir::Verify(second);
  const auto& step = std::get<ir::Library>(second.operations[1]);
  ASSERT_EQ(step.results.size(), 1u);
  EXPECT_THAT(step.positions, testing::ElementsAre(1));
  EXPECT_EQ(second.buffers[step.results[0]].dtype, DType::kI64);
}

TEST(Lower, ALibraryStepReadsAViewInPlaceWhereItsStridesAreRecorded) {
  GraphMaker g = ModeGraph();
  v1::TensorType& type = *g.proto().mutable_nodes(0)->mutable_results(0)->mutable_tensor();
  type.mutable_strides(0)->set_value(1);
  type.mutable_strides(1)->set_value(2);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module, true).ok());
  EXPECT_EQ(module.operations.size(), 1u);
}

TEST(Lower, ADeclinedCaseLeavesNoKernelsBehind) {
  GraphMaker g;
  const int q = g.Input({1, 1, 2, 1}, {0, 0});
  // Its products are kernels before it shows that nothing makes a result that is used, which is no
  // state of random numbers.
  const int out = g.Node("aten._scaled_dot_product_efficient_attention.default",
                         {Value(q), Value(q), Value(q), NoArg(), Bool(true)}, {1, 1, 2, 1});
  g.MoreResult({1, 1, 2});
  g.MoreResult({2}, v1::DTYPE_INT64);
  g.Output(out);
  g.Output(out + 2);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module, true).ok());
  ASSERT_EQ(module.operations.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ir::Library>(module.operations[0]));
}

TEST(Lower, ComplexNumbersGoToTheLibrary) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  g.Output(g.Node("aten.mul.Tensor", {Value(x), Value(x)}, {2}, v1::DTYPE_COMPLEX64));
  ir::Module module;
  EXPECT_EQ(g.Lower(module).code(), absl::StatusCode::kUnimplemented);
  ir::Module with_library;
  ASSERT_TRUE(g.Lower(with_library, true).ok());
  EXPECT_TRUE(std::holds_alternative<ir::Library>(with_library.operations[0]));
}

// A comparison with 1j gives bools of floats: no type says that it is none of ours.
TEST(Lower, AComplexScalarGoesToTheLibrary) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  v1::Argument scalar;
  scalar.mutable_complex()->set_imag(1);
  g.Output(g.Node("aten.eq.Scalar", {Value(x), scalar}, {2}, v1::DTYPE_BOOL));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module, true).ok());
  const auto& step = std::get<ir::Library>(module.operations[0]);
  EXPECT_EQ(std::get<std::complex<double>>(step.args[1].value), std::complex<double>(0, 1));
}

// Kernels cannot move such a value, so that the library does where an input is an output.
TEST(Lower, AnOpaqueOutputIsAnInputItselfOrACopyThatALibraryMakes) {
  for (const v1::DType dtype : {v1::DTYPE_COMPLEX64, v1::DTYPE_UINT16, v1::DTYPE_FLOAT8_E5M2}) {
    GraphMaker g;
    const int x = g.Input({2}, {1, 2});
    v1::TensorType& type = *g.proto().mutable_inputs(0)->mutable_type()->mutable_tensor();
    type.set_dtype(dtype);
    g.Output(x);
    ir::Module module;
    ASSERT_TRUE(g.Lower(module).ok());
    EXPECT_TRUE(module.operations.empty());

    v1::Constant& constant = *g.proto().add_constants();
    *constant.mutable_type() = type;
    constant.set_data(std::string(2 * DTypeSize(*DTypeFromProto(dtype)), '\0'));
    g.Output(x + 1);
    EXPECT_EQ(g.Lower(module).code(), absl::StatusCode::kUnimplemented);
    ir::Module with_library;
    ASSERT_TRUE(g.Lower(with_library, true).ok());
    ASSERT_TRUE(ir::Verify(with_library).ok()) << ir::Verify(with_library);
    EXPECT_EQ(std::get<ir::Library>(with_library.operations[0]).op, "aten.clone.default");
  }
}

TEST(Lower, AnOperatorThatWritesItsArgumentIsRefused) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  g.Output(g.Node("aten.add_.Tensor", {Value(x), Int(1)}, {2}));
  ir::Module module;
  EXPECT_EQ(g.Lower(module, true).code(), absl::StatusCode::kUnimplemented);
}

TEST(Lower, ListsItsOperators) {
  const std::vector<std::string> ops = LoweredOps();
  EXPECT_THAT(ops, Contains("aten.add.Tensor"));
  EXPECT_TRUE(std::is_sorted(ops.begin(), ops.end()));
}

}  // namespace
}  // namespace kiln::lowering
