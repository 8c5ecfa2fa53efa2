// The kernels of a program for a GPU or GCU, as its artifact holds them.
//
// An archive is text up to the first empty line:
//   // kiln kernels 1
//   // kernel NAME OFFSET SIZE
//   // interface TEXT                 KernelInterface in protobuf's text format; a pair a kernel
// and then the bytes of all modules. OFFSET counts from the byte after the empty line. A module is
// PTX, not zero-terminated, a cubin or a GCU's binary, and defines the entry NAME.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class KernelInterface;
class Program;
}  // namespace v1
}  // namespace kiln

namespace kiln::runtime {

struct Kernel;

struct ArchivedKernel {
  std::string name;
  absl::string_view interface_text;
  std::shared_ptr<const v1::KernelInterface> interface;
  absl::string_view module;
};

// Immutable.
class Archive {
 public:
  // DATA_LOSS with the line for what is no archive: modules outside of it, one over another, names
  // that are none or there twice, interfaces that do not parse.
  static absl::StatusOr<std::unique_ptr<const Archive>> Parse(std::string data);
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  const std::vector<ArchivedKernel>& kernels() const { return kernels_; }

 private:
  explicit Archive(std::string data) : data_(std::move(data)) {}

  const std::string data_;  // what the kernels' texts view
  std::vector<ArchivedKernel> kernels_;
};

// The kernel of each launch step, in order; DATA_LOSS for one that the archive lacks.
absl::StatusOr<std::vector<Kernel>> FindKernels(const v1::Program& program, const Archive& archive);

// DATA_LOSS unless both hold the same kernels with the same interfaces, in one order.
absl::Status CheckAlike(const Archive& a, const Archive& b);

}  // namespace kiln::runtime
