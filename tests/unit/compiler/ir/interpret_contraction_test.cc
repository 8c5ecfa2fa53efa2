// Contractions: the blocked product gives the plain loops' results bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "tests/unit/compiler/ir/interpret_for_test.h"

namespace kiln::ir {
namespace {

using ::testing::HasSubstr;

// The general loops are the reference for the blocked product, on one thread and on several.
void ExpectSameAsLoops(const std::string& contraction, const std::vector<HostTensor>& inputs) {
  const auto loops = Execute(absl::StrReplaceAll(contraction, {{" contraction ", " "}}), inputs)[0];
  for (int threads : {1, 3}) {
    const auto blocked = Execute(contraction, inputs, {}, {}, {.threads = threads})[0];
    ASSERT_EQ(blocked.sizes, loops.sizes);
    double magnitude = 0;
    for (size_t i = 0; i < loops.floats.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint64_t>(blocked.floats[i]),
                std::bit_cast<uint64_t>(loops.floats[i]))
          << "element " << i << " on " << threads << " threads\n"
          << contraction;
      magnitude += std::fabs(loops.floats[i]);
    }
    EXPECT_GT(magnitude, 0);
  }
}

HostTensor RandomFloats(std::vector<int64_t> sizes, unsigned seed) {
  std::mt19937 random(seed);
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  std::vector<float> values(n);
  for (float& v : values) v = std::normal_distribution<float>()(random);
  return Floats(std::move(sizes), values);
}

TEST(InterpretContractionTest, BatchedMatrixProductWithEpilogue) {
  ExpectSameAsLoops(
      R"(module {
    buffer @a f32[3,13,37] strides[481,37,1] input(0)
    buffer @b f32[3,11,37] strides[407,37,1] input(1)
    buffer @c f32[11] strides[1] input(2)
    buffer @y f32[3,13,11] strides[143,11,1] output
    kernel @mm contraction (d0: 3, d1: 13, d2: 11) {
      phase (r0: 37) {
        %0 = load f32 @a[d0, d1, r0]
        %1 = load f32 @b[d0, d2, r0]
        %2 = tanh f32 %1
        %3 = mul f32 %0, %2
        %4 = reduce.sum f32 %3
      }
      phase () { %5 = load f32 @c[d2] %6 = add f32 %4, %5 store f32 @y[d0, d1, d2], %6 }
    }
    output @y sizes[3,13,11] strides[143,11,1] offset 0
  })",
      {RandomFloats({3, 13, 37}, 1), RandomFloats({3, 11, 37}, 2), RandomFloats({11}, 3)});
}

TEST(InterpretContractionTest, ConvolutionWithPaddingAndColumnsOutermost) {
  ExpectSameAsLoops(R"(module {
    buffer @x f32[2,3,9,9] strides[243,81,9,1] input(0)
    buffer @w f32[6,3,3,3] strides[27,9,3,1] input(1)
    buffer @y f32[2,6,9,9] strides[486,81,9,1] output
    kernel @conv contraction (d0: 2, d1: 6, d2: 9, d3: 9) {
      phase (r0: 3, r1: 3, r2: 3) {
        %0 = index i64 d2 + r1 - 1
        %1 = index i64 d3 + r2 - 1
        %2 = const i64 0
        %3 = const i64 9
        %4 = ge bool %0, %2
        %5 = lt bool %0, %3
        %6 = ge bool %1, %2
        %7 = lt bool %1, %3
        %8 = and bool %4, %5
        %9 = and bool %6, %7
        %10 = and bool %8, %9
        %11 = load f32 @x[d0, r0, d2 + r1 - 1, d3 + r2 - 1] if %10 else 0
        %12 = load f32 @w[d1, r0, r1, r2]
        %13 = mul f32 %11, %12
        %14 = reduce.sum f32 %13
      }
      phase () { store f32 @y[d0, d1, d2, d3], %14 }
    }
    output @y sizes[2,6,9,9] strides[486,81,9,1] offset 0
  })",
                    {RandomFloats({2, 3, 9, 9}, 4), RandomFloats({6, 3, 3, 3}, 5)});
}

