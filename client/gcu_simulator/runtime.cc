// The C interface over Machine: arguments, clocks, codes.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "client/gcu_simulator/handles.h"
#include "proto/gcu/instructions.inc.h"

using kiln::gcu_simulator::AllContexts;
using kiln::gcu_simulator::Fail;
using kiln::gcu_simulator::Fault;
using kiln::gcu_simulator::Find;
using kiln::gcu_simulator::FindProfile;
using kiln::gcu_simulator::From;
using kiln::gcu_simulator::Guarded;
using kiln::gcu_simulator::Invalid;
using kiln::gcu_simulator::Kernel;
using kiln::gcu_simulator::LastError;
using kiln::gcu_simulator::Launch;
using kiln::gcu_simulator::LoadProgram;
using kiln::gcu_simulator::Machine;
using kiln::gcu_simulator::Profile;
using kiln::gcu_simulator::Report;
using kiln::gcu_simulator::Space;
using kiln::gcu_simulator::Span;

namespace {

constexpr int64_t kPicosecondsPerSecond = 1'000'000'000'000, kCopyOverheadPs = 1'000'000;

int FindDevice(int device, const Profile*& profile) {
  if (device != 0) return Invalid("there is no device " + std::to_string(device));
  const char* name = std::getenv("GCU_PROFILE");
  profile = FindProfile(name != nullptr ? name : "gcu-16m");
  return profile != nullptr
             ? GCU_OK
             : Fail(GCU_NOT_FOUND, std::string("GCU_PROFILE names no profile: ") + name);
}

int FindSpace(int memory_type, Space& space) {
  if (memory_type != GCU_MEMORY_L3 && memory_type != GCU_MEMORY_L2) {
    return Invalid("there is no memory type " + std::to_string(memory_type));
  }
  space = memory_type == GCU_MEMORY_L2 ? Space::kL2 : Space::kL3;
  return GCU_OK;
}

int Allocate(gcu_context_t handle, uint64_t size, int memory_type, gcu_address_t* address) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr || address == nullptr) {
      return Invalid("gcu_malloc: no such context, or no place for the address");
    }
    Space space = Space::kL3;
    if (const int status = FindSpace(memory_type, space); status != GCU_OK) return status;
    if (size == 0) return Invalid("gcu_malloc of 0 bytes");
    const uint64_t found = context->machine.Allocate(space, size);
    if (found == 0) {
      return Fail(GCU_OUT_OF_MEMORY, std::to_string(size) + " bytes do not fit beside the " +
                                         std::to_string(context->machine.Used(space)) +
                                         " that are taken");
    }
    *address = found;
    return static_cast<int>(GCU_OK);
  });
}

int Release(gcu_context_t handle, gcu_address_t address, int memory_type) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr) return Invalid("gcu_free: no such context");
    Space space = Space::kL3;
    if (const int status = FindSpace(memory_type, space); status != GCU_OK) return status;
    return context->machine.Free(space, address)
               ? static_cast<int>(GCU_OK)
               : Invalid("nothing was allocated at " + std::to_string(address));
  });
}

int CopyBytes(Machine& machine, uint64_t to, uint64_t from, uint64_t size, int kind) {
  switch (kind) {
    case GCU_HOST_TO_DEVICE:
      if (from == 0 && size > 0) return Invalid("gcu_memcpy from a null pointer");
      return From(
          machine.Write(Machine::SpaceOf(to), to, reinterpret_cast<const void*>(from), size));
    case GCU_DEVICE_TO_HOST:
      if (to == 0 && size > 0) return Invalid("gcu_memcpy to a null pointer");
      return From(machine.Read(Machine::SpaceOf(from), from, reinterpret_cast<void*>(to), size));
    case GCU_DEVICE_TO_DEVICE:
      return From(machine.Move(Machine::SpaceOf(to), to, Machine::SpaceOf(from), from, size));
    default:
      return Invalid("there is no kind of copy " + std::to_string(kind));
  }
}

