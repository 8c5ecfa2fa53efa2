// The simulator against the plainest reading of the specification, on random programs: scalars,
// loops and branches around tile instructions whose addresses and extents follow from them.
#include <random>
#include <set>

#include "tests/unit/client/gcu_simulator/device.h"
#include "tests/unit/client/gcu_simulator/naive_program.h"

namespace kiln::gcu_simulator {
namespace {

using gcu_naive::Image;

// L1 of a core: regions of 512 bytes, four of them sources, one the results', one where the scalars
// are left at the end.
constexpr int kRegionBytes = 512, kRegions = 6, kImageBytes = kRegions * kRegionBytes;
constexpr int kFirstScalar = 10, kScalars = 16;
constexpr int kMostDepth = 3;

class ProgramMaker {
 public:
  explicit ProgramMaker(uint32_t seed) : random_(seed) {}

  // Argument 0 is where cores have their images, one after another, of the cells one after another;
  // arguments 1 and 2 are numbers. `grid` has the cells.
  std::string Make(const std::array<uint32_t, 3>& grid) {
    Line("li s60, 0");
    // The core's image: (((z * ny) + y) * nx + x) * cores + core
    Line("li s61, " + std::to_string(grid[1]));
    Line("mul s62, s4, s61");
    Line("add s62, s62, s3");
    Line("li s61, " + std::to_string(grid[0]));
    Line("mul s62, s62, s61");
    Line("add s62, s62, s2");
    Line("mul s62, s62, s1");
    Line("add s62, s62, s0");
    Line("muli s62, s62, " + std::to_string(kImageBytes));
    Line("arg s61, 0");
    Line("add s62, s62, s61");
    Line("li s63, " + std::to_string(kImageBytes));
    Line("tile t60, l3.u8.1, s62");
    Line("dimi t60, 0, s63, 1");
    Line("tile t61, l1.u8.1, s60");
    Line("dimi t61, 0, s63, 1");
    Line("dma t61, t60, k0");
    Line("wait k0");
    Line("arg s10, 1");
    Line("arg s11, 2");
    Line("mov s12, s0");
    Line("mov s13, s2");
    for (int i = 4; i < kScalars; ++i) Line("li " + Scalar(i) + ", " + Number());
    for (int i = 0; i < 12; ++i) Statement(0);
    // Both halves of every scalar.
    Line("li s63, 2");
    Line("li s58, 4294967296");
    for (int i = 0; i < kScalars; ++i) {
      for (int half = 0; half < 2; ++half) {
        Line("li s59, " + std::to_string(5 * kRegionBytes + 8 * i + 4 * half));
        Line("tile t62, l1.i32.1, s59");
        if (half == 1) Line("div " + Scalar(i) + ", " + Scalar(i) + ", s58");
        Line("v.fill t62, " + Scalar(i));
      }
    }
    Line("dma t60, t61, k0");
    Line("waitall");
    Line("halt");
    return text_;
  }

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  bool Chance(int percent) { return Below(100) < percent; }
  void Line(const std::string& line) { text_ += "  " + line + "\n"; }
  void Label(const std::string& name) { text_ += name + ":\n"; }
  std::string NewLabel() { return "l" + std::to_string(labels_++); }
  static std::string Scalar(int64_t i) { return "s" + std::to_string(kFirstScalar + i); }
  std::string AnyScalar() { return Scalar(Below(kScalars)); }

  std::string Number() {
    switch (Below(6)) {
      case 0:
        return std::to_string(std::numeric_limits<int64_t>::max() - Below(3));
      case 1:
        return std::to_string(std::numeric_limits<int64_t>::min() + 1 + Below(3));
      case 2:
        return std::to_string(static_cast<int64_t>(random_()));
      default:
        return std::to_string(Below(40) - 20);
    }
  }

  void Statement(int depth) {
    const int64_t kind = Below(10);
    if (kind < 4 || (kind >= 8 && depth == kMostDepth)) return Arithmetic();
    if (kind < 8) return OnTiles();
    kind == 8 ? Loop(depth) : Branch(depth);
  }

