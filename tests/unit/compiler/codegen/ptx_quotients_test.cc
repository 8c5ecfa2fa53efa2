// Target ptx: quotients and roots of float32 that take no branch.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// f(x) of a tensor of `type`; `body` takes %0 and makes %9.
std::string Function(const std::string& type, const std::string& body) {
  return absl::StrReplaceAll(R"(module {
  symbol s0 [1, 9] hint 7
  buffer @x TYPE[64,1024] strides[1024,1] input(0)
  buffer @y TYPE[64,1024] strides[1024,1] output
  kernel @f (d0: 64, d1: 1024) {
    phase () {
      %0 = load TYPE @x[d0, d1]
      BODY
      store TYPE @y[d0, d1], %9
    }
  }
  output @y sizes[64,1024] strides[1024,1] offset 0
}
)",
                             {{"TYPE", type}, {"BODY", body}});
}
std::string SourceOf(const std::string& type, const std::string& body) {
  return Compile(Function(type, body)).kernels[0].source;
}

TEST(PtxQuotientsTest, TheFunctionSuitsTheDivisor) {
  const auto over = [](const std::string& count) {
    return absl::StrCat("%1 = const f32 ", count, "\n %9 = div f32 %0, %1");
  };
  EXPECT_THAT(SourceOf("f32", over("768")), HasSubstr("KOverCount("));
  // Multiplied by the inverse, or with no inverse or remainders that are numbers.
  for (const char* count : {"1024", "0.25", "0", "1e-30", "1e30"}) {
    EXPECT_THAT(SourceOf("f32", over(count)), AllOf(HasSubstr(" / "), Not(HasSubstr("KOver"))));
  }
  EXPECT_THAT(SourceOf("f32", "%1 = index i64 3*s0\n %2 = cast f32 %1\n %9 = div f32 %0, %2"),
              HasSubstr("KOverOne("));
  EXPECT_THAT(SourceOf("f32",
                       "%1 = index i64 768\n %2 = cast f32 %1\n %3 = const f32 1\n"
                       " %4 = sub f32 %2, %3\n %5 = const f32 0\n %6 = max f32 %4, %5\n"
                       " %9 = div f32 %0, %6"),
              HasSubstr("KOverCount("));
  EXPECT_THAT(SourceOf("f32", "%1 = const f32 1\n %9 = div f32 %1, %0"), HasSubstr("KOneOver("));
  EXPECT_THAT(SourceOf("f32", "%9 = rsqrt f32 %0"), HasSubstr("KOneOverRoot("));
  EXPECT_THAT(SourceOf("bf16", "%9 = rsqrt bf16 %0"), HasSubstr("KOneOverRoot("));
  EXPECT_THAT(SourceOf("f32", "%9 = div f32 %0, %0"),
              AllOf(HasSubstr(" / "), Not(HasSubstr("Over"))));
  EXPECT_THAT(SourceOf("f64", "%1 = const f64 768\n %2 = rsqrt f64 %0\n %9 = div f64 %2, %1"),
              Not(HasSubstr("Over")));
}

TEST(PtxQuotientsTest, NumbersOfEverySize) {
  for (const double scale : {1e-30, 1.0, 1e30}) {
    for (const char* body :
         {"%1 = const f32 768\n %9 = div f32 %0, %1", "%1 = const f32 1\n %9 = div f32 %1, %0",
          "%1 = abs f32 %0\n %9 = rsqrt f32 %1",
          "%1 = exp f32 %0\n %2 = const f32 1\n %3 = add f32 %1, %2\n %9 = div f32 %0, %3"}) {
      SCOPED_TRACE(absl::StrCat(body, " ", scale));
      CheckModule(
          Function("f32", body),
          {.symbols = {7}, .scale = scale, .nan_every = 97, .tolerance = 1e-6, .only_ptx = true});
    }
  }
}

// Functions of the prelude, with approximations that are a unit in the last place off.
constexpr char kFunctions[] = R"(
extern "C" float Count(float x, float) { return KOverCount(Vec<float, 1>(x), Vec<float, 1>(768.0f))[0]; }
extern "C" float One(float x, float y) { return KOverOne(Vec<float, 1>(x), Vec<float, 1>(y))[0]; }
extern "C" float Inverse(float x, float) { return KOneOver(Vec<float, 1>(1.0f), Vec<float, 1>(x))[0]; }
extern "C" float Root(float x, float) { return KOneOverRoot(Vec<float, 1>(x))[0]; }
)";
using Binary = float (*)(float, float);

bool IsSame(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// Calls a function with numbers of every size and sign, and says how many results are not what is
// right, rounded; fails where one is more than its neighbour.
double ShareOff(Binary function, float second, float least, float most,
                double (*right)(double, double)) {
  int64_t all = 0, off = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 4099) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const double true_value = right(x, second);
    const double size = std::abs(true_value);
    if (!(size >= least && size <= most)) continue;
    const float got = function(x, second), want = static_cast<float>(true_value);
    ++all;
    if (got == want) continue;
    ++off;
    if (got != std::nextafter(want, kInfinity) && got != std::nextafter(want, -kInfinity)) {
      ADD_FAILURE() << x << ": " << got << " instead of " << want;
      break;
    }
  }
  return static_cast<double>(off) / static_cast<double>(all);
}

TEST(PtxQuotientsTest, AreRoundedAsExactOnes) {
  const auto library = LibraryForThisMachine(kFunctions);
  ASSERT_TRUE(library.ok()) << library.status();
  const auto function = [&](const char* name) {
    return reinterpret_cast<Binary>(dlsym(*library, name));
  };
  const Binary count = function("Count"), one = function("One"), inverse = function("Inverse"),
               root = function("Root");
  const auto over = [](double x, double y) { return x / y; };
  const auto one_over = [](double x, double) { return 1 / x; };
  const auto root_of = [](double x, double) { return 1 / std::sqrt(x); };
  constexpr float kLeast = 0x1p-126f, kMost = std::numeric_limits<float>::max();
  // By an inverse that is rounded right itself all are (Markstein).
  EXPECT_EQ(ShareOff(count, 768, kLeast, kMost, over), 0);
  for (const float y : {1.0f, 1.5f, 768.0f, 12345.678f, 1e30f}) {
    // Of less the remainder is subnormal.
    EXPECT_LE(ShareOff(one, y, 0x1p-100f, kMost, over), 1e-4) << y;
  }
  EXPECT_LE(ShareOff(inverse, 0, kLeast, kMost, one_over), 1e-4);
  EXPECT_LE(ShareOff(root, 0, 0, kMost, root_of), 1e-4);

  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float x : {0.0f, -0.0f, kInfinity, -kInfinity, nan, 1.0f, -3.0f}) {
    SCOPED_TRACE(x);
    EXPECT_TRUE(IsSame(count(x, 0), x / 768)) << count(x, 0);
    EXPECT_TRUE(IsSame(inverse(x, 0), 1 / x)) << inverse(x, 0);
    EXPECT_TRUE(IsSame(root(x, 0), 1 / std::sqrt(x))) << root(x, 0);
    for (const float y : {0.0f, 1.0f, -7.0f, kInfinity, nan}) {
      EXPECT_TRUE(IsSame(one(x, y), x / y)) << one(x, y) << " over " << y;
    }
  }
  dlclose(*library);
}

}  // namespace
}  // namespace kiln::codegen
