// The programs of artifacts.h for GPUs.
#pragma once

#include <string>
#include <vector>

#include "kiln/v1/artifact.pb.h"

namespace kiln::testing {

// The archive of the kernels below, each a module of PTX. Every block does one element of n, the
// launch's one symbol:
//   test_add(a, b, out)               out = a + b
//   test_add_early(a, b, out)         the same, and reads b before a launch before it has ended; of
//                                     the fake driver alone
//   test_double_through_scratch(a, out)
//   test_positive(a, out)             out = a, and an index out of range where a < 0
//   test_fault(a, out)                ends the context; of the fake driver alone
//   test_add_to(a, out)               out += a, where out is to be zero before, and begins before
//                                     a launch before it has ended; of the fake driver alone
std::string TestArchive();

// `artifact`, whose launches are of those kernels, for GPUs of capability 8.0 and newer.
v1::Artifact OnGpu(v1::Artifact artifact);

}  // namespace kiln::testing
