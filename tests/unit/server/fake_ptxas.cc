// Stands for ptxas and nvdisasm in tests: reads anything to its end and makes an ELF file for CUDA,
// or prints how one begins. Built with a KILN_FAKE of what it does instead: `hang` forever, `flood`
// its output, write `garbage`, or `fail`.
#include <elf.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

constexpr int kElfMachineCuda = 190;

bool ReadToEnd(const char* path) {
  std::FILE* const in = std::fopen(path, "rb");
  if (in == nullptr) return false;
  char block[4096];
  while (std::fread(block, 1, sizeof(block), in) > 0) {
  }
  return std::fclose(in) == 0;
}

int Make(const char* path, const std::string& how) {
  std::FILE* const out = std::fopen(path, "wb");
  if (out == nullptr) return 3;
  if (how == "flood") {
    const std::string block(1 << 20, 'x');
    for (int i = 0; i < 1024; ++i) std::fwrite(block.data(), 1, block.size(), out);
  } else if (how == "garbage") {
    std::fputs("no cubin, however long it may be: it does not begin as one would begin", out);
  } else {
    Elf64_Ehdr header = {};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_machine = kElfMachineCuda;
    std::fwrite(&header, sizeof(header), 1, out);
    std::fputs("made by a fake", out);
  }
  return std::fclose(out) == 0 ? 0 : 4;
}

int Show(const char* path) {
  std::FILE* const in = std::fopen(path, "rb");
  if (in == nullptr) return 5;
  char magic[SELFMAG] = {};
  const size_t got = std::fread(magic, 1, sizeof(magic), in);
  std::printf("machine code: %.*s\n", static_cast<int>(got) - 1, magic + 1);
  return std::fclose(in);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = KILN_FAKE;
  const char* input = nullptr;
  const char* output = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--version") == 0) {
      std::puts("Cuda compilation tools, release 0.1, V0.1.2");
      return 0;
    }
    if (argv[i][0] == '/') input = argv[i];
    if (std::strcmp(argv[i], "-o") == 0 && i + 1 < argc) output = argv[++i];
  }
  if (how == "hang") {
    for (;;) pause();
  }
  if (how == "fail") {
    std::fputs("ptxas fatal : fake", stderr);
    return 255;
  }
  if (argc == 3 && std::strcmp(argv[1], "-c") == 0) return Show(argv[2]);
  if (input == nullptr || output == nullptr || !ReadToEnd(input)) return 2;
  return Make(output, how);
}
