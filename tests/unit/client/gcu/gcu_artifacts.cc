#include "tests/unit/client/gcu/gcu_artifacts.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/toolchain/gcu/assembly.h"
#include "compiler/toolchain/gcu/binary.h"
#include "proto/base/device_cpu.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {
namespace {

struct Argument {
  const char* name;
  const char* access;  // "read", "write" or "readwrite"
  int stride;
};

constexpr char kFirstLines[] = ".gcu 1\n.profile gcu-16m\n";

// bytes of n f32 elements of that stride: 4 stride n - 4 (stride - 1)
std::string Bytes(int stride) {
  return absl::StrCat(
      "bytes { expr { kind: KIND_ADD operands { kind: KIND_CONSTANT constant: ", -4 * (stride - 1),
      " } operands { kind: KIND_MUL operands { kind: KIND_CONSTANT constant: ", 4 * stride,
      " } operands { kind: KIND_SYMBOL } } } }");
}

// Core 0 has argument i in si+10, the tile of its n elements in L3 in ti, n in s20, and three tiles
// of n elements in L1, t10 to t12.
GcuKernel Kernel(const std::string& name, const std::vector<Argument>& arguments,
                 const std::string& body) {
  std::string head = absl::StrCat(kFirstLines, ".kernel ", name, "\n");
  std::string setup = "  li s30, 0\n  jne s0, s30, end\n";
  std::string interface;
  const int count = static_cast<int>(arguments.size());
  absl::StrAppend(&setup, "  arg s20, ", count, "\n");
  for (int i = 0; i < count; ++i) {
    const Argument& argument = arguments[static_cast<size_t>(i)];
    absl::StrAppend(&head, ".arg ", argument.name, " l3 ", argument.access, "\n");
    absl::StrAppend(&setup, "  arg s", 10 + i, ", ", i, "\n  tile t", i, ", l3.f32.1, s", 10 + i,
                    "\n  dimi t", i, ", 0, s20, ", argument.stride, "\n");
    absl::StrAppend(&interface, "buffers { ", Bytes(argument.stride), " dtype: DTYPE_FLOAT32 ",
                    absl::StartsWith(argument.access, "read") ? "read: true " : "",
                    absl::EndsWith(argument.access, "write") ? "written: true " : "", "} ");
  }
  absl::StrAppend(&head, ".arg n int\n.l1 6144\n.l2 0\n");
  for (int i = 0; i < 3; ++i) {
    absl::StrAppend(&setup, "  li s", 31 + i, ", ", 2048 * i, "\n  tile t", 10 + i, ", l1.f32.1, s",
                    31 + i, "\n  dimi t", 10 + i, ", 0, s20, 1\n");
  }
  absl::StrAppend(&interface, "sizes { min: 1 max: 512 }");
  return {name, absl::StrCat(head, setup, body, "end:\n  halt\n.end\n"), interface};
}

}  // namespace

std::vector<GcuKernel> GcuKernels() {
  return {
      Kernel("gcu_add", {{"a", "read", 1}, {"b", "read", 1}, {"out", "write", 1}},
             "  dma t10, t0, k0\n  dma t11, t1, k1\n  waitall\n  v.add t10, t10, t11\n"
             "  dma t2, t10, k0\n  waitall\n"),
      Kernel("gcu_double_half", {{"x", "read", 1}, {"out", "write", 1}},
             "  li s22, 2\n  div s23, s20, s22\n  dimi t0, 0, s23, 1\n  dimi t1, 0, s23, 1\n"
             "  dimi t10, 0, s23, 1\n  dma t10, t0, k0\n  waitall\n  v.add t10, t10, t10\n"
             "  dma t1, t10, k0\n  waitall\n"),
      Kernel("gcu_pick", {{"table", "read", 1}, {"index", "read", 1}, {"out", "write", 1}},
             "  dma t10, t1, k0\n  waitall\n  tile t13, l1.i32.1, s32\n  dimi t13, 0, s20, 1\n"
             "  v.cvt t13, t10\n  dma.gather t12, t0, t13, k0\n  waitall\n"
             "  dma t2, t12, k0\n  waitall\n"),
      Kernel("gcu_increment_column", {{"x", "readwrite", 2}},
             "  li s22, 0x3f800000\n  dma t10, t0, k0\n  waitall\n  v.fill t11, s22\n"
             "  v.add t10, t10, t11\n  dma t0, t10, k0\n  waitall\n"),
  };
}

std::string GcuArchive(const std::vector<GcuKernel>& kernels) {
  std::string head = "// kiln kernels 1\n", modules;
  for (const GcuKernel& kernel : kernels) {
    const absl::StatusOr<gcu::Module> module = gcu::Assemble(kernel.text);
    const std::string binary = module.ok() ? *gcu::Encode(*module)
                                           : absl::StrCat("no binary: ", module.status().message());
    absl::StrAppend(&head, "// kernel ", kernel.name, " ", modules.size(), " ", binary.size(),
                    "\n// interface ", kernel.interface, "\n");
    modules += binary;
  }
  return absl::StrCat(head, "\n", modules);
}

