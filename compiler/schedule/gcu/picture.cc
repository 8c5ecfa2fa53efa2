#include "compiler/schedule/gcu/picture.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace kiln::schedule::gcu {
namespace {

constexpr double kWidth = 1200, kHeight = 240, kMargin = 60, kTitle = 24;
constexpr double kLane = 16, kLaneGap = 4;  // of the timeline
constexpr const char* kColors[] = {"#4e79a7", "#f28e2b", "#59a14f", "#b07aa1",
                                   "#76b7b2", "#edc948", "#9c755f", "#e15759"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// One launch's panel, its upper left corner at (0, 0).
std::string Panel(const ir::Module& module, const PicturedLaunch& launch, const Machine& machine) {
  std::vector<double> begins = {0};
  for (const Cost& cost : launch.costs) begins.push_back(begins.back() + cost.seconds);
  const double all = std::max(begins.back(), 1e-12);
  const auto x = [&](size_t kernel) { return kMargin + begins[kernel] / all * kWidth; };
  const auto y = [&](int64_t byte) {
    return kTitle + kHeight -
           static_cast<double>(byte) / static_cast<double>(machine.l2_bytes) * kHeight;
  };
  std::string out = absl::StrFormat(
      "<text x=\"%g\" y=\"16\">%s: %d kernels, L2 peak %.2f of %.0f MiB, predicted %.1f us</text>\n"
      "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"#f4f4f4\" stroke=\"#888\"/>\n",
      kMargin, Escape(launch.name), launch.kernels.size(),
      static_cast<double>(launch.plan.bytes) / (1 << 20),
      static_cast<double>(machine.l2_bytes) / (1 << 20), all * 1e6, kMargin, kTitle, kWidth,
      kHeight);
  for (int part = 0; part <= 4; ++part) {
    const int64_t byte = machine.l2_bytes / 4 * part;
    absl::StrAppendFormat(&out, "<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%.0f MiB</text>\n",
                          kMargin - 6, y(byte) + 4, static_cast<double>(byte) / (1 << 20));
  }
  size_t color = 0;
  for (const L2Buffer& buffer : launch.plan.buffers) {
    const double left = x(buffer.first), right = x(buffer.last + 1);
    const double top = y(buffer.offset + buffer.bytes), bottom = y(buffer.offset);
    const std::string name = Escape(module.buffers[buffer.buffer].name);
    absl::StrAppendFormat(
        &out,
        "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" stroke=\"#fff\" "
        "stroke-width=\"0.5\"><title>%s: %.3f MiB, from %s to %s</title></rect>\n",
        left, top, std::max(right - left, 0.5), std::max(bottom - top, 0.5),
        kColors[color++ % std::size(kColors)], name, static_cast<double>(buffer.bytes) / (1 << 20),
        Escape(launch.kernels[buffer.first]), Escape(launch.kernels[buffer.last]));
    if (right - left > 60 && bottom - top > 12) {
      absl::StrAppendFormat(&out, "<text x=\"%.2f\" y=\"%.2f\" fill=\"#fff\">%s</text>\n", left + 3,
                            (top + bottom) / 2 + 4,
                            name.substr(0, static_cast<size_t>((right - left) / 7)));
    }
  }
  struct Lane {
    const char* name;
    double Cost::* seconds;
  };
  constexpr Lane kLanes[] = {{"compute", &Cost::compute}, {"L3", &Cost::l3}, {"L2", &Cost::l2}};
  double top = kTitle + kHeight + kLaneGap;
  for (size_t lane = 0; lane < std::size(kLanes); ++lane) {
    absl::StrAppendFormat(&out, "<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>\n",
                          kMargin - 6, top + kLane - 4, kLanes[lane].name);
    absl::StrAppendFormat(&out,
                          "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"#f4f4f4\"/>\n",
                          kMargin, top, kWidth, kLane);
    for (size_t k = 0; k < launch.costs.size(); ++k) {
      const double busy = launch.costs[k].*kLanes[lane].seconds;
      absl::StrAppendFormat(&out,
                            "<rect x=\"%.2f\" y=\"%g\" width=\"%.2f\" height=\"%g\" "
                            "fill=\"%s\"><title>%s: %s %.1f of "
                            "%.1f us</title></rect>\n",
                            x(k), top, std::min(busy / all * kWidth, x(k + 1) - x(k)), kLane,
                            kColors[lane % std::size(kColors)], Escape(launch.kernels[k]),
                            kLanes[lane].name, busy * 1e6, launch.costs[k].seconds * 1e6);
    }
    top += kLane + kLaneGap;
  }
  return out;
}

}  // namespace

std::string PictureL2(const ir::Module& module, const std::vector<PicturedLaunch>& launches,
                      const Machine& machine) {
  const double panel = kTitle + kHeight + 3 * (kLane + kLaneGap) + 20;
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n",
      kWidth + 2 * kMargin, panel * static_cast<double>(std::max<size_t>(launches.size(), 1)));
  for (size_t i = 0; i < launches.size(); ++i) {
    absl::StrAppendFormat(&out, "<g transform=\"translate(0 %g)\">\n%s</g>\n",
                          panel * static_cast<double>(i), Panel(module, launches[i], machine));
  }
  return out + "</svg>\n";
}

}  // namespace kiln::schedule::gcu
