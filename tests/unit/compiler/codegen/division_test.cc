// Integer division is exact: at the numbers where quotients in floating point go wrong, and for any
// bits, in vectors whose numbers are small and in those where some are not.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "compiler/ir/parse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

constexpr uint64_t kSeed = 11;

using Wide = __int128;

struct Type {
  std::string name;
  int bits;
  bool is_signed = true;

  // The number of the type that has the low bits of `x`.
  int64_t Wrap(Wide x) const {
    const int unused = 64 - bits;
    const auto low = static_cast<uint64_t>(x) << unused;
    return is_signed ? static_cast<int64_t>(low) >> unused : static_cast<int64_t>(low >> unused);
  }
};

const Type kTypes[] = {{"i64", 64}, {"i32", 32}, {"i16", 16}, {"i8", 8}, {"u8", 8, false}};

struct Pairs {
  std::vector<int64_t> dividends, divisors;

  void Add(const Type& type, Wide dividend, Wide divisor) {
    if (type.Wrap(divisor) == 0) return;
    dividends.push_back(type.Wrap(dividend));
    divisors.push_back(type.Wrap(divisor));
  }
};

HostTensor TensorOf(const Type& type, const std::vector<int64_t>& values) {
  HostTensor tensor;
  const size_t size = type.bits / 8;
  for (const int64_t value : values) {
    tensor.data.append(reinterpret_cast<const char*>(&value), size);
  }
  return tensor;
}

void ExpectExact(const Type& type, const Pairs& pairs) {
  const int count = static_cast<int>(pairs.dividends.size());
  auto module =
      ir::Parse(OpsModule(type.name, {"truncdiv", "floordiv", "fmod", "mod"}, 2, type.name, count));
  ASSERT_TRUE(module.ok()) << module.status();
  const std::vector<HostTensor> inputs = {TensorOf(type, pairs.dividends),
                                          TensorOf(type, pairs.divisors)};
  for (const std::string& isa : RunnableIsas()) {
    auto native = NativeModule::Build(*module, TestDevice(isa));
    ASSERT_TRUE(native.ok()) << native.status();
    const auto outputs = (*native)->Run(inputs, {}, 1);
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    for (int i = 0; i < count; ++i) {
      const Wide a = pairs.dividends[i], b = pairs.divisors[i], rest = a % b;
      const bool is_below = rest != 0 && (rest < 0) != (b < 0);
      const Wide expected[] = {a / b, a / b - (is_below ? 1 : 0), rest, is_below ? rest + b : rest};
      for (size_t k = 0; k < 4; ++k) {
        ASSERT_EQ((*outputs)[k].ints[i], type.Wrap(expected[k]))
            << type.name << " on " << isa << ", operator " << k << ": " << pairs.dividends[i]
            << " by " << pairs.divisors[i];
      }
    }
  }
}

// Powers of two, thirds of them and powers of ten, and their neighbours.
std::vector<int64_t> Edges(const Type& type) {
  std::vector<int64_t> edges;
  const auto add = [&](Wide x) {
    for (int near = -1; near <= 1; ++near) {
      edges.push_back(type.Wrap(x + near));
      edges.push_back(type.Wrap(-x + near));
    }
  };
  for (int bit = 0; bit < type.bits; ++bit) {
    add(Wide{1} << bit);
    if (bit % 4 == 3) add((Wide{1} << bit) / 3);
  }
  Wide ten = 10;
  for (; ten < (Wide{1} << (type.bits - 1)); ten *= 1000) add(ten);
  return edges;
}

TEST(DivisionTest, EdgesByEdges) {
  for (const Type& type : kTypes) {
    Pairs pairs;
    const std::vector<int64_t> edges = Edges(type);
    for (const int64_t a : edges) {
      for (const int64_t b : edges) pairs.Add(type, a, b);
    }
    ExpectExact(type, pairs);
  }
}

// Of random lengths; every other dividend is next to a multiple of its divisor.
TEST(DivisionTest, RandomBits) {
  std::mt19937_64 random(kSeed);
  for (const Type& type : kTypes) {
    Pairs pairs;
    for (int i = 0; i < 60000; ++i) {
      const auto number = [&] { return static_cast<int64_t>(random()) >> random() % 64; };
      const Wide divisor = type.Wrap(number()), number_of_times = type.Wrap(number());
      const Wide near = static_cast<int64_t>(random() % 3) - 1;
      pairs.Add(type, i % 2 == 0 ? number() : number_of_times * divisor + near, divisor);
    }
    ExpectExact(type, pairs);
  }
}

// Whole vectors of small numbers.
TEST(DivisionTest, SmallNumbers) {
  std::mt19937_64 random(kSeed);
  for (const Type& type : kTypes) {
    Pairs pairs;
    for (int i = 0; i < 20011; ++i) {
      pairs.Add(type, static_cast<int64_t>(random()) >> (type.bits == 64 ? 14 : 48),
                static_cast<int64_t>(random()) >> 57);
    }
    ExpectExact(type, pairs);
  }
}

}  // namespace
}  // namespace kiln::codegen
