#include "client/runtime/cuda/modules.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"

namespace kiln::cuda {
namespace {

// Of dynamic shared memory, that every function may be launched with.
constexpr uint32_t kSharedBytesOfAll = 48 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<Modules>> Modules::Load(
    const Driver& driver, absl::Span<const std::unique_ptr<const runtime::Archive>> archives) {
  std::unique_ptr<Modules> modules(new Modules(driver));
  if (archives.empty()) return modules;  // of a program that launches nothing
  std::vector<std::string> errors;
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  for (const std::unique_ptr<const runtime::Archive>& archive : archives) {
    const absl::Status status = modules->LoadAll(*archive);
    if (status.ok()) return modules;
    if (absl::IsResourceExhausted(status)) return status;  // others would fare no better
    code = status.code();
    errors.emplace_back(status.message());
    modules->UnloadAll();
  }
  return absl::Status(code, absl::StrJoin(errors, "; "));
}

Modules::~Modules() {
  UnloadAll();
}

void Modules::UnloadAll() {
  for (const Loaded& loaded : loaded_) driver_.unload_module(loaded.module);
  loaded_.clear();
}

absl::Status Modules::LoadAll(const runtime::Archive& archive) {
  archive_ = &archive;
  for (const runtime::ArchivedKernel& kernel : archive.kernels()) {
    KILN_ASSIGN_OR_RETURN(const Module module, LoadOne(kernel));
    Loaded& loaded = loaded_.emplace_back();
    loaded.module = module;
    Result result = driver_.find_function(&loaded.function, module, kernel.name.c_str());
    // A driver may load code when that is first used, which a stream capture would not allow.
    int unused = 0;
    if (result == kSuccess) {
      result = driver_.function_attribute(&unused, FunctionAttribute::kMaxThreadsPerBlock,
                                          loaded.function);
    }
    KILN_RETURN_IF_ERROR(
        driver_.Check(result, absl::StrCat("kernel ", kernel.name, " is not in its module")));
  }
  absl::MutexLock lock(&mutex_);
  shared_bytes_.assign(loaded_.size(), kSharedBytesOfAll);
  return absl::OkStatus();
}

absl::StatusOr<Module> Modules::LoadOne(const runtime::ArchivedKernel& kernel) const {
  const std::string terminated(kernel.module);  // as PTX must be; a cubin knows its size
  char log[2048] = {};
  int options[] = {kJitErrorLog, kJitErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log) - 1)};
  Module module = nullptr;
  const Result result = driver_.load_module(&module, terminated.c_str(), 2, options, values);
  if (result == kSuccess) return module;
  std::string what = absl::StrCat("the driver does not load kernel ", kernel.name);
  if (log[0] != '\0') absl::StrAppend(&what, " (", log, ")");
  return driver_.Check(result, what);
}

absl::StatusOr<Function> Modules::Find(int kernel, uint32_t shared_bytes) const {
  const auto number = static_cast<size_t>(kernel);
  const Function function = loaded_[number].function;
  if (shared_bytes <= kSharedBytesOfAll) return function;
  absl::MutexLock lock(&mutex_);
  if (shared_bytes <= shared_bytes_[number]) return function;
  KILN_RETURN_IF_ERROR(driver_.Check(
      driver_.set_function_attribute(function, FunctionAttribute::kMostDynamicSharedBytes,
                                     static_cast<int>(shared_bytes)),
      absl::StrCat("kernel ", archive_->kernels()[number].name, " cannot have ", shared_bytes,
                   " bytes of shared memory")));
  shared_bytes_[number] = shared_bytes;
  return function;
}

}  // namespace kiln::cuda
