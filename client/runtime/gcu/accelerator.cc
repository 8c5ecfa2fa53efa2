#include "client/runtime/gcu/accelerator.h"

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/runtime/gcu/queue.h"
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

absl::StatusOr<gcu_address_t> AllocateL3(const Runtime& runtime, int64_t bytes) {
  gcu_address_t address = 0;
  KILN_RETURN_IF_ERROR(
      runtime.Check(runtime.malloc(runtime.context, static_cast<uint64_t>(bytes < 1 ? 1 : bytes),
                                   GCU_MEMORY_L3, &address),
                    absl::StrCat("cannot allocate ", bytes, " bytes on the GCU")));
  return address;
}

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

// Buffers that lie on the device from run to run. Thread-safe.
class KeptBuffers final : public runtime::Accelerator::Kept {
 public:
  explicit KeptBuffers(const Runtime& runtime) : runtime_(runtime) {}
  ~KeptBuffers() override {
    for (const auto& [buffer, address] : addresses_) {
      runtime_.free(runtime_.context, address, GCU_MEMORY_L3);
    }
  }

  // Where the buffer is, whose `bytes` at `data` are copied there the first time.
  absl::StatusOr<gcu_address_t> Find(size_t buffer, const void* data, int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    if (const auto known = addresses_.find(buffer); known != addresses_.end()) return known->second;
    KILN_ASSIGN_OR_RETURN(const gcu_address_t address, AllocateL3(runtime_, bytes));
    // Done when it returns, so that other runs may go on from here.
    const absl::Status copied =
        bytes == 0
            ? absl::OkStatus()
            : runtime_.Check(
                  runtime_.memcpy(runtime_.context, address, reinterpret_cast<uintptr_t>(data),
                                  static_cast<uint64_t>(bytes), GCU_HOST_TO_DEVICE),
                  "cannot copy a tensor to the GCU");
    if (!copied.ok()) {
      runtime_.free(runtime_.context, address, GCU_MEMORY_L3);
      return copied;
    }
    addresses_[buffer] = address;
    return address;
  }

 private:
  const Runtime& runtime_;
  absl::Mutex mutex_;
  absl::flat_hash_map<size_t, gcu_address_t> addresses_ ABSL_GUARDED_BY(mutex_);
};

class GcuAccelerator final : public runtime::Accelerator {
 public:
  explicit GcuAccelerator(const Runtime& runtime) : runtime_(runtime), constants_(runtime) {}
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

  std::unique_ptr<Kept> Keep() const override { return std::make_unique<KeptBuffers>(runtime_); }

  absl::StatusOr<std::unique_ptr<Run>> Begin(const Plan& plan, Kept* kept,
                                             const std::vector<bool>& keeps_input) const override;

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
  mutable KeptBuffers constants_;
  mutable absl::Mutex mutex_;
  mutable runtime::DeviceRun last_run_ ABSL_GUARDED_BY(mutex_);
};

