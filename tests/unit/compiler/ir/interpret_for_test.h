// Runs modules given as text in the reference interpreter.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/verify.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/ir/module_texts.h"

namespace kiln::ir {

// Row-major.
template <typename T>
HostTensor Tensor(DType dtype, std::vector<int64_t> sizes, const std::vector<T>& values) {
  HostTensor t{.dtype = dtype, .sizes = std::move(sizes)};
  t.strides.assign(t.sizes.size(), 1);
  for (size_t i = t.sizes.size(); i-- > 1;) t.strides[i - 1] = t.strides[i] * t.sizes[i];
  t.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return t;
}
inline HostTensor Floats(std::vector<int64_t> sizes, const std::vector<float>& values) {
  return Tensor(DType::kF32, std::move(sizes), values);
}
inline HostTensor Longs(std::vector<int64_t> sizes, const std::vector<int64_t>& values) {
  return Tensor(DType::kI64, std::move(sizes), values);
}

inline absl::StatusOr<std::vector<ReferenceTensor>> TryExecute(
    absl::string_view text, const std::vector<HostTensor>& inputs,
    const std::vector<int64_t>& symbols = {}, const std::vector<std::string>& constants = {},
    const InterpretOptions& options = {}) {
  const Module module = ParseForTest(text);
  EXPECT_EQ(Verify(module), absl::OkStatus());
  return Interpret(module, inputs, symbols, constants, options);
}

inline std::vector<ReferenceTensor> Execute(absl::string_view text,
                                            const std::vector<HostTensor>& inputs,
                                            const std::vector<int64_t>& symbols = {},
                                            const std::vector<std::string>& constants = {},
                                            const InterpretOptions& options = {}) {
  auto outputs = TryExecute(text, inputs, symbols, constants, options);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs.ok() ? *std::move(outputs) : std::vector<ReferenceTensor>(9);
}

}  // namespace kiln::ir