// Text of a random contraction and its inputs. Each outer variable is used by a, by b, by both or
// by neither; each operand's dimensions come in any order, reversed, or as a window over two
// variables.
class RandomContraction {
 public:
  RandomContraction(unsigned seed, int largest) : random_(seed), largest_(largest) {
    for (int i = 0, n = Below(5); i < n; ++i) outer_.push_back(NewVar("d", i));
    for (int i = 0, n = 1 + Below(2); i < n; ++i) inner_.push_back(NewVar("r", i));
    std::string loads = Operand("a", 0) + Operand("b", 1);
    const bool prologue = Below(3) == 0;
    absl::StrAppend(&loads, prologue ? "%5 = neg f32 %1 " : "", "%6 = mul f32 %0, ",
                    prologue ? "%5" : "%1", " %7 = reduce.sum f32 %6 ");
    text_ = absl::StrCat("module { ", buffers_, Buffer("y", Sizes(outer_), "output"),
                         " kernel @mm contraction (", Loops(outer_), ") { phase (", Loops(inner_),
                         ") { ", loads, "} phase () { store f32 @y[", Names(outer_),
                         "], %7 } } output @y sizes[", Names(outer_, true), "] strides[",
                         absl::StrJoin(Strides(Sizes(outer_)), ","), "] offset 0 }");
  }
  const std::string& text() const { return text_; }
  const std::vector<HostTensor>& inputs() const { return inputs_; }

 private:
  struct Var {
    std::string name;
    int64_t extent;
    bool used[2];  // by a, by b
  };
  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  Var NewVar(const char* prefix, int i) {
    Var var{absl::StrCat(prefix, i), 1 + Below(largest_), {true, true}};
    // An inner variable is used by one operand at least, mostly by both.
    if (prefix[0] == 'd' || Below(8) == 0) {
      const int use = prefix[0] == 'd' ? Below(4) : 1 + Below(2);
      var.used[0] = (use & 1) != 0;
      var.used[1] = (use & 2) != 0;
    }
    return var;
  }
  static std::string Names(const std::vector<Var>& vars, bool extents = false) {
    return absl::StrJoin(vars, ", ", [&](std::string* out, const Var& v) {
      absl::StrAppend(out, extents ? absl::StrCat(v.extent) : v.name);
    });
  }
  static std::string Loops(const std::vector<Var>& vars) {
    return absl::StrJoin(vars, ", ", [](std::string* out, const Var& v) {
      absl::StrAppend(out, v.name, ": ", v.extent);
    });
  }
  static std::vector<int64_t> Sizes(const std::vector<Var>& vars) {
    std::vector<int64_t> sizes;
    for (const Var& v : vars) sizes.push_back(v.extent);
    return sizes;
  }
  static std::vector<int64_t> Strides(const std::vector<int64_t>& sizes) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
    return strides;
  }
  static std::string Buffer(const std::string& name, const std::vector<int64_t>& sizes,
                            const std::string& kind) {
    return absl::StrCat(" buffer @", name, " f32[", absl::StrJoin(sizes, ","), "] strides[",
                        absl::StrJoin(Strides(sizes), ","), "] ", kind);
  }
  // Adds the operand's buffer and input; returns its load into value %`number`.
  std::string Operand(const char* name, int number) {
    std::vector<Var> vars;
    for (const auto* list : {&outer_, &inner_}) {
      for (const Var& v : *list) {
        if (v.used[number]) vars.push_back(v);
      }
    }
    std::shuffle(vars.begin(), vars.end(), random_);
    std::vector<int64_t> sizes;
    std::vector<std::string> indices;
    for (size_t i = 0; i < vars.size(); ++i) {
      if (Below(4) == 0 && i + 1 < vars.size()) {
        sizes.push_back(2 * vars[i].extent + vars[i + 1].extent);
        indices.push_back(absl::StrCat("2*", vars[i].name, " + ", vars[i + 1].name));
        ++i;
      } else if (Below(4) == 0) {
        sizes.push_back(vars[i].extent);
        indices.push_back(absl::StrCat(vars[i].extent - 1, " - ", vars[i].name));
      } else if (Below(6) == 0) {  // not affine: the general way
        sizes.push_back(vars[i].extent);
        indices.push_back(absl::StrCat("floordiv(", vars[i].name, ", 2)"));
      } else {
        sizes.push_back(vars[i].extent);
        indices.push_back(vars[i].name);
      }
    }
    absl::StrAppend(&buffers_, Buffer(name, sizes, absl::StrCat("input(", number, ")")));
    inputs_.push_back(RandomFloats(sizes, random_()));
    return absl::StrCat("%", number, " = load f32 @", name, "[", absl::StrJoin(indices, ", "),
                        "] ");
  }

  std::mt19937 random_;
  const int largest_;
  std::vector<Var> outer_, inner_;
  std::string buffers_, text_;
  std::vector<HostTensor> inputs_;
};

