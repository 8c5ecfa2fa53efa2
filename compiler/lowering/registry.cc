#include "compiler/lowering/registry.h"

namespace kiln::lowering {

const Registry& Lowerings() {
  static const Registry* const registry = [] {
    auto* all = new Registry;
    RegisterViews(*all);
    RegisterPointwise(*all);
    RegisterBinary(*all);
    RegisterActivations(*all);
    RegisterReductions(*all);
    RegisterNormalization(*all);
    RegisterMatmul(*all);
    RegisterConvolution(*all);
    RegisterConvolutionBackward(*all);
    RegisterPooling(*all);
    RegisterPoolingBackward(*all);
    RegisterPadding(*all);
    RegisterResampling(*all);
    RegisterIndexing(*all);
    RegisterScatters(*all);
    RegisterScans(*all);
    RegisterRandom(*all);
    RegisterSorting(*all);
    RegisterJoining(*all);
    RegisterCreation(*all);
    RegisterAttention(*all);
    return all;
  }();
  return *registry;
}

bool HasOutputMask(absl::string_view op) {
  return op == "convolution_backward.default" ||
         op == "_scaled_dot_product_flash_attention.default" ||
         op == "_scaled_dot_product_cudnn_attention.default";
}

}  // namespace kiln::lowering
