// Target ptx: attention of few queries, as in decoding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::HasSubstr;
using ::testing::Not;

struct Case {
  std::string type = "bf16";
  int batch = 2, heads = 8, groups = 4, queries = 2, width = 128;
  std::string keys = "2048";
  std::string mask;         // its type; empty: none
  bool is_of_rows = false;  // the mask differs by head and query
};

// What lowering makes of it (compiler/lowering/attention.cc).
std::string Attention(const Case& c) {
  const bool narrows = c.type == "bf16";
  const std::string at = c.is_of_rows ? "d0, d1, d2, d3" : "d0, 0, 0, d3";
  const std::string more = c.mask.empty()
                               ? "        store f32 @scores[d0, d1, d2, d3], %2\n"
                               : StrCat("        %4 = load ", c.mask, " @mask[", at, "]\n",
                                        c.mask == "bool"  ? "        %5 = select f32 %4, %2, %3\n"
                                        : c.mask == "f32" ? "        %5 = add f32 %2, %4\n"
                                                          : "        %6 = cast f32 %4\n"
                                                            "        %5 = add f32 %2, %6\n",
                                        "        store f32 @scores[d0, d1, d2, d3], %5\n");
  const std::string mask_sizes =
      c.is_of_rows ? "[BATCH,HEADS,QUERIES,KEYS] strides[HEADS*QUERIES*KEYS,QUERIES*KEYS,KEYS,1]"
                   : "[BATCH,1,1,KEYS] strides[KEYS,KEYS,KEYS,1]";
  const std::string text = StrCat(
      R"(module {
  symbol s0 [2, 100000] hint 2048
  buffer @q TYPE[BATCH,HEADS,QUERIES,WIDTH] strides[HQW,QW,WIDTH,1] input(0)
  buffer @k TYPE[BATCH,SHARED,KEYS,WIDTH] strides[SHARED*WIDTH*KEYS,WIDTH*KEYS,WIDTH,1] input(1)
  buffer @v TYPE[BATCH,SHARED,KEYS,WIDTH] strides[SHARED*WIDTH*KEYS,WIDTH*KEYS,WIDTH,1] input(2)
)",
      c.mask.empty() ? "" : StrCat("  buffer @mask ", c.mask, mask_sizes, " input(3)\n"),
      R"(  buffer @product f32[BATCH,HEADS,QUERIES,KEYS] strides[HEADS*QUERIES*KEYS,QUERIES*KEYS,KEYS,1] tile
  buffer @scores f32[BATCH,HEADS,QUERIES,KEYS] strides[HEADS*QUERIES*KEYS,QUERIES*KEYS,KEYS,1] tile
  buffer @weights )",
      narrows ? "bf16" : "f32",
      R"([BATCH,HEADS,QUERIES,KEYS] strides[HEADS*QUERIES*KEYS,QUERIES*KEYS,KEYS,1] tile
  buffer @factor f32[BATCH,HEADS,QUERIES] strides[HEADS*QUERIES,QUERIES,1] tile
  buffer @sums f32[BATCH,HEADS,QUERIES,WIDTH] strides[HQW,QW,WIDTH,1] tile
  buffer @out TYPE[BATCH,HEADS,QUERIES,WIDTH] strides[HQW,QW,WIDTH,1] output
  repeat @attention steps() {
    kernel @products (d0: BATCH, d1: HEADS, d2: QUERIES, d3: KEYS) {
      phase (r0: WIDTH) {
        %0 = load TYPE @q[d0, d1, d2, r0]
        %1 = cast f32 %0
        %2 = load TYPE @k[d0, floordiv(d1, GROUPS), d3, r0]
        %3 = cast f32 %2
        %4 = mul f32 %1, %3
        %5 = reduce.sum f32 %4
      }
      phase () {
        store f32 @product[d0, d1, d2, d3], %5
      }
    }
    kernel @score (d0: BATCH, d1: HEADS, d2: QUERIES, d3: KEYS) {
      phase () {
        %0 = load f32 @product[d0, d1, d2, d3]
        %1 = const f32 0.125
        %2 = mul f32 %0, %1
        %3 = const f32 -inf
)",
      more, R"(      }
    }
    kernel @weigh (d0: BATCH, d1: HEADS, d2: QUERIES) {
      phase (r0: KEYS) {
        %0 = load f32 @scores[d0, d1, d2, r0]
        %1 = reduce.max f32 %0
      }
)",
      c.mask.empty() ? "" : R"(      phase () {
        %2 = const f32 0
        %3 = const f32 -inf
        %4 = eq bool %1, %3
        %5 = select f32 %4, %2, %1
      }
)",
      R"(      phase (r0: KEYS) {
        %6 = load f32 @scores[d0, d1, d2, r0]
        %7 = sub f32 %6, GREATEST
        %8 = exp f32 %7
)",
      narrows ? "        %9 = cast bf16 %8\n"
                "        store bf16 @weights[d0, d1, d2, r0], %9\n"
              : "        store f32 @weights[d0, d1, d2, r0], %8\n",
      R"(        %10 = reduce.sum f32 %8
      }
      phase () {
        %11 = const f32 1
        %12 = div f32 %11, %10
        %13 = log f32 %10
        %14 = add f32 GREATEST, %13
)",
      c.mask.empty() ? "        store f32 @factor[d0, d1, d2], %12\n"
                     : R"(        %15 = eq bool %10, %2
        %16 = select f32 %15, %2, %12
        %17 = select f32 %15, %2, %14
        store f32 @factor[d0, d1, d2], %16
)",
      R"(      }
    }
    kernel @sum (d0: BATCH, d1: HEADS, d2: QUERIES, d3: WIDTH) {
      phase (r0: KEYS) {
)",
      narrows ? "        %0 = load bf16 @weights[d0, d1, d2, r0]\n"
                "        %1 = cast f32 %0\n"
              : "        %1 = load f32 @weights[d0, d1, d2, r0]\n",
      R"(        %2 = load TYPE @v[d0, floordiv(d1, GROUPS), r0, d3]
        %3 = cast f32 %2
        %4 = mul f32 %1, %3
        %5 = reduce.sum f32 %4
      }
      phase () {
        store f32 @sums[d0, d1, d2, d3], %5
      }
    }
    kernel @result (d0: BATCH, d1: HEADS, d2: QUERIES, d3: WIDTH) {
      phase () {
        %0 = load f32 @factor[d0, d1, d2]
        %1 = load f32 @sums[d0, d1, d2, d3]
        %2 = mul f32 %1, %0
        %3 = cast TYPE %2
        store TYPE @out[d0, d1, d2, d3], %3
      }
    }
  }
  output @out sizes[BATCH,HEADS,QUERIES,WIDTH] strides[HQW,QW,WIDTH,1] offset 0
}
)");
  const auto times_keys = [&](int n) {
    int64_t keys = 0;
    return absl::SimpleAtoi(c.keys, &keys) ? StrCat(n * keys) : StrCat(n, "*", c.keys);
  };
  return absl::StrReplaceAll(text, {{"TYPE", c.type},
                                    {"GREATEST", c.mask.empty() ? "%1" : "%5"},
                                    {"HQW", StrCat(c.heads * c.queries * c.width)},
                                    {"QW", StrCat(c.queries * c.width)},
                                    {"HEADS*QUERIES*KEYS", times_keys(c.heads * c.queries)},
                                    {"HEADS*QUERIES", StrCat(c.heads * c.queries)},
                                    {"QUERIES*KEYS", times_keys(c.queries)},
                                    {"SHARED*WIDTH*KEYS", times_keys(c.heads / c.groups * c.width)},
                                    {"WIDTH*KEYS", times_keys(c.width)},
                                    {"BATCH", StrCat(c.batch)},
                                    {"HEADS", StrCat(c.heads)},
                                    {"SHARED", StrCat(c.heads / c.groups)},
                                    {"GROUPS", StrCat(c.groups)},
                                    {"QUERIES", StrCat(c.queries)},
                                    {"WIDTH", StrCat(c.width)},
                                    {"KEYS", c.keys}});
}

