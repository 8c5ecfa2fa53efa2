#include "compiler/prepare/prepare.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/fixed_values.h"
#include "compiler/ir/print.h"
#include "compiler/memory/plan_memory.h"
#include "proto/base/status_macros.h"

namespace kiln::prepare {
namespace {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::Kernel;
using ir::Module;

std::vector<BufferId> StoredBy(const Kernel& kernel) {
  std::vector<BufferId> out;
  ForEachInst(kernel, [&](const Inst& inst) {
    if (inst.op == ir::ScalarOp::kStore) out.push_back(inst.buffer);
  });
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

bool Loads(const Kernel& kernel) {
  bool loads = false;
  ForEachInst(kernel, [&](const Inst& inst) { loads |= inst.op == ir::ScalarOp::kLoad; });
  return loads;
}

class Preparer {
 public:
  Preparer(const codegen::Target& target, int64_t most_bytes, Module& module)
      : target_(target), bytes_left_(most_bytes), module_(module) {}

  absl::Status Run() {
    std::vector<ir::Operation> prepared, others;
    bytes_to_come_ = Bytes(Parameters());
    for (ir::Operation& operation : module_.operations) {
      auto* kernel = std::get_if<Kernel>(&operation);
      const bool once = kernel != nullptr && MakePrepared(*kernel);
      (once ? prepared : others).push_back(std::move(operation));
    }
    for (ir::Operation& operation : others) {
      auto* kernel = std::get_if<Kernel>(&operation);
      if (kernel == nullptr) continue;
      KILN_ASSIGN_OR_RETURN(
          std::optional<Kernel> packing,
          target_.PackOperand(module_, *kernel, bytes_left_, bytes_left_ - bytes_to_come_));
      if (!packing) continue;
      MarkLaidOut(*packing);
      if (ShareMade(*packing, *kernel)) continue;
      Take(StoredBy(*packing));
      prepared.emplace_back(*std::move(packing));
    }
    module_.operations = std::move(prepared);
    std::move(others.begin(), others.end(), std::back_inserter(module_.operations));
    return absl::OkStatus();
  }

 private:
  bool MakePrepared(const Kernel& kernel) {
    const auto is_fixed = [this](BufferId b) { return IsFixed(module_.buffers[b]); };
    if (!IsFixed(kernel, is_fixed) || !Loads(kernel)) return false;
    const std::vector<BufferId> stored = StoredBy(kernel);
    const bool own = std::all_of(stored.begin(), stored.end(), [&](BufferId b) {
      return module_.buffers[b].kind == BufferKind::kTemp;
    });
    if (!own || Bytes(stored) > bytes_left_) return false;
    Take(stored);
    for (BufferId b : stored) module_.buffers[b].kind = BufferKind::kPrepared;
    return true;
  }

  int64_t Bytes(const std::vector<BufferId>& buffers) {
    int64_t bytes = 0;
    for (BufferId b : buffers) {
      const ir::IntExpr size =
          memory::RoundUp(*module_.ints, SizeBytes(*module_.ints, module_.buffers[b]));
      // A size that 64 bits do not hold is no constant.
      if (!size.is_const() || __builtin_add_overflow(bytes, size.value(), &bytes)) {
        return INT64_MAX;
      }
    }
    return bytes;
  }

  void Take(const std::vector<BufferId>& buffers) { bytes_left_ -= Bytes(buffers); }

  std::vector<BufferId> Parameters() const {
    std::vector<BufferId> out;
    for (size_t i = 0; i < module_.buffers.size(); ++i) {
      if (module_.buffers[i].parameter) out.push_back(static_cast<BufferId>(i));
    }
    return out;
  }

  void MarkLaidOut(const Kernel& packing) {
    ForEachInst(packing, [&](const Inst& inst) {
      const bool is_one = inst.op == ir::ScalarOp::kLoad && module_.buffers[inst.buffer].parameter;
      if (is_one && laid_out_.insert(inst.buffer).second) bytes_to_come_ -= Bytes({inst.buffer});
    });
  }

  // A weight that several contractions read in one layout is laid out once: they read what the
  // first of them does, and the newest buffer goes.
  bool ShareMade(const Kernel& packing, Kernel& reader) {
    const auto made = static_cast<BufferId>(module_.buffers.size() - 1);
    Kernel unnamed = packing;
    unnamed.name.clear();
    unnamed.origins.clear();
    const std::string text = absl::StrReplaceAll(
        ir::Print(module_, unnamed), {{absl::StrCat("@", module_.buffers[made].name, "["), "@["}});
    const auto [known, is_new] = layouts_.try_emplace(text, made);
    if (is_new) return false;
    for (ir::Phase& phase : reader.phases) {
      for (Inst& inst : phase.body) {
        if (inst.buffer == made) inst.buffer = known->second;
      }
    }
    module_.buffers.pop_back();
    return true;
  }

  const codegen::Target& target_;
  int64_t bytes_left_;
  // Of parameters that nothing has been laid out of yet: whoever takes more than he needs leaves
  // room for those.
  int64_t bytes_to_come_ = 0;
  Module& module_;
  absl::flat_hash_set<BufferId> laid_out_;
  absl::flat_hash_map<std::string, BufferId> layouts_;  // by the text of the kernel that makes it
};

}  // namespace

absl::Status Prepare(const codegen::Target& target, int64_t most_bytes, ir::Module& module) {
  return Preparer(target, most_bytes, module).Run();
}

}  // namespace kiln::prepare
