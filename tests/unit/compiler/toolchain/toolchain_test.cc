#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/toolchain/clang.h"
#include "compiler/toolchain/lld.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/toolchain/loaded_object.h"

namespace kiln::toolchain {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr absl::string_view kScaleSource = R"(
extern "C" void Scale(float* x, long n, float by) {
  for (long i = 0; i < n; ++i) x[i] *= by;
}
)";

constexpr absl::string_view kDotSource = R"(
extern "C" float Dot(const float* a, const float* b, long n) {
  float sum = 0;
  for (long i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
)";

const std::vector<std::string> kAvx512 = {"avx",     "avx2",     "avx512bw", "avx512dq",
                                          "avx512f", "avx512vl", "f16c",     "fma"};

absl::StatusOr<ClangOutput> Compile(const ClangJob& job) {
  return CompileCpp(Prepare(job));
}

std::string Assembly(absl::string_view source, std::string arch,
                     std::vector<std::string> features) {
  auto output = Compile({.source = source,
                         .arch = std::move(arch),
                         .features = std::move(features),
                         .want_assembly = true});
  EXPECT_TRUE(output.ok()) << output.status();
  return output.ok() ? output->assembly : "";
}

TEST(CompileCpp, MakesAFunctionThatLinksLoadsAndRuns) {
  auto output = Compile({.source = kScaleSource, .arch = "x86-64"});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->assembly, "");
  auto shared_object = LinkSharedObject({output->object});
  ASSERT_TRUE(shared_object.ok()) << shared_object.status();
  LoadedObject loaded(*shared_object);
  ASSERT_TRUE(loaded.ok()) << loaded.error();
  auto* scale = loaded.Get<void(float*, long, float)>("Scale");
  ASSERT_NE(scale, nullptr);
  std::vector<float> x(37);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  scale(x.data(), static_cast<long>(x.size()), 3.0f);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], 3.0f * static_cast<float>(i));
}

TEST(CompileCpp, TellsWhereBadSourceIsWrong) {
  auto output = Compile({.source = "int f() {\n  return missing_name;\n}\n", .arch = "x86-64"});
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(output.status().message(), HasSubstr("kernel.cc:2:10: error:"));
  EXPECT_THAT(output.status().message(), HasSubstr("missing_name"));
}

TEST(CompileCpp, BoundsWhatItSaysAboutVeryBadSource) {
  std::string source;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&source, "int v", i, " = missing", i, ";\n");
  auto output = Compile({.source = source, .arch = "x86-64"});
  ASSERT_FALSE(output.ok());
  EXPECT_LT(output.status().message().size(), 5000u);
  EXPECT_THAT(output.status().message(), HasSubstr("missing9"));
  EXPECT_THAT(output.status().message(), Not(HasSubstr("missing10")));
}

TEST(CompileCpp, SeesNoFilesOfTheServer) {
  for (const char* include : {"<stdio.h>", "<stddef.h>", "<immintrin.h>", "\"/etc/passwd\""}) {
    auto output = Compile({.source = absl::StrCat("#include ", include, "\n"), .arch = "x86-64"});
    ASSERT_FALSE(output.ok()) << include;
    EXPECT_THAT(output.status().message(), HasSubstr("file not found"));
  }
}

TEST(CompileCpp, UsesTheVectorRegistersOfTheClientOnly) {
  const std::string baseline = Assembly(kScaleSource, "x86-64", {});
  EXPECT_THAT(baseline, HasSubstr("xmm"));
  EXPECT_THAT(baseline, Not(AnyOf(HasSubstr("ymm"), HasSubstr("zmm"))));

  const std::string avx2 = Assembly(kScaleSource, "haswell", {"avx", "avx2", "fma"});
  EXPECT_THAT(avx2, HasSubstr("ymm"));
  EXPECT_THAT(avx2, Not(HasSubstr("zmm")));

  EXPECT_THAT(Assembly(kScaleSource, "znver4", kAvx512), HasSubstr("zmm"));
}

TEST(CompileCpp, LeavesOutWhatTheArchitectureHasButTheClientLacks) {
  const std::string masked = Assembly(kScaleSource, "znver4", {"avx", "avx2", "fma"});
  EXPECT_THAT(masked, HasSubstr("ymm"));
  EXPECT_THAT(masked, Not(HasSubstr("zmm")));
  EXPECT_THAT(Assembly(kScaleSource, "znver4", {}), Not(HasSubstr("ymm")));
}