TEST(PtxQueriesTest, AreOnTensorCoresWithoutSpills) {
  for (const int width : {64, 80, 96, 128, 256}) {
    for (const auto& [groups, queries] : {std::pair(1, 1), {4, 1}, {8, 2}, {4, 3}}) {
      for (const std::string mask : {"", "bool", "bf16"}) {
        SCOPED_TRACE(StrCat(width, " ", groups, " ", queries, " ", mask));
        const Made made = Compile(Attention({.heads = 2 * groups,
                                             .groups = groups,
                                             .queries = queries,
                                             .width = width,
                                             .mask = mask,
                                             .is_of_rows = queries == 2}));
        EXPECT_THAT(made.schedules, HasSubstr(mask.empty() ? "attend<" : "attend_masked<"));
        ASSERT_EQ(made.objects.size(), 1);
        EXPECT_THAT(made.objects[0], HasSubstr("mma.sync.aligned.m16n8k16"));
        EXPECT_THAT(made.objects[0], HasSubstr("cp.async.bulk.tensor.4d"));
        EXPECT_THAT(made.objects[0], HasSubstr("griddepcontrol.wait"));
        EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
        const EmittedKernel& kernel = made.kernels[0];
        EXPECT_TRUE(kernel.waits);
        EXPECT_EQ(kernel.read_early.size(), 2) << "nothing writes keys and values";
        EXPECT_EQ(kernel.tensor_maps.size(), 2);
        EXPECT_EQ(kernel.tensor_maps[0].box, (std::vector<int>{64, 64, 1, 1}));
        EXPECT_LE(kernel.grid.shared_bytes.value(), 227 << 10);
        Assemble(made.objects[0], "sm_90a");
      }
    }
  }
}

