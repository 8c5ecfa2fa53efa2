// Debian's LLVM was built with Polly, and so Clang and lld ask for it; there is no archive of it.
// Its passes run for nobody who does not ask for them, and Kiln does not.
#include "llvm/Passes/PassPlugin.h"

llvm::PassPluginLibraryInfo getPollyPluginInfo();

llvm::PassPluginLibraryInfo getPollyPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "Polly", "left out", [](llvm::PassBuilder&) {}};
}
