#include "compiler/toolchain/clang.h"

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "clang/Basic/Diagnostic.h"
#include "clang/Basic/TargetInfo.h"
#include "clang/Basic/TargetOptions.h"
#include "clang/Basic/Version.h"
#include "clang/CodeGen/CodeGenAction.h"
#include "clang/Frontend/CompilerInstance.h"
#include "clang/Frontend/CompilerInvocation.h"
#include "clang/Frontend/FrontendOptions.h"
#include "clang/Frontend/TextDiagnosticPrinter.h"
#include "clang/Lex/PreprocessorOptions.h"
#include "clang/Serialization/ASTWriter.h"
#include "clang/Serialization/PCHContainerOperations.h"
#include "compiler/toolchain/clang_source_hash.h"
#include "compiler/toolchain/nvptx.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/VirtualFileSystem.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/TargetParser/X86TargetParser.h"
#include "proto/base/key.h"
#include "proto/base/status_macros.h"

// Declared here and not through TargetSelect.h, which would name every target of this LLVM.
extern "C" {
void LLVMInitializeX86TargetInfo();
void LLVMInitializeX86Target();
void LLVMInitializeX86TargetMC();
void LLVMInitializeX86AsmPrinter();
void LLVMInitializeX86AsmParser();
void LLVMInitializeNVPTXTargetInfo();
void LLVMInitializeNVPTXTarget();
void LLVMInitializeNVPTXTargetMC();
void LLVMInitializeNVPTXAsmPrinter();
}

// lld/Common/Version.h includes a file that Debian's package leaves out.
namespace lld {
std::string getLLDVersion();
}

