#include "proto/base/device_cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/device_cpu_names.h"

namespace kiln {
namespace {

struct CpuidWords {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidWords Cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  CpuidWords w;
  if (__get_cpuid_count(leaf, subleaf, &w.eax, &w.ebx, &w.ecx, &w.edx) == 0) return {};
  return w;
}

// Which register states the operating system saves (XCR0); 0 without XSAVE.
uint64_t SavedStates() {
  if ((Cpuid(1).ecx >> 27 & 1) == 0) return 0;
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// Whether this process may use tiles (AMX), whose 8 KiB of state Linux, from 5.16 on, saves only
// for those that ask; from then on all its threads may. See "Using XSTATE features in user space
// applications" in the kernel's documentation.
bool AskForTiles(uint64_t saved_states) {
  constexpr uint64_t kTileStates = 0x60000;  // XTILECFG and XTILEDATA
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return (saved_states & kTileStates) == kTileStates &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct FeatureBit {
  const char* name;
  uint32_t word;
  int bit;
};

std::vector<std::string> ReadFeatures() {
  const CpuidWords l1 = Cpuid(1), l7 = Cpuid(7), l71 = Cpuid(7, 1), ext = Cpuid(0x80000001);
  const uint64_t saved = SavedStates();
  const bool ymm = (saved & 0x6) == 0x6;
  const bool zmm = ymm && (saved & 0xe0) == 0xe0;
  std::vector<std::string> out;
  auto add = [&out](bool usable, std::initializer_list<FeatureBit> bits) {
    for (const FeatureBit& f : bits) {
      if (usable && (f.word >> f.bit & 1) != 0) out.emplace_back(f.name);
    }
  };
  add(true, {{"sse3", l1.ecx, 0},
             {"ssse3", l1.ecx, 9},
             {"sse4.1", l1.ecx, 19},
             {"sse4.2", l1.ecx, 20},
             {"movbe", l1.ecx, 22},
             {"popcnt", l1.ecx, 23},
             {"bmi", l7.ebx, 3},
             {"bmi2", l7.ebx, 8},
             {"adx", l7.ebx, 19},
             {"sha", l7.ebx, 29},
             {"gfni", l7.ecx, 8},
             {"lzcnt", ext.ecx, 5}});
  add(ymm, {{"fma", l1.ecx, 12},
            {"avx", l1.ecx, 28},
            {"f16c", l1.ecx, 29},
            {"avx2", l7.ebx, 5},
            {"vaes", l7.ecx, 9},
            {"vpclmulqdq", l7.ecx, 10},
            {"avxvnni", l71.eax, 4}});
  add(zmm, {{"avx512f", l7.ebx, 16},
            {"avx512dq", l7.ebx, 17},
            {"avx512ifma", l7.ebx, 21},
            {"avx512cd", l7.ebx, 28},
            {"avx512bw", l7.ebx, 30},
            {"avx512vl", l7.ebx, 31},
            {"avx512vbmi", l7.ecx, 1},
            {"avx512vbmi2", l7.ecx, 6},
            {"avx512vnni", l7.ecx, 11},
            {"avx512bitalg", l7.ecx, 12},
            {"avx512vpopcntdq", l7.ecx, 14},
            {"avx512fp16", l7.edx, 23},
            {"avx512bf16", l71.eax, 5}});
  add(AskForTiles(saved), {{"amx-bf16", l7.edx, 22},
                           {"amx-tile", l7.edx, 24},
                           {"amx-int8", l7.edx, 25},
                           {"amx-fp16", l71.eax, 21}});
  std::sort(out.begin(), out.end());
  return out;
}

bool HostHasAll(const std::vector<std::string>& extensions) {
  const std::vector<std::string>& host = HostCpuFeatures();
  return std::includes(host.begin(), host.end(), extensions.begin(), extensions.end());
}

std::string ReadCpuName() {
  const CpuidWords l0 = Cpuid(0), l1 = Cpuid(1);
  char vendor_text[12];
  std::memcpy(vendor_text, &l0.ebx, 4);
  std::memcpy(vendor_text + 4, &l0.edx, 4);
  std::memcpy(vendor_text + 8, &l0.ecx, 4);
  absl::string_view vendor(vendor_text, 12);
  int family = l1.eax >> 8 & 0xf;
  int model = l1.eax >> 4 & 0xf;
  if (family == 0xf || family == 6) model |= (l1.eax >> 16 & 0xf) << 4;
  if (family == 0xf) family += l1.eax >> 20 & 0xff;
  CpuVendor kind = vendor == "AuthenticAMD"   ? CpuVendor::kAmd
                   : vendor == "GenuineIntel" ? CpuVendor::kIntel
                                              : CpuVendor::kAny;
  const CpuModel* found = CpuModelById(kind, family, model, static_cast<int>(l1.eax & 0xf));
  // A hypervisor may hide extensions: fall back to what is really there.
  for (; found != nullptr; found = FindCpuModel(found->parent)) {
    if (HostHasAll(ExtensionsOf(*found))) return std::string(found->name);
  }
  return HostCpuLevel();
}

std::string ReadLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// "1024K" -> bytes; 0 where it does not parse.
int64_t ParseCacheSize(absl::string_view text) {
  int64_t unit = 1;
  if (!text.empty() && text.back() == 'K') unit = 1 << 10;
  if (!text.empty() && text.back() == 'M') unit = 1 << 20;
  if (unit != 1) text.remove_suffix(1);
  int64_t value = 0;
  return absl::SimpleAtoi(text, &value) && value > 0 && value < (1 << 30) ? value * unit : 0;
}

void ReadCaches(v1::Device& device) {
  for (int i = 0; i < 8; ++i) {
    std::string dir = absl::StrCat("/sys/devices/system/cpu/cpu0/cache/index", i, "/");
    std::string level = ReadLine(dir + "level");
    if (level.empty()) break;
    int64_t size = ParseCacheSize(ReadLine(dir + "size"));
    std::string type = ReadLine(dir + "type");
    if (level == "1" && type == "Data") device.set_l1_bytes(size);
    if (level == "2") device.set_l2_bytes(size);
    if (level == "3") device.set_l3_bytes(size);
  }
}

std::string BrandString() {
  std::string brand;
  for (uint32_t leaf = 0x80000002; leaf <= 0x80000004; ++leaf) {
    CpuidWords w = Cpuid(leaf);
    brand.append(reinterpret_cast<const char*>(&w), sizeof(w));
  }
  brand.resize(std::strlen(brand.c_str()));
  return brand;
}

}  // namespace

std::string HostCpuLevel() {
  std::string best = "x86-64";
  for (const char* level : {"x86-64-v2", "x86-64-v3", "x86-64-v4"}) {
    if (HostHasAll(ExtensionsOf(*FindCpuModel(level)))) best = level;
  }
  return best;
}

const std::vector<std::string>& HostCpuFeatures() {
  static const auto* features = new std::vector<std::string>(ReadFeatures());
  return *features;
}

const std::string& HostCpuName() {
  static const auto* name = new std::string(ReadCpuName());
  return *name;
}

int PhysicalProcessors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::string siblings = ReadLine(
        absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    cores.insert(siblings.empty() ? absl::StrCat("cpu", cpu) : siblings);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

absl::StatusOr<v1::Device> DescribeCpu(absl::string_view arch, int threads) {
  v1::Device device;
  device.set_target(v1::TARGET_CPP);
  std::vector<std::string> features;
  if (arch.empty() || arch == "native") {
    device.set_arch(HostCpuName());
    features = HostCpuFeatures();
    device.set_model_name(BrandString());
  } else {
    const CpuModel* model = FindCpuModel(arch);
    if (model == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("unknown CPU '", arch, "'; known are native, ",
                                                     absl::StrJoin(KnownCpuNames(), ", ")));
    }
    device.set_arch(std::string(model->name));
    features = ExtensionsOf(*model);
  }
  for (std::string& feature : features) device.add_features(std::move(feature));
  ReadCaches(device);
  // Memory stays 0: no choice for a CPU depends on it, and it differs a little between equal
  // machines, which would then miss each other's cache entries.
  device.set_processors(threads > 0 ? threads : PhysicalProcessors());
  return device;
}

absl::Status CheckRunsOnHost(absl::string_view arch, const std::vector<std::string>& features) {
  std::vector<std::string> needed = features;
  if (arch != HostCpuName()) {
    const CpuModel* model = FindCpuModel(arch);
    if (model == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("the code is for CPU '", arch, "', which this client does not know"));
    }
    // An explicit list may be shorter than the model's; the model's name still lets the compiler
    // use all of its extensions.
    std::vector<std::string> own = ExtensionsOf(*model);
    needed.insert(needed.end(), own.begin(), own.end());
  }
  const std::vector<std::string>& host = HostCpuFeatures();
  for (const std::string& feature : needed) {
    if (!std::binary_search(host.begin(), host.end(), feature)) {
      return absl::FailedPreconditionError(absl::StrCat("the code is for ", arch, " with ", feature,
                                                        ", which this CPU (", HostCpuName(),
                                                        ") does not have"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> KnownCpuNames() {
  std::vector<std::string> names;
  for (const CpuModel& model : CpuModels()) names.emplace_back(model.name);
  return names;
}

}  // namespace kiln
