// The simulator against the plainest reading of the specification, on random instructions.
#include <algorithm>
#include <random>

#include "tests/unit/client/gcu_simulator/device.h"
#include "tests/unit/client/gcu_simulator/naive.h"

namespace kiln::gcu_simulator {
namespace {

using gcu_naive::Image;
using gcu_naive::Index;
using gcu_naive::NaiveTile;

constexpr int64_t kRegion = 64 << 10;  // bytes of L1 for each operand; the last one is the result's
constexpr int kRegions = 4;
const std::vector<std::string> kFloating = {"f32", "f16", "bf16"}, kIntegral = {"i32", "i8", "u8"};

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % n); }
  bool Chance(int percent) { return Below(100) < percent; }
  template <typename T>
  const T& Of(const std::vector<T>& values) {
    return values[Below(static_cast<int64_t>(values.size()))];
  }

  // Of some 1000 elements at most, so that they fit their region with gaps.
  Index Extents(int rank, int64_t most = 7) {
    Index extents{1, 1, 1, 1};
    int64_t elements = 1;
    for (int d = 0; d < rank; ++d) {
      extents[d] = Chance(4) ? 0 : 1 + Below(Chance(15) ? 2 * most : most);
      if (elements * extents[d] > 1000) extents[d] = 2;
      elements *= std::max<int64_t>(extents[d], 1);
    }
    return extents;
  }

  // Somewhere in its region, dimensions in some order, with gaps; `repeats` for strides of 0.
  NaiveTile Tile(int region, const std::string& type, int rank, const Index& extents,
                 bool repeats) {
    NaiveTile tile{type, rank, 0, extents, {}};
    std::vector<int> order{0, 1, 2, 3};
    order.resize(rank);
    if (Chance(50))
      std::shuffle(order.begin(), order.end(), random_);
    else
      std::reverse(order.begin(), order.end());
    int64_t stride = Chance(80) ? 1 : 2;
    int64_t low = 0;
    for (int d : order) {
      tile.strides[d] = repeats && Chance(15) ? 0 : stride;
      if (tile.strides[d] == 0) continue;
      stride *= std::max<int64_t>(extents[d], 1);
      if (Chance(20)) stride += Below(3);
      if (Chance(10)) {
        tile.strides[d] = -tile.strides[d];
        low += std::max<int64_t>(extents[d] - 1, 0) * -tile.strides[d];
      }
    }
    tile.address = region * kRegion + (low + Below(9)) * tile.Bytes();
    return tile;
  }

  // Numbers of all sizes, some special ones.
  Image Memory() {
    std::normal_distribution<float> normal(0, 3);
    constexpr size_t kDrawn = 8 << 10;  // the rest repeats these bytes
    Image image(kRegion * kRegions);
    for (size_t i = 0; i < kDrawn; i += 4) {
      float value = Chance(3) ? std::vector<float>{0,   -0.0F,  INFINITY, -INFINITY,
                                                   NAN, 1e-41F, 3e38F}[Below(7)]
                              : normal(random_);
      if (Chance(20)) value = std::round(value);
      uint32_t word = 0;
      std::memcpy(&word, &value, 4);
      if (Chance(20)) word = static_cast<uint32_t>(random_());
      std::memcpy(image.data() + i, &word, 4);
    }
    for (size_t i = kDrawn; i < image.size(); ++i) image[i] = image[i - kDrawn];
    return image;
  }

 private:
  std::mt19937 random_;
};

std::string Described(int number, const NaiveTile& tile) {
  const std::string t = "t" + std::to_string(number);
  std::string text = "  li s20, " + std::to_string(tile.address) + "\n  tile " + t + ", l1." +
                     tile.type + "." + std::to_string(tile.rank) + ", s20\n";
  for (int d = 0; d < tile.rank; ++d) {
    text += "  li s21, " + std::to_string(tile.extents[d]) + "\n  dimi " + t + ", " +
            std::to_string(d) + ", s21, " + std::to_string(tile.strides[d]) + "\n";
  }
  return text;
}