TEST(CompileCpp, TakesFeaturesBeyondTheArchitecture) {
  EXPECT_THAT(Assembly(kScaleSource, "x86-64", kAvx512), HasSubstr("zmm"));
}

TEST(CompileCpp, FallsBackToBaselineForAnUnknownArchitecture) {
  EXPECT_EQ(Assembly(kScaleSource, "znver99", {}), Assembly(kScaleSource, "x86-64", {}));
  EXPECT_EQ(Assembly(kScaleSource, "native", {}), Assembly(kScaleSource, "x86-64", {}));
  EXPECT_EQ(Assembly(kScaleSource, "i386", {}), Assembly(kScaleSource, "x86-64", {}));
  EXPECT_EQ(Assembly(kScaleSource, "", {}), Assembly(kScaleSource, "x86-64", {}));
}

TEST(CompileCpp, IgnoresFeaturesThatItDoesNotKnow) {
  EXPECT_EQ(Assembly(kScaleSource, "x86-64", {"avx4096", "16bit-mode", "", "-sse2"}),
            Assembly(kScaleSource, "x86-64", {}));
}

TEST(CompileCpp, ReassociatesOnlyWithFastMath) {
  ClangJob job{.source = kDotSource, .arch = "znver4", .features = kAvx512, .want_assembly = true};
  auto strict = Compile(job);
  ASSERT_TRUE(strict.ok()) << strict.status();
  EXPECT_THAT(strict->assembly, Not(HasSubstr("vfmadd231ps")));
  job.fast_math = true;
  auto fast = Compile(job);
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_THAT(fast->assembly, HasSubstr("vfmadd231ps"));
}

TEST(CompileCpp, KeepsNanAndInfinityUnderFastMath) {
  auto output = Compile({.source = "extern \"C\" int IsNan(float x) { return x != x; }",
                         .arch = "x86-64",
                         .fast_math = true});
  ASSERT_TRUE(output.ok()) << output.status();
  auto shared_object = LinkSharedObject({output->object});
  ASSERT_TRUE(shared_object.ok()) << shared_object.status();
  LoadedObject loaded(*shared_object);
  ASSERT_TRUE(loaded.ok()) << loaded.error();
  EXPECT_EQ(loaded.Get<int(float)>("IsNan")(__builtin_nanf("")), 1);
}

TEST(CompileCpp, WritesNoUnwindTables) {
  auto output = Compile({.source = kScaleSource, .arch = "x86-64", .want_assembly = true});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_THAT(output->object, Not(HasSubstr("_frame")));  // .eh_frame, .debug_frame
  EXPECT_THAT(output->object, Not(HasSubstr(".debug")));
  EXPECT_THAT(output->assembly, Not(HasSubstr(".cfi_")));
}

TEST(CompileCpp, GivesTheSameBytesAgain) {
  const ClangJob job{.source = kDotSource, .arch = "znver4", .features = kAvx512};
  auto first = Compile(job);
  auto second = Compile(job);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->object, second->object);
  EXPECT_EQ(*LinkSharedObject({first->object}), *LinkSharedObject({second->object}));
}

// A prelude with what generated kernels rely on: templates, macros, tables, pragmas.
constexpr absl::string_view kPrelude = R"(
#pragma clang fp contract(off)
#define TWICE(x) ((x) + (x))
template <class T, int W>
using Vec = T __attribute__((ext_vector_type(W)));
static const float kTable[4] = {1, 2, 3, 4};
template <int W>
static inline Vec<float, W> AddTable(Vec<float, W> x, int i) { return x + kTable[i & 3]; }
)";
const Prelude& TestPrelude() {
  static const auto* const prelude = new Prelude(kPrelude);
  return *prelude;
}

constexpr absl::string_view kPreludeUser = R"(
extern "C" void Kernel(float* x, int i) {
  Vec<float, 16>& v = *(Vec<float, 16>*)x;
  v = TWICE(v) * v + AddTable(v, i);
}
)";

