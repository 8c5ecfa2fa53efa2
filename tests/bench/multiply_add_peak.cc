// Prints how many floating-point operations a second this machine's threads do in fused
// multiply-adds of float32 that never leave their registers: the peak that products are set beside.
//
//     multiply_add_peak THREADS avx2|avx512
//
// Prints one number, Gflop/s of all threads together. Exit code 2 for other arguments, or for a
// width that this machine lacks.
#include <immintrin.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int kSums = 16;  // more than the latency of a multiply-add times how many begin a cycle
constexpr long kSteps = 40'000'000;

// Sums of all lanes, so that no compiler leaves the work out.
__attribute__((target("avx512f"))) float Wide(long steps) {
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512 factor = _mm512_set1_ps(0.5F);
  for (long i = 0; i < steps; ++i) {
    asm volatile("" : "+v"(factor));
#pragma GCC unroll 16
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, factor, factor);
  }
  float total = 0;
  for (const __m512& sum : sums) total += _mm512_reduce_add_ps(sum);
  return total;
}

__attribute__((target("avx2,fma"))) float Narrow(long steps) {
  constexpr int kNarrowSums = 12;  // of 16 registers
  __m256 sums[kNarrowSums];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  __m256 factor = _mm256_set1_ps(0.5F);
  for (long i = 0; i < steps * kSums / kNarrowSums; ++i) {
    asm volatile("" : "+x"(factor));
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, factor, factor);
  }
  float total = 0;
  for (const __m256& sum : sums) {
    float lanes[8];
    _mm256_storeu_ps(lanes, sum);
    for (const float lane : lanes) total += lane;
  }
  return total;
}

double Gflops(int threads, bool is_wide) {
  std::vector<float> totals(threads);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> workers;
  workers.reserve(threads);
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] { totals[i] = is_wide ? Wide(kSteps) : Narrow(kSteps); });
  }
  for (std::thread& worker : workers) worker.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  for (const float total : totals) {
    if (!(total > 0)) std::abort();
  }
  const double operations = 2.0 * kSums * (is_wide ? 16 : 8) * kSteps * threads;
  return operations / seconds.count() / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc == 3 ? std::atoi(argv[1]) : 0;
  const bool is_wide = argc == 3 && std::strcmp(argv[2], "avx512") == 0;
  const bool is_narrow = argc == 3 && std::strcmp(argv[2], "avx2") == 0;
  const bool is_here =
      is_wide ? __builtin_cpu_supports("avx512f") != 0 : __builtin_cpu_supports("avx2") != 0;
  if (threads < 1 || is_wide == is_narrow || !is_here) {
    std::fprintf(stderr,
                 "usage: multiply_add_peak THREADS avx2|avx512, of what this machine has\n");
    return 2;
  }
  Gflops(threads, is_wide);  // the clock settles
  std::printf("%.1f\n", Gflops(threads, is_wide));
  return 0;
}
