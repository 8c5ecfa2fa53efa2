// What printers of schedule trees share: walking the tree, serial loops, accumulators, names.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "compiler/codegen/source/body.h"
#include "compiler/codegen/source/kernel_text.h"
#include "compiler/codegen/source/reduce_text.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/multiples.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::source {

class TreePrinter {
 protected:
  // A function's body under way.
  struct Function {
    Function(ir::IntContext& ints, int num_values, Names& names)
        : out(1), body(ints, num_values, names, out) {}
    Writer out;
    Body body;
    bool streams = false;  // some stores go past the caches
  };
  struct Accumulator {
    std::string vector;  // "float, 16": element and lanes
    ReduceText text;
    bool one_a_lane;  // of a vector loop inside of which it is used, not opened
  };

  TreePrinter(ir::Module& module, const schedule::Tree& tree)
      : module_(module), ints_(*module.ints), tree_(tree) {}
  virtual ~TreePrinter() = default;

  void PrintBlock(absl::Span<const schedule::Node> nodes, Function& f);
  virtual void PrintNode(const schedule::Node& node, Function& f);

  virtual void PrintVectorLoop(const schedule::For& loop, Function& f) = 0;
  // Memory that is no accumulator.
  virtual void PrintArray(schedule::AllocId id, Function& f) = 0;
  virtual void PrintMicro(const schedule::Micro& micro, Function& f) = 0;
  virtual void PrintCompute(const schedule::Compute& compute, Function& f) { f.body.Emit(compute); }
  // Before a serial loop without loops in it.
  virtual std::string InnermostHint(const schedule::For&, const Function&) const { return ""; }
  // A loop whose iterations are spread over groups of threads; one after another where there is
  // one.
  virtual void PrintGroupLoop(const schedule::For& loop, Function& f) { PrintSerialLoop(loop, f); }
  void PrintSerialLoop(const schedule::For& loop, Function& f);
  // Of an accumulator with an element for each lane: those that one thread has.
  virtual int64_t LanesOfThread(const schedule::Alloc& alloc) const { return alloc.size.value(); }
  // A value of all threads that share a task from `value`, each one's; `type`: in C++.
  virtual std::string AcrossThreads(const Accumulator&, const std::string& /*type*/,
                                    std::string value) {
    return value;
  }

  std::string NewVar(ir::IntExpr var, char prefix);
  std::string Expr(ir::IntExpr expr) { return names_.Expr(expr); }
  // Room for `alloc` at the end of a kind of scratch memory; returns where it begins, in bytes.
  ir::IntExpr Reserve(const schedule::Alloc& alloc, ir::IntExpr& bytes);

  ir::Module& module_;
  ir::IntContext& ints_;
  const schedule::Tree& tree_;
  Names names_;
  schedule::Multiples multiples_;
  absl::string_view index_type_ = "long";                        // of variables, in C++
  absl::flat_hash_map<schedule::AllocId, ir::IntExpr> offsets_;  // of those in scratch memory

 private:
  void PrintFor(const schedule::For& loop, Function& f);
  void PrintIf(const schedule::If& branch, Function& f);
  void PrintAccumulator(schedule::AllocId id, Function& f);
  void PrintUpdate(const schedule::Update& update, Function& f);
  void PrintFold(const schedule::Fold& fold, Function& f);
  void PrintCombine(const schedule::Combine& combine, Function& f);

  absl::flat_hash_map<schedule::AllocId, Accumulator> accumulators_;
  absl::flat_hash_map<char, int> var_count_;
};

// A part of the tree that runs as one grid of tasks: the loops of kTask one in another are its
// rows, those of kTaskVector its lanes. It becomes a function of its own.
struct Grid {
  absl::Span<const schedule::Node> nodes;
  std::vector<const schedule::For*> rows;   // outermost first
  std::vector<const schedule::For*> lanes;  // beside each other
};

// One grid for each loop of tasks in the root, or one for all of the root where there is one such
// loop at most.
std::vector<Grid> FindGrids(const schedule::Block& root);

}  // namespace kiln::codegen::source