// Less the directives that say which file and line it comes from.
std::string WithoutPlaces(absl::string_view assembly) {
  std::string kept;
  for (absl::string_view line : absl::StrSplit(assembly, '\n')) {
    const bool place = absl::StartsWith(line, "\t.loc\t") || absl::StartsWith(line, "\t.file\t") ||
                       absl::StartsWith(line, ".Ltmp");
    if (!place) absl::StrAppend(&kept, line, "\n");
  }
  return kept;
}

TEST(CompileCpp, GivesTheSameCodeWithAPrecompiledPrelude) {
  const std::string source = absl::StrCat(kPrelude, kPreludeUser);
  ClangJob job{.source = source, .arch = "znver4", .features = kAvx512, .want_assembly = true};
  auto whole = Compile(job);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(whole->assembly, Not(HasSubstr("vfmadd"))) << "the pragma";
  job.prelude = &TestPrelude();
  job.source = kPreludeUser;
  auto first = Compile(job);
  auto second = Compile(job);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(WithoutPlaces(first->assembly), WithoutPlaces(whole->assembly));
  EXPECT_EQ(first->object, whole->object);
  EXPECT_EQ(second->object, whole->object);
}

TEST(CompileCpp, TheAssemblySaysWhichLineOfTheWholeSourceItIs) {
  const std::string whole = absl::StrCat(kPrelude, kPreludeUser);
  for (const Prelude* prelude : {static_cast<const Prelude*>(nullptr), &TestPrelude()}) {
    auto output = Compile({.prelude = prelude,
                           .source = prelude == nullptr ? whole : kPreludeUser,
                           .arch = "znver4",
                           .features = kAvx512,
                           .want_assembly = true});
    ASSERT_TRUE(output.ok()) << output.status();
    const absl::string_view before = absl::string_view(whole).substr(0, whole.find("  v = T"));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    EXPECT_THAT(output->assembly, HasSubstr(absl::StrCat("\t.loc\t1 ", line, " ")));
  }
}

TEST(CompileCpp, KeepsPreludesOfDifferentClientsApart) {
  for (int round = 0; round < 2; ++round) {
    auto wide = Compile({.prelude = &TestPrelude(),
                         .source = kPreludeUser,
                         .arch = "znver4",
                         .features = kAvx512,
                         .want_assembly = true});
    auto narrow = Compile({.prelude = &TestPrelude(),
                           .source = kPreludeUser,
                           .arch = "x86-64",
                           .want_assembly = true});
    ASSERT_TRUE(wide.ok() && narrow.ok()) << wide.status() << narrow.status();
    EXPECT_THAT(wide->assembly, HasSubstr("zmm"));
    EXPECT_THAT(narrow->assembly, Not(HasSubstr("ymm")));
  }
}

TEST(CompileCpp, TellsWhereTheSourceAfterAPreludeIsWrong) {
  const absl::string_view bad = "int f() { return missing_name; }\n";
  auto kernel = Compile({.prelude = &TestPrelude(), .source = bad, .arch = "x86-64"});
  ASSERT_FALSE(kernel.ok());
  EXPECT_THAT(kernel.status().message(), HasSubstr("kernel.cc:1:18: error:"));

  const Prelude bad_prelude(bad);
  auto prelude = Compile({.prelude = &bad_prelude, .arch = "x86-64"});
  ASSERT_FALSE(prelude.ok());
  EXPECT_THAT(prelude.status().message(), HasSubstr("missing_name"));

  auto use = Compile({.prelude = &TestPrelude(),
                      .source = "auto x = AddTable(Vec<int, 4>(1), 0);\n",
                      .arch = "x86-64"});
  ASSERT_FALSE(use.ok());
  EXPECT_THAT(use.status().message(), HasSubstr("AddTable"));
}

TEST(CompileCpp, RunsOnTenThreadsAtOnce) {
  constexpr int kThreads = 10;
  std::vector<std::string> shared_objects(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &shared_objects] {
      const std::string source =
          absl::StrCat("extern \"C\" int Number() { return ", 100 + t, "; }");
      auto output = Compile({.prelude = &TestPrelude(), .source = source, .arch = "skylake"});
      if (!output.ok()) return;
      auto linked = LinkSharedObject({output->object});
      if (linked.ok()) shared_objects[t] = *std::move(linked);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    LoadedObject loaded(shared_objects[t]);
    ASSERT_TRUE(loaded.ok()) << loaded.error();
    EXPECT_EQ(loaded.Get<int()>("Number")(), 100 + t);
  }
}

