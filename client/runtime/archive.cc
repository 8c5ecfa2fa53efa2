#include "client/runtime/archive.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/runtime/kernel.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

constexpr absl::string_view kFirstLine = "// kiln kernels 1";
constexpr absl::string_view kKernel = "// kernel ";
constexpr absl::string_view kInterface = "// interface ";

absl::Status Bad(absl::string_view where, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the artifact's archive of kernels is malformed: ", where, " ", what));
}

bool IsName(absl::string_view name) {
  return !name.empty() && !absl::ascii_isdigit(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '$'; });
}

// "NAME OFFSET SIZE"
absl::Status ParseKernel(absl::string_view where, absl::string_view text, absl::string_view modules,
                         ArchivedKernel& kernel) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  uint64_t offset = 0, size = 0;
  if (words.size() != 3 || !IsName(words[0]) || !absl::SimpleAtoi(words[1], &offset) ||
      !absl::SimpleAtoi(words[2], &size)) {
    return Bad(where, "is no name, offset and size of a kernel");
  }
  if (size == 0 || offset > modules.size() || size > modules.size() - offset) {
    return Bad(where, absl::StrCat("has a module of ", size, " bytes at ", offset, " of ",
                                   modules.size(), " bytes"));
  }
  kernel.name = std::string(words[0]);
  kernel.module = modules.substr(offset, size);
  return absl::OkStatus();
}

absl::Status CheckApart(const std::vector<ArchivedKernel>& kernels) {
  std::vector<const ArchivedKernel*> order;
  for (const ArchivedKernel& kernel : kernels) order.push_back(&kernel);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->module.data() < b->module.data(); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->module.data() + order[i - 1]->module.size() > order[i]->module.data()) {
      return Bad(absl::StrCat("kernel ", order[i]->name), "has bytes of another kernel's module");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Archive>> Archive::Parse(std::string data) {
  std::unique_ptr<Archive> archive(new Archive(std::move(data)));
  const absl::string_view all = archive->data_;
  const size_t end = all.find("\n\n");
  if (end == absl::string_view::npos) return Bad("the list of kernels", "has no end");
  const absl::string_view modules = all.substr(end + 2);
  const std::vector<absl::string_view> lines = absl::StrSplit(all.substr(0, end), '\n');
  if (lines[0] != kFirstLine) {
    return Bad("line 1", absl::StrCat("is not '", kFirstLine, "'"));
  }
  if (lines.size() % 2 != 1) return Bad("the list of kernels", "has a kernel without an interface");
  absl::flat_hash_map<absl::string_view, size_t> line_of;
  archive->kernels_.reserve(lines.size() / 2);
  for (size_t i = 1; i < lines.size(); i += 2) {
    ArchivedKernel& kernel = archive->kernels_.emplace_back();
    const std::string where = absl::StrCat("line ", i + 1);
    absl::string_view text = lines[i];
    if (!absl::ConsumePrefix(&text, kKernel)) return Bad(where, "names no kernel");
    KILN_RETURN_IF_ERROR(ParseKernel(where, text, modules, kernel));
    if (!line_of.try_emplace(kernel.name, i + 1).second) {
      return Bad(where, absl::StrCat("names kernel ", kernel.name, ", which line ",
                                     line_of[kernel.name], " has named"));
    }
    kernel.interface_text = lines[i + 1];
    if (!absl::ConsumePrefix(&kernel.interface_text, kInterface)) {
      return Bad(absl::StrCat("line ", i + 2), "states no interface");
    }
    absl::StatusOr<std::shared_ptr<const v1::KernelInterface>> interface =
        ParseInterface(kernel.interface_text);
    if (!interface.ok()) return Bad(absl::StrCat("line ", i + 2), "states no interface");
    kernel.interface = *std::move(interface);
  }
  KILN_RETURN_IF_ERROR(CheckApart(archive->kernels_));
  return archive;
}

absl::StatusOr<std::vector<Kernel>> FindKernels(const v1::Program& program,
                                                const Archive& archive) {
  absl::flat_hash_map<absl::string_view, int> numbers;
  for (const ArchivedKernel& kernel : archive.kernels()) {
    numbers.emplace(kernel.name, static_cast<int>(numbers.size()));
  }
  std::vector<Kernel> kernels;
  for (const v1::Step& step : program.steps()) {
    if (!step.has_launch()) continue;
    const auto found = numbers.find(step.launch().kernel());
    if (found == numbers.end()) {
      return Bad("the list of kernels", absl::StrCat("lacks '", step.launch().kernel(), "'"));
    }
    Kernel& kernel = kernels.emplace_back();
    kernel.function = found->second;
    kernel.interface = archive.kernels()[static_cast<size_t>(found->second)].interface;
  }
  return kernels;
}

absl::Status CheckAlike(const Archive& a, const Archive& b) {
  const bool alike = std::equal(a.kernels().begin(), a.kernels().end(), b.kernels().begin(),
                                b.kernels().end(), [](const auto& x, const auto& y) {
                                  return x.name == y.name && x.interface_text == y.interface_text;
                                });
  return alike ? absl::OkStatus() : Bad("the list of kernels", "differs between its binaries");
}

}  // namespace kiln::runtime
