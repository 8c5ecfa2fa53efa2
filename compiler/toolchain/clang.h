// Clang and LLVM in process: C++ text in, x86-64 object or PTX out, no files and no headers but the
// text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/toolchain/nvptx.h"
#include "proto/base/digest.h"

namespace kiln::toolchain {

enum class Machine : uint8_t { kX86, kNvptx };

// Whole declarations that stand before the sources of many jobs. They are parsed once in a process
// for each list of arguments, and the result is kept.
class Prelude {
 public:
  explicit Prelude(absl::string_view text) : text_(text), digest_(Sha256(text)) {}
  const std::string& text() const { return text_; }
  const Digest& digest() const { return digest_; }

 private:
  const std::string text_;
  const Digest digest_;
};

struct ClangJob {
  Machine machine = Machine::kX86;
  const Prelude* prelude = nullptr;  // before `source`, where there is one
  absl::string_view source;
  std::string arch;                   // LLVM CPU name; an unknown x86 one falls back to "x86-64"
  std::vector<std::string> features;  // each switched on; every other optional one of the CPU's
                                      // vector extensions that the client lacks is switched off
  int optimization_level = 3;         // 1 to 3
  bool fast_math = false;             // reassociation, reciprocals; never "no NaN" or "no inf"
  bool want_assembly = false;
  bool early_loads = false;  // early_loads.h, which says what it takes for granted
};

struct ClangOutput {
  std::string object;    // ELF, position independent; for kNvptx PTX
  std::string assembly;  // where asked for; none for kNvptx
};

// A job as Clang gets it. Nothing else of a job reaches Clang: CompileCpp takes this and KeyOf
// hashes all of it, so that what alters an object cannot be left out of its key.
struct ClangInvocation {
  std::vector<std::string> object_arguments;
  std::vector<std::string> assembly_arguments;  // none where no assembly is wanted
  std::optional<NvptxOptions> nvptx;            // for kNvptx: Clang's module becomes PTX
  const Prelude* prelude = nullptr;
  absl::string_view source;  // after the prelude
};

// Finds arch and features in Clang's tables; what is not there has no effect. Cheap: for the server
// as well, which compiles nothing.
ClangInvocation Prepare(const ClangJob& job);

// The key of what CompileCpp makes of it (proto/base/key.h): of the invocation, of Clang's full
// version and of the text of this library's files but lld.cc's.
Digest KeyOf(const ClangInvocation& invocation);

// INTERNAL with the first diagnostics for source that does not compile (it is our own).
// Thread-safe; the first call in a process initializes LLVM.
absl::StatusOr<ClangOutput> CompileCpp(const ClangInvocation& invocation);

// Parses the prelude alone, for later calls with equal arguments in this process or in one forked
// from it.
absl::Status PrecompilePrelude(const ClangInvocation& invocation);

// "clang 19.1.7, lld 19.1.7": part of every artifact's key.
std::string ToolchainVersion();

}  // namespace kiln::toolchain
