#include "compiler/ir/verify.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/verify_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

absl::Status CheckBuffer(const Buffer& buffer) {
  const auto fail = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("buffer @", buffer.name, " ", what));
  };
  if (buffer.sizes.size() != buffer.strides.size()) {
    return fail("has unequal numbers of sizes and strides");
  }
  for (size_t i = 0; i < buffer.sizes.size(); ++i) {
    if (!IsSizeExpr(buffer.sizes[i]) || !IsSizeExpr(buffer.strides[i])) {
      return fail(absl::StrCat("has a size or stride in dimension ", i, " that is no size"));
    }
    if (buffer.sizes[i].range().max < 0) {
      return fail(absl::StrCat("has a negative size in dimension ", i));
    }
    if (buffer.strides[i].range().max < 0) {
      return fail(absl::StrCat("has a negative stride in dimension ", i));
    }
  }
  const bool numbered = buffer.kind == BufferKind::kInput || buffer.kind == BufferKind::kConstant;
  if (numbered && buffer.index < 0) return fail("is an input or constant without a number");
  return absl::OkStatus();
}

class ModuleVerifier {
 public:
  explicit ModuleVerifier(const Module& module) : module_(module), kernels_(module) {}

  absl::Status Run() {
    for (const Buffer& buffer : module_.buffers) KILN_RETURN_IF_ERROR(CheckBuffer(buffer));
    for (size_t i = 0; i < module_.operations.size(); ++i) {
      const auto* repeat = std::get_if<Repeat>(&module_.operations[i]);
      if (repeat == nullptr) continue;
      for (const RepeatVersion& version : repeat->versions) {
        for (const BufferId id : version.keeps) repeat_of_.try_emplace(id, static_cast<int>(i));
      }
    }
    for (size_t i = 0; i < module_.operations.size(); ++i) {
      const Operation& operation = module_.operations[i];
      if (const auto* library = std::get_if<Library>(&operation)) {
        KILN_RETURN_IF_ERROR(CheckLibrary(*library, step_++));
      }
      for (const Kernel& kernel : KernelsOf(operation)) {
        KILN_RETURN_IF_ERROR(kernels_.Check(kernel, step_++));
      }
      if (const auto* repeat = std::get_if<Repeat>(&operation)) {
        KILN_RETURN_IF_ERROR(CheckRepeat(module_, *repeat));
      }
      KILN_RETURN_IF_ERROR(CheckTileBuffers(operation, static_cast<int>(i)));
    }
    for (size_t i = 0; i < module_.outputs.size(); ++i) {
      const ModuleOutput& output = module_.outputs[i];
      const std::string where = absl::StrCat("output ", i);
      if (const auto* window = std::get_if<BufferWindow>(&output.value)) {
        KILN_RETURN_IF_ERROR(CheckWindow(*window, where));
      } else if (const auto* size = std::get_if<IntExpr>(&output.value);
                 size != nullptr && !IsSizeExpr(*size)) {
        return absl::InternalError(absl::StrCat(where, " is no size"));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Those of one tile belong to one repeat.
  absl::Status CheckTileBuffers(const Operation& operation, int number) {
    for (const Kernel& kernel : KernelsOf(operation)) {
      for (const Phase& phase : kernel.phases) {
        for (const Inst& inst : phase.body) {
          if (inst.buffer < 0) continue;
          const bool is_tile = module_.buffers[inst.buffer].kind == BufferKind::kTile;
          if (!is_tile && !repeat_of_.contains(inst.buffer)) continue;
          const int owner = repeat_of_.try_emplace(inst.buffer, number).first->second;
          if (owner == number && std::holds_alternative<Repeat>(operation)) continue;
          return absl::InternalError(absl::StrCat("kernel @", kernel.name, " uses @",
                                                  module_.buffers[inst.buffer].name,
                                                  ", a tile of another operation"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckLibrary(const Library& library, int operation) {
    const std::string where =
        absl::StrCat("library step \"", library.op, "\" from \"", library.origin, "\"");
    bool named = false;
    for (const LibraryArg& arg : library.args) {
      if (named && arg.name.empty()) {
        return absl::InternalError(
            absl::StrCat(where, " has a positional argument after a named one"));
      }
      named = !arg.name.empty();
      KILN_RETURN_IF_ERROR(CheckArg(arg, where));
    }
    if (!library.positions.empty() &&
        (library.positions.size() != library.results.size() || library.positions.front() < 0 ||
         std::adjacent_find(library.positions.begin(), library.positions.end(),
                            std::greater_equal<>()) != library.positions.end())) {
      return absl::InternalError(absl::StrCat(where, " takes results in no order"));
    }
    for (BufferId result : library.results) {
      if (!Exists(result)) return absl::InternalError(absl::StrCat(where, " has no such result"));
      const Buffer& buffer = module_.buffers[result];
      if (buffer.kind != BufferKind::kLibrary) {
        return absl::InternalError(
            absl::StrCat(where, " makes @", buffer.name, ", which is no library buffer"));
      }
      if (kernels_.HasWriter(result)) {
        return absl::InternalError(
            absl::StrCat(where, " makes @", buffer.name, ", which another step made"));
      }
      kernels_.MarkWritten(result, operation);
    }
    return absl::OkStatus();
  }

  absl::Status CheckArg(const LibraryArg& arg, const std::string& where) {
    if (const auto* items = std::get_if<LibraryArgs>(&arg.value)) {
      for (const LibraryArg& item : *items) KILN_RETURN_IF_ERROR(CheckArg(item, where));
    } else if (const auto* window = std::get_if<BufferWindow>(&arg.value)) {
      return CheckWindow(*window, where);
    } else if (const auto* size = std::get_if<IntExpr>(&arg.value);
               size != nullptr && !IsSizeExpr(*size)) {
      return absl::InternalError(absl::StrCat(where, " has an argument that is no size"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckWindow(const BufferWindow& window, const std::string& where) {
    if (!Exists(window.buffer)) {
      return absl::InternalError(absl::StrCat(where, " is on a buffer that does not exist"));
    }
    const Buffer& buffer = module_.buffers[window.buffer];
    const auto fail = [&](absl::string_view what) {
      return absl::InternalError(absl::StrCat(where, " has a window on @", buffer.name, " ", what));
    };
    if (!kernels_.IsWritten(window.buffer)) return fail("before anything is stored there");
    if (repeat_of_.contains(window.buffer) || buffer.kind == BufferKind::kTile)
      return fail("which never lies in memory whole");
    if (window.sizes.size() != window.strides.size()) {
      return fail("with unequal numbers of sizes and strides");
    }
    if (!IsSizeExpr(window.offset)) return fail("whose offset is no size");
    for (size_t i = 0; i < window.sizes.size(); ++i) {
      if (!IsSizeExpr(window.sizes[i]) || !IsSizeExpr(window.strides[i])) {
        return fail(absl::StrCat("whose dimension ", i, " has no proper size or stride"));
      }
    }
    if (!FitsWhereConstant(window, buffer)) return fail("that reaches outside the buffer");
    return absl::OkStatus();
  }

  // True as well where some size is a symbol.
  bool FitsWhereConstant(const BufferWindow& window, const Buffer& buffer) {
    IntContext& ints = *module_.ints;
    IntExpr low = window.offset, high = window.offset;
    for (size_t i = 0; i < window.sizes.size(); ++i) {
      if (window.sizes[i].is_const(0)) return true;
      const IntExpr span = ints.Mul(ints.Add(window.sizes[i], -1), window.strides[i]);
      const bool backwards = window.strides[i].range().max < 0;
      (backwards ? low : high) = ints.Add(backwards ? low : high, span);
    }
    const IntExpr bytes = SizeBytes(ints, buffer);
    if (!low.is_const() || !high.is_const() || !bytes.is_const()) return true;
    return low.value() >= 0 && high.value() < bytes.value() / DTypeSize(buffer.dtype);
  }

  bool Exists(BufferId id) const {
    return id >= 0 && static_cast<size_t>(id) < module_.buffers.size();
  }

  const Module& module_;
  KernelVerifier kernels_;
  int step_ = 0;  // kernels and library steps so far
  // Of buffers that lie nowhere whole, at least in some version: the operation.
  absl::flat_hash_map<BufferId, int> repeat_of_;
};

}  // namespace

absl::Status Verify(const Module& module) {
  return ModuleVerifier(module).Run();
}

}  // namespace kiln::ir
