// What `kiln top` shows, as text.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class Activity;
}

namespace cli {

struct TopScreen {
  int width = 80;
  int height = 24;  // lines; 0: as many as there are
  bool color = false;
  bool unicode = true;  // else ASCII only
  std::string server;
  std::string problem;  // shown instead of "serving" where the last question failed
};

// Lines that each end in a newline, none wider than the screen and no more than it has. Names come
// from other people's graphs: what would steer a terminal is shown as '?'.
std::string RenderTop(const v1::Activity& activity, const TopScreen& screen);

// `text` in exactly `width` columns: cut with a mark at its end, or filled with spaces.
std::string FitText(absl::string_view text, int width, bool unicode);

}  // namespace cli
}  // namespace kiln
