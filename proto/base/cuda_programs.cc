#include "proto/base/cuda_programs.h"

#include <glob.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kiln {

std::vector<std::string> CudaProgramPlaces(absl::string_view program,
                                           absl::Span<const absl::string_view> wheels) {
  std::vector<std::string> places;
  const char* path = getenv("PATH");
  for (absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    if (absl::StartsWith(folder, "/")) places.push_back(absl::StrCat(folder, "/", program));
  }
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = getenv(name)) places.push_back(absl::StrCat(root, "/bin/", program));
  }
  std::vector<std::string> patterns = {absl::StrCat("/usr/local/cuda/bin/", program),
                                       absl::StrCat("/usr/local/cuda-*/bin/", program)};
  std::vector<std::string> roots = {"/usr", "/usr/local"};
  if (const char* environment = getenv("VIRTUAL_ENV")) roots.insert(roots.begin(), environment);
  for (const std::string& root : roots) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (absl::string_view wheel : wheels) {
        patterns.push_back(
            absl::StrCat(root, "/lib/python3*/", packages, "/nvidia/", wheel, "/bin/", program));
      }
    }
  }
  for (const std::string& pattern : patterns) {
    glob_t found = {};
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      // The last name is the newest version's.
      for (size_t i = found.gl_pathc; i > 0; --i) places.emplace_back(found.gl_pathv[i - 1]);
    }
    globfree(&found);
  }
  return places;
}

}  // namespace kiln
