#include "proto/base/gpu_resources.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {
namespace {

// What CUDA's occupancy calculator gives for the same.
TEST(Occupancy, IsBoundByWhatRunsOutFirst) {
  const struct {
    const char* arch;
    int64_t threads, registers, shared_bytes;
    int blocks, warps;
    const char* bound;
  } cases[] = {
      {"sm_80", 256, 32, 0, 8, 64, "threads"},
      {"sm_80", 256, 40, 0, 6, 48, "registers"},
      {"sm_80", 32, 16, 0, 32, 32, "blocks"},
      {"sm_86", 256, 16, 0, 6, 48, "threads"},
      {"sm_89", 100, 255, 0, 2, 8, "registers"},
      {"sm_90a", 128, 32, 48 << 10, 4, 16, "shared memory"},
      {"sm_90a", 384, 168, 227 << 10, 1, 12, "registers"},
      {"sm_80", 128, 32, 200 << 10, 0, 0, "shared memory"},
  };
  for (const auto& c : cases) {
    const auto is = OccupancyOf(c.arch, c.threads, c.registers, c.shared_bytes);
    ASSERT_TRUE(is.has_value());
    EXPECT_EQ(is->blocks, c.blocks) << c.arch << " " << c.threads;
    EXPECT_EQ(is->warps, c.warps) << c.arch << " " << c.threads;
    EXPECT_STREQ(is->bound, c.bound) << c.arch << " " << c.threads;
  }
}

TEST(Occupancy, IsNothingForWhatIsNotKnown) {
  EXPECT_FALSE(OccupancyOf("znver3", 256, 32, 0).has_value());
  EXPECT_FALSE(OccupancyOf("sm_80", 0, 32, 0).has_value());
  EXPECT_FALSE(OccupancyOf("sm_80", 256, 0, 0).has_value());
}

// A cubin with what is read of one: a section of names, .nv.info and the kernel's shared memory.
std::string Cubin(const std::vector<std::array<uint32_t, 2>>& attributes, uint64_t shared_bytes) {
  const std::string names = std::string("\0.names\0.nv.info\0.nv.shared.k\0", 31);
  std::string info;
  for (const auto& [kind, value] : attributes) {
    const uint32_t words[] = {0x00080004 | kind << 8, 9, value};
    info.append(reinterpret_cast<const char*>(words), sizeof(words));
  }
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_machine = 190;
  header.e_shnum = 3;
  header.e_shoff = sizeof(header) + names.size() + info.size();
  Elf64_Shdr sections[3] = {};
  sections[0] = {.sh_name = 1, .sh_type = SHT_STRTAB, .sh_offset = sizeof(header)};
  sections[0].sh_size = names.size();
  sections[1] = {.sh_name = 8, .sh_type = SHT_LOPROC};
  sections[1].sh_offset = sizeof(header) + names.size();
  sections[1].sh_size = info.size();
  sections[2] = {.sh_name = 17, .sh_type = SHT_NOBITS, .sh_size = shared_bytes};
  std::string out(reinterpret_cast<const char*>(&header), sizeof(header));
  out += names + info;
  return out.append(reinterpret_cast<const char*>(sections), sizeof(sections));
}

constexpr uint32_t kFrameSize = 0x11, kRegisterCount = 0x2f;

TEST(Cubin, HasRegistersSharedMemoryAndStack) {
  const auto read = ReadCubin(
      Cubin({{kRegisterCount, 24}, {kRegisterCount, 40}, {kFrameSize, 16}, {0x12, 4096}}, 1024));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->registers, 40) << "the most of its functions";
  EXPECT_EQ(read->stack_bytes, 16);
  EXPECT_EQ(read->shared_bytes, 1024);
  EXPECT_FALSE(ReadCubin(Cubin({{kFrameSize, 16}}, 0)).has_value());
}

TEST(Cubin, ThatIsCutOrChangedIsReadWithinItsBytes) {
  const std::string whole = Cubin({{kRegisterCount, 40}, {kFrameSize, 16}}, 1024);
  for (size_t size = 0; size < whole.size(); ++size) {
    // A copy of its own, for the address sanitizer.
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(ReadCubin({cut.data(), cut.size()}).has_value()) << size;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\x00', '\x7f', '\xff'}) {
      std::vector<char> changed(whole.begin(), whole.end());
      changed[at] = byte;
      const auto read = ReadCubin({changed.data(), changed.size()});
      if (read.has_value()) EXPECT_GT(read->registers, 0) << at;
    }
  }
}

class ResourcesTest : public ::testing::Test {
 protected:
  ResourcesTest() {
    artifact_.mutable_header()->set_arch("sm_80");
    v1::LaunchStep& launch = *artifact_.mutable_program()->add_steps()->mutable_launch();
    launch.set_kernel("k");
    launch.mutable_grid()->add_threads()->set_value(256);
    launch.mutable_grid()->mutable_shared_bytes()->set_value(1024);
  }
  std::string Text(const std::string& cubin) {
    artifact_.clear_binaries();
    v1::Binary& binary = *artifact_.add_binaries();
    binary.set_kind(v1::BINARY_KIND_CUBIN);
    binary.set_data(absl::StrCat("// kiln kernels 1\n// kernel none 999999 1\n// kernel k 2 ",
                                 cubin.size(), "\n// interface x: 1\n\n..", cubin));
    return DescribeResources(artifact_)["k"];
  }

  v1::Artifact artifact_;
};

TEST_F(ResourcesTest, AreTheKernelsAndItsLaunchs) {
  EXPECT_EQ(Text(Cubin({{kRegisterCount, 40}}, 16)),
            "40 registers, 1040 bytes of shared memory, no stack, 48 of 64 warps (6 blocks of 256 "
            "threads, bound by registers)");
  EXPECT_EQ(Text("no cubin"), "");
  artifact_.mutable_program()
      ->mutable_steps(0)
      ->mutable_launch()
      ->mutable_grid()
      ->mutable_threads(0)
      ->mutable_expr();
  EXPECT_EQ(Text(Cubin({{kRegisterCount, 40}, {kFrameSize, 8}}, 16)),
            "40 registers, 1040 bytes of shared memory, 8 bytes of stack (spills, or arrays)")
      << "symbols decide how many threads there are";
}

}  // namespace
}  // namespace kiln