TEST(InterpretContractionTest, RandomContractionsEqualTheLoopsBitForBit) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const RandomContraction random(seed, 9);
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsLoops(random.text(), random.inputs()));
  }
}

// Large enough for several tasks and threads, along rows and along columns.
TEST(InterpretContractionTest, TasksOfALargeProductEqualTheLoopsBitForBit) {
  for (const auto& [rows, columns] : {std::pair(211, 37), std::pair(37, 211)}) {
    ExpectSameAsLoops(absl::StrReplaceAll(R"(module {
      buffer @a f32[2,M,101] strides[MM,101,1] input(0)
      buffer @b f32[2,101,N] strides[NN,N,1] input(1)
      buffer @y f32[2,M,N] strides[YY,N,1] output
      kernel @mm contraction (d0: 2, d1: M, d2: N) {
        phase (r0: 101) { %0 = load f32 @a[d0, d1, r0] %1 = load f32 @b[d0, r0, d2]
                          %2 = mul f32 %0, %1 %3 = reduce.sum f32 %2 }
        phase () { store f32 @y[d0, d1, d2], %3 }
      }
      output @y sizes[2,M,N] strides[YY,N,1] offset 0
    })",
                                          {{"MM", absl::StrCat(rows * 101)},
                                           {"NN", absl::StrCat(columns * 101)},
                                           {"YY", absl::StrCat(rows * columns)},
                                           {"M", absl::StrCat(rows)},
                                           {"N", absl::StrCat(columns)}}),
                      {RandomFloats({2, rows, 101}, 8), RandomFloats({2, 101, columns}, 9)});
  }
}

// A gathered row outside its table: the same error, of the first such row, on any number of
// threads.
TEST(InterpretContractionTest, AnIndexOutOfRangeIsTheSameErrorOnAnyThread) {
  std::vector<int64_t> rows(3000, 1);
  rows[1500] = 77;
  rows[2900] = 88;
  for (int threads : {1, 4}) {
    const auto result =
        TryExecute(R"(module {
      buffer @i i64[3000] strides[1] input(0)
      buffer @a f32[4,64] strides[64,1] input(1)
      buffer @b f32[8,64] strides[64,1] input(2)
      buffer @y f32[3000,8] strides[8,1] output
      kernel @mm contraction (d0: 3000, d1: 8) {
        phase (r0: 64) { %0 = load i64 @i[d0] %1 = load f32 @a[[%0], r0] %2 = load f32 @b[d1, r0]
                         %3 = mul f32 %1, %2 %4 = reduce.sum f32 %3 }
        phase () { store f32 @y[d0, d1], %4 }
      }
      output @y sizes[3000,8] strides[8,1] offset 0
    })",
                   {Longs({3000}, rows), RandomFloats({4, 64}, 1), RandomFloats({8, 64}, 2)}, {},
                   {}, {.threads = threads});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("index 77 "));
  }
}

}  // namespace
}  // namespace kiln::ir
