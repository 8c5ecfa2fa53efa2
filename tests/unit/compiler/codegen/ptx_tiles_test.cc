// Target ptx: which tiles of a product's result a block takes.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

// The rows and columns of the tiles that one of so many blocks takes, in their order.
constexpr absl::string_view kTaking = R"(
template <int kHeight>
struct Shape {
  static constexpr int kRows = kHeight, kColumns = 128, kCluster = 1;
};
template <class S>
static int Take(int rows, int columns, int block, int blocks, int most, int* taken) {
  int count = 0;
  KTiles<S> tiles(rows, columns, block);
  for (; tiles.IsAny() && count < most; tiles.Skip(blocks)) {
    const KTile tile = tiles.At();
    taken[2 * count] = tile.row;
    taken[2 * count++ + 1] = tile.column;
  }
  return count;
}
extern "C" __attribute__((visibility("default"))) int take(int height, int rows, int columns,
                                                           int block, int blocks, int most,
                                                           int* taken) {
  return height == 128   ? Take<Shape<128>>(rows, columns, block, blocks, most, taken)
         : height == 192 ? Take<Shape<192>>(rows, columns, block, blocks, most, taken)
                         : Take<Shape<512>>(rows, columns, block, blocks, most, taken);
}
)";

TEST(PtxTilesTest, BlocksTakeEachTileOnceThoseOfAFewRowsTogether) {
  const auto library = LibraryForThisMachine(kTaking);
  ASSERT_TRUE(library.ok()) << library.status();
  const absl::Cleanup close = [&] { dlclose(*library); };
  const auto take =
      reinterpret_cast<int (*)(int, int, int, int, int, int, int*)>(dlsym(*library, "take"));
  ASSERT_NE(take, nullptr);
  for (const int height : {128, 192, 512}) {
    const int group = 1024 / height;
    for (const int rows : {1, 2, 3, 5, 7, 8, 9, 16, 39, 64}) {
      for (const int columns : {1, 2, 6, 23, 86}) {
        const int tiles = rows * columns;
        for (const int most_blocks : {132, 114, 7, 1}) {
          const int blocks = std::min(tiles, most_blocks);
          SCOPED_TRACE(absl::StrCat(height, ": ", rows, " x ", columns, " by ", blocks));
          for (int block = 0; block < blocks; ++block) {
            std::vector<int> taken(2 * (tiles + 1)), wanted;
            for (int number = block; number < tiles; number += blocks) {
              const int first = number / (group * columns) * group;
              const int together = std::min(group, rows - first), rest = number - first * columns;
              wanted.push_back((first + rest % together) * height);
              wanted.push_back(rest / together * 128);
            }
            const int count = take(height, rows, columns, block, blocks, tiles + 1, taken.data());
            taken.resize(2 * count);
            ASSERT_EQ(taken, wanted);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kiln::codegen
