// A shared object in memory, loaded for the length of a test.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace kiln::toolchain {

class LoadedObject {
 public:
  explicit LoadedObject(const std::string& bytes) {
    const int fd = memfd_create("kiln-test", MFD_CLOEXEC);
    if (write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) {
      handle_ = dlopen(("/proc/self/fd/" + std::to_string(fd)).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ == nullptr) error_ = dlerror();
    }
    close(fd);
  }
  ~LoadedObject() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  LoadedObject(const LoadedObject&) = delete;
  LoadedObject& operator=(const LoadedObject&) = delete;

  bool ok() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }

  // Null where the object has no such symbol.
  template <class Function>
  Function* Get(const char* symbol) const {
    return reinterpret_cast<Function*>(dlsym(handle_, symbol));
  }

 private:
  void* handle_ = nullptr;
  std::string error_;
};

}  // namespace kiln::toolchain
