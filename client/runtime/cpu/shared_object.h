// A shared object loaded from memory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln::runtime {

class SharedObject {
 public:
  // Maps `image` through an anonymous file (or, where the kernel has none, an unlinked temporary
  // one). DATA_LOSS unless it is a whole x86-64 ELF shared object; FAILED_PRECONDITION with the
  // loader's words where it cannot be loaded. Runs the object's initializers.
  static absl::StatusOr<std::unique_ptr<SharedObject>> Load(absl::string_view image);
  ~SharedObject();
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;

  // The address of a symbol that this object itself defines; DATA_LOSS where it has none: symbols
  // of libraries that it depends on do not count.
  absl::StatusOr<void*> Find(const std::string& symbol) const;
  // As Find, for a string: its bytes up to the first NUL, at most as many as the symbol has.
  absl::StatusOr<absl::string_view> FindText(const std::string& symbol) const;

 private:
  explicit SharedObject(int fd) : fd_(fd) {}

  // Open as long as the object is loaded: the system's loader takes a path that it has seen before
  // for the object that it has loaded already, so no two may share a descriptor's number.
  const int fd_;
  void* handle_ = nullptr;
};

// The checks that Load makes before the system's loader, which trusts its input, sees the bytes.
absl::Status CheckElfImage(absl::string_view image);

}  // namespace kiln::runtime
