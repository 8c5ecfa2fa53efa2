#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/kernel.h"
#include "client/runtime/malformed.h"
#include "client/runtime/plan.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

class Checker {
 public:
  Checker(const v1::Program& program, absl::Span<const Kernel> kernels,
          const std::function<bool(int)>& may_write)
      : program_(program),
        kernels_(kernels),
        may_write_(may_write),
        written_(static_cast<size_t>(program.buffers_size())) {}

  absl::Status Check() {
    for (int i = 0; i < program_.buffers_size(); ++i) {
      const v1::Buffer::Kind kind = program_.buffers(i).kind();
      written_[static_cast<size_t>(i)] =
          kind == v1::Buffer::KIND_INPUT || kind == v1::Buffer::KIND_CONSTANT;
    }
    size_t launches = 0;
    for (int i = 0; i < program_.steps_size(); ++i) {
      const v1::Step& step = program_.steps(i);
      const std::string where = absl::StrCat("step ", i);
      prepares_ = i < static_cast<int>(program_.prepare_steps());
      if (step.has_launch()) {
        KILN_RETURN_IF_ERROR(CheckLaunch(where, step.launch(), *kernels_[launches].interface));
        KILN_RETURN_IF_ERROR(CheckAlternatives(where, i, launches++));
      } else if (step.has_library()) {
        // A step may fail, and the run is then done again elsewhere, from its inputs.
        if (updated_) return Malformed(where, "is a library step after an input is written");
        for (const auto& arg : step.library().args()) KILN_RETURN_IF_ERROR(ReadArg(where, arg));
        for (const auto& arg : step.library().kwargs()) {
          KILN_RETURN_IF_ERROR(ReadArg(where, arg.value()));
        }
        for (uint32_t result : step.library().results()) written_[result] = true;
      } else {
        KILN_RETURN_IF_ERROR(Read(where, step.copy().from().buffer()));
        KILN_RETURN_IF_ERROR(Write(where, step.copy().to().buffer()));
      }
    }
    for (int i = 0; i < program_.outputs_size(); ++i) {
      if (!program_.outputs(i).has_tensor()) continue;
      KILN_RETURN_IF_ERROR(Read(absl::StrCat("output ", i), program_.outputs(i).tensor().buffer()));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckLaunch(absl::string_view where, const v1::LaunchStep& launch,
                           const v1::KernelInterface& interface) {
    if (launch.buffers_size() != interface.buffers_size() ||
        launch.symbols_size() != interface.sizes_size()) {
      return Malformed(
          where, absl::StrCat("gives its kernel ", launch.buffers_size(), " buffers and ",
                              launch.symbols_size(), " sizes; expected ", interface.buffers_size(),
                              " and ", interface.sizes_size()));
    }
    if (launch.has_grid() != interface.has_grid() ||
        launch.grid().blocks_size() != interface.grid().blocks_size() ||
        launch.grid().threads_size() != interface.grid().threads_size()) {
      return Malformed(where, "launches a kernel over another grid than that wants");
    }
    if (launch.tensor_maps() != static_cast<uint32_t>(interface.tensor_maps_size())) {
      return Malformed(
          where, absl::StrCat("gives its kernel ", launch.tensor_maps(), " tensor maps; expected ",
                              interface.tensor_maps_size()));
    }
    for (const v1::KernelInterface::TensorMap& map : interface.tensor_maps()) {
      KILN_RETURN_IF_ERROR(CheckTensorMap(where, map, interface));
    }
    for (const uint32_t early : interface.read_early()) {
      if (!interface.waits() || early >= static_cast<uint32_t>(interface.buffers_size()) ||
          interface.buffers(static_cast<int>(early)).written()) {
        return Malformed(where, "launches a kernel that reads early what it cannot");
      }
    }
    if (launch.zeroed() != static_cast<uint32_t>(interface.zeroed_size())) {
      return Malformed(
          where, absl::StrCat("makes ", launch.zeroed(), " buffers of its kernel zero; expected ",
                              interface.zeroed_size()));
    }
    for (const uint32_t zeroed : interface.zeroed()) {
      if (!interface.has_grid() || zeroed >= static_cast<uint32_t>(interface.buffers_size()) ||
          !interface.buffers(static_cast<int>(zeroed)).written() ||
          interface.buffers(static_cast<int>(zeroed)).read()) {
        return Malformed(where, "launches a kernel that wants zeros where it cannot have them");
      }
    }
    for (int i = 0; i < launch.buffers_size(); ++i) {
      const v1::KernelInterface::Buffer& argument = interface.buffers(i);
      const uint32_t buffer = launch.buffers(i);
      if (program_.buffers(static_cast<int>(buffer)).dtype() != argument.dtype()) {
        return Malformed(where,
                         absl::StrCat("gives its kernel buffer ", buffer, " of another dtype"));
      }
      if (argument.read() && !argument.written()) KILN_RETURN_IF_ERROR(Read(where, buffer));
    }
    for (int i = 0; i < launch.buffers_size(); ++i) {
      if (interface.buffers(i).written()) {
        KILN_RETURN_IF_ERROR(Write(where, launch.buffers(i)));
      }
    }
    return absl::OkStatus();
  }

  // Number `launch` of the launches, which is step `i`, and those that a client may run in its
  // place: what is written must not depend on which it is.
  absl::Status CheckAlternatives(absl::string_view where, int i, size_t launch) const {
    const auto alternatives = static_cast<int>(program_.steps(i).launch().alternatives());
    const std::set<uint32_t> written = WrittenBy(i, launch);
    for (int n = 1; n <= alternatives; ++n) {
      if (WrittenBy(i + n, launch + static_cast<size_t>(n)) == written) continue;
      return Malformed(where, "has an alternative that writes other buffers");
    }
    return absl::OkStatus();
  }

  std::set<uint32_t> WrittenBy(int step, size_t launch) const {
    const auto& buffers = program_.steps(step).launch().buffers();
    const v1::KernelInterface& interface = *kernels_[launch].interface;
    std::set<uint32_t> written;
    for (int i = 0; i < std::min(buffers.size(), interface.buffers_size()); ++i) {
      if (interface.buffers(i).written()) written.insert(buffers[i]);
    }
    return written;
  }

  // What of it no size changes.
  static absl::Status CheckTensorMap(absl::string_view where,
                                     const v1::KernelInterface::TensorMap& map,
                                     const v1::KernelInterface& interface) {
    const auto bad = [&](absl::string_view what) {
      return Malformed(where, absl::StrCat("launches a kernel with a tensor map ", what));
    };
    if (map.buffer() >= static_cast<uint32_t>(interface.buffers_size())) {
      return bad("of a buffer that it does not have");
    }
    const v1::DType dtype = interface.buffers(static_cast<int>(map.buffer())).dtype();
    uint32_t swizzled = 0;  // elements of a line
    switch (dtype) {
      case v1::DTYPE_BFLOAT16:
      case v1::DTYPE_FLOAT16:
        swizzled = 64;
        break;
      case v1::DTYPE_INT8:
        swizzled = 128;
        break;
      case v1::DTYPE_FLOAT32:
      case v1::DTYPE_INT32:
        swizzled = 32;
        break;
      default:
        return bad(
            "of a buffer that has other elements than bfloat16, float16, float32, int8 or int32");
    }
    if (map.sizes_size() < 2 || map.sizes_size() > kMostMapSizes ||
        map.strides_size() != map.sizes_size() - 1 || map.box_size() != map.sizes_size()) {
      return bad(absl::StrCat("of ", map.sizes_size(), " sizes, ", map.strides_size(),
                              " strides and ", map.box_size(), " sizes of a box"));
    }
    for (int i = 0; i < map.box_size(); ++i) {
      constexpr uint32_t kMostBox = 256;
      if (i == 0 ? map.box(i) != swizzled : map.box(i) == 0 || map.box(i) > kMostBox) {
        return bad(absl::StrCat("with ", map.box(i), " elements of a box in dimension ", i));
      }
    }
    return absl::OkStatus();
  }

  // CheckProgram has bounded the depth.
  absl::Status ReadArg(absl::string_view where, const v1::LibraryStep::Arg& arg) {
    if (arg.has_tensor()) return Read(where, arg.tensor().buffer());
    for (const auto& item : arg.list().items()) KILN_RETURN_IF_ERROR(ReadArg(where, item));
    return absl::OkStatus();
  }

  absl::Status Read(absl::string_view where, uint32_t buffer) {
    if (prepares_) prepared_from_.insert(buffer);
    if (written_[buffer]) return absl::OkStatus();
    return Malformed(where, absl::StrCat("reads buffer ", buffer, " before it is written"));
  }

  absl::Status Write(absl::string_view where, uint32_t number) {
    const v1::Buffer& buffer = program_.buffers(static_cast<int>(number));
    const bool own = prepares_ ? buffer.kind() == v1::Buffer::KIND_PREPARED
                               : buffer.kind() == v1::Buffer::KIND_OUTPUT ||
                                     buffer.kind() == v1::Buffer::KIND_WORKSPACE ||
                                     (buffer.kind() == v1::Buffer::KIND_INPUT &&
                                      !prepared_from_.contains(number) &&
                                      may_write_(static_cast<int>(buffer.index())));
    if (!own) {
      return Malformed(where, absl::StrCat("writes to buffer ", number, ", which is not its own"));
    }
    written_[number] = true;
    updated_ = updated_ || buffer.kind() == v1::Buffer::KIND_INPUT;
    return absl::OkStatus();
  }

  const v1::Program& program_;
  const absl::Span<const Kernel> kernels_;
  const std::function<bool(int)>& may_write_;
  std::vector<bool> written_;                    // by buffer: holds data at this point of the steps
  bool updated_ = false;                         // some input was written
  bool prepares_ = false;                        // the step at hand is one of the prepare part
  absl::flat_hash_set<uint32_t> prepared_from_;  // buffers that those read
};

}  // namespace

absl::StatusOr<std::shared_ptr<const v1::KernelInterface>> ParseInterface(absl::string_view text) {
  google::protobuf::TextFormat::Parser parser;
  class Quiet : public google::protobuf::io::ErrorCollector {
    void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
  } quiet;
  parser.RecordErrorsTo(&quiet);
  parser.AllowUnknownField(true);
  auto interface = std::make_shared<v1::KernelInterface>();
  if (!parser.ParseFromString(std::string(text), interface.get())) {
    return absl::DataLossError("a kernel's interface in the artifact's machine code is none");
  }
  return interface;
}

absl::Status CheckLaunches(const v1::Program& program, absl::Span<const Kernel> kernels,
                           const std::function<bool(int)>& may_write) {
  return Checker(program, kernels, may_write).Check();
}

}  // namespace kiln::runtime
