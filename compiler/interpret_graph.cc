// The part of compiler.h that runs a graph in the reference interpreter.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/compiler.h"
#include "compiler/graph/import.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/verify.h"
#include "compiler/lowering/lower.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/random_inputs.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

absl::StatusOr<std::vector<HostTensor>> GivenInputs(const v1::InterpretRequest& request) {
  std::vector<HostTensor> inputs;
  for (const v1::TensorData& data : request.inputs()) {
    HostTensor tensor;
    KILN_ASSIGN_OR_RETURN(tensor.dtype, DTypeFromProto(data.type().dtype()));
    int64_t elements = 1;
    for (const v1::SymInt& size : data.type().sizes()) {
      if (size.has_expr() || size.value() < 0) {
        return absl::InvalidArgumentError("an input's sizes must be plain numbers, none negative");
      }
      tensor.sizes.push_back(size.value());
      if (__builtin_mul_overflow(elements, size.value(), &elements)) {
        return absl::InvalidArgumentError("an input's sizes overflow 64 bits");
      }
    }
    tensor.strides.assign(tensor.sizes.size(), 1);
    for (size_t d = tensor.sizes.size(); d-- > 1;) {
      tensor.strides[d - 1] = tensor.strides[d] * std::max<int64_t>(tensor.sizes[d], 1);
    }
    if (static_cast<int64_t>(data.data().size()) / DTypeSize(tensor.dtype) != elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", inputs.size(), " has ", data.data().size(), " bytes for ",
                       elements, " elements of ", std::string(DTypeName(tensor.dtype))));
    }
    tensor.data = data.data();
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

absl::Status EmitOutput(int index, const ir::ReferenceTensor& tensor,
                        const std::function<absl::Status(const v1::InterpretEvent&)>& emit) {
  const bool is_float = IsFloat(tensor.dtype);
  const auto* bytes = is_float ? reinterpret_cast<const char*>(tensor.floats.data())
                               : reinterpret_cast<const char*>(tensor.ints.data());
  const size_t size = (is_float ? tensor.floats.size() : tensor.ints.size()) * 8;
  v1::InterpretEvent event;
  event.set_index(index);
  v1::TensorType& type = *event.mutable_output()->mutable_type();
  type.set_dtype(is_float ? v1::DTYPE_FLOAT64 : v1::DTYPE_INT64);
  for (int64_t d : tensor.sizes) type.add_sizes()->set_value(d);
  event.mutable_output()->set_data(bytes, std::min(size, kChunkBytes));
  KILN_RETURN_IF_ERROR(emit(event));
  for (size_t at = kChunkBytes; at < size; at += kChunkBytes) {
    event.set_continuation(bytes + at, std::min(size - at, kChunkBytes));
    KILN_RETURN_IF_ERROR(emit(event));
  }
  return absl::OkStatus();
}

// Appends the inputs that the graph updates to the outputs.
void ShowUpdatedInputs(const graph::Graph& graph, ir::Module& module) {
  for (const graph::Mutation& mutation : graph.mutations) {
    for (size_t b = 0; b < module.buffers.size(); ++b) {
      const ir::Buffer& buffer = module.buffers[b];
      if (buffer.kind != ir::BufferKind::kInput || buffer.index != mutation.input) continue;
      module.outputs.push_back({ir::BufferWindow{static_cast<ir::BufferId>(b), buffer.sizes,
                                                 buffer.strides, module.ints->Const(0)}});
    }
  }
}

}  // namespace

absl::Status InterpretGraph(const v1::InterpretRequest& request,
                            const std::function<absl::Status(const v1::InterpretEvent&)>& emit) {
  ir::Module module;
  KILN_ASSIGN_OR_RETURN(graph::Graph graph, graph::Import(request.graph(), *module.ints));
  KILN_RETURN_IF_ERROR(lowering::Lower(graph, {.library_steps = false}, module));
  ShowUpdatedInputs(graph, module);
  KILN_RETURN_IF_ERROR(ir::Verify(module));

  std::vector<HostTensor> tensors;
  if (request.inputs_size() > 0) {
    KILN_ASSIGN_OR_RETURN(tensors, GivenInputs(request));
  } else {
    KILN_ASSIGN_OR_RETURN(tensors, RandomInputs(request.graph(), request.seed()));
  }
  // The interpreter wants one entry for each input of the graph; sizes have none of their own.
  std::vector<HostTensor> inputs(request.graph().inputs_size());
  size_t next = 0;
  for (int i = 0; i < request.graph().inputs_size(); ++i) {
    if (!request.graph().inputs(i).type().has_tensor()) continue;
    if (next == tensors.size()) return absl::InvalidArgumentError("too few inputs are given");
    inputs[i] = std::move(tensors[next++]);
  }
  std::vector<std::string> constants;
  for (const v1::Constant& constant : request.graph().constants()) {
    constants.push_back(constant.data());
  }
  ir::InterpretOptions options;
  options.progress = [&emit](int done, int total) {
    v1::InterpretEvent event;
    event.mutable_progress()->set_stage("interpret");
    event.mutable_progress()->set_kernels_done(done);
    event.mutable_progress()->set_kernels_total(total);
    return emit(event);
  };
  KILN_ASSIGN_OR_RETURN(
      std::vector<ir::ReferenceTensor> outputs,
      ir::Interpret(module, inputs, HintSymbols(request.graph()), constants, options));
  for (size_t i = 0; i < outputs.size(); ++i) {
    KILN_RETURN_IF_ERROR(EmitOutput(static_cast<int>(i), outputs[i], emit));
  }
  return absl::OkStatus();
}

}  // namespace kiln
