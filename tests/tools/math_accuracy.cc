// Compares the vector math of generated kernels with the C library's double functions.
//
//   math_accuracy [--sample N] [--threads N] [--function KName]...
//
// Without --sample it tries every float32 bit pattern of every unary function: minutes. With it, N
// patterns at an even stride and all special values. Prints the greatest error in units in the last
// place for each function and instruction set and where it occurs; exits with 1 if one is over 2.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/tools/math_accuracy_table.h"

namespace kiln::tools {
namespace {

constexpr double kAllowedUlp = 2.0;
constexpr long kChunk = 1 << 14;
constexpr uint64_t kPatterns = uint64_t{1} << 32;

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

struct UnaryReference {
  const char* name;
  double (*function)(double);
};
const UnaryReference kUnaryReferences[] = {
    {"KExp", std::exp},     {"KExp2", std::exp2},   {"KExpm1", std::expm1}, {"KLog", std::log},
    {"KLog2", std::log2},   {"KLog10", std::log10}, {"KLog1p", std::log1p}, {"KSin", std::sin},
    {"KCos", std::cos},     {"KTan", std::tan},     {"KAsin", std::asin},   {"KAcos", std::acos},
    {"KAtan", std::atan},   {"KSinh", std::sinh},   {"KCosh", std::cosh},   {"KTanh", std::tanh},
    {"KAsinh", std::asinh}, {"KAcosh", std::acosh}, {"KAtanh", std::atanh}, {"KErf", std::erf},
    {"KErfc", std::erfc},   {"KSigmoid", Sigmoid}};
struct BinaryReference {
  const char* name;
  double (*function)(double, double);
};
const BinaryReference kBinaryReferences[] = {{"KPow", std::pow}, {"KAtan2", std::atan2}};

// |got - want| in units of float32's last place at `want`, 0 for what is correctly rounded;
// infinite where one is NaN or a zero has the wrong sign. An infinite `got` counts as 2^128, the
// next number if floats went on.
double UlpError(float got, double want) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(static_cast<float>(want))) return 0;
  if (std::isnan(want) || std::isnan(got)) {
    return std::isnan(want) && std::isnan(got) ? 0 : kInfinity;
  }
  if (want == 0) return kInfinity;
  const auto bounded = [](double x) { return std::fmin(std::fmax(x, -0x1p128), 0x1p128); };
  const double bounded_want = bounded(want);
  const int exponent = std::clamp(std::ilogb(bounded_want), -126, 127);
  return std::fabs(bounded(got) - bounded_want) * std::ldexp(1.0, 23 - exponent);
}

struct Worst {
  double ulp = 0;
  float x = 0, y = 0, got = 0;
  double want = 0;
  void Update(double error, float new_x, float new_y, float new_got, double new_want) {
    if (error > ulp) *this = {error, new_x, new_y, new_got, new_want};
  }
  void Update(const Worst& other) {
    if (other.ulp > ulp) *this = other;
  }
};

std::vector<const FunctionTable*> SupportedTables() {
  std::vector<const FunctionTable*> tables = {&kBaselineFunctions};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    tables.push_back(&kAvx2Functions);
    tables.push_back(&kAvx2FastMathFunctions);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    tables.push_back(&kAvx512Functions);
  }
  return tables;
}

// Calls work(chunk) for every chunk on `threads` threads.
template <class F>
void ForEachChunk(long chunks, int threads, F work) {
  std::atomic<long> next{0};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      for (long chunk; (chunk = next.fetch_add(1)) < chunks;) work(chunk);
    });
  }
  for (std::thread& thread : pool) thread.join();
}

