// Who calls, and how the call wants to be treated.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/base/trace_context.h"

namespace kiln::server {

// Each includes those before it.
enum class Role : uint8_t { kNone, kRead, kCompile, kAdmin };

// "none", "read", "compile", "admin".
absl::string_view RoleName(Role role);

// Of compiles: somebody waits for the one, the other may come after everybody else's.
enum class Priority : uint8_t { kInteractive, kWarmup };

struct Caller {
  std::string identity;  // the certificate's name or the token's; empty where nobody asked for one
  Role role = Role::kNone;
  std::string tenant;  // never empty; "default" where nothing says otherwise
  Priority priority = Priority::kInteractive;
  TraceContext trace;  // the caller's span, where it sent one
};

}  // namespace kiln::server