// A buffer that only a step's reads and writes touch is, from its first store on, current on at
// least one side. Workspace buffers may share bytes: each is stored before it is read, so what a
// dead one left on either side counts for nothing, and one that is computed in place of another is
// stored where that was read.
class GcuAccelerator::OneRun final : public runtime::Accelerator::Run {
 public:
  OneRun(const GcuAccelerator& owner, const Plan& plan, KeptBuffers* kept,
         const std::vector<bool>& keeps_input)
      : owner_(owner),
        kept_(kept),
        keeps_input_(keeps_input),
        runtime_(owner.runtime_),
        plan_(plan),
        buffers_(plan.buffers.size()),
        queue_(std::make_unique<Queue>(runtime_)) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const runtime::BufferKind kind = plan.buffers[i].kind;
      buffers_[i].on_host = kind == runtime::BufferKind::kInput ||
                            kind == runtime::BufferKind::kConstant ||
                            kind == runtime::BufferKind::kPrepared;
    }
  }

  ~OneRun() override {
    queue_.reset();  // nothing uses the memory any more
    for (const gcu_address_t address : allocations_) {
      runtime_.free(runtime_.context, address, GCU_MEMORY_L3);
    }
    // It could be written when the runtime was loaded, and nothing but a picture is lost.
    if (launched_ && !runtime_.trace_path.empty()) {
      runtime_.write_trace(runtime_.context, runtime_.trace_path.c_str());
    }
  }

  absl::Status Launch(const PlanLaunch& launch, const runtime::Kernel& kernel,
                      absl::Span<void* const> data) override {
    const Function& function = owner_.functions_[static_cast<size_t>(launch.function)];
    const int* buffers = plan_.launch_buffers.data() + launch.first_buffer;
    std::vector<uint64_t> values;
    std::vector<Access> accesses;
    for (int i = 0; i < launch.num_buffers; ++i) {
      const auto number = static_cast<size_t>(buffers[i]);
      KILN_ASSIGN_OR_RETURN(const gcu_address_t address, ToDevice(number, data[number]));
      values.push_back(address);
      accesses.push_back({address, static_cast<uint64_t>(plan_.buffers[number].type.reach_bytes),
                          kernel.interface->buffers(i).written()});
    }
    for (const long symbol : launch.symbols) values.push_back(static_cast<uint64_t>(symbol));
    std::vector<void*> arguments;
    for (uint64_t& value : values) arguments.push_back(&value);
    launched_ = true;
    KILN_RETURN_IF_ERROR(queue_->Launch(function.name, function.function, function.l2_bytes,
                                        absl::MakeSpan(arguments), accesses));
    for (int i = 0; i < launch.num_buffers; ++i) {
      if (!kernel.interface->buffers(i).written()) continue;
      buffers_[static_cast<size_t>(buffers[i])].on_device = true;
      buffers_[static_cast<size_t>(buffers[i])].on_host = false;
    }
    return absl::OkStatus();
  }

  absl::Status ToHost(int number, void* data, bool writes) override {
    Buffer& buffer = buffers_[static_cast<size_t>(number)];
    if (buffer.on_device && !buffer.on_host) {
      const int64_t bytes = plan_.buffers[static_cast<size_t>(number)].type.reach_bytes;
      KILN_RETURN_IF_ERROR(queue_->ToHost(data, buffer.address, static_cast<uint64_t>(bytes)));
    }
    if (buffer.on_device) buffer.on_host = true;
    if (writes) {
      // What is about to change may not have been copied yet, of this buffer or of one that has
      // been where it is.
      KILN_RETURN_IF_ERROR(queue_->WaitForUploads());
      buffer.on_host = true;
      buffer.on_device = false;
    }
    return absl::OkStatus();
  }

  bool OnlyOnDevice(int number) const override {
    const Buffer& buffer = buffers_[static_cast<size_t>(number)];
    return buffer.on_device && !buffer.on_host;
  }

  absl::Status Finish() override {
    KILN_RETURN_IF_ERROR(queue_->Finish());
    KILN_ASSIGN_OR_RETURN(const std::vector<Queue::Launched> reports, queue_->Reports());
    if (reports.empty()) return absl::OkStatus();
    runtime::DeviceRun run;
    run.device = runtime_.properties.name;
    run.symbols = plan_.symbols;
    for (const Queue::Launched& launched : reports) {
      run.launches.push_back({launched.name, static_cast<double>(launched.report.time_ps) * 1e-6,
                              launched.report.l2_peak_bytes});
    }
    owner_.Note(std::move(run));
    return AppendReports(reports);
  }

 private:
  struct Buffer {
    gcu_address_t address = 0;
    bool on_host = false, on_device = false;
  };

  absl::StatusOr<gcu_address_t> Allocate(int64_t bytes) {
    KILN_ASSIGN_OR_RETURN(const gcu_address_t address, AllocateL3(runtime_, bytes));
    allocations_.push_back(address);
    return address;
  }

  // Where the buffer lies on the device from run to run; null where it does not.
  KeptBuffers* KeeperOf(const runtime::PlanBuffer& buffer) const {
    switch (buffer.kind) {
      case runtime::BufferKind::kConstant:
        return &owner_.constants_;
      case runtime::BufferKind::kPrepared:
        return kept_;
      case runtime::BufferKind::kInput:
        return keeps_input_[static_cast<size_t>(buffer.index)] ? kept_ : nullptr;
      default:
        return nullptr;
    }
  }

  // The buffer's place on the device, with what it holds.
  absl::StatusOr<gcu_address_t> ToDevice(size_t number, const void* data) {
    Buffer& buffer = buffers_[number];
    const runtime::PlanBuffer& info = plan_.buffers[number];
    if (KeptBuffers* keeps = KeeperOf(info); keeps != nullptr && buffer.address == 0) {
      KILN_ASSIGN_OR_RETURN(buffer.address, keeps->Find(number, data, info.type.reach_bytes));
      buffer.on_device = true;
      return buffer.address;
    }
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
        KILN_RETURN_IF_ERROR(
            queue_->ToDevice(buffer.address, data, static_cast<uint64_t>(info.type.reach_bytes)));
      }
      buffer.on_device = true;
    }
    return buffer.address;
  }

  // A line for each launch, to $KILN_GCU_REPORT.
  static absl::Status AppendReports(absl::Span<const Queue::Launched> reports) {
    const char* path = std::getenv("KILN_GCU_REPORT");
    if (path == nullptr) return absl::OkStatus();
    std::FILE* file = std::fopen(path, "a");
    if (file == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("KILN_GCU_REPORT: cannot write ", path));
    }
    for (const auto& [name, report] : reports) {
      std::fputs(absl::StrCat(
                     "{\"kernel\": \"", name, "\", \"time_ps\": ", report.time_ps,
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
    }
    std::fclose(file);
    return absl::OkStatus();
  }

  const GcuAccelerator& owner_;
  KeptBuffers* const kept_;  // may be null
  const std::vector<bool>& keeps_input_;
  const Runtime& runtime_;
  const Plan& plan_;
  std::vector<Buffer> buffers_;
  std::vector<gcu_address_t> allocations_;
  gcu_address_t workspace_ = 0;
  std::unique_ptr<Queue> queue_;
  bool launched_ = false;
};

absl::StatusOr<std::unique_ptr<runtime::Accelerator::Run>> GcuAccelerator::Begin(
    const Plan& plan, Kept* kept, const std::vector<bool>& keeps_input) const {
  // Of Keep, and of nobody else.
  return std::make_unique<OneRun>(*this, plan, static_cast<KeptBuffers*>(kept), keeps_input);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const runtime::Accelerator>> MakeAccelerator(
    const Runtime& runtime, const runtime::Archive& archive) {
  auto accelerator = std::make_unique<GcuAccelerator>(runtime);
  KILN_RETURN_IF_ERROR(accelerator->Load(archive));
  return accelerator;
}

}  // namespace kiln::gcu