namespace kiln::toolchain {
namespace {

constexpr char kTriple[] = "x86_64-unknown-linux-gnu";
constexpr char kFallbackArch[] = "x86-64";
constexpr char kNvptxTriple[] = "nvptx64-nvidia-cuda";
// The oldest that knows all architectures up to sm_90a; drivers from CUDA 12.0 on take it.
constexpr char kPtxVersion[] = "+ptx80";
constexpr char kKernelPath[] = "kernel.cc";
constexpr char kPreludePath[] = "/prelude.h";
constexpr char kPrecompiledPath[] = "/prelude.pch";
constexpr size_t kMaxDiagnosticBytes = 4000;

// The extensions that an LLVM CPU name may imply and a client may lack all the same: a hypervisor
// masks them, or a model of the family does not have them. Switched off unless the client lists
// them.
constexpr const char* kVectorExtensions[] = {"sse3",
                                             "ssse3",
                                             "sse4.1",
                                             "sse4.2",
                                             "sse4a",
                                             "avx",
                                             "avx2",
                                             "fma",
                                             "fma4",
                                             "f16c",
                                             "xop",
                                             "gfni",
                                             "vaes",
                                             "vpclmulqdq",
                                             "avx512f",
                                             "avx512bf16",
                                             "avx512bitalg",
                                             "avx512bw",
                                             "avx512cd",
                                             "avx512dq",
                                             "avx512fp16",
                                             "avx512ifma",
                                             "avx512vbmi",
                                             "avx512vbmi2",
                                             "avx512vl",
                                             "avx512vnni",
                                             "avx512vp2intersect",
                                             "avx512vpopcntdq",
                                             "avxifma",
                                             "avxneconvert",
                                             "avxvnni",
                                             "avxvnniint16",
                                             "avxvnniint8",
                                             "amx-bf16",
                                             "amx-complex",
                                             "amx-fp16",
                                             "amx-int8",
                                             "amx-tile"};

void InitializeLlvmOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeX86AsmParser();
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
}

bool Contains(const std::vector<std::string>& list, absl::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Clang's own table of what x86 features exist. Names that it does not know (a newer client) are
// left out: they would only have made more instructions available.
bool IsKnownFeature(const std::string& feature) {
  static const clang::TargetInfo* const info = [] {
    clang::DiagnosticsEngine diagnostics(new clang::DiagnosticIDs, new clang::DiagnosticOptions,
                                         new clang::IgnoringDiagConsumer);
    auto options = std::make_shared<clang::TargetOptions>();
    options->Triple = kTriple;
    clang::TargetInfo* created = clang::TargetInfo::CreateTargetInfo(diagnostics, options);
    if (created != nullptr) created->Retain();
    return created;
  }();
  return info != nullptr && info->isValidFeatureName(feature);
}

// The arguments of `clang -cc1`, which say what the driver would have added.
std::vector<std::string> CommonArguments(const ClangJob& job) {
  std::vector<std::string> args = {"-x",
                                   "c++",
                                   "-std=c++20",
                                   "-ffreestanding",
                                   "-nostdsysteminc",
                                   "-nobuiltininc",
                                   "-fno-rtti",
                                   "-fno-cxx-modules",
                                   "-fno-threadsafe-statics",
                                   "-fgnuc-version=4.2.1",
                                   "-mframe-pointer=none",
                                   "-clear-ast-before-backend",
                                   "-disable-llvm-verifier",
                                   "-w",
                                   "-ferror-limit",
                                   "10",
                                   "-main-file-name",
                                   kKernelPath};
  args.push_back(absl::StrCat("-O", std::clamp(job.optimization_level, 1, 3)));
  if (job.fast_math) {
    args.insert(args.end(), {"-mreassociate", "-freciprocal-math", "-ffp-contract=fast"});
  } else {
    args.push_back("-ffp-contract=on");
  }
  return args;
}

std::vector<std::string> X86Arguments(const ClangJob& job) {
  const bool known_arch =
      llvm::X86::parseArchX86(job.arch, /*Only64Bit=*/true) != llvm::X86::CK_None;
  const bool avx512 = Contains(job.features, "avx512f");
  std::vector<std::string> args = {"-triple",
                                   kTriple,
                                   "-target-cpu",
                                   known_arch ? job.arch : kFallbackArch,
                                   "-mrelocation-model",
                                   "pic",
                                   "-pic-level",
                                   "2"};
  if (job.optimization_level > 1) {
    args.insert(args.end(), {"-vectorize-loops", "-vectorize-slp"});
  }
  auto add_feature = [&](absl::string_view sign, absl::string_view feature) {
    args.insert(args.end(), {"-target-feature", absl::StrCat(sign, feature)});
  };
  // Clang lets "-avx" take along what builds on it and "+avx2" bring what it needs: off, then on.
  for (const char* feature : kVectorExtensions) {
    if (!Contains(job.features, feature)) add_feature("-", feature);
  }
  for (const std::string& feature : job.features) {
    if (IsKnownFeature(feature)) add_feature("+", feature);
  }
  if (avx512) {
    add_feature("+", "evex512");
    args.push_back("-mprefer-vector-width=512");
  }
  return args;
}

std::vector<std::string> FrontendArguments(const ClangJob& job) {
  std::vector<std::string> args =
      job.machine == Machine::kX86
          ? X86Arguments(job)
          : std::vector<std::string>{"-triple", kNvptxTriple,      "-target-cpu",
                                     job.arch,  "-target-feature", kPtxVersion};
  for (std::string& arg : CommonArguments(job)) args.push_back(std::move(arg));
  return args;
}

using Buffer = std::shared_ptr<const std::string>;

// What Clang reads. The paths exist only in its in-memory file system.
struct FrontendInput {
  std::string text;  // a std::string, since Clang's lexer wants the zero byte after the text
  const char* path;
  const Prelude* prelude = nullptr;  // what stands before `text`, or null
  Buffer precompiled = nullptr;      // the prelude as Clang serialized it, where there is one
};

// Runs `action`; its output is up to the action. INTERNAL with diagnostics.
absl::Status RunFrontend(const std::vector<std::string>& args, const FrontendInput& input,
                         clang::FrontendAction& action,
                         std::unique_ptr<llvm::raw_pwrite_stream> output) {
  std::string messages;
  llvm::raw_string_ostream message_stream(messages);
  llvm::IntrusiveRefCntPtr<clang::DiagnosticOptions> options(new clang::DiagnosticOptions);
  clang::TextDiagnosticPrinter printer(message_stream, options.get());

  clang::CompilerInstance compiler;
  compiler.setVerboseOutputStream(llvm::nulls());
  std::vector<const char*> arg_pointers;
  for (const std::string& arg : args) arg_pointers.push_back(arg.c_str());
  clang::DiagnosticsEngine argument_diagnostics(new clang::DiagnosticIDs, options, &printer,
                                                /*ShouldOwnClient=*/false);
  bool ok = clang::CompilerInvocation::CreateFromArgs(compiler.getInvocation(), arg_pointers,
                                                      argument_diagnostics);
  // Only now, so that it heeds the arguments about diagnostics.
  compiler.createDiagnostics(&printer, /*ShouldOwnClient=*/false);
  clang::FrontendOptions& frontend = compiler.getFrontendOpts();
  frontend.Inputs.assign(
      {clang::FrontendInputFile(input.path, clang::InputKind(clang::Language::CXX))});
  frontend.DisableFree = false;
  compiler.getCodeGenOpts().DisableFree = false;
  // Nothing of the server's disk can get into a kernel.
  auto files = llvm::makeIntrusiveRefCnt<llvm::vfs::InMemoryFileSystem>();
  const auto add_file = [&](const std::string& text, const char* path) {
    files->addFile(path, /*ModificationTime=*/0,
                   llvm::MemoryBuffer::getMemBuffer(text, path, /*RequiresNullTerminator=*/false));
  };
  add_file(input.text, input.path);
  if (input.precompiled != nullptr) {
    // Not serialized with it, which would be packed and unpacked.
    add_file(input.prelude->text(), kPreludePath);
    add_file(*input.precompiled, kPrecompiledPath);
    clang::PreprocessorOptions& preprocessor = compiler.getPreprocessorOpts();
    preprocessor.ImplicitPCHInclude = kPrecompiledPath;
    // It was made in this process from the same arguments.
    preprocessor.DisablePCHOrModuleValidation = clang::DisableValidationForModuleKind::PCH;
  }
  compiler.createFileManager(std::move(files));
  compiler.setOutputStream(std::move(output));
  ok = ok && compiler.ExecuteAction(action);
  message_stream.flush();
  if (ok) return absl::OkStatus();
  if (messages.size() > kMaxDiagnosticBytes) messages.resize(kMaxDiagnosticBytes);
  return absl::InternalError(
      absl::StrCat("the generated source does not compile: ",
                   messages.empty() ? "Clang gave no diagnostic" : messages));
}

// Parses a prelude and writes Clang's serialized form of it to memory.
class PrecompileAction : public clang::ASTFrontendAction {
 public:
  explicit PrecompileAction(std::shared_ptr<clang::PCHBuffer> result)
      : result_(std::move(result)) {}
  bool BeginSourceFileAction(clang::CompilerInstance& compiler) override {
    compiler.getLangOpts().CompilingPCH = true;
    return true;
  }
  std::unique_ptr<clang::ASTConsumer> CreateASTConsumer(clang::CompilerInstance& compiler,
                                                        llvm::StringRef) override {
    return std::make_unique<clang::PCHGenerator>(
        compiler.getPreprocessor(), compiler.getModuleCache(), kPrecompiledPath, /*isysroot=*/"",
        result_, compiler.getFrontendOpts().ModuleFileExtensions,
        /*AllowASTWithErrors=*/false, /*IncludeTimestamps=*/false);
  }
  clang::TranslationUnitKind getTranslationUnitKind() override { return clang::TU_Prefix; }
  bool hasASTFileSupport() const override { return false; }

 private:
  std::shared_ptr<clang::PCHBuffer> result_;
};

absl::StatusOr<Buffer> Precompile(const std::vector<std::string>& args, const Prelude& prelude) {
  auto result = std::make_shared<clang::PCHBuffer>();
  PrecompileAction action(result);
  const FrontendInput input{.text = prelude.text(), .path = kPreludePath};
  KILN_RETURN_IF_ERROR(RunFrontend(args, input, action, nullptr));
  if (!result->IsComplete) return absl::InternalError("Clang did not precompile the prelude");
  return std::make_shared<const std::string>(result->Data.data(), result->Data.size());
}

// A process serves few kinds of client. Of those that it met, the ones of the last calls are kept.
class PrecompiledPreludes {
 public:
  // The precompiled form of `prelude`, made at its first use. Two threads may make the same one.
  absl::StatusOr<Buffer> Get(const std::vector<std::string>& args, const Prelude& prelude) {
    const std::string key = absl::StrCat(prelude.digest().ToHex(), "\n", absl::StrJoin(args, "\n"));
    if (Buffer known = Find(key)) return known;
    absl::StatusOr<Buffer> made = Precompile(args, prelude);
    if (made.ok()) Keep(key, *made);
    return made;
  }

 private:
  static constexpr size_t kMaxEntries = 32;
  struct Entry {
    std::string key;
    Buffer precompiled;
  };

  Buffer Find(const std::string& key) {
    absl::MutexLock lock(&mu_);
    auto found = std::find_if(entries_.begin(), entries_.end(),
                              [&](const Entry& entry) { return entry.key == key; });
    if (found == entries_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front().precompiled;
  }

  void Keep(const std::string& key, Buffer precompiled) {
    absl::MutexLock lock(&mu_);
    entries_.push_front({key, std::move(precompiled)});
    if (entries_.size() > kMaxEntries) entries_.pop_back();
  }

  absl::Mutex mu_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mu_);  // most recently used first
};

PrecompiledPreludes& Preludes() {
  static auto* const preludes = new PrecompiledPreludes;
  return *preludes;
}

absl::StatusOr<std::string> RunBackend(const std::vector<std::string>& args,
                                       const FrontendInput& input, clang::FrontendAction& action) {
  llvm::SmallString<0> output;
  KILN_RETURN_IF_ERROR(
      RunFrontend(args, input, action, std::make_unique<llvm::raw_svector_ostream>(output)));
  if (output.empty()) return absl::InternalError("Clang wrote no output");
  return std::string(output.data(), output.size());
}

// Lines bring these along; the object has none.
void DropFrameDirectives(std::string& assembly) {
  std::string kept;
  kept.reserve(assembly.size());
  for (absl::string_view line : absl::StrSplit(assembly, '\n')) {
    if (!absl::StartsWith(line, "\t.cfi_")) absl::StrAppend(&kept, line, "\n");
  }
  kept.pop_back();  // after the last there was none
  assembly = std::move(kept);
}

// "19.1.7" of "Debian clang version 19.1.7 (3)": of the library that is loaded, not of its headers.
std::string ClangVersionNumber() {
  const std::string full = clang::getClangFullVersion();
  const std::string marker = "version ";
  const size_t start = full.find(marker);
  if (start == std::string::npos) return CLANG_VERSION_STRING;
  const size_t number = start + marker.size();
  return full.substr(number, full.find(' ', number) - number);
}

// "19.1.7" of "LLD 19.1.7".
std::string LldVersionNumber() {
  const std::string full = lld::getLLDVersion();
  const size_t digit = full.find_first_of("0123456789");
  if (digit == std::string::npos) return full;
  return full.substr(digit, full.find(' ', digit) - digit);
}

}  // namespace

ClangInvocation Prepare(const ClangJob& job) {
  ClangInvocation invocation{
      .object_arguments = FrontendArguments(job), .prelude = job.prelude, .source = job.source};
  if (job.machine == Machine::kNvptx) {
    invocation.object_arguments.insert(invocation.object_arguments.end(),
                                       {"-disable-llvm-passes", "-discard-value-names"});
    invocation.nvptx = NvptxOptions{.arch = job.arch,
                                    .features = kPtxVersion,
                                    .optimization_level = job.optimization_level,
                                    .fast_math = job.fast_math,
                                    .early_loads = job.early_loads};
  } else if (job.want_assembly) {
    invocation.assembly_arguments = invocation.object_arguments;
    // They say from which line each instruction comes, counted over the whole source.
    invocation.assembly_arguments.push_back("-debug-info-kind=line-directives-only");
  }
  return invocation;
}

Digest KeyOf(const ClangInvocation& invocation) {
  // A new member ends up here: it would not compile else.
  const auto& [object_arguments, assembly_arguments, nvptx, prelude, source] = invocation;
  static const std::string* const toolchain =
      new std::string(absl::StrCat(clang::getClangFullVersion(), ", ", kClangSourceHash));
  std::vector<std::string> arguments = object_arguments;
  arguments.push_back("; assembly:");
  arguments.insert(arguments.end(), assembly_arguments.begin(), assembly_arguments.end());
  if (nvptx.has_value()) {
    const auto& [arch, features, optimization_level, fast_math, early_loads] = *nvptx;
    arguments.push_back(absl::StrJoin(
        std::make_tuple("; ptx", arch, features, optimization_level, fast_math, early_loads), " "));
  }
  return KernelKey(*toolchain, arguments,
                   {prelude == nullptr ? "" : prelude->digest().view(), source});
}

absl::StatusOr<ClangOutput> CompileCpp(const ClangInvocation& invocation) {
  InitializeLlvmOnce();
  const Prelude* prelude = invocation.prelude;
  FrontendInput input{
      .text = std::string(invocation.source), .path = kKernelPath, .prelude = prelude};
  if (prelude != nullptr) {
    KILN_ASSIGN_OR_RETURN(input.precompiled, Preludes().Get(invocation.object_arguments, *prelude));
  }
  ClangOutput result;
  if (invocation.nvptx.has_value()) {
    llvm::LLVMContext context;
    clang::EmitLLVMOnlyAction emit(&context);
    KILN_RETURN_IF_ERROR(RunFrontend(invocation.object_arguments, input, emit, nullptr));
    const std::unique_ptr<llvm::Module> module = emit.takeModule();
    if (module == nullptr) return absl::InternalError("Clang made no module");
    KILN_ASSIGN_OR_RETURN(result.object, WritePtx(*module, *invocation.nvptx));
  } else {
    clang::EmitObjAction emit;
    KILN_ASSIGN_OR_RETURN(result.object, RunBackend(invocation.object_arguments, input, emit));
  }
  if (!invocation.assembly_arguments.empty()) {
    // A second run, since one backend pipeline writes one kind of file; it is for people to read.
    // Lines count over the whole source.
    const auto lines = prelude == nullptr ? 0 : absl::c_count(prelude->text(), '\n');
    input.text = absl::StrCat("#line ", 1 + lines, "\n", input.text);
    clang::EmitAssemblyAction emit_assembly;
    KILN_ASSIGN_OR_RETURN(result.assembly,
                          RunBackend(invocation.assembly_arguments, input, emit_assembly));
    DropFrameDirectives(result.assembly);
  }
  return result;
}

absl::Status PrecompilePrelude(const ClangInvocation& invocation) {
  InitializeLlvmOnce();
  if (invocation.prelude == nullptr) return absl::OkStatus();
  return Preludes().Get(invocation.object_arguments, *invocation.prelude).status();
}

std::string ToolchainVersion() {
  return absl::StrCat("clang ", ClangVersionNumber(), ", lld ", LldVersionNumber());
}

}  // namespace kiln::toolchain
