#include "tests/fuzz/programs/run_case.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/runtime/cpu/executor.h"
#include "client/runtime/strided_copy.h"
#include "proto/base/dtype.h"
#include "proto/base/status_macros.h"

namespace kiln::fuzz {
namespace {

constexpr size_t kMostBytes = size_t{1} << 28;

struct Free {
  void operator()(void* block) const { std::free(block); }
};
using Memory = std::unique_ptr<void, Free>;

// A block of just the bytes that are asked for, so that a sanitizer sees every step outside of it.
Memory NewBlock(size_t bytes) {
  return Memory(std::malloc(bytes == 0 ? 1 : bytes));
}

}  // namespace

class Runner::Inputs {
 public:
  explicit Inputs(const Subject& subject) {
    size_t tensor = 0, size = 0;
    for (const v1::Input& input : subject.graph.inputs()) {
      kiln_tensor out{};
      out.device_type = KILN_CPU;
      if (input.type().has_tensor()) {
        const HostTensor& given = subject.inputs[tensor++];
        out.dtype = DTypeToProto(given.dtype);
        out.ndim = static_cast<int32_t>(given.sizes.size());
        out.sizes = given.sizes.data();
        out.strides = given.strides.data();
        originals_.emplace_back(given.data.data(), given.data.size());
      } else {
        out.dtype = KILN_INT64;
        originals_.emplace_back(reinterpret_cast<const char*>(&subject.sizes[size++]),
                                sizeof(int64_t));
      }
      blocks_.push_back(NewBlock(originals_.back().size()));
      out.data = blocks_.back().get();
      tensors_.push_back(out);
      Restore(tensors_.size() - 1);
    }
    is_written_.resize(tensors_.size());
    for (const v1::Mutation& mutation : subject.graph.mutations()) {
      is_written_[mutation.input()] = true;
    }
  }

  absl::Span<const kiln_tensor> tensors() const { return tensors_; }

  // What a run made of them. As they were, for the next one.
  void SeeAndRestore(Seen& seen) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const absl::string_view now(static_cast<const char*>(tensors_[i].data), originals_[i].size());
      if (is_written_[i]) absl::StrAppend(&seen.values, now);
      if (now == originals_[i]) continue;
      if (!is_written_[i]) absl::StrAppend(&seen.changed, "input ", i, ";");
      Restore(i);
    }
  }

 private:
  void Restore(size_t i) {
    std::memcpy(blocks_[i].get(), originals_[i].data(), originals_[i].size());
  }

  std::vector<absl::string_view> originals_;
  std::vector<Memory> blocks_;
  std::vector<kiln_tensor> tensors_;
  std::vector<bool> is_written_;
};

namespace {

// What else a run is given.
class Caller {
 public:
  kiln_run_options options() {
    kiln_run_options out = KILN_RUN_OPTIONS_INIT;
    out.user = this;
    out.allocate_output = [](void* user, int32_t, int32_t dtype, int32_t ndim, const int64_t* sizes,
                             const int64_t* strides, void** data) {
      const auto n = static_cast<size_t>(ndim);
      const int64_t bytes =
          *runtime::ReachElements({sizes, n}, {strides, n}) * DTypeSize(*DTypeFromProto(dtype));
      *data = static_cast<Caller*>(user)->Keep(static_cast<size_t>(bytes));
      return *data != nullptr ? nullptr
                              : kiln_status_create(KILN_RESOURCE_EXHAUSTED, "no such memory");
    };
    out.library_step = [](void* user, int32_t, const kiln_tensor* tensors, size_t num_tensors,
                          const int64_t* ints, size_t num_ints, kiln_tensor* results,
                          size_t num_results) {
      return static_cast<Caller*>(user)->Library({tensors, num_tensors}, {ints, num_ints},
                                                 {results, num_results});
    };
    return out;
  }

