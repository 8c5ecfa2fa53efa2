#include "compiler/toolchain/early_loads.h"

#include <cstdint>
#include <vector>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/DataLayout.h"
#include "llvm/IR/Function.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/PassManager.h"
#include "llvm/Support/Casting.h"

namespace kiln::toolchain {
namespace {

// Of loaded values that wait, and so of registers.
constexpr uint64_t kMostBits = 32 * 32;

using Objects = llvm::SmallVector<const llvm::Value*, 4>;

// What the pointer may point into: parameters, which a branch may choose among. Empty where it may
// be anything else.
Objects ParametersOf(const llvm::Value* pointer) {
  Objects objects;
  llvm::getUnderlyingObjects(pointer, objects);
  const auto is_other = [](const llvm::Value* object) {
    return !llvm::isa<llvm::Argument>(object);
  };
  if (llvm::any_of(objects, is_other)) objects.clear();
  return objects;
}

// Whether the load gives the same where it stands before the instruction.
bool MayPass(const llvm::LoadInst& load, const llvm::Instruction& other) {
  if (!other.mayWriteToMemory() && !other.mayThrow()) return true;
  const auto* const store = llvm::dyn_cast<llvm::StoreInst>(&other);
  if (store == nullptr || !store->isSimple()) return false;
  const Objects from = ParametersOf(load.getPointerOperand());
  const Objects to = ParametersOf(store->getPointerOperand());
  return !from.empty() && !to.empty() && llvm::none_of(from, [&](const llvm::Value* object) {
    return llvm::is_contained(to, object);
  });
}

// The instructions of a block from `begin` on, of which loads move to `begin`.
class Batch {
 public:
  explicit Batch(llvm::Instruction& begin) : begin_(&begin) {}

  // Whether the load may join.
  bool Takes(const llvm::LoadInst& load, uint64_t bits) const {
    if (bits_ > 0 && bits_ + bits > kMostBits) return false;
    for (const llvm::Instruction* at = begin_; at != &load; at = at->getNextNode()) {
      if (!MayPass(load, *at)) return false;
    }
    llvm::SmallPtrSet<const llvm::Instruction*, 16> seen;
    return CanMove(load, seen);
  }

  void Add(llvm::LoadInst& load, uint64_t bits) {
    Move(load);
    bits_ += bits;
  }

 private:
  bool IsAfterBegin(const llvm::Instruction& inst) const {
    return inst.getParent() == begin_->getParent() && !llvm::isa<llvm::PHINode>(inst) &&
           (&inst == begin_ || begin_->comesBefore(&inst));
  }

  // Whether all that it takes only computes; `seen` do.
  bool CanMove(const llvm::Instruction& inst,
               llvm::SmallPtrSetImpl<const llvm::Instruction*>& seen) const {
    for (const llvm::Value* operand : inst.operands()) {
      const auto* const made = llvm::dyn_cast<llvm::Instruction>(operand);
      if (made == nullptr || !IsAfterBegin(*made) || !seen.insert(made).second) continue;
      if (made->mayReadOrWriteMemory() || made->mayHaveSideEffects() || !CanMove(*made, seen)) {
        return false;
      }
    }
    return true;
  }

  // With what it takes, to before begin_.
  void Move(llvm::Instruction& inst) {
    if (!IsAfterBegin(inst)) return;
    if (&inst == begin_) {
      begin_ = begin_->getNextNode();
      return;
    }
    for (llvm::Value* operand : inst.operands()) {
      if (auto* const made = llvm::dyn_cast<llvm::Instruction>(operand)) Move(*made);
    }
    if (&inst == begin_) {
      begin_ = begin_->getNextNode();
    } else {
      inst.moveBefore(begin_);
    }
  }

  llvm::Instruction* begin_;  // the first that stays where it is
  uint64_t bits_ = 0;
};

bool LoadEarly(llvm::BasicBlock& block) {
  std::vector<llvm::LoadInst*> loads;
  for (llvm::Instruction& inst : block) {
    auto* const load = llvm::dyn_cast<llvm::LoadInst>(&inst);
    if (load != nullptr && load->isSimple()) loads.push_back(load);
  }
  if (loads.size() < 2) return false;
  const llvm::DataLayout& layout = block.getModule()->getDataLayout();
  Batch batch(*loads.front());
  for (llvm::LoadInst* const load : loads) {
    const uint64_t bits = layout.getTypeSizeInBits(load->getType()).getFixedValue();
    if (!batch.Takes(*load, bits)) batch = Batch(*load);
    batch.Add(*load, bits);
  }
  return true;
}

class EarlyLoads : public llvm::PassInfoMixin<EarlyLoads> {
 public:
  llvm::PreservedAnalyses run(llvm::Function& function, llvm::FunctionAnalysisManager&) {
    bool changed = false;
    for (llvm::BasicBlock& block : function) changed |= LoadEarly(block);
    if (!changed) return llvm::PreservedAnalyses::all();
    llvm::PreservedAnalyses kept;
    kept.preserveSet<llvm::CFGAnalyses>();
    return kept;
  }
};

}  // namespace

void AddEarlyLoads(llvm::ModulePassManager& passes) {
  passes.addPass(llvm::createModuleToFunctionPassAdaptor(EarlyLoads()));
}

}  // namespace kiln::toolchain
