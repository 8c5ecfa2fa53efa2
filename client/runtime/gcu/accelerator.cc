#include "client/runtime/gcu/accelerator.h"

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/runtime/memory.h"
#include "client/runtime/strided_copy.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::gcu {
namespace {

using runtime::Plan;
using runtime::PlanLaunch;

struct Function {
  std::string name;
  gcu_module_t module = nullptr;
  gcu_function_t function = nullptr;
  uint64_t l2_bytes = 0;
};

// That the kernel takes what its interface states: the buffers, then the sizes. What it writes and
// the interface does not say would stay on the device.
absl::Status CheckArguments(const Runtime& runtime, const Function& function,
                            const v1::KernelInterface& interface) {
  constexpr uint32_t kPointerToL3 = 1, kInteger = 3, kWritten = 2;
  const auto buffers = static_cast<uint32_t>(interface.buffers_size());
  const uint32_t expected = buffers + static_cast<uint32_t>(interface.sizes_size());
  const auto bad = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("kernel ", function.name, " ", what));
  };
  uint32_t count = 0;
  KILN_RETURN_IF_ERROR(
      runtime.Check(runtime.function_get_argument_count(function.function, &count),
                    absl::StrCat("cannot count the arguments of kernel ", function.name)));
  if (count != expected) {
    return bad(absl::StrCat("has ", count, " arguments; its interface states ", expected));
  }
  for (uint32_t i = 0; i < count; ++i) {
    gcu_argument_info info;
    KILN_RETURN_IF_ERROR(
        runtime.Check(runtime.function_get_argument(function.function, i, &info),
                      absl::StrCat("cannot read argument ", i, " of kernel ", function.name)));
    if (info.kind != (i < buffers ? kPointerToL3 : kInteger)) {
      return bad(absl::StrCat("has argument ", i, " of another kind than its interface states"));
    }
    const bool writes = (info.access & kWritten) != 0;
    if (writes && !interface.buffers(static_cast<int>(i)).written()) {
      return bad(absl::StrCat("writes to buffer ", i, ", which its interface does not say"));
    }
  }
  return absl::OkStatus();
}

class GcuAccelerator final : public runtime::Accelerator {
 public:
  explicit GcuAccelerator(const Runtime& runtime) : runtime_(runtime) {}
  ~GcuAccelerator() override {
    for (const Function& function : functions_) runtime_.module_unload(function.module);
  }

  absl::Status Load(const runtime::Archive& archive) {
    for (const runtime::ArchivedKernel& kernel : archive.kernels()) {
      Function function;
      function.name = kernel.name;
      const std::string what = absl::StrCat("cannot load kernel ", kernel.name);
      KILN_RETURN_IF_ERROR(
          runtime_.Check(runtime_.module_load(runtime_.context, kernel.module.data(),
                                              kernel.module.size(), &function.module),
                         what));
      functions_.push_back(function);
      Function& loaded = functions_.back();
      KILN_RETURN_IF_ERROR(runtime_.Check(
          runtime_.module_get_function(loaded.module, kernel.name.c_str(), &loaded.function),
          what));
      KILN_RETURN_IF_ERROR(CheckArguments(runtime_, loaded, *kernel.interface));
      KILN_RETURN_IF_ERROR(
          runtime_.Check(runtime_.function_get_l2_bytes(loaded.function, &loaded.l2_bytes), what));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Run>> Begin(const Plan& plan) const override;

  runtime::DeviceRun LastRun() const override {
    absl::MutexLock lock(&mutex_);
    return last_run_;
  }

 private:
  class OneRun;

  void Note(runtime::DeviceRun run) const {
    absl::MutexLock lock(&mutex_);
    last_run_ = std::move(run);
  }

  const Runtime& runtime_;
  std::vector<Function> functions_;
  mutable absl::Mutex mutex_;
  mutable runtime::DeviceRun last_run_ ABSL_GUARDED_BY(mutex_);
};

// A buffer that only a step's reads and writes touch is, from its first store on, current on at
// least one side. Workspace buffers may share bytes: each is stored before it is read, so what a
// dead one left on either side counts for nothing, and one that is computed in place of another is
// stored where that was read.
class GcuAccelerator::OneRun final : public runtime::Accelerator::Run {
 public:
  OneRun(const GcuAccelerator& owner, const Plan& plan)
      : owner_(owner), runtime_(owner.runtime_), plan_(plan), buffers_(plan.buffers.size()) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const runtime::BufferKind kind = plan.buffers[i].kind;
      buffers_[i].on_host = kind == runtime::BufferKind::kInput ||
                            kind == runtime::BufferKind::kConstant ||
                            kind == runtime::BufferKind::kPrepared;
    }
  }