// What no stride may miss: the ends of every range, and the neighbours of powers of two.
std::vector<float> SpecialValues() {
  std::vector<float> values;
  for (uint32_t exponent = 0; exponent < 512; ++exponent) {
    for (int32_t offset = -2; offset <= 2; ++offset) {
      values.push_back(std::bit_cast<float>((exponent << 23) + static_cast<uint32_t>(offset)));
    }
  }
  for (double x :
       {0.5, 1.0, 1.5, 2.0, 3.0, 0.625, M_PI_4, M_PI_2, M_PI, 88.722839, -87.336544, -103.97208,
        9.010913, 3.9192059, 10.054, 16777215.0, 12000.0, 65536.0, 262144.0}) {
    for (float sign : {1.0f, -1.0f}) {
      const float f = sign * static_cast<float>(x);
      values.insert(values.end(), {f, std::nextafter(f, 1e30f), std::nextafter(f, -1e30f)});
    }
  }
  return values;
}

void Print(const char* name, const char* instruction_set, const Worst& worst, bool binary) {
  std::printf("%-9s %-9s %9.3f ulp at %a", name, instruction_set, worst.ulp, worst.x);
  if (binary) std::printf(", %a", worst.y);
  std::printf(" (%.9g): got %.9g, want %.17g%s\n", worst.x, worst.got, worst.want,
              worst.ulp > kAllowedUlp ? "  TOO FAR" : "");
  std::fflush(stdout);
}

struct Settings {
  uint64_t samples = 0;  // 0: all
  int threads = 2;
  std::vector<std::string> functions;  // empty: all
  bool Wants(const char* name) const {
    if (functions.empty()) return true;
    return std::find(functions.begin(), functions.end(), name) != functions.end();
  }
};

// The arguments of a chunk: consecutive or strided patterns.
void FillPatterns(const Settings& settings, long chunk, std::vector<float>& x) {
  const uint64_t count = settings.samples == 0 ? kPatterns : settings.samples;
  for (long i = 0; i < kChunk; ++i) {
    const uint64_t index = static_cast<uint64_t>(chunk) * kChunk + static_cast<uint64_t>(i);
    // An odd offset for each sample, so that mantissas differ from one exponent to the next.
    const uint64_t pattern =
        settings.samples == 0 ? index : index * (kPatterns / count) + index % 977;
    x[i] = std::bit_cast<float>(static_cast<uint32_t>(pattern));
  }
}

bool CheckUnary(const Settings& settings, const UnaryReference& reference) {
  const std::vector<const FunctionTable*> tables = SupportedTables();
  std::vector<Worst> worst(tables.size());
  std::mutex mutex;
  const auto check = [&](const std::vector<float>& x) {
    const long count = static_cast<long>(x.size());
    std::vector<double> want(x.size());
    for (long i = 0; i < count; ++i) want[i] = reference.function(x[i]);
    std::vector<float> got(x.size());
    for (size_t t = 0; t < tables.size(); ++t) {
      const UnaryFunction* function = tables[t]->unary;
      while (std::strcmp(function->name, reference.name) != 0) ++function;
      function->apply(x.data(), got.data(), count);
      Worst local;
      for (long i = 0; i < count; ++i) {
        local.Update(UlpError(got[i], want[i]), x[i], 0, got[i], want[i]);
      }
      std::lock_guard<std::mutex> lock(mutex);
      worst[t].Update(local);
    }
  };
  const uint64_t patterns = settings.samples == 0 ? kPatterns : settings.samples;
  ForEachChunk(static_cast<long>((patterns + kChunk - 1) / kChunk), settings.threads,
               [&](long chunk) {
                 std::vector<float> x(kChunk);
                 FillPatterns(settings, chunk, x);
                 check(x);
               });
  std::vector<float> special = SpecialValues();
  special.resize((special.size() + 15) / 16 * 16, 1.0f);
  check(special);
  bool good = true;
  for (size_t t = 0; t < tables.size(); ++t) {
    Print(reference.name, tables[t]->instruction_set, worst[t], /*binary=*/false);
    good &= worst[t].ulp <= kAllowedUlp;
  }
  return good;
}