Digest KeyOf(const ClangJob& job) {
  return KeyOf(Prepare(job));
}

// The job that the tests of keys start from.
ClangJob KeyedJob() {
  return {.source = kDotSource, .arch = "znver4", .features = {"avx", "avx2", "fma"}};
}

TEST(KeyOf, FollowsEveryPartOfTheInvocation) {
  ClangJob job = KeyedJob();
  job.prelude = &TestPrelude();
  job.source = kPreludeUser;
  job.want_assembly = true;
  const ClangInvocation invocation = Prepare(job);
  ASSERT_GT(invocation.object_arguments.size(), 20u);
  std::set<Digest> keys = {KeyOf(invocation)};
  size_t changes = 0;
  auto expect_another = [&](const ClangInvocation& changed, const std::string& what) {
    ++changes;
    EXPECT_TRUE(keys.insert(KeyOf(changed)).second) << what;
  };
  // Any argument, as a change of clang.cc or of its list of vector extensions makes them.
  for (size_t i = 0; i < invocation.object_arguments.size(); ++i) {
    ClangInvocation changed = invocation;
    changed.object_arguments[i] += "x";
    expect_another(changed, invocation.object_arguments[i]);
    changed = invocation;
    changed.object_arguments.erase(changed.object_arguments.begin() + static_cast<ptrdiff_t>(i));
    expect_another(changed, absl::StrCat("without ", invocation.object_arguments[i], " ", i));
  }
  ClangInvocation changed = invocation;
  changed.object_arguments.push_back("-mno-red-zone");
  expect_another(changed, "one more argument");
  changed = invocation;
  changed.assembly_arguments.back() += "x";
  expect_another(changed, "an argument of the assembly");
  changed = invocation;
  changed.assembly_arguments.clear();
  expect_another(changed, "no assembly");
  changed = invocation;
  changed.source = kScaleSource;
  expect_another(changed, "the source");
  changed = invocation;
  changed.prelude = nullptr;
  expect_another(changed, "no prelude");
  const Prelude another(kScaleSource);
  changed.prelude = &another;
  expect_another(changed, "another prelude");
  EXPECT_EQ(keys.size(), changes + 1);
}

TEST(KeyOf, DiffersWhereTheJobReachesClangAndOnlyThere) {
  const Digest key = KeyOf(KeyedJob());
  auto with = [](auto change) {
    ClangJob job = KeyedJob();
    change(job);
    return KeyOf(job);
  };
  EXPECT_EQ(with([](ClangJob&) {}), key);
  EXPECT_NE(with([](ClangJob& job) { job.source = kScaleSource; }), key);
  EXPECT_NE(with([](ClangJob& job) { job.prelude = &TestPrelude(); }), key);
  EXPECT_NE(with([](ClangJob& job) { job.arch = "znver3"; }), key);
  EXPECT_NE(with([](ClangJob& job) { job.features.push_back("avx512f"); }), key);
  EXPECT_NE(with([](ClangJob& job) { job.features.pop_back(); }), key);
  EXPECT_NE(with([](ClangJob& job) { job.optimization_level = 2; }), key);
  EXPECT_NE(with([](ClangJob& job) { job.fast_math = true; }), key);
  EXPECT_NE(with([](ClangJob& job) { job.want_assembly = true; }), key);
  // What Clang does not know does not reach it.
  EXPECT_EQ(with([](ClangJob& job) { job.features.push_back("avx4096"); }), key);
  auto unknown = [&](const char* arch) { return with([arch](ClangJob& job) { job.arch = arch; }); };
  EXPECT_EQ(unknown("znver99"), unknown("x86-64"));
  EXPECT_EQ(unknown("native"), unknown("x86-64"));
}

TEST(PrecompilePrelude, ServesLaterCompilesAndSaysWhatIsWrong) {
  ClangJob job{.prelude = &TestPrelude(), .source = kPreludeUser, .arch = "znver4"};
  ASSERT_TRUE(PrecompilePrelude(Prepare(job)).ok());
  auto prepared = Compile(job);
  const std::string source = absl::StrCat(kPrelude, kPreludeUser);
  job.prelude = nullptr;
  job.source = source;
  auto whole = Compile(job);
  ASSERT_TRUE(prepared.ok() && whole.ok()) << prepared.status() << whole.status();
  EXPECT_EQ(prepared->object, whole->object);
  const Prelude bad("int f() { return missing_name; }\n");
  job.prelude = &bad;
  EXPECT_THAT(PrecompilePrelude(Prepare(job)).message(), HasSubstr("missing_name"));
}

