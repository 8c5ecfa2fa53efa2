// Artifacts over the kernels of test_kernels.c.
#pragma once

#include <string>
#include <vector>

#include "kiln/kiln.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::testing {

// The shared object of test_kernels.c.
const std::string& TestKernels();

// A header that this machine accepts, and no program.
v1::Artifact EmptyArtifact();

// As a server sends it: its machine code is stamped with its program.
std::string Sealed(v1::Artifact artifact);

v1::SymInt Size(int64_t value);
v1::SymInt Symbol(uint32_t symbol);
v1::SymInt Scaled(uint32_t symbol, int64_t factor);

// Adders of one-dimensional f32 things with unit stride.
void AddInput(v1::Program& program, const std::string& name, const v1::SymInt& size);
uint32_t AddBuffer(v1::Program& program, v1::Buffer::Kind kind, uint32_t index,
                   const v1::SymInt& size, const v1::SymInt& size_bytes);
void AddOutput(v1::Program& program, uint32_t buffer, const v1::SymInt& size);
void AddLaunch(v1::Program& program, const std::string& kernel, std::vector<uint32_t> buffers,
               const v1::SymInt& symbol);

// out = 2 * (a + b) over n f32 elements, through the workspace and a scratch block.
v1::Artifact AddAndDouble(int64_t n);
// The same with n a symbol "s0" in [2, 1000] that the inputs' sizes give.
v1::Artifact DynamicAdd();
// out = (a + a) + b, where a is a parameter and a + a is prepared.
v1::Artifact PrepareAndAdd(int64_t n);
// out = a + L(a), where L is a library step "aten.test.default" of node "lib".
v1::Artifact AddLibraryResult(int64_t n);
// As PrepareAndAdd; the second step has itself, with its operands the other way, as an alternative.
v1::Artifact AddEitherWay(int64_t n);

// A graph that such a program may be of: its inputs, symbols and constants, a node for each library
// step, and a node that makes each output that lies in no input and is no result of a step.
v1::Graph GraphFor(const v1::Program& program);

// A one-dimensional contiguous tensor over `data`; `size` must outlive it.
kiln_tensor Vector(float* data, const int64_t& size);

}  // namespace kiln::testing
