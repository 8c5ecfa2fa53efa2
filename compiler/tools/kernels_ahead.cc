// kernels-ahead: compiles the kernels that a build has ready (compiler/kernels_ahead.h) and writes
// them to a file.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/compiler.h"
#include "compiler/kernels_ahead.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/device_gpu.h"
#include "proto/base/digest.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

using Ints = std::vector<int64_t>;

// Of queries, keys and values [batches, heads, length, width]: what a kernel depends on, and in
// `length` which tiles are chosen.
struct Attention {
  int64_t width;
  v1::DType dtype;
  bool is_causal;
  bool has_log_sums;  // for gradients
  bool is_packed;     // queries, keys and values are parts of one tensor
  int64_t length;
};

v1::ValueType TypeOf(const Ints& sizes, const Ints& strides, v1::DType dtype) {
  v1::ValueType type;
  type.mutable_tensor()->set_dtype(dtype);
  for (const int64_t size : sizes) type.mutable_tensor()->add_sizes()->set_value(size);
  for (const int64_t stride : strides) type.mutable_tensor()->add_strides()->set_value(stride);
  return type;
}

uint32_t AddInput(const Ints& sizes, const Ints& strides, v1::DType dtype, v1::Graph& graph) {
  v1::Input& input = *graph.add_inputs();
  input.set_name(absl::StrCat("input", graph.inputs_size()));
  input.set_role(v1::Input::ROLE_USER);
  *input.mutable_type() = TypeOf(sizes, strides, dtype);
  return static_cast<uint32_t>(graph.inputs_size() - 1);
}

// A node whose first arguments are the values of those numbers.
v1::Node& AddNode(absl::string_view op, const std::vector<uint32_t>& values, v1::Graph& graph) {
  v1::Node& node = *graph.add_nodes();
  node.set_name(absl::StrCat("node", graph.nodes_size()));
  node.set_op(std::string(op));
  for (const uint32_t value : values) node.add_args()->set_value(value);
  return node;
}

v1::Graph GraphOf(const Attention& a) {
  constexpr int64_t kBatches = 4, kHeads = 32;
  const int64_t tensors = a.is_packed ? 3 : 1, token = kHeads * a.width * tensors;
  const Ints sizes = {kBatches, kHeads, a.length, a.width};
  const Ints strides = {a.length * token, a.width, token, 1};
  v1::Graph graph;
  graph.set_format_version(1);
  std::vector<uint32_t> operands;
  if (a.is_packed) {
    AddInput({kBatches, tensors * kHeads, a.length, a.width}, strides, a.dtype, graph);
    for (int64_t i = 0; i < tensors; ++i) {
      v1::Node& part = AddNode("aten.slice.Tensor", {0}, graph);
      for (const int64_t number : {int64_t{1}, i * kHeads, (i + 1) * kHeads}) {
        part.add_args()->set_int_(number);
      }
      *part.add_results() = TypeOf(sizes, strides, a.dtype);
    }
    operands = {1, 2, 3};
  } else {
    for (int i = 0; i < 3; ++i) operands.push_back(AddInput(sizes, strides, a.dtype, graph));
  }
  v1::Node& attend =
      AddNode("aten._scaled_dot_product_flash_attention_for_cpu.default", operands, graph);
  attend.add_args()->set_float_(0);  // dropout
  attend.add_args()->set_bool_(a.is_causal);
  const Ints result_strides = {kHeads * a.length * a.width, a.width, kHeads * a.width, 1};
  *attend.add_results() = TypeOf(sizes, result_strides, a.dtype);
  *attend.add_results() =
      TypeOf({kBatches, kHeads, a.length}, {kHeads * a.length, a.length, 1}, v1::DTYPE_FLOAT32);
  const uint32_t result = operands.back() + 1;
  graph.add_outputs()->set_value(result);
  if (a.has_log_sums) graph.add_outputs()->set_value(result + 1);
  return graph;
}

// What is done with a product's sums, in the order in which models do it. The first layer's
// residual are rows of a table of embeddings; what a last layer's RMS norm is of is wide.
enum class Work {
  kNothing,
  kResidual,
  kResidualOfTable,
  kResidualMadeWide,
  kSiluGate,
  kBias,
  kBiasResidual,
  kBiasGelu,
  kBiasTanhGelu
};

// Of activations [rows, depth] and weights [columns, depth].
struct Product {
  int64_t rows, columns, depth;
  Work work;
};

