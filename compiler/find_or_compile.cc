#include <optional>
#include <string>
#include <vector>

#include "compiler/compiler.h"
#include "compiler/kernels_ahead.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/digest.h"
#include "proto/base/status_macros.h"

namespace kiln {

absl::StatusOr<v1::CompileKernelResponse> FindOrCompileKernel(
    const v1::CompileKernelRequest& request) {
  KILN_ASSIGN_OR_RETURN(const Digest key, KernelKeyOf(request));
  const std::optional<absl::string_view> object = FindKernelAhead(KernelsAhead(), key);
  if (!object) return CompileKernel(request);
  v1::CompileKernelResponse response;
  response.set_object(std::string(*object));
  return response;
}

std::vector<KernelOfBuild> KernelsOfBuild() {
  std::vector<KernelOfBuild> all;
  for (const KernelAhead& kernel : ReadKernelsAhead(KernelsAhead())) {
    const absl::StatusOr<Digest> key = Digest::FromHex(kernel.key);
    if (key.ok()) all.push_back({*key, std::string(kKernelsAheadArch), kernel.object});
  }
  return all;
}

}  // namespace kiln
