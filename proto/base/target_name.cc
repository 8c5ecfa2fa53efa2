#include "proto/base/target_name.h"

#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "kiln/v1/device.pb.h"

namespace kiln {
namespace {

const std::map<int, std::string>& Names() {
  static const auto* names = [] {
    auto* out = new std::map<int, std::string>;
    const google::protobuf::EnumDescriptor& targets = *v1::Target_descriptor();
    for (int i = 0; i < targets.value_count(); ++i) {
      const google::protobuf::EnumValueDescriptor& value = *targets.value(i);
      if (value.number() == v1::TARGET_UNSPECIFIED) continue;
      const std::string name(value.name());
      out->emplace(value.number(), absl::AsciiStrToLower(absl::StripPrefix(name, "TARGET_")));
    }
    return out;
  }();
  return *names;
}

}  // namespace

absl::string_view TargetName(int target) {
  const auto found = Names().find(target);
  return found == Names().end() ? "unknown" : absl::string_view(found->second);
}

int TargetNumber(absl::string_view name) {
  for (const auto& [number, known] : Names()) {
    if (known == name) return number;
  }
  return v1::TARGET_UNSPECIFIED;
}

std::vector<absl::string_view> TargetNames() {
  std::vector<absl::string_view> out;
  for (const auto& [number, name] : Names()) out.emplace_back(name);
  return out;
}

}  // namespace kiln
