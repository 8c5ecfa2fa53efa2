// Which role each method of CompileService takes.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/security/caller.h"

namespace kiln::server {

struct MethodRole {
  absl::string_view method;  // "Fetch"
  Role role;
};

// One row a method.
absl::Span<const MethodRole> MethodRoles();

// Nothing for a method that has no row; such a method lets nobody in.
std::optional<Role> RoleOf(absl::string_view method);

}  // namespace kiln::server
