// A driver of GPUs that are none: memory of the host, kernels that are functions of the test, and
// one queue of work, which runs when somebody waits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace kiln::testing {

struct FakeKernel {
  size_t arguments = 0;  // of 8 bytes
  // Returns the driver's number of a fault, or 0.
  std::function<int(const std::vector<uint64_t>& arguments)> body;
};

struct FakeLaunch {
  std::string kernel;
  unsigned blocks[3], threads[3], shared_bytes;
  void* stream;
  int device;
  bool begins_early;
};

// As the driver was asked for it; in a kernel's parameter lies its number.
struct FakeTensorMap {
  uint64_t data;
  int type;
  unsigned rank;
  uint64_t sizes[5], stride_bytes[5];
  uint32_t box[5];
};

// What a test sets and reads, while no call is in flight.
struct FakeCuda {
  int version = 12040;
  int devices = 2;
  int major = 9, minor = 0;
  bool pools = true;
  int64_t memory_bytes = int64_t{1} << 30;  // that can be allocated
  std::map<std::string, FakeKernel> kernels;
  bool refuses_ptx = false;     // a module that begins with a comment does not load
  bool refuses_cubins = false;  // one that begins with ELF is invalid
  // Some stream is being captured: what waits or allocates fails, unless the thread has relaxed
  // that, and work is only recorded.
  bool capturing = false;

  std::map<std::string, int> calls;  // by the driver's names
  std::vector<FakeLaunch> launches;
  std::vector<FakeTensorMap> maps;
  int64_t used_bytes = 0;
  int modules = 0;                   // loaded and not unloaded
  int allocations = 0;               // not freed
  std::string misuse;                // the first call that a real driver would not have forgiven
  std::function<void()> drain;       // does all that is queued
  std::function<void()> end_graphs;  // destroys those that were captured, in a thread of the driver
};

}  // namespace kiln::testing

extern "C" kiln::testing::FakeCuda* fake_cuda();
