#include "tests/integration/graphs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kiln/client.h"

namespace kiln::integration {
namespace {

void SetType(const Sizes& sizes, v1::TensorType& type) {
  type.set_dtype(v1::DTYPE_FLOAT32);
  int64_t stride = 1;
  for (int64_t size : sizes) {
    type.add_sizes()->set_value(size);
    type.add_strides();
  }
  for (int i = type.strides_size() - 1; i >= 0; --i) {
    type.mutable_strides(i)->set_value(stride);
    stride *= std::max<int64_t>(sizes[static_cast<size_t>(i)], 1);
  }
}

}  // namespace

GraphBuilder::GraphBuilder() {
  graph_.set_format_version(1);
  graph_.set_name("test");
}

uint32_t GraphBuilder::Input(const Sizes& sizes) {
  v1::Input& input = *graph_.add_inputs();
  input.set_name(absl::StrCat("input_", values_));
  input.set_role(v1::Input::ROLE_USER);
  SetType(sizes, *input.mutable_type()->mutable_tensor());
  return values_++;
}

uint32_t GraphBuilder::Constant(const std::vector<float>& values) {
  v1::Constant& constant = *graph_.add_constants();
  constant.set_name(absl::StrCat("constant_", values_));
  SetType({static_cast<int64_t>(values.size())}, *constant.mutable_type());
  constant.set_data(values.data(), values.size() * sizeof(float));
  return values_++;
}

uint32_t GraphBuilder::Node(const std::string& name, const std::string& op,
                            const std::vector<uint32_t>& values, const Sizes& sizes) {
  v1::Node& node = *graph_.add_nodes();
  node.set_name(name);
  node.set_op(op);
  for (uint32_t value : values) node.add_args()->set_value(value);
  SetType(sizes, *node.add_results()->mutable_tensor());
  return values_++;
}

void GraphBuilder::Output(uint32_t value) {
  graph_.add_outputs()->set_value(value);
}

v1::CompileRequest GraphBuilder::Request() const {
  v1::CompileRequest request;
  *request.mutable_graph() = graph_;
  v1::Device& device = *request.mutable_device();
  device.set_target(v1::TARGET_CPP);
  device.set_arch("x86-64");
  device.set_processors(1);
  return request;
}

v1::CompileRequest QuickRequest(int64_t elements) {
  GraphBuilder builder;
  uint32_t x = builder.Input({elements});
  uint32_t relu = builder.Node("relu", "aten.relu.default", {x}, {elements});
  uint32_t square = builder.Node("square", "aten.mul.Tensor", {x, x}, {elements});
  builder.Output(builder.Node("sum", "aten.add.Tensor", {relu, square}, {elements}));
  return builder.Request();
}

std::vector<float> QuickAnswer(const std::vector<float>& x) {
  std::vector<float> y;
  for (float value : x) y.push_back(std::max(value, 0.0f) + value * value);
  return y;
}

v1::CompileRequest SlowRequest(int count, int seed) {
  constexpr int64_t kRows = 32;
  GraphBuilder builder;
  auto width = [&](int i) { return int64_t{40 + 1000 * seed + 8 * i}; };
  uint32_t x = builder.Input({kRows, width(0)});
  std::vector<uint32_t> weights;
  for (int i = 0; i < count; ++i) weights.push_back(builder.Input({width(i), width(i + 1)}));
  for (int i = 0; i < count; ++i) {
    x = builder.Node(absl::StrCat("mm_", i), "aten.mm.default",
                     {x, weights[static_cast<size_t>(i)]}, {kRows, width(i + 1)});
  }
  builder.Output(x);
  return builder.Request();
}

absl::StatusOr<std::vector<float>> RunArtifact(absl::string_view artifact_bytes,
                                               const std::vector<float>& x) {
  auto program = Program::Load(ToArtifactFile(artifact_bytes), /*threads=*/1);
  if (!program.ok()) return program.status();
  std::vector<float> input = x;
  int64_t size = static_cast<int64_t>(x.size());
  int64_t stride = 1;
  kiln_tensor tensor = {.data = input.data(),
                        .sizes = &size,
                        .strides = &stride,
                        .ndim = 1,
                        .dtype = KILN_FLOAT32,
                        .device_type = KILN_CPU,
                        .device_index = 0};
  auto outputs = (*program)->Run({tensor});
  if (!outputs.ok()) return outputs.status();
  const auto* data = static_cast<const float*>((*outputs)[0].data);
  return std::vector<float>(data, data + (*outputs)[0].sizes[0]);
}

std::vector<float> SampleInput(int64_t elements) {
  std::vector<float> x;
  for (int64_t i = 0; i < elements; ++i) x.push_back(static_cast<float>(i % 19) * 0.5f - 1.0f);
  return x;
}

}  // namespace kiln::integration
