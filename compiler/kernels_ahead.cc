#include "compiler/kernels_ahead.h"

#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kiln {

std::string KernelAheadText(const Digest& key, absl::string_view object) {
  return absl::StrCat(key.ToHex(), " ", object.size(), "\n", object);
}

std::vector<KernelAhead> ReadKernelsAhead(absl::string_view list) {
  std::vector<KernelAhead> all;
  while (!list.empty()) {
    const size_t space = list.find(' '), line = list.find('\n');
    size_t bytes = 0;
    if (space >= line || line == absl::string_view::npos ||
        !absl::SimpleAtoi(list.substr(space + 1, line - space - 1), &bytes) ||
        bytes > list.size() - line - 1) {
      break;
    }
    all.push_back({list.substr(0, space), list.substr(line + 1, bytes)});
    list.remove_prefix(line + 1 + bytes);
  }
  return all;
}

std::optional<absl::string_view> FindKernelAhead(absl::string_view list, const Digest& key) {
  const std::string wanted = key.ToHex();
  for (const KernelAhead& kernel : ReadKernelsAhead(list)) {
    if (kernel.key == wanted) return kernel.object;
  }
  return std::nullopt;
}

}  // namespace kiln