gcu_launch_report Told(const Report& report, const Machine& machine) {
  return {
      .time_ps = report.time_ps,
      .l3_read_bytes = report.l3_read_bytes,
      .l3_written_bytes = report.l3_written_bytes,
      .l2_read_bytes = report.l2_read_bytes,
      .l2_written_bytes = report.l2_written_bytes,
      .l3_busy_ps = report.l3_busy_ps,
      .l2_busy_ps = report.l2_busy_ps,
      .dma_ps = report.dma_ps,
      .vector_ps = report.vector_ps,
      .matrix_ps = report.matrix_ps,
      .scalar_ps = report.scalar_ps,
      .waiting_ps = report.waiting_ps,
      .macs = report.macs,
      .instructions = report.instructions,
      .l2_peak_bytes = static_cast<int64_t>(machine.Peak(Space::kL2)),
  };
}

// The launch's own L2 memory, for as long as it runs.
class OwnMemory {
 public:
  OwnMemory(Machine& machine, uint64_t bytes) : machine_(machine) {
    if (bytes > 0) address_ = machine.Allocate(Space::kL2, bytes);
  }
  ~OwnMemory() {
    if (address_ != 0) machine_.Free(Space::kL2, address_);
  }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  uint64_t address() const { return address_; }

 private:
  Machine& machine_;
  uint64_t address_ = 0;
};

int RunKernel(gcu_context& context, gcu_stream& stream, Launch launch, uint64_t shared_mem) {
  context.machine.ResetPeak();
  const OwnMemory own(context.machine, shared_mem);
  if (shared_mem > 0 && own.address() == 0) {
    return Fail(GCU_OUT_OF_MEMORY,
                "kernel '" + launch.kernel->name + "': " + std::to_string(shared_mem) +
                    " bytes of L2 do not fit beside the " +
                    std::to_string(context.machine.Used(Space::kL2)) + " that are taken");
  }
  launch.l2_begin = own.address();
  Report report;
  const std::optional<Fault> fault = context.machine.Run(launch, context.is_tracing, report);
  if (fault) return From(fault);
  for (Span& span : report.spans) {
    span.begin_ps += stream.clock_ps;
    span.end_ps += stream.clock_ps;
    context.spans.push_back(span);
  }
  stream.report = Told(report, context.machine);
  stream.has_report = true;
  stream.clock_ps += report.time_ps;
  return GCU_OK;
}

void WriteSpan(std::FILE* file, const Span& span, const char* separator) {
  std::fprintf(
      file,
      "%s{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":\"core %d %s\",\"ts\":%.6f,"
      "\"dur\":%.6f,\"args\":{\"bytes\":%lld}}",
      separator, span.name, span.engine, span.core, span.engine,
      static_cast<double>(span.begin_ps) / 1e6,
      static_cast<double>(span.end_ps - span.begin_ps) / 1e6, static_cast<long long>(span.bytes));
}

}  // namespace

const char* gcu_error_name(int status) {
  constexpr const char* kNames[] = {"GCU_OK",         "GCU_INVALID_ARGUMENT", "GCU_OUT_OF_MEMORY",
                                    "GCU_BAD_BINARY", "GCU_WRONG_PROFILE",    "GCU_NOT_FOUND",
                                    "GCU_TRAP",       "GCU_BOUNDS",           "GCU_POISON",
                                    "GCU_RACE",       "GCU_PROGRAM_FAULT",    "GCU_INDEX"};
  return status >= 0 && status < static_cast<int>(std::size(kNames)) ? kNames[status]
                                                                     : "an unknown status";
}

const char* gcu_get_last_error() {
  return LastError().c_str();
}

int gcu_get_device_count(int* count) {
  if (count == nullptr) return Invalid("gcu_get_device_count: no place for the count");
  *count = 1;
  return GCU_OK;
}

