#include "client/runtime/cpu/shared_object.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

absl::Status Bad(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the artifact's machine code ", what));
}

bool Inside(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

int OpenAnonymousFile() {
  int fd = memfd_create("kiln-artifact", MFD_CLOEXEC);
  if (fd >= 0) return fd;
  char path[] = "/tmp/kiln-artifact-XXXXXX";
  fd = mkostemp(path, O_CLOEXEC);
  if (fd >= 0) unlink(path);
  return fd;
}

absl::Status WriteAll(int fd, absl::string_view data) {
  while (!data.empty()) {
    ssize_t written = write(fd, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot hold the machine code in memory: ", std::strerror(errno)));
    }
    data.remove_prefix(written);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckElfImage(absl::string_view image) {
  Elf64_Ehdr header;
  if (image.size() < sizeof(header)) return Bad("is too short");
  std::memcpy(&header, image.data(), sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_DYN) {
    return Bad("is no 64-bit ELF shared object");
  }
  if (header.e_machine != EM_X86_64) return Bad("is for another kind of machine");
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum == 0 || header.e_phnum > 128 ||
      !Inside(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr), image.size())) {
    return Bad("has a damaged table of segments");
  }
  int loads = 0, dynamics = 0;
  uint64_t end = 0;
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, image.data() + header.e_phoff + i * sizeof(segment), sizeof(segment));
    if (segment.p_type == PT_DYNAMIC) ++dynamics;
    if (segment.p_type == PT_GNU_STACK || segment.p_type == PT_NULL) continue;
    if (!Inside(segment.p_offset, segment.p_filesz, image.size()) ||
        segment.p_filesz > segment.p_memsz || segment.p_memsz > (uint64_t{1} << 32) ||
        segment.p_vaddr > (uint64_t{1} << 32)) {
      return Bad("has a segment outside of the file");
    }
    if (segment.p_type != PT_LOAD) continue;
    if (segment.p_vaddr < end) return Bad("has segments that overlap");
    end = segment.p_vaddr + segment.p_memsz;
    ++loads;
  }
  if (loads == 0 || dynamics != 1) return Bad("cannot be loaded: it lacks segments");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SharedObject>> SharedObject::Load(absl::string_view image) {
  KILN_RETURN_IF_ERROR(CheckElfImage(image));
  std::unique_ptr<SharedObject> object(new SharedObject(OpenAnonymousFile()));
  if (object->fd_ < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot create a file for the machine code: ", std::strerror(errno)));
  }
  KILN_RETURN_IF_ERROR(WriteAll(object->fd_, image));
  std::string path = absl::StrCat("/proc/self/fd/", object->fd_);
  object->handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object->handle_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("cannot load the machine code: ", dlerror()));
  }
  return object;
}

SharedObject::~SharedObject() {
  if (handle_ != nullptr) dlclose(handle_);
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<void*> SharedObject::Find(const std::string& symbol) const {
  void* address = dlsym(handle_, symbol.c_str());
  Dl_info info;
  link_map* self = nullptr;
  if (address == nullptr || dladdr(address, &info) == 0 ||
      dlinfo(handle_, RTLD_DI_LINKMAP, &self) != 0 ||
      reinterpret_cast<uintptr_t>(info.dli_fbase) != self->l_addr) {
    return Bad(absl::StrCat("does not define '", symbol, "'"));
  }
  return address;
}

absl::StatusOr<absl::string_view> SharedObject::FindText(const std::string& symbol) const {
  KILN_ASSIGN_OR_RETURN(void* address, Find(symbol));
  Dl_info info;
  void* entry = nullptr;
  if (dladdr1(address, &info, &entry, RTLD_DL_SYMENT) == 0 || entry == nullptr) {
    return Bad(absl::StrCat("does not tell the size of '", symbol, "'"));
  }
  const auto* text = static_cast<const char*>(address);
  return absl::string_view(text, strnlen(text, static_cast<const ElfW(Sym)*>(entry)->st_size));
}

}  // namespace kiln::runtime