// Random pairs: a third any two patterns, a third of moderate size, a third with a result that a
// float holds; and all pairs of a few special values.
void FillPairs(long chunk, std::vector<float>& x, std::vector<float>& y) {
  static const float kSpecial[] = {0.0f,        1.0f,        2.0f,       3.0f,     0.5f,
                                   1.5f,        1e-45f,      1e30f,      1e-30f,   2e7f,
                                   16777215.0f, 16777216.0f, 8388607.5f, INFINITY, NAN};
  constexpr int kSpecials = std::size(kSpecial);
  std::mt19937_64 random(static_cast<uint64_t>(chunk) + 12345);
  std::uniform_real_distribution<float> moderate(-20, 20), unit(-1, 1);
  for (long i = 0; i < kChunk; ++i) {
    const uint64_t bits = random();
    x[i] = std::bit_cast<float>(static_cast<uint32_t>(bits));
    y[i] = std::bit_cast<float>(static_cast<uint32_t>(bits >> 32));
    if (i % 3 == 1) {
      x[i] = moderate(random);
      y[i] = i % 2 == 0 ? moderate(random) : std::round(moderate(random));
    } else if (i % 3 == 2) {
      x[i] = std::fabs(x[i]);
      const float range = 150.0f / std::fabs(std::log2(x[i]));
      if (std::isfinite(range)) y[i] = unit(random) * range;
    }
    if (chunk == 0 && i < 4 * kSpecials * kSpecials) {
      x[i] = std::copysign(kSpecial[i / 4 % kSpecials], i % 2 == 0 ? 1.0f : -1.0f);
      y[i] = std::copysign(kSpecial[i / 4 / kSpecials], i / 2 % 2 == 0 ? 1.0f : -1.0f);
    }
  }
}

bool CheckBinary(const Settings& settings, const BinaryReference& reference) {
  const std::vector<const FunctionTable*> tables = SupportedTables();
  std::vector<Worst> worst(tables.size());
  std::mutex mutex;
  const uint64_t pairs = settings.samples == 0 ? uint64_t{1} << 28 : settings.samples;
  ForEachChunk(static_cast<long>((pairs + kChunk - 1) / kChunk), settings.threads, [&](long chunk) {
    std::vector<float> x(kChunk), y(kChunk), got(kChunk);
    FillPairs(chunk, x, y);
    std::vector<double> want(kChunk);
    for (long i = 0; i < kChunk; ++i) want[i] = reference.function(x[i], y[i]);
    for (size_t t = 0; t < tables.size(); ++t) {
      const BinaryFunction* function = tables[t]->binary;
      while (std::strcmp(function->name, reference.name) != 0) ++function;
      function->apply(x.data(), y.data(), got.data(), kChunk);
      std::lock_guard<std::mutex> lock(mutex);
      for (long i = 0; i < kChunk; ++i) {
        worst[t].Update(UlpError(got[i], want[i]), x[i], y[i], got[i], want[i]);
      }
    }
  });
  bool good = true;
  for (size_t t = 0; t < tables.size(); ++t) {
    Print(reference.name, tables[t]->instruction_set, worst[t], /*binary=*/true);
    good &= worst[t].ulp <= kAllowedUlp;
  }
  return good;
}

int Main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc || (flag != "--sample" && flag != "--threads" && flag != "--function")) {
      std::fprintf(stderr,
                   "usage: math_accuracy [--sample N] [--threads N] [--function KName]...\n");
      return 2;
    }
    if (flag == "--sample") settings.samples = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--threads") settings.threads = std::max(1, std::atoi(argv[i + 1]));
    if (flag == "--function") settings.functions.push_back(argv[i + 1]);
  }
  bool good = true;
  for (const UnaryReference& reference : kUnaryReferences) {
    if (settings.Wants(reference.name)) good &= CheckUnary(settings, reference);
  }
  for (const BinaryReference& reference : kBinaryReferences) {
    if (settings.Wants(reference.name)) good &= CheckBinary(settings, reference);
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace kiln::tools

int main(int argc, char** argv) {
  return kiln::tools::Main(argc, argv);
}