TEST(PtxQueriesTest, OfFloat16AndWithKeysCountedAtRunTime) {
  for (const std::string mask : {"", "bool", "f16", "f32"}) {
    const Made made = Compile(Attention({.type = "f16", .keys = "s0", .mask = mask}));
    EXPECT_THAT(made.schedules, HasSubstr("attend"));
    ASSERT_EQ(made.objects.size(), 1);
    EXPECT_THAT(made.objects[0], HasSubstr("m16n8k16.row.col.f32.f16.f16.f32"));
    EXPECT_FALSE(made.kernels[0].tensor_maps[0].sizes[1].is_const());
    Assemble(made.objects[0], "sm_90a");
  }
}

// A step before that makes the keys must be over.
TEST(PtxQueriesTest, NothingIsReadEarlyThatIsMade) {
  const std::string makes =
      "  buffer @old bf16[2,2,2048,128] strides[524288,262144,128,1] input(1)\n"
      "  kernel @make (d0: 2, d1: 2, d2: 2048, d3: 128) {\n    phase () {\n"
      "      %0 = load bf16 @old[d0, d1, d2, d3]\n      store bf16 @k[d0, d1, d2, d3], %0\n"
      "    }\n  }\n  repeat";
  const Made made = Compile(absl::StrReplaceAll(
      Attention({}), {{"262144,128,1] input(1)", "262144,128,1] temp"}, {"  repeat", makes}}));
  ASSERT_EQ(made.kernels.size(), 2);
  EXPECT_THAT(made.schedules, HasSubstr("attend<"));
  EXPECT_TRUE(made.kernels[1].read_early.empty());
  EXPECT_TRUE(made.kernels[1].waits);
}

bool IsTaken(const std::string& text, const std::string& arch = "sm_90a") {
  ir::Module module = *ir::Parse(text);
  std::vector<const ir::Kernel*> kernels;
  for (const ir::Kernel& kernel : ir::KernelsOf(module.operations.back())) {
    kernels.push_back(&kernel);
  }
  return MakePtx(arch)->TakesTogether(module, kernels, /*by_libraries=*/true);
}

TEST(PtxQueriesTest, OthersAreLeft) {
  EXPECT_TRUE(IsTaken(Attention({})));
  EXPECT_FALSE(IsTaken(Attention({}), "sm_90"));
  EXPECT_FALSE(IsTaken(Attention({.queries = 5}))) << "20 rows";
  EXPECT_FALSE(IsTaken(Attention({.width = 40})));
  EXPECT_FALSE(IsTaken(Attention({.width = 512})));
  EXPECT_FALSE(IsTaken(Attention({.type = "f32"})));
  // As measured: of a gigabyte of keys and values a library reads a little faster.
  EXPECT_TRUE(IsTaken(Attention({.batch = 32, .heads = 32, .queries = 1})));
  EXPECT_FALSE(IsTaken(Attention({.batch = 32, .heads = 32, .queries = 1, .keys = "8192"})));
  // A line of keys that is no multiple of 16 bytes.
  EXPECT_FALSE(IsTaken(absl::StrReplaceAll(
      Attention({.width = 64}), {{"@k bf16[2,2,2048,64] strides[262144,131072,64,1]",
                                  "@k bf16[2,2,2048,64] strides[270336,135168,66,1]"}})));
  // Another sum than that of weights.
  EXPECT_FALSE(
      IsTaken(absl::StrReplaceAll(Attention({}), {{"reduce.sum f32 %8", "reduce.max f32 %8"}})));
}

}  // namespace
}  // namespace kiln::codegen
