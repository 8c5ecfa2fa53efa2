// Which extensions the CPUs have that Kiln knows by name. Only extensions that change generated
// code are listed; sources: the x86-64 psABI's levels and the vendors' manuals.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kiln {

enum class CpuVendor { kAny, kAmd, kIntel };

struct CpuModel {
  absl::string_view name;        // LLVM's
  absl::string_view parent;      // whose extensions it has as well; empty for none
  absl::string_view extensions;  // its own, separated by spaces
  CpuVendor vendor;
};

// Null for an unknown name.
const CpuModel* FindCpuModel(absl::string_view name);
const std::vector<CpuModel>& CpuModels();
// Sorted, parents' included.
std::vector<std::string> ExtensionsOf(const CpuModel& model);

// LLVM's name for a CPUID family and model, or null where Kiln has none.
const CpuModel* CpuModelById(CpuVendor vendor, int family, int model, int stepping);

}  // namespace kiln