  void Body(int depth) {
    for (int64_t i = 0, n = 1 + Below(3); i < n; ++i) Statement(depth + 1);
  }

  void Arithmetic() {
    const std::string to = AnyScalar();
    switch (Below(10)) {
      case 0:
        return Line("li " + to + ", " + Number());
      case 1:
        return Line("mov " + to + ", " + AnyScalar());
      case 2:
        return Line("addi " + to + ", " + AnyScalar() + ", " + Number());
      case 3:
        return Line("muli " + to + ", " + AnyScalar() + ", " + Number());
      case 4: {
        // By 0 now and then.
        std::string by = AnyScalar();
        if (!Chance(5)) {
          Line("li s50, " + std::to_string(Chance(50) ? 1 + Below(9) : -1 - Below(9)));
          by = "s50";
        }
        return Line((Chance(50) ? "div " : "mod ") + to + ", " + AnyScalar() + ", " + by);
      }
      default: {
        constexpr const char* kOps[] = {"add", "sub", "mul", "min", "max"};
        return Line(std::string(kOps[Below(5)]) + " " + to + ", " + AnyScalar() + ", " +
                    AnyScalar());
      }
    }
  }

  // 0 to 4 times; the counter may be read inside.
  void Loop(int depth) {
    const std::string counter = "s" + std::to_string(40 + depth), top = NewLabel(),
                      end = NewLabel();
    Line("li " + counter + ", " + std::to_string(Below(5)));
    Label(top);
    Line("jge s60, " + counter + ", " + end);
    Line("mov " + AnyScalar() + ", " + counter);
    Body(depth);
    Line("addi " + counter + ", " + counter + ", -1");
    Line("jmp " + top);
    Label(end);
  }

  void Branch(int depth) {
    constexpr const char* kJumps[] = {"jeq", "jne", "jlt", "jge"};
    const std::string otherwise = NewLabel(), end = NewLabel();
    Line(std::string(kJumps[Below(4)]) + " " + AnyScalar() + ", " + AnyScalar() + ", " + otherwise);
    if (Chance(4)) Line("trap " + std::to_string(Below(100)));
    Body(depth);
    Line("jmp " + end);
    Label(otherwise);
    if (Chance(60)) Body(depth);
    Label(end);
  }

  // A tile of two dimensions in a region that a scalar chooses, or in the results': at most 8 rows
  // of 8 elements, as many as two scalars say, 8 elements of the type apart.
  void DescribeTile(const std::string& tile, const std::string& type, bool is_result) {
    if (is_result) {
      Line("li s51, " + std::to_string(4 * kRegionBytes));
    } else {
      Line("li s50, 4");
      Line("mod s51, " + AnyScalar() + ", s50");
      Line("muli s51, s51, " + std::to_string(kRegionBytes));
    }
    Line("tile " + tile + ", l1." + type + ".2, s60");
    Line("at " + tile + ", s51");
    Line("dimi " + tile + ", 0, s52, 8");
    Line("li s54, 1");
    Line("dim " + tile + ", 1, s53, s54");
  }

  void OnTiles() {
    Line("li s50, 8");
    Line("mod s52, " + AnyScalar() + ", s50");
    Line("mod s53, " + AnyScalar() + ", s50");
    constexpr const char* kTypes[] = {"i32", "i8", "u8"};
    const std::string type = kTypes[Below(3)];
    const int64_t kind = Below(10);
    if (kind < 7) {
      constexpr const char* kOne[] = {"v.copy", "v.neg", "v.abs", "v.not"};
      constexpr const char* kTwo[] = {"v.add", "v.sub", "v.mul", "v.min", "v.max", "v.and",
                                      "v.or",  "v.xor", "v.div", "v.mod", "v.lt",  "v.eq"};
      const bool one = Chance(25);
      const std::string op = one ? kOne[Below(4)] : kTwo[Below(12)];
      const bool compares = op == "v.lt" || op == "v.eq";
      DescribeTile("t0", compares ? "u8" : type, true);
      DescribeTile("t1", type, false);
      if (!one) DescribeTile("t2", type, false);
      Line(op + " t0, t1" + (one ? "" : ", t2"));
    } else if (kind < 9) {
      constexpr const char* kOps[] = {"v.rsum", "v.rmax", "v.rmin", "v.rprod"};
      DescribeTile("t1", type, false);
      Line("li s53, 1");
      DescribeTile("t0", type, true);
      Line(std::string(kOps[Below(4)]) + " t0, t1");
    } else {
      // As many rows of A as of C, 8 deep, 8 columns.
      Line("li s53, 8");
      DescribeTile("t0", "i32", true);
      DescribeTile("t1", "i8", false);
      Line("li s52, 8");
      DescribeTile("t2", "i8", false);
      Line(std::string(Chance(50) ? "m.acc" : "m.mul") + " t0, t1, t2");
    }
    if (!Chance(50)) return;
    // The results become a source.
    Line("li s52, 8");
    Line("li s53, 8");
    DescribeTile("t0", type, true);
    DescribeTile("t1", type, false);
    Line("v.copy t1, t0");
  }

