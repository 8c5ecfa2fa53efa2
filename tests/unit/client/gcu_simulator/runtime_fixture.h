// The simulated device's library, opened as the client does, with a context, a stream and a kernel.
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

#include "client/include/gcu/gcu_runtime.h"
#include "compiler/toolchain/gcu/assembly.h"
#include "compiler/toolchain/gcu/binary.h"
#include "gtest/gtest.h"

namespace kiln {

// Adds the integer n to 64 i32 elements, with 4096 bytes of L2 on the way.
inline constexpr char kAdd[] = R"(
.gcu 1
.profile gcu-16m
.kernel add
.arg x l3 read
.arg y l3 write
.arg n int
.l1 1024
.l2 4096
  li s30, 0
  jne s0, s30, end
  arg s8, 0
  arg s9, 1
  arg s10, 2
  li s11, 64
  li s12, 512
  tile t0, l3.i32.1, s8
  dimi t0, 0, s11, 1
  tile t1, l2.i32.1, s5
  dimi t1, 0, s11, 1
  tile t2, l1.i32.1, s30
  dimi t2, 0, s11, 1
  tile t3, l1.i32.1, s12
  dimi t3, 0, s11, 1
  dma t1, t0, k0
  wait k0
  dma t2, t1, k0
  wait k0
  v.fill t3, s10
  v.add t2, t2, t3
  at t0, s9
  dma t0, t2, k0
end:
  halt
.end
.kernel refuse
.l1 0
.l2 0
  trap 7
.end
)";

inline std::string BinaryOf(const std::string& text) {
  return *gcu::Encode(*gcu::Assemble(text));
}

template <typename T>
T Symbol(const char* name) {
  static void* library = dlopen(KILN_GCU_RUNTIME, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  void* symbol = dlsym(library, name);
  EXPECT_NE(symbol, nullptr) << name;
  return reinterpret_cast<T>(symbol);
}
#define GCU(name) Symbol<decltype(&gcu_##name)>("gcu_" #name)

class GcuRuntimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(GCU(context_create)(0, &context_), GCU_OK);
    ASSERT_EQ(GCU(stream_create)(context_, &stream_), GCU_OK);
    const std::string binary = BinaryOf(kAdd);
    ASSERT_EQ(GCU(module_load)(context_, binary.data(), binary.size(), &module_), GCU_OK)
        << Error();
    ASSERT_EQ(GCU(module_get_function)(module_, "add", &add_), GCU_OK);
  }
  void TearDown() override { EXPECT_EQ(GCU(context_destroy)(context_), GCU_OK); }

  static std::string Error() { return GCU(get_last_error)(); }
  gcu_address_t Malloc(uint64_t size) {
    gcu_address_t address = 0;
    EXPECT_EQ(GCU(malloc)(context_, size, GCU_MEMORY_L3, &address), GCU_OK) << Error();
    return address;
  }
  int Launch(gcu_function_t function, std::vector<uint64_t> values, uint64_t l2 = 4096,
             uint32_t block = 0, gcu_stream_t stream = nullptr) {
    std::vector<void*> args;
    for (uint64_t& value : values) args.push_back(&value);
    return GCU(launch_kernel)(function, 1, 1, 1, block, 1, 1, args.data(), l2,
                              stream != nullptr ? stream : stream_);
  }

  gcu_context_t context_ = nullptr;
  gcu_stream_t stream_ = nullptr;
  gcu_module_t module_ = nullptr;
  gcu_function_t add_ = nullptr;
};

}  // namespace kiln
