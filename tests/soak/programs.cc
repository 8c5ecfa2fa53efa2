#include "tests/soak/programs.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"

namespace kiln::soak {
namespace {

using integration::GraphBuilder;
using integration::SampleInput;

struct Operator {
  const char* name;
  bool binary;
  float (*apply)(float x, float y);
};
constexpr Operator kOperators[] = {
    {"aten.relu.default", false, [](float x, float) { return std::max(x, 0.0f); }},
    {"aten.neg.default", false, [](float x, float) { return -x; }},
    {"aten.abs.default", false, [](float x, float) { return std::abs(x); }},
    {"aten.add.Tensor", true, [](float x, float y) { return x + y; }},
    {"aten.sub.Tensor", true, [](float x, float y) { return x - y; }},
    {"aten.mul.Tensor", true, [](float x, float y) { return x * y; }},
    {"aten.maximum.default", true, [](float x, float y) { return std::max(x, y); }},
    {"aten.minimum.default", true, [](float x, float y) { return std::min(x, y); }},
};

// At most five operators over values of 8 at most: 8^6 in steps of 2^-6 takes 24 bits.
KnownProgram Chain(std::mt19937_64& random) {
  const auto elements = static_cast<int64_t>(16 + random() % 4000);
  KnownProgram program;
  program.sizes = {{elements}};
  program.inputs = {SampleInput(elements)};
  program.answer = program.inputs[0];
  GraphBuilder builder;
  const uint32_t input = builder.Input({elements});
  uint32_t value = input;
  const uint64_t count = 1 + random() % 5;
  for (uint64_t i = 0; i < count; ++i) {
    const Operator& op = kOperators[random() % std::size(kOperators)];
    std::vector<uint32_t> arguments = {value};
    if (op.binary) arguments.push_back(input);
    value = builder.Node(absl::StrCat("op_", i), op.name, arguments, {elements});
    for (size_t k = 0; k < program.answer.size(); ++k) {
      program.answer[k] = op.apply(program.answer[k], program.inputs[0][k]);
    }
  }
  builder.Output(value);
  program.request = builder.Request();
  return program;
}

std::vector<float> Product(const std::vector<float>& a, const std::vector<float>& b, size_t rows,
                           size_t inner, size_t columns) {
  std::vector<float> out(rows * columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < inner; ++k) {
      for (size_t j = 0; j < columns; ++j) {
        out[i * columns + j] += a[i * inner + k] * b[k * columns + j];
      }
    }
  }
  return out;
}

// Up to three products of matrices of -1, 0, 1 and 2: at most 2^4 * 47^3 < 2^24.
KnownProgram Products(std::mt19937_64& random) {
  const auto draw_size = [&] { return static_cast<int64_t>(1 + random() % 47); };
  KnownProgram program;
  GraphBuilder builder;
  const uint64_t count = 1 + random() % 3;
  program.sizes.push_back({draw_size(), draw_size()});
  for (uint64_t i = 0; i < count; ++i) {
    program.sizes.push_back({program.sizes.back()[1], draw_size()});
  }
  std::vector<uint32_t> values;
  for (const integration::Sizes& sizes : program.sizes) {
    values.push_back(builder.Input(sizes));
    std::vector<float>& data = program.inputs.emplace_back();
    for (int64_t k = 0; k < sizes[0] * sizes[1]; ++k) {
      data.push_back(static_cast<float>(random() % 4) - 1.0f);
    }
  }
  const int64_t rows = program.sizes[0][0];
  uint32_t value = values[0];
  program.answer = program.inputs[0];
  for (uint64_t i = 1; i <= count; ++i) {
    const integration::Sizes& sizes = program.sizes[i];
    value = builder.Node(absl::StrCat("mm_", i), "aten.mm.default", {value, values[i]},
                         {rows, sizes[1]});
    program.answer = Product(program.answer, program.inputs[i], static_cast<size_t>(rows),
                             static_cast<size_t>(sizes[0]), static_cast<size_t>(sizes[1]));
  }
  builder.Output(value);
  program.request = builder.Request();
  return program;
}

}  // namespace

KnownProgram MakeProgram(uint64_t number) {
  std::mt19937_64 random(number);
  return number % 3 == 0 ? Products(random) : Chain(random);
}

}  // namespace kiln::soak