  ~OneRun() override {
    for (const gcu_address_t address : allocations_) {
      runtime_.free(runtime_.context, address, GCU_MEMORY_L3);
    }
    if (stream_ != nullptr) runtime_.stream_destroy(stream_);
    if (run_.launches.empty()) return;
    run_.device = runtime_.properties.name;
    owner_.Note(std::move(run_));
    // It could be written when the runtime was loaded, and nothing but a picture is lost.
    if (!runtime_.trace_path.empty()) {
      runtime_.write_trace(runtime_.context, runtime_.trace_path.c_str());
    }
  }

  absl::Status Begin() {
    return runtime_.Check(runtime_.stream_create(runtime_.context, &stream_),
                          "cannot make a stream");
  }

  absl::Status Launch(const PlanLaunch& launch, const runtime::Kernel& kernel,
                      absl::Span<void* const> data) override {
    const Function& function = owner_.functions_[static_cast<size_t>(launch.function)];
    const int* buffers = plan_.launch_buffers.data() + launch.first_buffer;
    std::vector<uint64_t> values;
    for (int i = 0; i < launch.num_buffers; ++i) {
      const auto number = static_cast<size_t>(buffers[i]);
      KILN_ASSIGN_OR_RETURN(const gcu_address_t address, ToDevice(number, data[number]));
      values.push_back(address);
    }
    for (const long symbol : launch.symbols) values.push_back(static_cast<uint64_t>(symbol));
    std::vector<void*> arguments;
    for (uint64_t& value : values) arguments.push_back(&value);
    KILN_RETURN_IF_ERROR(
        runtime_.Check(runtime_.launch_kernel(function.function, 1, 1, 1, 0, 0, 0, arguments.data(),
                                              function.l2_bytes, stream_),
                       absl::StrCat("kernel ", function.name)));
    for (int i = 0; i < launch.num_buffers; ++i) {
      if (!kernel.interface->buffers(i).written()) continue;
      buffers_[static_cast<size_t>(buffers[i])].on_device = true;
      buffers_[static_cast<size_t>(buffers[i])].on_host = false;
    }
    return AddReport(function);
  }

  absl::Status ToHost(int number, void* data, bool writes) override {
    Buffer& buffer = buffers_[static_cast<size_t>(number)];
    if (buffer.on_device && !buffer.on_host) {
      KILN_RETURN_IF_ERROR(ReadBack(buffer, plan_.buffers[static_cast<size_t>(number)], data));
    }
    if (buffer.on_device) buffer.on_host = true;
    if (writes) {
      buffer.on_host = true;
      buffer.on_device = false;
    }
    return absl::OkStatus();
  }

 private:
  struct Buffer {
    gcu_address_t address = 0;
    bool on_host = false, on_device = false;
  };

  absl::StatusOr<gcu_address_t> Allocate(int64_t bytes) {
    gcu_address_t address = 0;
    KILN_RETURN_IF_ERROR(runtime_.Check(
        runtime_.malloc(runtime_.context, static_cast<uint64_t>(bytes < 1 ? 1 : bytes),
                        GCU_MEMORY_L3, &address),
        absl::StrCat("cannot allocate ", bytes, " bytes on the GCU")));
    allocations_.push_back(address);
    return address;
  }

  // The buffer's place on the device, with what it holds.
  absl::StatusOr<gcu_address_t> ToDevice(size_t number, const void* data) {
    Buffer& buffer = buffers_[number];
    const runtime::PlanBuffer& info = plan_.buffers[number];
    if (buffer.address == 0 && info.kind == runtime::BufferKind::kWorkspace) {
      if (workspace_ == 0) {
        KILN_ASSIGN_OR_RETURN(workspace_, Allocate(plan_.workspace_bytes));
      }
      buffer.address = workspace_ + static_cast<uint64_t>(info.workspace_offset);
    } else if (buffer.address == 0) {
      KILN_ASSIGN_OR_RETURN(buffer.address, Allocate(info.type.reach_bytes));
    }
    if (buffer.on_host && !buffer.on_device) {
      if (info.type.reach_bytes > 0) {
        KILN_RETURN_IF_ERROR(runtime_.Check(
            runtime_.memcpy(runtime_.context, buffer.address, reinterpret_cast<uintptr_t>(data),
                            static_cast<uint64_t>(info.type.reach_bytes), GCU_HOST_TO_DEVICE),
            "cannot copy a tensor to the GCU"));
      }
      buffer.on_device = true;
    }
    return buffer.address;
  }

