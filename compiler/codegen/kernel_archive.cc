#include "compiler/codegen/kernel_archive.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen {
namespace {

constexpr absl::string_view kKernel = "// kernel ";
constexpr absl::string_view kInterface = "// interface ";

}  // namespace

std::string KernelObject(absl::string_view name, absl::string_view interface,
                         absl::string_view code) {
  return absl::StrCat(kKernel, name, "\n", kInterface, interface, "\n", code);
}

bool IsKernelObject(absl::string_view object) {
  return absl::StartsWith(object, kKernel);
}

// "// kernel NAME OFFSET SIZE" and "// interface TEXT" for each kernel, an empty line, and the
// modules. Offsets count from the empty line's end.
absl::StatusOr<std::string> KernelArchive(absl::Span<const std::string> objects,
                                          absl::Span<const std::string> codes) {
  std::string index = "// kiln kernels 1\n", all;
  for (size_t i = 0; i < objects.size(); ++i) {
    absl::string_view rest = objects[i];
    const auto line = [&](absl::string_view mark) -> absl::StatusOr<absl::string_view> {
      const size_t end = rest.find('\n');
      if (!absl::StartsWith(rest, mark) || end == absl::string_view::npos) {
        return absl::InternalError("an object to link does not name its kernel");
      }
      const absl::string_view text = rest.substr(mark.size(), end - mark.size());
      rest.remove_prefix(end + 1);
      return text;
    };
    KILN_ASSIGN_OR_RETURN(const absl::string_view name, line(kKernel));
    KILN_ASSIGN_OR_RETURN(const absl::string_view interface, line(kInterface));
    if (!codes.empty()) rest = codes[i];
    absl::StrAppend(&index, kKernel, name, " ", all.size(), " ", rest.size(), "\n", kInterface,
                    interface, "\n");
    absl::StrAppend(&all, rest);
  }
  return absl::StrCat(index, "\n", all);
}

}  // namespace kiln::codegen
