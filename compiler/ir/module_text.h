// How a module's parts are named and written: for what prints or checks them.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "compiler/ir/module.h"

namespace kiln::ir {

// A label for each symbol and buffer, unique within the module, so that text refers to them
// unambiguously: the thing's own name where that is legal and free, else a made-up one. Labels of
// a module read back from its text are the names themselves.
struct ModuleNames {
  std::vector<std::string> symbols;  // by symbol id: identifiers
  std::vector<std::string> buffers;  // by BufferId: with the '@', quoted where needed
};
ModuleNames NameModule(const Module& module);

// "d0", "d1", ... for `outer` and "r0", ... for `inner`.
using VarNames = absl::flat_hash_map<IntExpr, std::string>;
VarNames NameVars(const std::vector<IntExpr>& outer, const std::vector<IntExpr>& inner);

// A double-quoted string with \", \\, \n, \t and \xNN.
std::string QuoteText(absl::string_view s);
// The shortest text that reads back as the same number; "inf", "-inf", "nan".
std::string FloatText(double value);
bool IsIdentifier(absl::string_view s);

// Writes index expressions. Terms of sums and arguments of products, min and max are ordered by
// their text, so that equal expressions read equal whatever context they were made in.
class ExprWriter {
 public:
  // `inst` gives the operands behind kIndirect; null where there are none. The arguments are
  // borrowed for as long as the writer lives.
  ExprWriter(const ModuleNames& names, const VarNames* vars, const Inst* inst)
      : names_(names), vars_(vars), inst_(inst) {}

  std::string Text(IntExpr expr) const;
  // As the index of a dimension of size `size`: `[%2]` stands for `[%2 < size]`.
  std::string IndexText(IntExpr expr, IntExpr size);
  // "a,b,c"
  std::string ListText(const std::vector<IntExpr>& exprs) const;

 private:
  std::string LeafText(IntExpr expr) const;
  std::string SumText(IntExpr expr) const;
  std::string ProductText(IntExpr expr) const;
  std::string CallText(absl::string_view function, IntExpr expr, bool sorted) const;

  const ModuleNames& names_;
  const VarNames* vars_;
  const Inst* inst_;
  IntExpr dimension_;  // of the index that is being written
};

// One instruction. `place`: what a load or store accesses, instead of its buffer's label.
std::string InstText(const Module& module, const ModuleNames& names, const VarNames& vars,
                     const Inst& inst, absl::string_view place = "");

// "version most(64) step 2 loops(0, 1) keeps(@a)"
std::string VersionText(const ModuleNames& names, const RepeatVersion& version);

}  // namespace kiln::ir