  // Of an input that was written its own elements alone: what lies between them may be another
  // tensor's, which has changed since.
  absl::Status ReadBack(const Buffer& buffer, const runtime::PlanBuffer& info, void* data) {
    const runtime::PlanTensor& type = info.type;
    if (info.kind != runtime::BufferKind::kInput || type.reach_bytes == 0 ||
        runtime::IsContiguous(type.sizes, type.strides)) {
      return CopyToHost(data, buffer.address, type.reach_bytes);
    }
    KILN_ASSIGN_OR_RETURN(const runtime::Block whole, runtime::Block::Allocate(type.reach_bytes));
    KILN_RETURN_IF_ERROR(CopyToHost(whole.data(), buffer.address, type.reach_bytes));
    runtime::CopyStrided(static_cast<char*>(data), type.strides, whole.data(), type.strides,
                         type.sizes, DTypeSize(type.dtype));
    return absl::OkStatus();
  }

  absl::Status CopyToHost(void* data, gcu_address_t address, int64_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    return runtime_.Check(
        runtime_.memcpy(runtime_.context, reinterpret_cast<uintptr_t>(data), address,
                        static_cast<uint64_t>(bytes), GCU_DEVICE_TO_HOST),
        "cannot copy a tensor from the GCU");
  }

  absl::Status AddReport(const Function& function) {
    gcu_launch_report report;
    KILN_RETURN_IF_ERROR(runtime_.Check(runtime_.stream_get_report(stream_, &report),
                                        "cannot read what a launch did"));
    run_.launches.push_back(
        {function.name, static_cast<double>(report.time_ps) * 1e-6, report.l2_peak_bytes});
    const char* path = std::getenv("KILN_GCU_REPORT");
    if (path == nullptr) return absl::OkStatus();
    std::FILE* file = std::fopen(path, "a");
    if (file == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("KILN_GCU_REPORT: cannot write ", path));
    }
    std::fputs(
        absl::StrCat("{\"kernel\": \"", function.name, "\", \"time_ps\": ", report.time_ps,
                     ", \"l3_read_bytes\": ", report.l3_read_bytes, ", \"l3_written_bytes\": ",
                     report.l3_written_bytes, ", \"l2_read_bytes\": ", report.l2_read_bytes,
                     ", \"l2_written_bytes\": ", report.l2_written_bytes,
                     ", \"l3_busy_ps\": ", report.l3_busy_ps,
                     ", \"l2_busy_ps\": ", report.l2_busy_ps, ", \"dma_ps\": ", report.dma_ps,
                     ", \"vector_ps\": ", report.vector_ps, ", \"matrix_ps\": ", report.matrix_ps,
                     ", \"scalar_ps\": ", report.scalar_ps, ", \"waiting_ps\": ", report.waiting_ps,
                     ", \"macs\": ", report.macs, ", \"instructions\": ", report.instructions,
                     ", \"l2_peak_bytes\": ", report.l2_peak_bytes, "}\n")
            .c_str(),
        file);
    std::fclose(file);
    return absl::OkStatus();
  }

  const GcuAccelerator& owner_;
  const Runtime& runtime_;
  const Plan& plan_;
  std::vector<Buffer> buffers_;
  std::vector<gcu_address_t> allocations_;
  gcu_address_t workspace_ = 0;
  gcu_stream_t stream_ = nullptr;
  runtime::DeviceRun run_;
};

absl::StatusOr<std::unique_ptr<runtime::Accelerator::Run>> GcuAccelerator::Begin(
    const Plan& plan) const {
  auto run = std::make_unique<OneRun>(*this, plan);
  KILN_RETURN_IF_ERROR(run->Begin());
  return run;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const runtime::Accelerator>> MakeAccelerator(
    const Runtime& runtime, const runtime::Archive& archive) {
  auto accelerator = std::make_unique<GcuAccelerator>(runtime);
  KILN_RETURN_IF_ERROR(accelerator->Load(archive));
  return accelerator;
}

}  // namespace kiln::gcu
