// The C interface: streams, events, copies and launches, in function, order and time.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "client/gcu_simulator/handles.h"

using kiln::gcu_simulator::Fail;
using kiln::gcu_simulator::Fault;
using kiln::gcu_simulator::Find;
using kiln::gcu_simulator::Footprint;
using kiln::gcu_simulator::From;
using kiln::gcu_simulator::Guarded;
using kiln::gcu_simulator::Invalid;
using kiln::gcu_simulator::Kernel;
using kiln::gcu_simulator::Launch;
using kiln::gcu_simulator::Machine;
using kiln::gcu_simulator::Report;
using kiln::gcu_simulator::Space;
using kiln::gcu_simulator::Span;
using kiln::gcu_simulator::TimeRange;
using kiln::gcu_simulator::WaitForAll;
using kiln::gcu_simulator::WaitForStream;

namespace {

constexpr int64_t kPicosecondsPerSecond = 1'000'000'000'000;

const char* NameOf(int kind) {
  return kind == GCU_HOST_TO_DEVICE   ? "copy to the device"
         : kind == GCU_DEVICE_TO_HOST ? "copy to the host"
                                      : "copy on the device";
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

// The copy's time, from `issued_ps` on, which is traced.
TimeRange TimeCopy(gcu_context& context, int64_t issued_ps, uint64_t size, int kind) {
  const auto l3_ps = static_cast<int64_t>(static_cast<__int128>(size) * kPicosecondsPerSecond /
                                          context.machine.profile().l3_bytes_per_s);
  const TimeRange time = context.timeline.AddCopy(issued_ps, l3_ps);
  if (context.is_tracing) {
    context.spans.push_back({.core = -1,
                             .engine = "host",
                             .name = NameOf(kind),
                             .begin_ps = time.begin_ps,
                             .end_ps = time.end_ps,
                             .bytes = static_cast<int64_t>(size)});
  }
  return time;
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
  const std::string who = "kernel '" + launch.kernel->name + "'";
  if (shared_mem > 0 && own.address() == 0) {
    return Fail(GCU_OUT_OF_MEMORY,
                who + ": " + std::to_string(shared_mem) + " bytes of L2 do not fit beside the " +
                    std::to_string(context.machine.Used(Space::kL2)) + " that are taken");
  }
  launch.l2_begin = own.address();
  launch.l2_bytes = shared_mem;
  const int64_t launch_ps = context.machine.profile().launch_ns * 1000;
  const int64_t program_ps = context.timeline.ProgramBegin(stream.clock_ps, launch_ps);
  const int64_t begin_ps = program_ps - launch_ps;
  for (const TimeRange& copy : context.timeline.CopiesFrom(program_ps)) {
    launch.l3_taken.push_back({copy.begin_ps - begin_ps, copy.end_ps - begin_ps});
  }
  Report report;
  const std::optional<Fault> fault = context.machine.Run(launch, context.is_tracing, report);
  if (fault) return From(fault);
  for (Span& span : report.spans) {
    span.begin_ps += begin_ps;
    span.end_ps += begin_ps;
    context.spans.push_back(span);
  }
  stream.report = Told(report, context.machine);
  stream.has_report = true;
  stream.clock_ps = begin_ps + report.time_ps;
  context.timeline.AddProgram({program_ps, stream.clock_ps}, report.l3_busy_ps);
  return From(context.order.Add(stream.number, who, std::move(report.footprint)));
}

int TellReport(bool is_there, const gcu_launch_report& from, gcu_launch_report& report) {
  if (!is_there) return Fail(GCU_NOT_FOUND, "the stream has run no kernel to its end");
  report = from;
  return GCU_OK;
}

}  // namespace

int gcu_stream_create(gcu_context_t handle, gcu_stream_t* stream) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr || stream == nullptr)
      return Invalid("gcu_stream_create: no such context, or no place for the stream");
    auto made = std::make_unique<gcu_stream>();
    made->context = context;
    made->number = context->order.AddStream();
    *stream = made.get();
    context->streams.emplace(made.get(), std::move(made));
    return static_cast<int>(GCU_OK);
  });
}

