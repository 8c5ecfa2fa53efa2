// What the C interface's handles stand for, and which of them are alive.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/gcu_simulator/machine.h"
#include "client/gcu_simulator/order.h"
#include "client/gcu_simulator/program.h"
#include "client/gcu_simulator/timeline.h"
#include "client/include/gcu/gcu_runtime.h"

struct gcu_stream {
  gcu_context* context = nullptr;
  int64_t number = 0;    // in the context's order
  int64_t clock_ps = 0;  // when the last of its work is done
  bool has_report = false;
  gcu_launch_report report{};
};

struct gcu_event {
  gcu_context* context = nullptr;
  bool is_recorded = false;
  // Of the stream, when it was recorded:
  int64_t clock_ps = 0;
  kiln::gcu_simulator::Order::Known known;
  bool has_report = false;
  gcu_launch_report report{};
};

struct gcu_function {
  gcu_context* context = nullptr;
  const kiln::gcu_simulator::Kernel* kernel = nullptr;
};

struct gcu_module {
  gcu_context* context = nullptr;
  kiln::gcu_simulator::Program program;
  std::vector<std::unique_ptr<gcu_function>> functions;  // one a kernel
};

struct gcu_context {
  explicit gcu_context(const kiln::gcu_simulator::Profile& profile) : machine(profile) {}

  kiln::gcu_simulator::Machine machine;
  kiln::gcu_simulator::Order order;
  kiln::gcu_simulator::Timeline timeline;
  bool is_tracing = false;
  std::vector<kiln::gcu_simulator::Span>
      spans;  // of launches since tracing began, on the streams' clocks
  std::unordered_map<const void*, std::unique_ptr<gcu_stream>> streams;
  std::unordered_map<const void*, std::unique_ptr<gcu_event>> events;
  std::unordered_map<const void*, std::unique_ptr<gcu_module>> modules;
};

namespace kiln::gcu_simulator {

using Contexts = std::unordered_map<const void*, std::unique_ptr<gcu_context>>;
Contexts& AllContexts();

// One lock for all: a simulated device is no faster with more.
std::mutex& Mutex();

// Keeps the text as this thread's last error, and gives the status.
int Fail(int status, std::string text);
int Invalid(std::string text);
int From(const std::optional<Fault>& fault);
const std::string& LastError();

// The object of a handle; null where there is none, which a handle's value alone decides.
gcu_context* Find(gcu_context_t handle);
gcu_stream* Find(gcu_stream_t handle);
gcu_event* Find(gcu_event_t handle);
gcu_module* Find(gcu_module_t handle);
gcu_function* Find(gcu_function_t handle);

// The host has seen all that was issued on any stream, or on that one.
void WaitForAll(gcu_context& context);
void WaitForStream(gcu_stream& stream);

// Runs `body` under the lock; nothing that it throws leaves the library.
template <typename Body>
int Guarded(const Body& body) {
  try {
    const std::lock_guard<std::mutex> lock(Mutex());
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(GCU_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return Fail(GCU_PROGRAM_FAULT, error.what());
  }
}

}  // namespace kiln::gcu_simulator
