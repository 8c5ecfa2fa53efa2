#include "compiler/toolchain/nvptx.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/toolchain/early_loads.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Analysis/CGSCCPassManager.h"
#include "llvm/Analysis/LoopAnalysisManager.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/IR/DiagnosticInfo.h"
#include "llvm/IR/DiagnosticPrinter.h"
#include "llvm/IR/Function.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/PassManager.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Target/TargetOptions.h"
#include "proto/base/status_macros.h"

namespace kiln::toolchain {
namespace {

// In the order of LLVM 19's buildFunctionSimplificationPipeline and
// buildModuleOptimizationPipeline. Functions are simplified before they are inlined, too: sums of
// indices become sums of addresses there, while nothing is known of their bits. Some products and
// attention by mma.sync spill where speculative-execution, the first jump-threading and
// correlated-propagation, reassociate and mldst-motion are all left out.
constexpr char kPasses[] =
    "function<eager-inv>(sroa<modify-cfg>,early-cse,simplifycfg,instcombine<no-verify-fixpoint>),"
    "always-inline,globaldce,"
    "function<eager-inv>("
    "sroa<modify-cfg>,early-cse<memssa>,speculative-execution<only-if-divergent-target>,"
    "jump-threading,correlated-propagation,simplifycfg,instcombine<no-verify-fixpoint>,reassociate,"
    "loop-mssa(loop-instsimplify,loop-simplifycfg,licm<no-allowspeculation>,"
    "loop-rotate<header-duplication>,licm<allowspeculation>,simple-loop-unswitch),"
    "simplifycfg,instcombine<no-verify-fixpoint>,"
    "loop(loop-idiom,indvars,loop-deletion,loop-unroll-full),"
    "sroa<modify-cfg>,mldst-motion,gvn,sccp,bdce,instcombine<no-verify-fixpoint>,"
    "jump-threading,correlated-propagation,adce,memcpyopt,dse,"
    "loop-mssa(licm<allowspeculation>),"
    "simplifycfg<hoist-common-insts;sink-common-insts>,instcombine<no-verify-fixpoint>,"
    "loop(loop-rotate<header-duplication>,loop-deletion),"
    "loop-unroll<O2>,sroa<preserve-cfg>,instcombine<no-verify-fixpoint>,"
    "loop-mssa(licm<allowspeculation>),loop-sink,div-rem-pairs,"
    "simplifycfg<hoist-common-insts;sink-common-insts>)";

// Errors that LLVM has reported of the module; it ends the process of its own accord otherwise.
class Errors : public llvm::DiagnosticHandler {
 public:
  explicit Errors(std::string& text) : text_(text) {}
  bool handleDiagnostics(const llvm::DiagnosticInfo& info) override {
    if (info.getSeverity() == llvm::DS_Error && text_.empty()) {
      llvm::raw_string_ostream stream(text_);
      llvm::DiagnosticPrinterRawOStream printer(stream);
      info.print(printer);
    }
    return true;
  }

 private:
  std::string& text_;
};

std::unique_ptr<llvm::TargetMachine> MachineFor(const llvm::Module& module,
                                                const NvptxOptions& options) {
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(module.getTargetTriple(), error);
  if (target == nullptr) return nullptr;
  llvm::TargetOptions of_target;
  of_target.AllowFPOpFusion =
      options.fast_math ? llvm::FPOpFusion::Fast : llvm::FPOpFusion::Standard;
  return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(
      module.getTargetTriple(), options.arch, options.features, of_target,
      /*RM=*/std::nullopt, /*CM=*/std::nullopt, llvm::CodeGenOptLevel::Default));
}

// Of functions that are no kernels all are inlined, those too that Clang does not mark.
void InlineAll(llvm::Module& module) {
  for (llvm::Function& function : module) {
    if (function.isDeclaration() || !function.isDiscardableIfUnused() ||
        function.hasFnAttribute(llvm::Attribute::NoInline)) {
      continue;
    }
    function.addFnAttr(llvm::Attribute::AlwaysInline);
  }
}

absl::Status RunPasses(llvm::Module& module, llvm::TargetMachine& machine,
                       const NvptxOptions& options) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  // Kernels call no library.
  llvm::TargetLibraryInfoImpl library(llvm::Triple(module.getTargetTriple()));
  library.disableAllFunctions();
  functions.registerPass([&] { return llvm::TargetLibraryAnalysis(library); });
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);

  llvm::ModulePassManager passes;
  if (options.optimization_level < 2) {
    passes = builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O1);
  } else {
    InlineAll(module);
    builder.invokePipelineStartEPCallbacks(passes, llvm::OptimizationLevel::O2);
    if (llvm::Error error = builder.parsePassPipeline(passes, kPasses)) {
      return absl::InternalError(absl::StrCat("LLVM does not take the list of passes: ",
                                              llvm::toString(std::move(error))));
    }
  }
  if (options.early_loads) AddEarlyLoads(passes);
  passes.run(module, modules);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> WritePtx(llvm::Module& module, const NvptxOptions& options) {
  std::string error;
  module.getContext().setDiagnosticHandler(std::make_unique<Errors>(error));
  std::unique_ptr<llvm::TargetMachine> machine = MachineFor(module, options);
  if (machine == nullptr) return absl::InternalError("LLVM lacks the target of PTX");
  KILN_RETURN_IF_ERROR(RunPasses(module, *machine, options));
  llvm::SmallString<0> ptx;
  llvm::raw_svector_ostream stream(ptx);
  llvm::legacy::PassManager writing;
  if (machine->addPassesToEmitFile(writing, stream, nullptr, llvm::CodeGenFileType::AssemblyFile)) {
    return absl::InternalError("LLVM cannot write PTX");
  }
  writing.run(module);
  if (!error.empty()) return absl::InternalError(absl::StrCat("LLVM: ", error));
  return std::string(ptx.data(), ptx.size());
}

}  // namespace kiln::toolchain
