// The prelude's accesses to some lanes of a vector, compiled for one instruction set.
#pragma once

namespace kiln::codegen {

struct LaneAccess {
  const char* type;
  int size;   // of an element, in bytes
  int width;  // lanes
  // `mask` has a byte of 0 or 1 for each lane; lanes left out become the element of ones' bits.
  void (*load_where)(const void* from, const unsigned char* mask, void* to);
  void (*load_even_where)(const void* from, const unsigned char* mask, void* to);
  // The first `n` lanes; of loads the others become 0.
  void (*load_first)(const void* from, long n, void* to);
  void (*load_even_first)(const void* from, long n, void* to);
  void (*store_first)(void* to, long n, const void* from);
};
struct LaneAccesses {
  const char* instruction_set;
  const LaneAccess* entries;
  int count;
};

extern const LaneAccesses kBaselineLanes, kAvx2Lanes, kAvx512Lanes;

}  // namespace kiln::codegen