v1::Artifact OnGcu(v1::Artifact artifact, const std::vector<GcuKernel>& kernels) {
  v1::ArtifactHeader& header = *artifact.mutable_header();
  header.set_target(v1::TARGET_GCU);
  header.set_arch("gcu-16m");
  header.add_features(HostCpuLevel());
  v1::Binary& binary = *artifact.add_binaries();
  binary.set_number(1);
  binary.set_kind(v1::BINARY_KIND_GCU);
  binary.set_data(GcuArchive(kernels));
  for (v1::Step& step : *artifact.mutable_program()->mutable_steps()) {
    if (step.has_launch() && absl::StartsWith(step.launch().kernel(), "gcu_")) {
      step.mutable_launch()->set_binary(1);
    }
  }
  return artifact;
}

Made::Made(int64_t n, int inputs) : n_(n), artifact_(EmptyArtifact()) {
  artifact_.set_binary(TestKernels());
  for (int i = 0; i < inputs; ++i) {
    AddInput(program(), absl::StrCat("x", i), Size(n));
    Buffer(v1::Buffer::KIND_INPUT, i);
  }
}

uint32_t Made::Buffer(v1::Buffer::Kind kind, int64_t index) {
  return AddBuffer(program(), kind, static_cast<uint32_t>(index), Size(n_), Size(4 * n_));
}

uint32_t Made::Workspace(int place) {
  const int64_t distance = (4 * n_ + 63) / 64 * 64;
  *program().mutable_workspace_bytes() = Size(4 * distance);
  const uint32_t buffer = Buffer(v1::Buffer::KIND_WORKSPACE);
  *program().mutable_buffers(static_cast<int>(buffer))->mutable_workspace_offset() =
      Size(place * distance);
  return buffer;
}

void Made::Launch(const std::string& kernel, std::vector<uint32_t> buffers) {
  AddLaunch(program(), kernel, std::move(buffers), Size(n_));
}

void Made::CopyPart(uint32_t from, uint32_t to, int64_t first, int64_t count) {
  v1::CopyStep& copy = *program().add_steps()->mutable_copy();
  for (v1::BufferView* view : {copy.mutable_from(), copy.mutable_to()}) {
    view->set_dtype(v1::DTYPE_FLOAT32);
    *view->add_sizes() = Size(count);
    *view->add_strides() = Size(1);
    *view->mutable_offset() = Size(first);
  }
  copy.mutable_from()->set_buffer(from);
  copy.mutable_to()->set_buffer(to);
}

void Made::Output(uint32_t buffer) {
  AddOutput(program(), buffer, Size(n_));
}

Values Iota(int64_t n, float first) {
  Values out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::shared_ptr<const Program> LoadGcu(const v1::Artifact& artifact) {
  auto program = Program::Load(ToArtifactFile(Sealed(artifact)), 2);
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? *program : nullptr;
}

absl::StatusOr<std::vector<Values>> RunOn(const Program& program,
                                          const std::vector<Values*>& inputs,
                                          const kiln_run_options* options) {
  std::vector<int64_t> sizes;
  for (const Values* input : inputs) sizes.push_back(static_cast<int64_t>(input->size()));
  std::vector<kiln_tensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    tensors.push_back(Vector(inputs[i]->data(), sizes[i]));
  }
  const auto count = static_cast<size_t>(program.artifact().program().outputs_size());
  Outputs outputs(count);
  const absl::Status status = program.Run(tensors, outputs.span(), options);
  if (!status.ok()) return status;
  std::vector<Values> results;
  for (size_t i = 0; i < count; ++i) {
    if (outputs[i].kind != KILN_TENSOR) continue;
    const auto* data = static_cast<const float*>(outputs[i].data);
    results.emplace_back(data, data + outputs[i].sizes[0]);
  }
  return results;
}

void WatchGcu() {
  setenv("KILN_LIBGCU", KILN_WATCHED_GCU, 1);
}

namespace {

template <typename Function>
Function OfWatch(const char* name) {
  static void* library = dlopen(KILN_WATCHED_GCU, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

GcuWatch ReadGcuWatch() {
  GcuWatch watch;
  OfWatch<decltype(&gcu_watch_read)>("gcu_watch_read")(&watch);
  return watch;
}

void ResetGcuWatch(int64_t fails_at, int code) {
  OfWatch<decltype(&gcu_watch_reset)>("gcu_watch_reset")(fails_at, code);
}

void DropGcuWaits(bool drop) {
  OfWatch<decltype(&gcu_watch_drop_waits)>("gcu_watch_drop_waits")(drop ? 1 : 0);
}

}  // namespace kiln::testing
