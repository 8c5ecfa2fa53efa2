// The web page's files, built into the program.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace kiln::server {

struct WebAsset {
  absl::string_view path;  // "/ui/app.js"; "/" for the page itself
  absl::string_view content_type;
  absl::string_view text;
};

const std::vector<WebAsset>& WebAssets();

// Made from server/ui by the build.
absl::string_view UiIndexHtml();
absl::string_view UiStyleCss();
absl::string_view UiIconSvg();
absl::string_view UiAppJs();
absl::string_view UiDomJs();
absl::string_view UiChartsJs();
absl::string_view UiOverviewJs();
absl::string_view UiCompileJs();
absl::string_view UiFusionJs();
absl::string_view UiIrJs();
absl::string_view UiLaunchesJs();

}  // namespace kiln::server
