// The web page and what it reads: routes of the HTTP server. server/README.md lists them.
#pragma once

#include "server/web/activity_report.h"
#include "server/web/compile_details.h"
#include "server/web/http.h"

namespace kiln::server {

// `routes` and the page's. Both pointers must outlive them.
HttpRoutes WithPage(HttpRoutes routes, const ActivitySources* sources, CompileDetails* details);

}  // namespace kiln::server