// The image after `instruction` on tiles t0 (the result) to t3, by the simulator.
Image Simulated(const Image& image, const std::vector<NaiveTile>& tiles,
                const std::string& instruction) {
  Device device;
  const uint64_t memory = device.Put(image);
  std::string text = R"(
  li s30, 0
  jne s0, s30, end
  arg s8, 0
  li s9, )" + std::to_string(image.size()) +
                     R"(
  tile t10, l3.u8.1, s8
  dimi t10, 0, s9, 1
  tile t11, l1.u8.1, s30
  dimi t11, 0, s9, 1
  dma t11, t10, k0
  wait k0
)";
  for (size_t i = 0; i < tiles.size(); ++i) text += Described(static_cast<int>(i), tiles[i]);
  text += "  " + instruction + "\n  waitall\n  dma t10, t11, k0\nend:\n  halt";
  const auto fault = device.Run(text, {memory});
  EXPECT_FALSE(fault) << TextOf(fault) << "\n" << text;
  Image result(image.size());
  EXPECT_FALSE(device.machine.Read(Space::kL3, memory, result.data(), result.size()));
  return result;
}

// Elements of the result's tile are equal, or as near as functions are; all other bytes are equal.
void Compare(const Image& got, const Image& expected, const NaiveTile& out, double ulps) {
  Image other = got;
  int64_t wrong = 0;
  out.ForEach([&](const Index& index) {
    const gcu_naive::Element a = Load(got, out, index), b = Load(expected, out, index);
    bool same = a.integer == b.integer;
    if (out.IsFloating()) {
      const double digits = out.type == "f32" ? 23 : out.type == "f16" ? 10 : 7;
      const double unit =
          std::ldexp(std::max(std::fabs(b.real), std::ldexp(1.0, out.type == "f16" ? -14 : -126)),
                     static_cast<int>(-digits));
      const bool equal = a.real == b.real && std::signbit(a.real) == std::signbit(b.real);
      const bool both_nan = std::isnan(a.real) && std::isnan(b.real);
      same = equal || both_nan || (ulps > 0 && std::fabs(a.real - b.real) <= ulps * unit);
    }
    wrong += same ? 0 : 1;
    if (!same && wrong == 1)
      ADD_FAILURE() << a.real << "/" << a.integer << ", expected " << b.real << "/" << b.integer;
    std::memcpy(other.data() + out.At(index), expected.data() + out.At(index), out.Bytes());
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(other == expected) << "bytes outside of the result changed";
}

struct Case {
  std::string op;
  int sources;
  bool on_floating, on_integral;
  double ulps = 0;  // of the result's type
};

const std::vector<Case> kElementwise = {
    {"v.copy", 1, true, true},     {"v.neg", 1, true, true},       {"v.abs", 1, true, true},
    {"v.not", 1, false, true},     {"v.floor", 1, true, false},    {"v.ceil", 1, true, false},
    {"v.round", 1, true, false},   {"v.trunc", 1, true, false},    {"v.recip", 1, true, false, 1},
    {"v.sqrt", 1, true, false},    {"v.rsqrt", 1, true, false, 1}, {"v.exp", 1, true, false, 4},
    {"v.log", 1, true, false, 4},  {"v.sin", 1, true, false, 4},   {"v.cos", 1, true, false, 4},
    {"v.tanh", 1, true, false, 4}, {"v.erf", 1, true, false, 4},   {"v.add", 2, true, true},
    {"v.sub", 2, true, true},      {"v.mul", 2, true, true},       {"v.div", 2, true, true},
    {"v.min", 2, true, true},      {"v.max", 2, true, true},       {"v.pow", 2, true, false, 4},
    {"v.mod", 2, true, true, 1},   {"v.and", 2, false, true},      {"v.or", 2, false, true},
    {"v.xor", 2, false, true},     {"v.eq", 2, true, true},        {"v.ne", 2, true, true},
    {"v.lt", 2, true, true},       {"v.le", 2, true, true},        {"v.fma", 3, true, true},
    {"v.sel", 3, true, true},      {"v.cvt", 1, true, true},
};

bool Compares(const std::string& op) {
  return op == "v.eq" || op == "v.ne" || op == "v.lt" || op == "v.le";
}

TEST(GcuNaiveTest, ElementwiseInstructions) {
  uint32_t seed = 0;
  for (const Case& c : kElementwise) {
    for (int round = 0; round < 40; ++round) {
      SCOPED_TRACE(c.op + " seed " + std::to_string(++seed));
      Random random(seed);
      const bool is_floating = !c.on_integral || (c.on_floating && random.Chance(60));
      const std::string type = random.Of(is_floating ? kFloating : kIntegral);
      std::string result = Compares(c.op) ? "u8" : type;
      if (c.op == "v.cvt") result = random.Of(random.Chance(50) ? kFloating : kIntegral);
      const int rank = static_cast<int>(random.Below(5));
      const Index extents = random.Extents(rank);
      std::vector<NaiveTile> tiles = {random.Tile(3, result, rank, extents, false)};
      std::string text = c.op + " t0";
      for (int i = 0; i < c.sources; ++i) {
        const bool selects = c.op == "v.sel" && i == 0;
        tiles.push_back(random.Tile(i, selects ? "u8" : type, rank, extents, true));
        text += ", t" + std::to_string(i + 1);
      }
      const Image image = random.Memory();
      Image expected = image;
      gcu_naive::Elementwise(expected, c.op, tiles[0], {tiles.begin() + 1, tiles.end()});
      Compare(Simulated(image, tiles, text), expected, tiles[0], c.ulps);
    }
  }
}

TEST(GcuNaiveTest, Reductions) {
  uint32_t seed = 1000;
  for (const std::string op : {"v.rsum", "v.rmax", "v.rmin", "v.rprod"}) {
    for (int round = 0; round < 60; ++round) {
      SCOPED_TRACE(op + " seed " + std::to_string(++seed));
      Random random(seed);
      const std::string type = random.Of(random.Chance(60) ? kFloating : kIntegral);
      const int rank = static_cast<int>(random.Below(5));
      const Index extents = random.Extents(rank, 12);
      Index kept = extents;
      for (int d = 0; d < rank; ++d) {
        if (random.Chance(50)) kept[d] = 1;
      }
      const std::vector<NaiveTile> tiles = {random.Tile(3, type, rank, kept, false),
                                            random.Tile(0, type, rank, extents, true)};
      const Image image = random.Memory();
      Image expected = image;
      gcu_naive::Reduce(expected, op, tiles[0], tiles[1]);
      Compare(Simulated(image, tiles, op + " t0, t1"), expected, tiles[0], 0);
    }
  }
}

TEST(GcuNaiveTest, LinesAlongAnAxis) {
  uint32_t seed = 2000;
  for (const std::string op : {"v.argmax", "v.argmin", "v.cumsum"}) {
    for (int round = 0; round < 60; ++round) {
      SCOPED_TRACE(op + " seed " + std::to_string(++seed));
      Random random(seed);
      const bool sums = op == "v.cumsum";
      const std::string type = sums ? (random.Chance(50) ? "f32" : "i32")
                                    : random.Of(random.Chance(60) ? kFloating : kIntegral);
      const int rank = 1 + static_cast<int>(random.Below(4)),
                axis = static_cast<int>(random.Below(rank));
      Index extents = random.Extents(rank);
      extents[axis] = std::max<int64_t>(extents[axis], 1);
      Index kept = extents;
      if (!sums) kept[axis] = 1;
      const std::vector<NaiveTile> tiles = {random.Tile(3, sums ? type : "i32", rank, kept, false),
                                            random.Tile(0, type, rank, extents, true)};
      const Image image = random.Memory();
      Image expected = image;
      sums ? gcu_naive::CumulativeSum(expected, tiles[0], tiles[1], axis)
           : gcu_naive::ArgExtreme(expected, op, tiles[0], tiles[1], axis);
      Compare(Simulated(image, tiles, op + " t0, t1, " + std::to_string(axis)), expected, tiles[0],
              0);
    }
  }
}

TEST(GcuNaiveTest, Products) {
  for (uint32_t seed = 3000; seed < 3150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::string type = random.Chance(25) ? "i8" : random.Of(kFloating);
    const int rank = 2 + static_cast<int>(random.Below(2));
    Index c = random.Extents(rank, 9), a = c, b{1, 1, 1, 1};
    b[0] = a[rank - 1] = random.Below(40);
    b[1] = c[rank - 1] = 1 + random.Below(40);
    const std::vector<NaiveTile> tiles = {
        random.Tile(3, type == "i8" ? "i32" : "f32", rank, c, false),
        random.Tile(0, type, rank, a, true), random.Tile(1, type, 2, b, true)};
    const bool adds = random.Chance(50);
    const Image image = random.Memory();
    Image expected = image;
    gcu_naive::Multiply(expected, adds, tiles[0], tiles[1], tiles[2]);
    Compare(Simulated(image, tiles, std::string(adds ? "m.acc" : "m.mul") + " t0, t1, t2"),
            expected, tiles[0], 0);
  }
}

TEST(GcuNaiveTest, FillsAndCopies) {
  for (uint32_t seed = 4000; seed < 4200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int kind = static_cast<int>(random.Below(5));
    const std::string type = kind == 1 ? (random.Chance(50) ? "i32" : "f32")
                                       : random.Of(random.Chance(50) ? kFloating : kIntegral);
    const int rank = 1 + static_cast<int>(random.Below(4)),
              axis = static_cast<int>(random.Below(rank));
    const Index extents = random.Extents(rank);
    std::vector<NaiveTile> tiles = {random.Tile(3, type, rank, extents, false)};
    Image image = random.Memory();
    Image expected;
    std::string text;
    const NaiveTile out = tiles[0];
    const auto move = [&](const Index& to, const NaiveTile& from, const Index& at) {
      std::memcpy(expected.data() + out.At(to), image.data() + from.At(at), out.Bytes());
    };
    if (kind == 0) {
      text = "li s22, 0x41424344\n  v.fill t0, s22";
      expected = image;
      out.ForEach(
          [&](const Index& to) { std::memcpy(expected.data() + out.At(to), "DCBA", out.Bytes()); });
    } else if (kind == 1) {
      text = "li s22, -3\n  v.iota t0, " + std::to_string(axis) + ", s22";
      expected = image;
      out.ForEach([&](const Index& to) {
        Store(expected, out, to, {static_cast<double>(to[axis] - 3), to[axis] - 3});
      });
    } else if (kind == 2) {
      tiles.push_back(random.Tile(0, type, rank, extents, true));
      text = "dma t0, t1, k1";
      expected = image;
      out.ForEach([&](const Index& to) { move(to, tiles[1], to); });
    } else if (kind == 3) {
      const Index source = random.Extents(rank);
      Index low{};
      tiles.push_back(random.Tile(0, type, rank, source, true));
      for (int d = 0; d < 4; ++d) {
        low[d] = random.Below(9) - 4;
        text += "li s" + std::to_string(40 + d) + ", " + std::to_string(low[d]) + "\n  ";
      }
      text += "li s44, 0x21222324\n  dma.pad t0, t1, k1, s40, s41, s42, s43, s44";
      expected = image;
      out.ForEach([&](const Index& to) {
        Index at = to;
        bool inside = true;
        for (int d = 0; d < rank; ++d) {
          at[d] -= low[d];
          inside &= at[d] >= 0 && at[d] < source[d];
        }
        if (inside) return move(to, tiles[1], at);
        std::memcpy(expected.data() + out.At(to), "$#\"!", out.Bytes());
      });
    } else {
      const bool gathers = random.Chance(50);
      Index source = extents;
      source[0] = 1 + random.Below(8);
      if (!gathers && extents[0] == 0) continue;
      tiles.push_back(random.Tile(0, type, rank, source, gathers));
      const Index count{gathers ? extents[0] : source[0], 1, 1, 1};
      const NaiveTile index{"i32", 1, kRegion, count, {1, 0, 0, 0}};
      tiles.push_back(index);
      std::vector<int32_t> rows;
      for (int64_t i = 0; i < count[0]; ++i)
        rows.push_back(static_cast<int32_t>(random.Below(gathers ? source[0] : extents[0])));
      std::copy_n(reinterpret_cast<const uint8_t*>(rows.data()), rows.size() * 4,
                  image.data() + kRegion);
      text = std::string(gathers ? "dma.gather" : "dma.scatter") + " t0, t1, t2, k1";
      expected = image;
      (gathers ? out : tiles[1]).ForEach([&](const Index& at) {
        Index other = at;
        other[0] = rows[at[0]];
        gathers ? move(at, tiles[1], other) : move(other, tiles[1], at);
      });
    }
    Compare(Simulated(image, tiles, text), expected, out, 0);
  }
}

}  // namespace
}  // namespace kiln::gcu_simulator
