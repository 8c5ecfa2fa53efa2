// Every access to some lanes of a vector, of every element type and width and for each instruction
// set, next to memory that nobody may touch.
#include "tests/unit/compiler/codegen/lane_access.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace kiln::codegen {
namespace {

using Bytes = std::vector<unsigned char>;

// Two pages of which the second faults.
class Pages {
 public:
  Pages()
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        start_(static_cast<unsigned char*>(
            mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    if (start_ == MAP_FAILED || mprotect(start_ + page_, page_, PROT_NONE) != 0) abort();
  }
  ~Pages() { munmap(start_, 2 * page_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  // Memory that ends where the second page begins.
  unsigned char* Last(size_t bytes) { return start_ + page_ - bytes; }

 private:
  size_t page_;
  unsigned char* start_;
};

class LaneAccessTest : public testing::TestWithParam<const LaneAccesses*> {
 protected:
  void SetUp() override {
    const std::string set = GetParam()->instruction_set;
    __builtin_cpu_init();
    if ((set == "avx2" && !__builtin_cpu_supports("x86-64-v3")) ||
        (set == "avx512" && !__builtin_cpu_supports("x86-64-v4"))) {
      GTEST_SKIP() << "this machine has no " << set;
    }
  }

  // Elements of a boolean are 0 or 1.
  Bytes Random(const LaneAccess& of, int elements) {
    Bytes bytes(static_cast<size_t>(elements * of.size));
    const bool is_bool = std::string(of.type) == "bool";
    for (unsigned char& byte : bytes) {
      byte = static_cast<unsigned char>(is_bool ? random_() % 2 : random_());
    }
    return bytes;
  }

  // `lanes[i]` of the source, or `other` in each byte where it is -1.
  static Bytes Picked(const LaneAccess& of, const Bytes& source, const std::vector<int>& lanes,
                      unsigned char other) {
    Bytes out;
    for (int lane : lanes) {
      for (int b = 0; b < of.size; ++b) {
        out.push_back(lane < 0 ? other : source[static_cast<size_t>(lane * of.size + b)]);
      }
    }
    return out;
  }

  // Checks `load` of lanes `step * i` where the mask says so, with the source's end at the last.
  template <class F>
  void CheckLoad(const LaneAccess& of, const Bytes& mask, int step, unsigned char other,
                 const char* what, F load) {
    std::vector<int> lanes;
    int elements = 0;
    for (int i = 0; i < of.width; ++i) {
      const bool active = mask[static_cast<size_t>(i)] != 0;
      lanes.push_back(active ? step * i : -1);
      if (active) elements = step * i + 1;
    }
    const Bytes source = Random(of, elements);
    unsigned char* const from = pages_.Last(source.size());
    if (!source.empty()) memcpy(from, source.data(), source.size());
    Bytes got(static_cast<size_t>(of.width * of.size), 0x5a);
    load(from, got.data());
    EXPECT_EQ(got, Picked(of, source, lanes, other))
        << what << " of " << of.width << " x " << of.type << ", " << elements << " elements";
  }

  void CheckMask(const LaneAccess& of, const Bytes& mask) {
    const bool is_bool = std::string(of.type) == "bool";
    const unsigned char other = is_bool ? 1 : 0xff;
    CheckLoad(of, mask, 1, other, "load",
              [&](const void* from, void* to) { of.load_where(from, mask.data(), to); });
    CheckLoad(of, mask, 2, other, "even load",
              [&](const void* from, void* to) { of.load_even_where(from, mask.data(), to); });
  }

  void CheckFirst(const LaneAccess& of, int n) {
    Bytes mask(static_cast<size_t>(of.width), 0);
    std::fill(mask.begin(), mask.begin() + n, 1);
    CheckLoad(of, mask, 1, 0, "first lanes",
              [&](const void* from, void* to) { of.load_first(from, n, to); });
    CheckLoad(of, mask, 2, 0, "first even lanes",
              [&](const void* from, void* to) { of.load_even_first(from, n, to); });
    const Bytes values = Random(of, of.width);
    const auto bytes = static_cast<size_t>(n * of.size);
    unsigned char* const to = pages_.Last(bytes);
    memset(to, 0x5a, bytes);
    of.store_first(to, n, values.data());
    EXPECT_EQ(Bytes(to, to + bytes), Bytes(values.begin(), values.begin() + n * of.size))
        << "store of " << n << " of " << of.width << " x " << of.type;
  }

  std::mt19937 random_{20261123};
  Pages pages_;
};

TEST_P(LaneAccessTest, OtherLanesAreNotTouched) {
  for (int i = 0; i < GetParam()->count; ++i) {
    const LaneAccess& of = GetParam()->entries[i];
    for (int n = 0; n <= of.width; ++n) CheckFirst(of, n);
    for (int round = 0; round < 20; ++round) {
      Bytes mask(static_cast<size_t>(of.width));
      for (unsigned char& lane : mask) lane = random_() % 4 < static_cast<unsigned>(round % 5);
      CheckMask(of, mask);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, LaneAccessTest,
                         testing::Values(&kBaselineLanes, &kAvx2Lanes, &kAvx512Lanes),
                         [](const auto& info) { return info.param->instruction_set; });

}  // namespace
}  // namespace kiln::codegen
