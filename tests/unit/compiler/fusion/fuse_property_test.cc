// Random modules compute the same after fusion, with all passes and without any single one.
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/fusion/fuse_for_test.h"

namespace kiln::fusion {
namespace {

constexpr int kNumModules = 200;

struct Value {
  std::string buffer;
  std::vector<int> sizes;
  int elements = 1;
};

std::vector<int> Strides(const std::vector<int>& sizes) {
  std::vector<int> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

// "@b[...]" at row-major position `position`.
std::string ElementAt(const Value& value, const std::string& position) {
  const std::vector<int> strides = Strides(value.sizes);
  std::vector<std::string> indices;
  for (size_t k = 0; k < value.sizes.size(); ++k) {
    indices.push_back(
        absl::StrCat("mod(floordiv(", position, ", ", strides[k], "), ", value.sizes[k], ")"));
  }
  return absl::StrCat("@", value.buffer, "[", absl::StrJoin(indices, ", "), "]");
}

// Writes random modules over tensors of 24 elements, of their rows' 4 and of scalars.
class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  std::string Run() {
    for (int i = 0; i < 3; ++i) AddInput();
    declarations_ += "buffer @rows i64[4] strides[1] input(3)\n";
    const int kernels = 3 + Pick(10);
    for (int i = 0; i < kernels; ++i) AddKernel(i);
    std::string outputs;
    for (size_t i = 3; i < values_.size(); ++i) {
      const bool is_output = Pick(5) == 0 || i + 1 == values_.size();
      declarations_ += Declaration(values_[i], is_output ? "output" : "temp");
      if (!is_output) continue;
      absl::StrAppend(&outputs, "output @", values_[i].buffer, " sizes[",
                      absl::StrJoin(values_[i].sizes, ","), "] strides[",
                      absl::StrJoin(Strides(values_[i].sizes), ","), "] offset 0\n");
    }
    return absl::StrCat("module {\n", declarations_, kernels_, outputs, "}\n");
  }

 private:
  int Pick(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  static std::string Declaration(const Value& value, absl::string_view kind) {
    return absl::StrCat("buffer @", value.buffer, " f32[", absl::StrJoin(value.sizes, ","),
                        "] strides[", absl::StrJoin(Strides(value.sizes), ","), "] ", kind, "\n");
  }

  std::vector<int> RandomSizes() {
    static const std::vector<int> kSizes[] = {{4, 6}, {24}, {2, 2, 6}, {1, 4, 6}, {4, 2, 3}};
    return kSizes[Pick(5)];
  }

  void AddInput() {
    const Value value{absl::StrCat("in", values_.size()), RandomSizes(), 24};
    declarations_ += Declaration(value, absl::StrCat("input(", values_.size(), ")"));
    values_.push_back(value);
  }

  // Loops over `sizes`, in their order or backwards; returns the row-major position.
  std::string Loops(const std::vector<int>& sizes, std::string* loops, const char* prefix) {
    const bool backwards = Pick(4) == 0;
    const std::vector<int> strides = Strides(sizes);
    std::vector<std::string> extents, terms = {"0"};
    for (size_t i = 0; i < sizes.size(); ++i) {
      const size_t dim = backwards ? sizes.size() - 1 - i : i;
      extents.push_back(absl::StrCat(prefix, i, ": ", sizes[dim]));
      terms.push_back(absl::StrCat(strides[dim], "*", prefix, i));
    }
    *loops = absl::StrJoin(extents, ", ");
    return absl::StrJoin(terms, " + ");
  }

  std::string Line(const std::string& text) {
    absl::StrAppend(&kernels_, "%", next_, " = ", text, "\n");
    return absl::StrCat("%", next_++);
  }

  // Some value's element at `position` of 24, through a random view.
  std::string RandomLoad(const std::string& position) {
    const Value& value = values_[Pick(static_cast<int>(values_.size()))];
    std::string at = position;
    if (value.elements == 24) {
      const int view = Pick(10);
      if (view == 0) at = absl::StrCat("23 - (", position, ")");
      if (view == 1) at = absl::StrCat("mod(", position, " + 5, 24)");
      if (view == 2) {  // transposed
        at = absl::StrCat("6*mod(", position, ", 4) + mod(floordiv(", position, ", 4), 6)");
      }
    } else if (value.elements == 4) {
      at = absl::StrCat("floordiv(", position, ", 6)");
    }
    const int kind = Pick(12);
    if (kind == 0 && value.elements > 1) return MaskedLoad(value, position);
    if (kind == 1 && value.sizes.size() == 2 && value.elements == 24) {
      const std::string row =
          Line(absl::StrCat("load i64 @rows[mod(floordiv(", position, ", 6), 4)]"));
      return Line(
          absl::StrCat("load f32 @", value.buffer, "[[", row, "], mod(", position, ", 6)]"));
    }
    return Line(absl::StrCat("load f32 ", ElementAt(value, at)));
  }

  // Reads one element further on where there is one.
  std::string MaskedLoad(const Value& value, const std::string& position) {
    const std::string index = Line(absl::StrCat("index i64 ", position));
    const std::string last = Line(absl::StrCat("const i64 ", value.elements - 1));
    const std::string mask = Line(absl::StrCat("lt bool ", index, ", ", last));
    std::vector<std::string> indices(value.sizes.size(), "0");
    const std::vector<int> strides = Strides(value.sizes);
    const std::string next = absl::StrCat("(", position, ") + 1");
    for (size_t k = 0; k < value.sizes.size(); ++k) {
      // The first index runs out of its dimension.
      const std::string digit = absl::StrCat("floordiv(", next, ", ", strides[k], ")");
      indices[k] = k == 0 ? digit : absl::StrCat("mod(", digit, ", ", value.sizes[k], ")");
    }
    return Line(absl::StrCat("load f32 @", value.buffer, "[", absl::StrJoin(indices, ", "), "] if ",
                             mask, " else 0.25"));
  }

  std::string RandomBody(const std::string& position) {
    std::string value = RandomLoad(position);
    for (int i = Pick(3); i > 0; --i) {
      switch (Pick(7)) {
        case 0:
          value = Line(absl::StrCat("tanh f32 ", value));
          break;
        case 1:
          value = Line(absl::StrCat("neg f32 ", value));
          break;
        case 2: {
          const std::string number = Line("const f32 0.5");
          value = Line(absl::StrCat("mul f32 ", value, ", ", number));
          break;
        }
        case 3: {
          const std::string index = Line(absl::StrCat("index i64 ", position));
          const std::string number = Line(absl::StrCat("cast f32 ", index));
          value = Line(absl::StrCat("max f32 ", value, ", ", number));
          break;
        }
        default:
          value = Line(
              absl::StrCat(Pick(2) ? "add" : "sub", " f32 ", value, ", ", RandomLoad(position)));
      }
    }
    return value;
  }

  void AddKernel(int number) {
    next_ = 0;
    Value result{absl::StrCat("t", number), {}, 1};
    switch (Pick(6)) {
      case 0:
        AddReduction(number, result);
        break;
      case 1:
        AddContraction(number, result);
        break;
      default:
        AddPointwise(number, result);
    }
    kernels_ += "}\n}\n";
    values_.push_back(result);
  }

  void Header(int number, const std::string& kind, const std::string& loops) {
    absl::StrAppend(&kernels_, "kernel @k", number, " ", kind, "(", loops, ") from \"n", number,
                    "\" {\n");
  }

  void AddPointwise(int number, Value& result) {
    result.sizes = RandomSizes();
    result.elements = 24;
    std::string loops;
    const std::string position = Loops(result.sizes, &loops, "d");
    Header(number, "", loops);
    kernels_ += "phase () {\n";
    const std::string value = RandomBody(position);
    absl::StrAppend(&kernels_, "store f32 ", ElementAt(result, position), ", ", value, "\n");
  }

  // Of rows, or of everything.
  void AddReduction(int number, Value& result) {
    const bool rows = Pick(3) > 0;
    if (rows) {
      result.sizes = Pick(2) ? std::vector<int>{4} : std::vector<int>{4, 1};
      result.elements = 4;
    }
    std::string inner;
    std::string position =
        Loops(rows ? (Pick(2) ? std::vector<int>{6} : std::vector<int>{2, 3}) : RandomSizes(),
              &inner, "r");
    Header(number, "", rows ? "d0: 4" : "");
    if (rows) position = absl::StrCat("6*d0 + ", position);
    absl::StrAppend(&kernels_, "phase (", inner, ") {\n");
    const std::string value = RandomBody(position);
    const std::string reduced =
        Line(absl::StrCat("reduce.", Pick(2) ? "sum" : "max", " f32 ", value));
    absl::StrAppend(&kernels_, "}\nphase () {\nstore f32 ", ElementAt(result, "d0"), ", ", reduced,
                    "\n");
    if (!rows) {
      kernels_.replace(kernels_.rfind("store f32 "), std::string::npos,
                       absl::StrCat("store f32 @", result.buffer, "[], ", reduced, "\n"));
    }
  }

  // [4, 24] * [24, 6]
  void AddContraction(int number, Value& result) {
    result.sizes = {4, 6};
    result.elements = 24;
    Header(number, "contraction ", "d0: 4, d1: 6");
    kernels_ += "phase (r0: 24) {\n";
    const std::string a = RandomLoad("mod(5*d0 + r0, 24)");
    const std::string b = RandomLoad("mod(7*d1 + r0, 24)");
    const std::string product = Line(absl::StrCat("mul f32 ", a, ", ", b));
    const std::string sum = Line(absl::StrCat("reduce.sum f32 ", product));
    absl::StrAppend(&kernels_, "}\nphase () {\n");
    const std::string scale = Line("const f32 0.05");
    const std::string value = Line(absl::StrCat("mul f32 ", sum, ", ", scale));
    absl::StrAppend(&kernels_, "store f32 @", result.buffer, "[d0, d1], ", value, "\n");
  }

  std::mt19937_64 random_;
  std::vector<Value> values_;
  std::string declarations_, kernels_;
  int next_ = 0;
};

TEST(FusePropertyTest, RandomModulesComputeTheSame) {
  int before = 0, after = 0;
  for (uint64_t seed = 0; seed < kNumModules; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::string text = Generator(seed).Run();
    FuseCheck check{.int_max = 4};
    FuseCheck unfused = check;
    unfused.options.enabled = false;
    before += FuseAndCheck(text, unfused).NumKernels();
    after += (seed % 8 == 0 ? FuseEveryWay(text, check) : FuseAndCheck(text, check)).NumKernels();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_LT(after, before * 2 / 3) << "fusion hardly does anything: " << before << " kernels";
}

}  // namespace
}  // namespace kiln::fusion
