#include "compiler/grid.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/sym_int.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/status_macros.h"

namespace kiln {

absl::StatusOr<v1::Grid> ToGrid(const codegen::EmittedGrid& grid,
                                const std::function<uint32_t(int)>& number) {
  for (const std::vector<ir::IntExpr>* sizes : {&grid.blocks, &grid.threads}) {
    if (!sizes->empty() && sizes->size() <= 3) continue;
    return absl::InternalError(absl::StrCat("a kernel's grid has ", grid.blocks.size(),
                                            " sizes of blocks and ", grid.threads.size(),
                                            " of threads; expected 1 to 3"));
  }
  v1::Grid out;
  for (ir::IntExpr size : grid.blocks) {
    KILN_ASSIGN_OR_RETURN(*out.add_blocks(), ToSymInt(size, number));
  }
  for (ir::IntExpr size : grid.threads) {
    KILN_ASSIGN_OR_RETURN(*out.add_threads(), ToSymInt(size, number));
  }
  if (grid.shared_bytes) {
    KILN_ASSIGN_OR_RETURN(*out.mutable_shared_bytes(), ToSymInt(grid.shared_bytes, number));
  }
  return out;
}

}  // namespace kiln