int gcu_get_device_properties(int device, gcu_device_properties* properties) {
  const Profile* profile = nullptr;
  if (properties == nullptr) return Invalid("gcu_get_device_properties: no place for them");
  if (const int status = FindDevice(device, profile); status != GCU_OK) return status;
  *properties = {};
  std::strncpy(properties->name, profile->name, sizeof properties->name - 1);
  properties->l3_bytes = profile->l3_bytes;
  properties->l3_bytes_per_s = profile->l3_bytes_per_s;
  properties->l2_bytes = profile->l2_bytes;
  properties->l2_bytes_per_s = profile->l2_bytes_per_s;
  properties->l1_bytes = profile->l1_bytes;
  properties->cores = profile->cores;
  properties->vector_bytes = KILN_GCU_VECTOR_BYTES;
  properties->clock_hz = profile->clock_hz;
  properties->f32_macs = profile->f32_macs;
  properties->f16_macs = profile->f16_macs;
  properties->i8_macs = profile->i8_macs;
  properties->launch_ns = profile->launch_ns;
  return GCU_OK;
}

int gcu_context_create(int device, gcu_context_t* context) {
  if (context == nullptr) return Invalid("gcu_context_create: no place for the context");
  const Profile* profile = nullptr;
  if (const int status = FindDevice(device, profile); status != GCU_OK) return status;
  return Guarded([&] {
    auto made = std::make_unique<gcu_context>(*profile);
    *context = made.get();
    AllContexts().emplace(made.get(), std::move(made));
    return static_cast<int>(GCU_OK);
  });
}

int gcu_context_destroy(gcu_context_t context) {
  return Guarded([&] {
    return AllContexts().erase(context) > 0 ? static_cast<int>(GCU_OK)
                                            : Invalid("gcu_context_destroy: no such context");
  });
}

int gcu_stream_create(gcu_context_t handle, gcu_stream_t* stream) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr || stream == nullptr)
      return Invalid("gcu_stream_create: no such context, or no place for the stream");
    auto made = std::make_unique<gcu_stream>();
    made->context = context;
    *stream = made.get();
    context->streams.emplace(made.get(), std::move(made));
    return static_cast<int>(GCU_OK);
  });
}

int gcu_stream_destroy(gcu_stream_t handle) {
  return Guarded([&] {
    gcu_stream* stream = Find(handle);
    if (stream == nullptr) return Invalid("gcu_stream_destroy: no such stream");
    stream->context->streams.erase(handle);
    return static_cast<int>(GCU_OK);
  });
}

int gcu_stream_synchronize(gcu_stream_t stream) {
  return Guarded([&] {
    return Find(stream) != nullptr ? static_cast<int>(GCU_OK)
                                   : Invalid("gcu_stream_synchronize: no such stream");
  });
}

int gcu_malloc(gcu_context_t context, uint64_t size, int memory_type, gcu_address_t* address) {
  return Allocate(context, size, memory_type, address);
}

int gcu_free(gcu_context_t context, gcu_address_t address, int memory_type) {
  return Release(context, address, memory_type);
}

int gcu_l2_malloc(gcu_context_t context, uint64_t size, gcu_address_t* address) {
  return Allocate(context, size, GCU_MEMORY_L2, address);
}

int gcu_l2_free(gcu_context_t context, gcu_address_t address) {
  return Release(context, address, GCU_MEMORY_L2);
}

int gcu_memcpy(gcu_context_t handle, uint64_t to, uint64_t from, uint64_t size, int kind) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr) return Invalid("gcu_memcpy: no such context");
    return CopyBytes(context->machine, to, from, size, kind);
  });
}

int gcu_memcpy_async(gcu_stream_t handle, uint64_t to, uint64_t from, uint64_t size, int kind) {
  return Guarded([&] {
    gcu_stream* stream = Find(handle);
    if (stream == nullptr) return Invalid("gcu_memcpy_async: no such stream");
    Machine& machine = stream->context->machine;
    const int status = CopyBytes(machine, to, from, size, kind);
    if (status == GCU_OK) {
      const auto time =
          static_cast<__int128>(size) * kPicosecondsPerSecond / machine.profile().l3_bytes_per_s;
      stream->clock_ps += kCopyOverheadPs + static_cast<int64_t>(time);
    }
    return status;
  });
}

