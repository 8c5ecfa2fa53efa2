// Tells the service manager what becomes of kilnd (sd_notify(3), without its library).
#pragma once

#include "absl/strings/string_view.h"

namespace kiln::server {

// Sends "READY=1", "STOPPING=1", ... to the socket that NOTIFY_SOCKET names; does nothing where
// nobody set it. What goes wrong is logged: the manager will then run into its own time limit.
void NotifyServiceManager(absl::string_view state);

}  // namespace kiln::server
