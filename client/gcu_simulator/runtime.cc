// The C interface: devices, memory, modules, traces. What streams do is in streams.cc.
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
using kiln::gcu_simulator::Find;
using kiln::gcu_simulator::FindProfile;
using kiln::gcu_simulator::From;
using kiln::gcu_simulator::Guarded;
using kiln::gcu_simulator::Invalid;
using kiln::gcu_simulator::Kernel;
using kiln::gcu_simulator::LastError;
using kiln::gcu_simulator::LoadProgram;
using kiln::gcu_simulator::Profile;
using kiln::gcu_simulator::Space;
using kiln::gcu_simulator::Span;
using kiln::gcu_simulator::WaitForAll;

namespace {

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
    WaitForAll(*context);
    return context->machine.Free(space, address)
               ? static_cast<int>(GCU_OK)
               : Invalid("nothing was allocated at " + std::to_string(address));
  });
}

void WriteSpan(std::FILE* file, const Span& span, const char* separator) {
  std::fprintf(
      file,
      "%s{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":\"%s%s\",\"ts\":%.6f,"
      "\"dur\":%.6f,\"args\":{\"bytes\":%lld}}",
      separator, span.name, span.engine,
      span.core < 0 ? "" : ("core " + std::to_string(span.core) + " ").c_str(), span.engine,
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