int gcu_module_load(gcu_context_t handle, const void* binary, size_t size, gcu_module_t* module) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr || module == nullptr || (binary == nullptr && size > 0)) {
      return Invalid("gcu_module_load: no such context, no binary, or no place for the module");
    }
    auto made = std::make_unique<gcu_module>();
    made->context = context;
    if (const auto fault = LoadProgram(binary, size, made->program)) return From(fault);
    const std::string name = context->machine.profile().name;
    if (made->program.profile != name) {
      return Fail(GCU_WRONG_PROFILE,
                  "the binary is for " + made->program.profile + ", this device is a " + name);
    }
    for (const Kernel& kernel : made->program.kernels) {
      made->functions.push_back(std::make_unique<gcu_function>(gcu_function{context, &kernel}));
    }
    *module = made.get();
    context->modules.emplace(made.get(), std::move(made));
    return static_cast<int>(GCU_OK);
  });
}

int gcu_module_unload(gcu_module_t handle) {
  return Guarded([&] {
    gcu_module* module = Find(handle);
    if (module == nullptr) return Invalid("gcu_module_unload: no such module");
    module->context->modules.erase(handle);
    return static_cast<int>(GCU_OK);
  });
}

int gcu_module_get_function(gcu_module_t handle, const char* name, gcu_function_t* function) {
  return Guarded([&] {
    gcu_module* module = Find(handle);
    if (module == nullptr || name == nullptr || function == nullptr) {
      return Invalid(
          "gcu_module_get_function: no such module, no name, or no place for the function");
    }
    for (const auto& candidate : module->functions) {
      if (candidate->kernel->name != name) continue;
      *function = candidate.get();
      return static_cast<int>(GCU_OK);
    }
    return Fail(GCU_NOT_FOUND, std::string("the module has no kernel '") + name + "'");
  });
}

int gcu_function_get_l2_bytes(gcu_function_t handle, uint64_t* bytes) {
  return Guarded([&] {
    const gcu_function* function = Find(handle);
    if (function == nullptr || bytes == nullptr) {
      return Invalid("gcu_function_get_l2_bytes: no such function, or no place for the number");
    }
    *bytes = function->kernel->l2_bytes;
    return static_cast<int>(GCU_OK);
  });
}

int gcu_function_get_argument_count(gcu_function_t handle, uint32_t* count) {
  return Guarded([&] {
    const gcu_function* function = Find(handle);
    if (function == nullptr || count == nullptr)
      return Invalid(
          "gcu_function_get_argument_count: no such function, or no place for the count");
    *count = static_cast<uint32_t>(function->kernel->arguments.size());
    return static_cast<int>(GCU_OK);
  });
}

int gcu_function_get_argument(gcu_function_t handle, uint32_t number, gcu_argument_info* info) {
  return Guarded([&] {
    const gcu_function* function = Find(handle);
    if (function == nullptr || info == nullptr || number >= function->kernel->arguments.size()) {
      return Invalid("gcu_function_get_argument: no such function or argument, or no place for it");
    }
    const auto& argument = function->kernel->arguments[number];
    *info = {argument.name.c_str(), argument.kind, argument.access};
    return static_cast<int>(GCU_OK);
  });
}

int gcu_launch_kernel(gcu_function_t handle, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                      uint32_t block_x, uint32_t block_y, uint32_t block_z, void** args,
                      uint64_t shared_mem, gcu_stream_t on) {
  return Guarded([&] {
    const gcu_function* function = Find(handle);
    gcu_stream* stream = Find(on);
    if (function == nullptr || stream == nullptr)
      return Invalid("gcu_launch_kernel: no such function or stream");
    gcu_context& context = *stream->context;
    const Kernel& kernel = *function->kernel;
    const std::string who = "kernel '" + kernel.name + "': ";
    if (function->context != &context)
      return Invalid(who + "function and stream are of two contexts");
    if (grid_x == 0 || grid_y == 0 || grid_z == 0) return Invalid(who + "a grid of no cells");
    const auto cores = static_cast<uint32_t>(context.machine.profile().cores);
    if ((block_x != 0 && block_x != cores) || block_y > 1 || block_z > 1) {
      return Invalid(who + "a block is all " + std::to_string(cores) + " cores");
    }
    if (shared_mem < kernel.l2_bytes) {
      return Invalid(who + "wants " + std::to_string(kernel.l2_bytes) + " bytes of L2, is given " +
                     std::to_string(shared_mem));
    }
    Launch launch;
    launch.kernel = &kernel;
    std::copy_n(std::begin({grid_x, grid_y, grid_z}), 3, launch.grid);
    for (size_t i = 0; i < kernel.arguments.size(); ++i) {
      if (args == nullptr || args[i] == nullptr)
        return Invalid(who + "argument " + std::to_string(i) + " is a null pointer");
      std::memcpy(&launch.arguments.emplace_back(), args[i], sizeof(uint64_t));
    }
    return RunKernel(context, *stream, std::move(launch), shared_mem);
  });
}

