#include "server/web/web_assets.h"

namespace kiln::server {

const std::vector<WebAsset>& WebAssets() {
  static constexpr char kScript[] = "text/javascript; charset=utf-8";
  static const auto* const assets = new std::vector<WebAsset>{
      {"/", "text/html; charset=utf-8", UiIndexHtml()},
      {"/ui/style.css", "text/css; charset=utf-8", UiStyleCss()},
      {"/ui/icon.svg", "image/svg+xml", UiIconSvg()},
      {"/ui/app.js", kScript, UiAppJs()},
      {"/ui/dom.js", kScript, UiDomJs()},
      {"/ui/charts.js", kScript, UiChartsJs()},
      {"/ui/overview.js", kScript, UiOverviewJs()},
      {"/ui/compile.js", kScript, UiCompileJs()},
      {"/ui/fusion.js", kScript, UiFusionJs()},
      {"/ui/ir.js", kScript, UiIrJs()},
      {"/ui/launches.js", kScript, UiLaunchesJs()},
  };
  return *assets;
}

}  // namespace kiln::server
