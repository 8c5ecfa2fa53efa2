// The registry of lowerings: one entry an ATen overload, filled from one list.
#pragma once

#include <functional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// Sets every used result of the node, or says why not: see NodeContext for the two kinds of error.
// Results are tensors (or left out, where HasOutputMask), not all of them are empty (a size that is
// the constant 0), and no tensor is complex: the walk deals with those before.
using Lowering = std::function<absl::Status(NodeContext&)>;

// By the operator's name without "aten.", with its overload: "add.Tensor", "relu.default".
// Operators of other namespaces have theirs in front: "prims.convert_element_type.default".
using Registry = absl::flat_hash_map<std::string, Lowering>;

void RegisterViews(Registry& registry);
void RegisterPointwise(Registry& registry);
void RegisterBinary(Registry& registry);
void RegisterActivations(Registry& registry);
void RegisterReductions(Registry& registry);
void RegisterNormalization(Registry& registry);
void RegisterMatmul(Registry& registry);
void RegisterConvolution(Registry& registry);
void RegisterConvolutionBackward(Registry& registry);
void RegisterPooling(Registry& registry);
void RegisterPoolingBackward(Registry& registry);
void RegisterPadding(Registry& registry);
void RegisterResampling(Registry& registry);
void RegisterIndexing(Registry& registry);
void RegisterScatters(Registry& registry);
void RegisterScans(Registry& registry);
void RegisterRandom(Registry& registry);
void RegisterSorting(Registry& registry);
void RegisterJoining(Registry& registry);
void RegisterCreation(Registry& registry);
void RegisterAttention(Registry& registry);

// A random node that is to be lowered has its seed, one i64, as this keyword argument; without it,
// its numbers are those of the client's own generator.
inline constexpr absl::string_view kSeedKeyword = "kiln_seed";

// All of them.
const Registry& Lowerings();

// Whether the operator's lowering asks NodeContext::HasResult before it makes a result. Nodes of
// other operators that leave results out become library steps. `op` is named as in the registry.
bool HasOutputMask(absl::string_view op);

}  // namespace kiln::lowering