TEST(LinkSharedObject, JoinsObjectsAndLeavesLibmToTheProcess) {
  auto one = Compile({.source = "extern \"C\" double exp(double);\n"
                                "extern \"C\" double Inner(double x) { return exp(x) + 1; }\n",
                      .arch = "x86-64"});
  auto two = Compile({.source = "extern \"C\" double Inner(double);\n"
                                "extern \"C\" double Outer(double x) { return Inner(x) * 2; }\n",
                      .arch = "x86-64"});
  ASSERT_TRUE(one.ok() && two.ok());
  auto shared_object = LinkSharedObject({one->object, two->object});
  ASSERT_TRUE(shared_object.ok()) << shared_object.status();
  LoadedObject loaded(*shared_object);
  ASSERT_TRUE(loaded.ok()) << loaded.error();
  EXPECT_EQ(loaded.Get<double(double)>("Outer")(0.0), 4.0);
}

TEST(LinkSharedObject, TakesOutputLargerThanAPipe) {
  auto output = Compile(
      {.source = "extern \"C\" { extern const char table[1 << 20] = {1}; }", .arch = "x86-64"});
  ASSERT_TRUE(output.ok()) << output.status();
  auto shared_object = LinkSharedObject({output->object});
  ASSERT_TRUE(shared_object.ok()) << shared_object.status();
  EXPECT_GT(shared_object->size(), 1u << 20);
}

TEST(LinkSharedObject, ReportsBadObjectsAndGoesOn) {
  auto output = Compile({.source = kScaleSource, .arch = "x86-64"});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_FALSE(LinkSharedObject({}).ok());
  auto garbage = LinkSharedObject({"this is no object"});
  ASSERT_FALSE(garbage.ok());
  EXPECT_EQ(garbage.status().code(), absl::StatusCode::kInternal);
  auto twice = LinkSharedObject({output->object, output->object});
  ASSERT_FALSE(twice.ok());
  EXPECT_THAT(twice.status().message(), HasSubstr("duplicate symbol: Scale"));
  EXPECT_TRUE(LinkSharedObject({output->object}).ok());
}

// In a process of its own: lld may be unusable afterwards, which later calls must then say.
TEST(LinkSharedObject, SurvivesDamagedObjects) {
  auto output = Compile({.source = kScaleSource, .arch = "x86-64"});
  ASSERT_TRUE(output.ok()) << output.status();
  const std::string good = output->object;
  const auto link_damaged = [&good] {
    bool sensible = true;
    for (size_t keep = 20; keep < good.size(); keep += 97) {
      sensible &= !LinkSharedObject({good.substr(0, keep)}).ok();
    }
    auto after = LinkSharedObject({good});
    sensible &= after.ok() || absl::StrContains(after.status().message(), "beyond recovery");
    std::_Exit(sensible ? 0 : 1);
  };
  EXPECT_EXIT(link_damaged(), ::testing::ExitedWithCode(0), "");
}

TEST(ToolchainVersion, NamesBothTools) {
  EXPECT_THAT(ToolchainVersion(),
              MatchesRegex("clang [0-9]+\\.[0-9]+\\.[0-9]+, lld [0-9]+\\.[0-9]+\\.[0-9]+"));
}

// Not a gate: prints what a compile costs, for people who watch it.
TEST(CompileCpp, PrintsItsTimes) {
  using Clock = std::chrono::steady_clock;
  const auto milliseconds = [](Clock::time_point since) {
    return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
  };
  for (int run = 0; run < 4; ++run) {
    const auto start = Clock::now();
    auto output = Compile({.source = kScaleSource, .arch = "znver4", .features = kAvx512});
    const double compile_ms = milliseconds(start);
    ASSERT_TRUE(output.ok()) << output.status();
    const auto link_start = Clock::now();
    ASSERT_TRUE(LinkSharedObject({output->object}).ok());
    std::printf("compile %.2f ms, link %.2f ms\n", compile_ms, milliseconds(link_start));
  }
}

}  // namespace
}  // namespace kiln::toolchain
