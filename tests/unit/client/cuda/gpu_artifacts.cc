#include "tests/unit/client/cuda/gpu_artifacts.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {
namespace {

struct TestKernel {
  const char* name;
  int buffers;               // the last is written
  int scratch_elements;      // for each of n
  const char* body;          // of element %r0 at offset %rd9; buffers at %rd0, ..., then n at %rd8
  bool reads_early = false;  // its second buffer
  bool adds = false;         // to its last buffer, which is zero before
};

constexpr TestKernel kKernels[] = {
    {"test_add", 3, 0,
     "ld.f32 %f0, [%rd0]; ld.f32 %f1, [%rd1]; add.f32 %f0, %f0, %f1; st.f32 [%rd2], %f0;"},
    {"test_add_early", 3, 0, "trap;", true},
    {"test_double_through_scratch", 2, 1,
     "ld.f32 %f0, [%rd0]; add.f32 %f0, %f0, %f0; add.u64 %rd6, %rd6, %rd9; st.f32 [%rd6], %f0;\n"
     "  ld.f32 %f1, [%rd6]; st.f32 [%rd1], %f1;"},
    {"test_positive", 2, 0,
     "ld.f32 %f0, [%rd0]; st.f32 [%rd1], %f0; setp.lt.f32 %p0, %f0, 0f00000000;\n"
     "  mov.u32 %r1, 1; @%p0 st.u32 [%rd7], %r1;"},
    {"test_fault", 2, 0, "trap;"},
    {"test_add_to", 2, 0, "trap;", false, true},
};

std::string Ptx(const TestKernel& kernel) {
  std::vector<std::string> parameters, loads;
  const auto add = [&](const std::string& name, int into) {
    parameters.push_back(absl::StrCat(".param .u64 ", name));
    loads.push_back(absl::StrCat("  ld.param.u64 %rd", into, ", [", name, "];\n"));
  };
  for (int i = 0; i < kernel.buffers; ++i) add(absl::StrCat("b", i), i);
  add("n", 8);
  add("scratch", 6);
  add("error", 7);
  std::string out = absl::StrCat("// ", kernel.name,
                                 "\n.version 8.0\n.target sm_80\n.address_size 64\n"
                                 ".visible .entry ",
                                 kernel.name, "(", absl::StrJoin(parameters, ", "), ")\n{\n",
                                 "  .reg .u64 %rd<10>;\n  .reg .u32 %r<2>;\n"
                                 "  .reg .f32 %f<2>;\n  .reg .pred %p<1>;\n",
                                 absl::StrJoin(loads, ""), "  mov.u32 %r0, %ctaid.x;\n",
                                 "  mul.wide.u32 %rd9, %r0, 4;\n");
  for (int i = 0; i < kernel.buffers; ++i) {
    absl::StrAppend(&out, "  add.u64 %rd", i, ", %rd", i, ", %rd9;\n");
  }
  return absl::StrCat(out, "  ", kernel.body, "\n  ret;\n}\n");
}

// n times the factor, n being the launch's first symbol.
std::string Times(int factor) {
  return absl::StrCat(
      "{ expr { kind: KIND_MUL operands { kind: KIND_SYMBOL symbol: 0 } operands { ",
      "kind: KIND_CONSTANT constant: ", factor, " } } }");
}

std::string Interface(const TestKernel& kernel) {
  std::string out;
  for (int i = 0; i < kernel.buffers; ++i) {
    absl::StrAppend(&out, "buffers { bytes ", Times(4), " dtype: DTYPE_FLOAT32 ",
                    i + 1 < kernel.buffers ? "read" : "written", ": true } ");
  }
  absl::StrAppend(&out, "sizes { min: 1 max: 1000000 } ");
  if (kernel.reads_early) absl::StrAppend(&out, "waits: true read_early: 1 ");
  if (kernel.adds) absl::StrAppend(&out, "waits: true zeroed: ", kernel.buffers - 1, " ");
  if (kernel.scratch_elements > 0) {
    absl::StrAppend(&out, "scratch_bytes ", Times(4 * kernel.scratch_elements), " ");
  }
  return absl::StrCat(out, "grid { blocks ", Times(1), " threads { value: 1 } }");
}

}  // namespace

std::string TestArchive() {
  std::string head = "// kiln kernels 1\n", modules;
  for (const TestKernel& kernel : kKernels) {
    const std::string ptx = Ptx(kernel);
    absl::StrAppend(&head, "// kernel ", kernel.name, " ", modules.size(), " ", ptx.size(),
                    "\n// interface ", Interface(kernel), "\n");
    modules += ptx;
  }
  return absl::StrCat(head, "\n", modules);
}

v1::Artifact OnGpu(v1::Artifact artifact) {
  artifact.mutable_header()->set_target(v1::TARGET_PTX);
  artifact.mutable_header()->set_arch("sm_80");
  artifact.clear_binary();
  v1::Binary& binary = *artifact.add_binaries();
  binary.set_number(1);
  binary.set_kind(v1::BINARY_KIND_PTX);
  binary.set_data(TestArchive());
  for (v1::Step& step : *artifact.mutable_program()->mutable_steps()) {
    if (!step.has_launch()) continue;
    v1::LaunchStep& launch = *step.mutable_launch();
    launch.set_binary(1);
    *launch.mutable_grid()->add_blocks() = launch.symbols(0);
    *launch.mutable_grid()->add_threads() = Size(1);
  }
  return artifact;
}

}  // namespace kiln::testing
