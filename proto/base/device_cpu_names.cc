#include "proto/base/device_cpu_names.h"

#include <algorithm>

#include "absl/strings/str_split.h"

namespace kiln {

const std::vector<CpuModel>& CpuModels() {
  using enum CpuVendor;
  static const auto* models = new std::vector<CpuModel>{
      {"x86-64", "", "", kAny},
      {"x86-64-v2", "x86-64", "popcnt sse3 sse4.1 sse4.2 ssse3", kAny},
      {"x86-64-v3", "x86-64-v2", "avx avx2 bmi bmi2 f16c fma lzcnt movbe", kAny},
      {"x86-64-v4", "x86-64-v3", "avx512bw avx512cd avx512dq avx512f avx512vl", kAny},
      {"haswell", "x86-64-v3", "", kIntel},
      {"broadwell", "haswell", "adx", kIntel},
      {"skylake", "broadwell", "", kIntel},
      {"alderlake", "skylake", "avxvnni gfni sha vaes vpclmulqdq", kIntel},
      {"skylake-avx512", "x86-64-v4", "adx", kIntel},
      {"cascadelake", "skylake-avx512", "avx512vnni", kIntel},
      {"cooperlake", "cascadelake", "avx512bf16", kIntel},
      {"icelake-server", "cascadelake",
       "avx512bitalg avx512ifma avx512vbmi avx512vbmi2 avx512vpopcntdq gfni sha vaes vpclmulqdq",
       kIntel},
      {"sapphirerapids", "icelake-server",
       "amx-bf16 amx-int8 amx-tile avx512bf16 avx512fp16 avxvnni", kIntel},
      {"graniterapids", "sapphirerapids", "amx-fp16", kIntel},
      {"znver1", "x86-64-v3", "adx sha", kAmd},
      {"znver2", "znver1", "", kAmd},
      {"znver3", "znver2", "vaes vpclmulqdq", kAmd},
      {"znver4", "znver3",
       "avx512bf16 avx512bitalg avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi "
       "avx512vbmi2 avx512vl avx512vnni avx512vpopcntdq gfni",
       kAmd},
      {"znver5", "znver4", "avxvnni", kAmd},
  };
  return *models;
}

const CpuModel* FindCpuModel(absl::string_view name) {
  for (const CpuModel& model : CpuModels()) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

std::vector<std::string> ExtensionsOf(const CpuModel& model) {
  std::vector<std::string> out;
  for (const CpuModel* m = &model; m != nullptr; m = FindCpuModel(m->parent)) {
    for (absl::string_view e : absl::StrSplit(m->extensions, ' ', absl::SkipEmpty())) {
      out.emplace_back(e);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

namespace {

absl::string_view AmdName(int family, int model) {
  if (family == 0x17) return model >= 0x30 ? "znver2" : "znver1";
  if (family == 0x19) {
    bool zen4 = (model >= 0x10 && model <= 0x1f) || (model >= 0x60 && model <= 0xaf);
    return zen4 ? "znver4" : "znver3";
  }
  return family == 0x1a ? "znver5" : "";
}

absl::string_view IntelName(int model, int stepping) {
  switch (model) {
    case 0x3c:
    case 0x3f:
    case 0x45:
    case 0x46:
      return "haswell";
    case 0x3d:
    case 0x47:
    case 0x4f:
    case 0x56:
      return "broadwell";
    case 0x4e:
    case 0x5e:
    case 0x8e:
    case 0x9e:
    case 0xa5:
    case 0xa6:
      return "skylake";
    case 0x55:
      return stepping >= 10 ? "cooperlake" : stepping >= 5 ? "cascadelake" : "skylake-avx512";
    case 0x6a:
    case 0x6c:
      return "icelake-server";
    case 0x8f:
    case 0xcf:
      return "sapphirerapids";
    case 0xad:
    case 0xae:
      return "graniterapids";
    case 0x97:
    case 0x9a:
    case 0xb7:
    case 0xba:
    case 0xbf:
      return "alderlake";
    default:
      return "";
  }
}

}  // namespace

const CpuModel* CpuModelById(CpuVendor vendor, int family, int model, int stepping) {
  if (vendor == CpuVendor::kAmd) return FindCpuModel(AmdName(family, model));
  if (vendor == CpuVendor::kIntel && family == 6) return FindCpuModel(IntelName(model, stepping));
  return nullptr;
}

}  // namespace kiln
