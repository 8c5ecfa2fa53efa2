// An array of zeros that the system gives page by page, so that a large one costs what is touched
// of it. (malloc's own zeros are written where it hands out memory again.)
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>

namespace kiln::gcu_simulator {

// Neither copied nor moved.
template <typename T>
class ZeroedArray {
  static_assert(std::is_integral_v<T>);

 public:
  // std::bad_alloc where the system has no room.
  explicit ZeroedArray(uint64_t size) : size_(size) {
    if (size == 0) return;
    if (size > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    if (IsMapped()) {
      void* data = mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      data_ = data == MAP_FAILED ? nullptr : static_cast<T*>(data);
    } else {
      data_ = static_cast<T*>(std::calloc(size, sizeof(T)));
    }
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~ZeroedArray() {
    if (data_ == nullptr) return;
    if (IsMapped()) {
      munmap(data_, size_ * sizeof(T));
    } else {
      std::free(data_);
    }
  }
  ZeroedArray(const ZeroedArray&) = delete;
  ZeroedArray& operator=(const ZeroedArray&) = delete;

  uint64_t size() const { return size_; }
  T* data() { return data_; }
  T& operator[](uint64_t i) { return data_[i]; }
  const T& operator[](uint64_t i) const { return data_[i]; }

 private:
  // Small ones cost less than a page. A sanitizer sees beyond the end of what malloc gives.
#if __has_feature(address_sanitizer)
  static constexpr uint64_t kMappedFromBytes = uint64_t{1} << 30;
#else
  static constexpr uint64_t kMappedFromBytes = uint64_t{1} << 14;
#endif
  bool IsMapped() const { return size_ * sizeof(T) >= kMappedFromBytes; }

  const uint64_t size_;
  T* data_ = nullptr;
};

}  // namespace kiln::gcu_simulator