  std::mt19937_64 random_;
  std::string text_;
  int labels_ = 0;
};

TEST(GcuNaiveProgramTest, RandomProgramsOnAllCoresAndCells) {
  std::set<std::string> reached;
  int ends = 0, faults = 0;
  for (uint32_t seed = 0; seed < 250; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::array<uint32_t, 3> grid{};
    for (uint32_t& cells : grid) cells = 1 + static_cast<uint32_t>(random() % 2);
    const std::string text = ProgramMaker(seed).Make(grid);
    Device device;
    const int cores = device.machine.profile().cores;
    Image memory(static_cast<size_t>(kImageBytes) * grid[0] * grid[1] * grid[2] *
                 static_cast<size_t>(cores));
    for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random());
    const uint64_t address = device.Put(memory);
    const std::vector<uint64_t> arguments = {address, random() % 9, ~uint64_t{random()}};
    const auto fault = device.Run(text, arguments, grid);

    gcu_naive::Program program(text);
    std::set<std::string> expected;  // what stops a core
    for (uint32_t z = 0; z < grid[2]; ++z) {
      for (uint32_t y = 0; y < grid[1]; ++y) {
        for (uint32_t x = 0; x < grid[0]; ++x) {
          for (int core = 0; core < cores; ++core) {
            const std::string stop = program.Run({core, cores, {x, y, z, 0}}, arguments, address,
                                                 memory, static_cast<size_t>(kImageBytes));
            if (!stop.empty()) expected.insert(stop);
          }
        }
      }
    }
    reached.insert(program.executed().begin(), program.executed().end());
    if (!expected.empty()) {
      ++faults;
      ASSERT_TRUE(fault) << "expected " << *expected.begin() << "\n" << text;
      bool is_one = false;
      for (const std::string& stop : expected) {
        is_one = is_one || fault->text.find(": " + stop) != std::string::npos;
      }
      ASSERT_TRUE(is_one) << fault->text << ", expected " << *expected.begin();
      continue;
    }
    ++ends;
    ASSERT_FALSE(fault) << TextOf(fault) << "\n" << text;
    const auto got = device.Get<uint8_t>(address, memory.size());
    const auto differ = std::mismatch(got.begin(), got.end(), memory.begin());
    ASSERT_TRUE(differ.first == got.end())
        << "byte " << (differ.first - got.begin()) % kImageBytes << " of image "
        << (differ.first - got.begin()) / kImageBytes << "\n"
        << text;
  }
  EXPECT_GT(ends, 100);
  EXPECT_GT(faults, 10);
  for (const char* op :
       {"li",   "mov",  "add", "sub", "mul",   "div",   "mod",    "min",  "max",  "addi",
        "muli", "arg",  "jmp", "jeq", "jne",   "jlt",   "jge",    "halt", "trap", "tile",
        "dim",  "dimi", "at",  "dma", "m.mul", "m.acc", "v.rsum", "v.not"}) {
    EXPECT_TRUE(reached.contains(op)) << op;
  }
}

}  // namespace
}  // namespace kiln::gcu_simulator
