// An array of zeros that the system gives page by page, so that a large one costs what is touched
// of it. (malloc's own zeros are written where it hands out memory again.)
#pragma once

#include <sys/mman.h>

#include <cstdint>
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
    if (size > UINT64_MAX / sizeof(T)) throw std::bad_alloc();
    void* data = mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(data);
  }
  ~ZeroedArray() {
    if (data_ != nullptr) munmap(data_, size_ * sizeof(T));
  }
  ZeroedArray(const ZeroedArray&) = delete;
  ZeroedArray& operator=(const ZeroedArray&) = delete;

  uint64_t size() const { return size_; }
  T* data() { return data_; }
  T& operator[](uint64_t i) { return data_[i]; }
  const T& operator[](uint64_t i) const { return data_[i]; }

 private:
  const uint64_t size_;
  T* data_ = nullptr;
};

}  // namespace kiln::gcu_simulator
