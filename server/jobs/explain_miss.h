// Why a lookup missed: which part of the key differs from the nearest artifact's.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cache/store.h"

namespace kiln {
namespace v1 {
class CompileRequest;
class ExplainMissRequest;
class ExplainMissResponse;
}  // namespace v1

namespace server {

// `compiler_build` is that of the request's target. Stores what the key of `request` was made of
// beside its artifact. A failure only loses the explanation.
void StoreKeyDescription(cache::Store& store, const Digest& key, const v1::CompileRequest& request,
                         absl::string_view compiler_build);

// Compares with the descriptions in `store` that were used last, 500 at most. Where the very key
// was stored once and evicted, it is its own nearest and nothing differs.
absl::Status ExplainMiss(cache::Store& store, absl::string_view compiler_build,
                         const v1::ExplainMissRequest& request, v1::ExplainMissResponse& response);

}  // namespace server
}  // namespace kiln