  static void See(absl::Span<const kiln_output> outputs, Seen& seen) {
    for (const kiln_output& output : outputs) {
      absl::StrAppend(&seen.types, static_cast<int>(output.kind), ",", output.value, ";");
      if (output.kind != KILN_TENSOR) continue;
      const bool in_input = output.storage == KILN_STORAGE_INPUT;
      absl::Span<const int64_t> sizes(output.sizes, static_cast<size_t>(output.ndim));
      absl::Span<const int64_t> strides(output.strides, static_cast<size_t>(output.ndim));
      absl::StrAppend(&seen.types, output.dtype, "[", absl::StrJoin(sizes, ","), "][",
                      absl::StrJoin(strides, ","), "]",
                      in_input ? absl::StrCat("in ", output.storage_index, "+", output.offset) : "",
                      ";");
      seen.values += Elements(output, sizes, strides);
    }
  }

 private:
  void* Keep(size_t bytes) {
    if (bytes > kMostBytes) return nullptr;
    blocks_.push_back(NewBlock(bytes));
    std::memset(blocks_.back().get(), 0x5a, bytes);
    return blocks_.back().get();
  }

  static std::string Elements(const kiln_output& output, absl::Span<const int64_t> sizes,
                              absl::Span<const int64_t> strides) {
    const int64_t element = DTypeSize(*DTypeFromProto(output.dtype));
    std::vector<int64_t> dense(sizes.size());
    int64_t count = 1;
    for (size_t d = sizes.size(); d-- > 0; count *= sizes[d]) dense[d] = count;
    std::string out(static_cast<size_t>(count * element), '\0');
    if (count > 0) {
      runtime::CopyStrided(out.data(), dense, static_cast<const char*>(output.data), strides, sizes,
                           element);
    }
    return out;
  }

  // 10 times the first tensor, plus the number: f32 of one dimension, as the made subjects have it.
  kiln_status* Library(absl::Span<const kiln_tensor> tensors, absl::Span<const int64_t> ints,
                       absl::Span<kiln_tensor> results) {
    if (tensors.empty() || results.size() != 1 || ints.size() > 1 || tensors[0].ndim != 1 ||
        tensors[0].dtype != KILN_FLOAT32 || results[0].dtype != KILN_FLOAT32) {
      return kiln_status_create(KILN_INVALID_ARGUMENT, "no such operator");
    }
    const int64_t count = tensors[0].sizes[0];
    auto* data = static_cast<float*>(Keep(static_cast<size_t>(count) * sizeof(float)));
    if (data == nullptr) return kiln_status_create(KILN_RESOURCE_EXHAUSTED, "too large");
    for (int64_t i = 0; i < count; ++i) {
      const float x = static_cast<const float*>(tensors[0].data)[i * tensors[0].strides[0]];
      data[i] = 10 * x + (ints.empty() ? 0.0f : static_cast<float>(ints[0]));
    }
    results[0].data = data;
    results[0].sizes = tensors[0].sizes;
    results[0].strides = &one_;
    return nullptr;
  }

  const int64_t one_ = 1;
  std::vector<Memory> blocks_;
};

}  // namespace

Runner::Runner(const Subject& subject)
    : subject_(subject), inputs_(std::make_unique<Inputs>(subject)) {}
Runner::~Runner() = default;
Runner::Runner(Runner&&) noexcept = default;

absl::StatusOr<Seen> Runner::LoadAndRun(absl::string_view bytes) {
  KILN_ASSIGN_OR_RETURN(auto program, runtime::LoadedProgram::Load(bytes, &subject_.graph, 1));
  Caller caller;
  kiln_run_options options = caller.options();
  std::vector<kiln_output> outputs(
      static_cast<size_t>(program->artifact().program().outputs_size()));
  Seen seen;
  const absl::Status status =
      program->executor().Run(inputs_->tensors(), absl::MakeSpan(outputs), &options);
  if (status.ok()) Caller::See(outputs, seen);
  inputs_->SeeAndRestore(seen);
  if (!status.ok()) return status;
  kiln_outputs_release(outputs.data(), outputs.size());
  return seen;
}

}  // namespace kiln::fuzz