int gcu_stream_get_report(gcu_stream_t handle, gcu_launch_report* report) {
  return Guarded([&] {
    const gcu_stream* stream = Find(handle);
    if (stream == nullptr || report == nullptr)
      return Invalid("gcu_stream_get_report: no such stream, or no place for the report");
    if (!stream->has_report) return Fail(GCU_NOT_FOUND, "the stream has run no kernel to its end");
    *report = stream->report;
    return static_cast<int>(GCU_OK);
  });
}

int gcu_event_create(gcu_context_t handle, gcu_event_t* event) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr || event == nullptr)
      return Invalid("gcu_event_create: no such context, or no place for the event");
    auto made = std::make_unique<gcu_event>();
    made->context = context;
    *event = made.get();
    context->events.emplace(made.get(), std::move(made));
    return static_cast<int>(GCU_OK);
  });
}

int gcu_event_destroy(gcu_event_t handle) {
  return Guarded([&] {
    gcu_event* event = Find(handle);
    if (event == nullptr) return Invalid("gcu_event_destroy: no such event");
    event->context->events.erase(handle);
    return static_cast<int>(GCU_OK);
  });
}

int gcu_event_record(gcu_event_t handle, gcu_stream_t on) {
  return Guarded([&] {
    gcu_event* event = Find(handle);
    const gcu_stream* stream = Find(on);
    if (event == nullptr || stream == nullptr || event->context != stream->context) {
      return Invalid("gcu_event_record: no such event or stream, or of two contexts");
    }
    event->is_recorded = true;
    event->clock_ps = stream->clock_ps;
    return static_cast<int>(GCU_OK);
  });
}

int gcu_event_synchronize(gcu_event_t event) {
  return Guarded([&] {
    return Find(event) != nullptr ? static_cast<int>(GCU_OK)
                                  : Invalid("gcu_event_synchronize: no such event");
  });
}

int gcu_event_elapsed(gcu_event_t begin, gcu_event_t end, double* milliseconds) {
  return Guarded([&] {
    const gcu_event *first = Find(begin), *last = Find(end);
    if (first == nullptr || last == nullptr || milliseconds == nullptr || !first->is_recorded ||
        !last->is_recorded) {
      return Invalid(
          "gcu_event_elapsed: no such event, one that was not recorded, or no place for the time");
    }
    *milliseconds = static_cast<double>(last->clock_ps - first->clock_ps) / 1e9;
    return static_cast<int>(GCU_OK);
  });
}

int gcu_set_tracing(gcu_context_t handle, int on) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr) return Invalid("gcu_set_tracing: no such context");
    context->is_tracing = on != 0;
    return static_cast<int>(GCU_OK);
  });
}

int gcu_write_trace(gcu_context_t handle, const char* path) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr || path == nullptr)
      return Invalid("gcu_write_trace: no such context, or no path");
    std::FILE* file = std::fopen(path, "w");
    if (file == nullptr)
      return Fail(GCU_NOT_FOUND, std::string("cannot write ") + path + ": " + std::strerror(errno));
    std::fputs("{\"traceEvents\":[", file);
    const char* separator = "\n";
    for (const Span& span : context->spans) {
      WriteSpan(file, span, separator);
      separator = ",\n";
    }
    std::fputs("\n]}\n", file);
    const bool failed = std::ferror(file) != 0;
    if (std::fclose(file) != 0 || failed)
      return Fail(GCU_NOT_FOUND, std::string("cannot write all of ") + path);
    context->spans.clear();
    return static_cast<int>(GCU_OK);
  });
}
