#include "client/runtime/check_inputs.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/runtime/strided_copy.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln::runtime {
namespace {

std::string Sizes(absl::Span<const int64_t> sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

absl::Status Bad(const v1::Program& program, int input, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("input ", input, " ('", program.inputs(input).name(), "') ", what));
}

std::string DTypeText(int dtype) {
  auto known = DTypeFromProto(dtype);
  return known.ok() ? std::string(DTypeName(*known)) : absl::StrCat("unknown dtype ", dtype);
}

std::string DeviceText(int type) {
  if (type == KILN_CPU) return "the CPU";
  if (type == KILN_CUDA) return "an NVIDIA GPU";
  return absl::StrCat("a device of type ", type);
}

absl::Status CheckTensor(const v1::Program& program, int i, const PlanTensor& type,
                         const kiln_tensor& tensor, kiln_device_type device) {
  const int ndim = static_cast<int>(type.sizes.size());
  if (tensor.dtype != DTypeToProto(type.dtype)) {
    return Bad(program, i,
               absl::StrCat("is ", DTypeText(tensor.dtype), "; expected ", DTypeName(type.dtype)));
  }
  if (tensor.ndim != ndim) {
    return Bad(program, i, absl::StrCat("has ", tensor.ndim, " dimensions; expected ", ndim));
  }
  if (ndim > 0 && (tensor.sizes == nullptr || tensor.strides == nullptr)) {
    return Bad(program, i, "has no sizes or strides");
  }
  if (!std::equal(type.sizes.begin(), type.sizes.end(), tensor.sizes)) {
    return Bad(program, i,
               absl::StrCat("has sizes ", Sizes({tensor.sizes, type.sizes.size()}), "; expected ",
                            Sizes(type.sizes)));
  }
  if (!SameLayout(type.sizes, type.strides.data(), tensor.strides)) {
    return Bad(program, i,
               absl::StrCat("has strides ", Sizes({tensor.strides, type.strides.size()}),
                            "; expected ", Sizes(type.strides)));
  }
  if (tensor.device_type != device) {
    return Bad(
        program, i,
        absl::StrCat("is on ", DeviceText(tensor.device_type), "; expected ", DeviceText(device)));
  }
  if (type.reach_bytes > 0 && tensor.data == nullptr) return Bad(program, i, "has no data");
  return absl::OkStatus();
}

// Calls visit(bytes from the first element) for each element.
template <typename Visit>
void ForEachElement(const PlanTensor& type, const Visit& visit) {
  const size_t rank = type.sizes.size();
  for (const int64_t size : type.sizes) {
    if (size == 0) return;
  }
  std::vector<int64_t> at(rank, 0);
  int64_t offset = 0;
  while (true) {
    visit(offset * DTypeSize(type.dtype));
    size_t d = rank;
    for (; d > 0; --d) {
      offset += type.strides[d - 1];
      if (++at[d - 1] < type.sizes[d - 1]) break;
      offset -= type.strides[d - 1] * type.sizes[d - 1];
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

bool HaveCommonElements(const PlanTensor& a, const char* a_data, const PlanTensor& b,
                        const char* b_data) {
  if (a_data + a.reach_bytes <= b_data || b_data + b.reach_bytes <= a_data) return false;
  std::vector<bool> bytes(static_cast<size_t>(a.reach_bytes), false);
  ForEachElement(a, [&](int64_t offset) {
    for (int64_t i = 0; i < DTypeSize(a.dtype); ++i) bytes[static_cast<size_t>(offset + i)] = true;
  });
  bool common = false;
  const int64_t shift = b_data - a_data;
  ForEachElement(b, [&](int64_t offset) {
    for (int64_t i = shift + offset; i < shift + offset + DTypeSize(b.dtype); ++i) {
      common = common || (i >= 0 && i < a.reach_bytes && bytes[static_cast<size_t>(i)]);
    }
  });
  return common;
}

}  // namespace

absl::Status CheckCounts(const v1::Program& program, absl::Span<const kiln_tensor> inputs,
                         size_t num_outputs) {
  if (inputs.size() != static_cast<size_t>(program.inputs_size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", inputs.size(), " inputs; expected ", program.inputs_size()));
  }
  if (num_outputs != static_cast<size_t>(program.outputs_size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("got room for ", num_outputs, " outputs; expected ", program.outputs_size()));
  }
  // Sizes are read before anything else is known.
  if (program.symbols_size() == 0) return absl::OkStatus();
  for (int i = 0; i < program.inputs_size(); ++i) {
    const kiln_tensor& input = inputs[i];
    if (input.ndim < 0 || input.ndim > KILN_MAX_DIMS ||
        (input.ndim > 0 && (input.sizes == nullptr || input.strides == nullptr))) {
      return Bad(program, i, "has no sizes or strides");
    }
    if (program.inputs(i).type().has_sym_int() &&
        (input.dtype != KILN_INT64 || input.ndim != 0 || input.data == nullptr)) {
      return Bad(program, i, "is no size; expected a 0-dimensional int64 tensor");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInputs(const v1::Program& program, const Plan& plan,
                         absl::Span<const kiln_tensor> inputs, kiln_device_type device) {
  int first = -1;  // tensor among the inputs
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlanInput& expected = plan.inputs[i];
    const int number = static_cast<int>(i);
    absl::Status status = CheckTensor(program, number, expected.type, inputs[i],
                                      expected.is_tensor ? device : KILN_CPU);
    if (!status.ok()) return status;
    if (expected.is_tensor) {
      if (first < 0) first = number;
      const int index = inputs[i].device_index, expected_index = inputs[first].device_index;
      if (device == KILN_CPU || index == expected_index) continue;
      return Bad(program, number,
                 absl::StrCat("is on GPU ", index, "; expected GPU ", expected_index, " as input ",
                              first));
    }
    if (inputs[i].data == nullptr) return Bad(program, number, "has no data");
    int64_t value = *static_cast<const int64_t*>(inputs[i].data);
    if (value != expected.value) {
      return Bad(program, number,
                 absl::StrCat("is ", value, "; expected ", expected.value,
                              " from the sizes of the other inputs"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckUpdatesAreAlone(const v1::Program& program, const Plan& plan,
                                  absl::Span<const kiln_tensor> inputs,
                                  const std::vector<bool>& written) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t j = 0; j < inputs.size() && written[i]; ++j) {
      if (i == j || !plan.inputs[i].is_tensor || !plan.inputs[j].is_tensor) continue;
      if (!HaveCommonElements(plan.inputs[i].type, static_cast<const char*>(inputs[i].data),
                              plan.inputs[j].type, static_cast<const char*>(inputs[j].data))) {
        continue;
      }
      return Bad(program, static_cast<int>(i),
                 absl::StrCat("is updated, and has elements in common with input ", j,
                              "; this device works on copies of both"));
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln::runtime