v1::Graph GraphOf(const Product& p) {
  constexpr v1::DType kType = v1::DTYPE_BFLOAT16;
  const Ints sizes = {p.rows, p.columns}, strides = {p.columns, 1};
  v1::Graph graph;
  graph.set_format_version(1);
  uint32_t last = 0;
  const auto add = [&](absl::string_view op, const std::vector<uint32_t>& values,
                       v1::DType dtype = kType) -> v1::Node& {
    v1::Node& node = AddNode(op, values, graph);
    *node.add_results() = TypeOf(sizes, strides, dtype);
    last = static_cast<uint32_t>(graph.inputs_size() + graph.nodes_size() - 1);
    return node;
  };
  const auto cast = [&](uint32_t value, v1::DType dtype) {
    v1::NamedArgument& argument = *add("aten._to_copy.default", {value}, dtype).add_kwargs();
    argument.set_name("dtype");
    argument.mutable_value()->set_dtype(dtype);
    return last;
  };
  const uint32_t x = AddInput({p.rows, p.depth}, {p.depth, 1}, kType, graph);
  const uint32_t weights = AddInput({p.depth, p.columns}, {1, p.depth}, kType, graph);
  const bool has_bias = p.work >= Work::kBias;
  const bool has_other = p.work == Work::kResidual || p.work == Work::kResidualMadeWide ||
                         p.work == Work::kBiasResidual || p.work == Work::kSiluGate;
  uint32_t other = has_other ? AddInput(sizes, strides, kType, graph) : 0;
  const uint32_t bias = has_bias ? AddInput({p.columns}, {1}, kType, graph) : 0;
  if (p.work == Work::kResidualOfTable) {
    const uint32_t table = AddInput({32000, p.columns}, strides, kType, graph);
    const uint32_t numbers = AddInput({p.rows}, {1}, v1::DTYPE_INT64, graph);
    add("aten.embedding.default", {table, numbers});
    other = last;
  }
  uint32_t gate = 0;
  if (p.work == Work::kSiluGate) {
    const uint32_t wide = cast(other, v1::DTYPE_FLOAT32);
    add("aten.sigmoid.default", {wide}, v1::DTYPE_FLOAT32);
    add("aten.mul.Tensor", {wide, last}, v1::DTYPE_FLOAT32);
    gate = cast(last, kType);
  }
  if (has_bias) {
    add("aten.addmm.default", {bias, x, weights});
  } else {
    add("aten.mm.default", {x, weights});
  }
  switch (p.work) {
    case Work::kNothing:
    case Work::kBias:
      break;
    case Work::kResidual:
    case Work::kResidualOfTable:
      add("aten.add.Tensor", {other, last});
      break;
    case Work::kResidualMadeWide:
      add("aten.add.Tensor", {other, last});
      cast(last, v1::DTYPE_FLOAT32);
      break;
    case Work::kBiasResidual:
      add("aten.add.Tensor", {last, other});
      break;
    case Work::kSiluGate:
      add("aten.mul.Tensor", {gate, last});
      break;
    case Work::kBiasGelu:
      add("aten.gelu.default", {last});
      break;
    case Work::kBiasTanhGelu: {
      v1::NamedArgument& argument = *add("aten.gelu.default", {last}).add_kwargs();
      argument.set_name("approximate");
      argument.mutable_value()->set_string("tanh");
      break;
    }
  }
  graph.add_outputs()->set_value(last);
  return graph;
}

// The layers of transformers, for some thousand tokens.
std::vector<Product> Products() {
  std::vector<Product> all;
  for (const int64_t rows : {1024, 2048, 4096, 8192}) {
    for (const int64_t width : {768, 1024, 2048, 4096}) {
      for (const Work work : {Work::kNothing, Work::kBias}) {
        all.push_back({rows, 3 * width, width, work});
      }
      for (const Work work : {Work::kResidual, Work::kBiasResidual}) {
        all.push_back({rows, width, width, work});
        all.push_back({rows, width, 4 * width, work});
      }
      all.push_back({rows, width, width, Work::kResidualOfTable});
      all.push_back({rows, width, 4 * width, Work::kResidualMadeWide});
      for (const Work work :
           {Work::kNothing, Work::kSiluGate, Work::kBiasGelu, Work::kBiasTanhGelu}) {
        all.push_back({rows, 4 * width, width, work});
      }
    }
  }
  return all;
}

std::vector<Attention> Attentions() {
  std::vector<Attention> all;
  for (const v1::DType dtype : {v1::DTYPE_BFLOAT16, v1::DTYPE_FLOAT16}) {
    for (const bool is_causal : {false, true}) {
      for (const bool has_log_sums : {false, true}) {
        for (const int64_t length : {512, 4096}) {
          for (const bool is_packed : {false, true}) {
            all.push_back({64, dtype, is_causal, has_log_sums, is_packed, length});
          }
        }
        all.push_back({128, dtype, is_causal, has_log_sums, false, 2048});
        // Prompts have any length.
        if (is_causal && !has_log_sums) all.push_back({128, dtype, true, false, false, 2047});
      }
    }
  }
  return all;
}

// Adds the graph's kernel to `text`, unless `known` has it.
absl::Status AddKernel(v1::Graph graph, std::set<std::string>& known, std::string& text) {
  v1::PlanRequest request;
  *request.mutable_graph() = std::move(graph);
  KILN_ASSIGN_OR_RETURN(*request.mutable_device(), DescribeGpu(kKernelsAheadArch));
  KILN_ASSIGN_OR_RETURN(const v1::PlanResponse plan, PlanGraph(request, {}));
  if (plan.kernels_size() != 1) {
    return absl::InternalError(absl::StrCat("a graph is ", plan.kernels_size(),
                                            " kernels: ", request.graph().ShortDebugString()));
  }
  v1::CompileKernelRequest compile;
  compile.set_source(plan.kernels(0).source());
  *compile.mutable_device() = request.device();
  KILN_ASSIGN_OR_RETURN(const Digest key, KernelKeyOf(compile));
  if (!known.insert(key.ToHex()).second) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(const v1::CompileKernelResponse made, CompileKernel(compile));
  text += KernelAheadText(key, made.object());
  return absl::OkStatus();
}

absl::Status Run(const char* path) {
  std::string text;
  std::set<std::string> known;
  for (const Attention& attention : Attentions()) {
    KILN_RETURN_IF_ERROR(AddKernel(GraphOf(attention), known, text));
  }
  for (const Product& product : Products()) {
    KILN_RETURN_IF_ERROR(AddKernel(GraphOf(product), known, text));
  }
  std::ofstream out(path, std::ios::binary);
  if (!(out << text) || !out.flush()) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: kernels-ahead OUTPUT\n";
    return 2;
  }
  const absl::Status status = kiln::Run(argv[1]);
  if (status.ok()) return 0;
  std::cerr << "kernels-ahead: " << status.message() << "\n";
  return 1;
}
