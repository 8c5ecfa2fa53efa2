#include "server/security/method_roles.h"

namespace kiln::server {
namespace {

constexpr MethodRole kMethodRoles[] = {
    // Look at what is there.
    {"Fetch", Role::kRead},
    {"GetServerInfo", Role::kRead},
    {"ListCache", Role::kRead},
    {"ExplainMiss", Role::kRead},
    {"GetActivity", Role::kRead},
    // Cost processor time, and put results of the server's own making into the cache.
    {"Compile", Role::kCompile},
    {"Interpret", Role::kCompile},
    // Shown to people beside what the compiler predicts.
    {"ReportRun", Role::kCompile},
    // Makes later compiles take one of several schedules, which all do the same.
    {"ReportChoices", Role::kCompile},
    // Alter what others get, or read and walk through everything.
    {"VerifyCache", Role::kAdmin},
    {"ClearCache", Role::kAdmin},
    {"PinCache", Role::kAdmin},
    {"RemoveCache", Role::kAdmin},
    {"ExportCache", Role::kAdmin},
    {"ImportCache", Role::kAdmin},
    {"ClearRefusals", Role::kAdmin},
};

}  // namespace

absl::Span<const MethodRole> MethodRoles() {
  return kMethodRoles;
}

std::optional<Role> RoleOf(absl::string_view method) {
  for (const MethodRole& row : kMethodRoles) {
    if (row.method == method) return row.role;
  }
  return std::nullopt;
}

}  // namespace kiln::server
