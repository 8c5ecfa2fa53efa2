// Programs with launches on a GCU, over kernels in text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kiln/client.h"
#include "kiln/v1/artifact.pb.h"
#include "tests/unit/client/gcu/watched_runtime.h"

namespace kiln::testing {

struct GcuKernel {
  std::string name;
  std::string text;       // of the assembler
  std::string interface;  // KernelInterface in protobuf's text format
};

// Over n f32 elements, n being the launch's one symbol, at most 512; core 0 does it all.
//   gcu_add(a, b, out)               out = a + b
//   gcu_double_half(x, out)          out = 2 x in the first n / 2 elements, and leaves the others
//   gcu_pick(table, index, out)      out[i] = table[index[i]]; indices are whole f32 numbers
//   gcu_increment_column(x)          x += 1 in n elements of stride 2
std::vector<GcuKernel> GcuKernels();

std::string GcuArchive(const std::vector<GcuKernel>& kernels);

// `artifact` for a gcu-16m with those kernels as binary 1; its launches of gcu_* are of that one.
v1::Artifact OnGcu(v1::Artifact artifact, const std::vector<GcuKernel>& kernels = GcuKernels());

// A program over n f32 elements, made a buffer and a step at a time. Its first buffers are its
// inputs "x0", "x1", ...
class Made {
 public:
  Made(int64_t n, int inputs);

  v1::Program& program() { return *artifact_.mutable_program(); }
  uint32_t Buffer(v1::Buffer::Kind kind, int64_t index = 0);
  // In one of four places of the workspace.
  uint32_t Workspace(int place);
  void Launch(const std::string& kernel, std::vector<uint32_t> buffers);
  // `count` elements from `first` on.
  void CopyPart(uint32_t from, uint32_t to, int64_t first, int64_t count);
  void Output(uint32_t buffer);
  v1::Artifact OnGcu() const { return testing::OnGcu(artifact_); }

 private:
  const int64_t n_;
  v1::Artifact artifact_;
};

using Values = std::vector<float>;

Values Iota(int64_t n, float first);

// An EXPECT fails, and null, where it cannot be loaded.
std::shared_ptr<const Program> LoadGcu(const v1::Artifact& artifact);

// Runs on vectors, which updates write to; gives the elements of each output that is a tensor.
absl::StatusOr<std::vector<Values>> RunOn(const Program& program,
                                          const std::vector<Values*>& inputs,
                                          const kiln_run_options* options = nullptr);

// The watch of the library that this process has as its GCU's, once WatchGcu was called, which must
// come before anything uses a GCU.
void WatchGcu();
GcuWatch ReadGcuWatch();
void ResetGcuWatch(int64_t fails_at = -1, int code = 0);
void DropGcuWaits(bool drop);

}  // namespace kiln::testing