int gcu_stream_destroy(gcu_stream_t handle) {
  return Guarded([&] {
    gcu_stream* stream = Find(handle);
    if (stream == nullptr) return Invalid("gcu_stream_destroy: no such stream");
    WaitForStream(*stream);
    stream->context->order.RemoveStream(stream->number);
    stream->context->streams.erase(handle);
    return static_cast<int>(GCU_OK);
  });
}

int gcu_stream_synchronize(gcu_stream_t handle) {
  return Guarded([&] {
    gcu_stream* stream = Find(handle);
    if (stream == nullptr) return Invalid("gcu_stream_synchronize: no such stream");
    WaitForStream(*stream);
    return static_cast<int>(GCU_OK);
  });
}

int gcu_memcpy(gcu_context_t handle, uint64_t to, uint64_t from, uint64_t size, int kind) {
  return Guarded([&] {
    gcu_context* context = Find(handle);
    if (context == nullptr) return Invalid("gcu_memcpy: no such context");
    const int status = CopyBytes(context->machine, to, from, size, kind);
    if (status != GCU_OK) return status;
    WaitForAll(*context);
    context->timeline.HostWaits(TimeCopy(*context, context->timeline.host_ps(), size, kind).end_ps);
    return static_cast<int>(GCU_OK);
  });
}

int gcu_memcpy_async(gcu_stream_t handle, uint64_t to, uint64_t from, uint64_t size, int kind) {
  return Guarded([&] {
    gcu_stream* stream = Find(handle);
    if (stream == nullptr) return Invalid("gcu_memcpy_async: no such stream");
    gcu_context& context = *stream->context;
    const int status = CopyBytes(context.machine, to, from, size, kind);
    if (status != GCU_OK) return status;
    stream->clock_ps = TimeCopy(context, stream->clock_ps, size, kind).end_ps;
    Footprint footprint;
    if (kind != GCU_DEVICE_TO_HOST) footprint.written.Add(to, to + size);
    if (kind != GCU_HOST_TO_DEVICE) footprint.read.Add(from, from + size);
    return From(
        context.order.Add(stream->number, std::string("a ") + NameOf(kind), std::move(footprint)));
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
    return TellReport(stream->has_report, stream->report, *report);
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
    event->clock_ps = std::max(stream->clock_ps, stream->context->timeline.host_ps());
    event->known = stream->context->order.After(stream->number);
    event->has_report = stream->has_report;
    event->report = stream->report;
    return static_cast<int>(GCU_OK);
  });
}

int gcu_event_synchronize(gcu_event_t handle) {
  return Guarded([&] {
    const gcu_event* event = Find(handle);
    if (event == nullptr || !event->is_recorded) {
      return Invalid("gcu_event_synchronize: no such event, or one that was not recorded");
    }
    event->context->order.HostWaits(event->known);
    event->context->timeline.HostWaits(event->clock_ps);
    return static_cast<int>(GCU_OK);
  });
}

int gcu_stream_wait_event(gcu_stream_t handle, gcu_event_t on) {
  return Guarded([&] {
    gcu_stream* stream = Find(handle);
    const gcu_event* event = Find(on);
    if (stream == nullptr || event == nullptr || event->context != stream->context ||
        !event->is_recorded) {
      return Invalid(
          "gcu_stream_wait_event: no such stream or event, of two contexts, or an event that was "
          "not recorded");
    }
    stream->context->order.StreamWaits(stream->number, event->known);
    stream->clock_ps = std::max(stream->clock_ps, event->clock_ps);
    return static_cast<int>(GCU_OK);
  });
}

int gcu_event_get_report(gcu_event_t handle, gcu_launch_report* report) {
  return Guarded([&] {
    const gcu_event* event = Find(handle);
    if (event == nullptr || report == nullptr || !event->is_recorded) {
      return Invalid(
          "gcu_event_get_report: no such event, one that was not recorded, or no place for the "
          "report");
    }
    return TellReport(event->has_report, event->report, *report);
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
