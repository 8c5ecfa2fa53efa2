#include "client/gcu_simulator/handles.h"

#include <utility>

namespace kiln::gcu_simulator {
namespace {

thread_local std::string last_error;

// Handles are only compared until they are known to be alive.
template <typename Handle, typename Member>
Handle* FindIn(Handle* handle, Member member) {
  for (const auto& [key, context] : AllContexts()) {
    const auto it = (context.get()->*member).find(handle);
    if (it != (context.get()->*member).end()) return it->second.get();
  }
  return nullptr;
}

}  // namespace

std::mutex& Mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

Contexts& AllContexts() {
  static auto* contexts = new Contexts;
  return *contexts;
}

int Fail(int status, std::string text) {
  last_error = std::move(text);
  return status;
}

int Invalid(std::string text) {
  return Fail(GCU_INVALID_ARGUMENT, std::move(text));
}

int From(const std::optional<Fault>& fault) {
  return fault ? Fail(static_cast<int>(fault->code), fault->text) : GCU_OK;
}

gcu_context* Find(gcu_context_t handle) {
  const auto it = AllContexts().find(handle);
  return it == AllContexts().end() ? nullptr : it->second.get();
}

gcu_stream* Find(gcu_stream_t handle) {
  return FindIn(handle, &gcu_context::streams);
}
gcu_event* Find(gcu_event_t handle) {
  return FindIn(handle, &gcu_context::events);
}
gcu_module* Find(gcu_module_t handle) {
  return FindIn(handle, &gcu_context::modules);
}
gcu_function* Find(gcu_function_t handle) {
  for (const auto& [key, context] : AllContexts()) {
    for (const auto& [module_key, module] : context->modules) {
      for (const auto& function : module->functions) {
        if (function.get() == handle) return function.get();
      }
    }
  }
  return nullptr;
}

void WaitForAll(gcu_context& context) {
  context.order.HostWaitsForAll();
  for (const auto& [key, stream] : context.streams) context.timeline.HostWaits(stream->clock_ps);
}

void WaitForStream(gcu_stream& stream) {
  stream.context->order.HostWaits(stream.context->order.After(stream.number));
  stream.context->timeline.HostWaits(stream.clock_ps);
}

const std::string& LastError() {
  return last_error;
}

}  // namespace kiln::gcu_simulator
