// Instructions of a kernel's body as statements on vectors.
//
// Every value is a Vec<T, W>: W > 1 lanes where it varies along the lane variable, one lane where
// it is uniform. The statements stand inside a lambda with a template parameter `kTail` and a
// parameter `n`, the number of active lanes, when a lane variable is set; they use `error` and
// `by_zero`, ints.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/codegen/source/kernel_text.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::source {

// A name for kiln::ir's arithmetic type of a value: half-precision types compute in float.
std::string ComputeTypeText(DType dtype);

class Body {
 public:
  Body(ir::IntContext& ints, int num_values, Names& names, Writer& out);

  // From here on statements are for `width` lanes of `var`; a null `var` means uniform code.
  // `aligned`: the first of the lanes is a multiple of `width`.
  void SetLanes(ir::IntExpr var, int width, bool aligned = true);
  // For machines whose vectors have to be aligned: contiguous accesses then say, as another
  // template argument, of how many elements `of(index)` the address of their first lane is a
  // multiple.
  void SetAlignment(std::function<int(ir::IntExpr index)> of) { alignment_ = std::move(of); }
  // The function of the prelude that computes an instruction in place of the usual text; "": that.
  void SetFunctions(std::function<std::string(const ir::Inst&)> of) { function_ = std::move(of); }
  // Which later statements treat as already defined, by the text of a Vec.
  void Define(ir::ValueId id, DType dtype, bool varying, std::string text);

  bool IsVarying(ir::ValueId id) const { return values_[id].varying; }
  DType TypeOf(ir::ValueId id) const { return values_[id].dtype; }
  void Emit(const schedule::Compute& step);
  // The value as a Vec of `width` or 1 lanes.
  std::string Use(ir::ValueId id, bool varying) const;
  // The same, converted to the arithmetic type.
  std::string UseComputed(ir::ValueId id, bool varying) const;
  std::string NewName(absl::string_view prefix);
  int width() const { return width_; }
  ir::IntExpr lane_var() const { return lane_var_; }
  Names& names() { return names_; }
  // Whether some statement since the last call may set `error`.
  bool TakeChecks() { return std::exchange(checks_, false); }
  // Whether some statement since the last call may set `by_zero`.
  bool TakeDivisors() { return std::exchange(divisors_, false); }
  Writer& out() { return out_; }
  ir::IntContext& ints() { return ints_; }

 private:
  struct Value {
    std::string text;  // of a Vec; for constants a literal
    DType dtype = DType::kF32;
    bool varying = false;
    bool constant = false;
  };

  // True where the step's value (or the place stored to) differs between lanes.
  bool Varies(const schedule::Compute& step) const;
  ir::IntExpr StrideOf(const schedule::Compute& step);
  bool IndirectVaries(const ir::Inst& inst) const;
  // The step's index as a long; lanes read at `lane` ("" for the first lane or uniform).
  std::string IndexText(const schedule::Compute& step, absl::string_view lane);
  std::string BaseText(const schedule::Compute& step);
  std::string PointerText(const schedule::Compute& step);
  std::string LoadText(const schedule::Compute& step, bool varying);
  void EmitStore(const schedule::Compute& step, bool varying);
  void EmitScatter(const schedule::Compute& step, bool varying);
  std::string IndexValueText(const schedule::Compute& step, bool varying);
  std::string ComputeText(const ir::Inst& inst, bool varying);

  // ", 4" for the template arguments of a contiguous access, or nothing.
  std::string AlignmentText(const schedule::Compute& step) const;

  ir::IntContext& ints_;
  Names& names_;
  Writer& out_;
  std::function<int(ir::IntExpr)> alignment_;
  std::function<std::string(const ir::Inst&)> function_;
  std::vector<Value> values_;
  absl::flat_hash_map<std::string, int> name_count_;
  ir::IntExpr lane_var_;
  int width_ = 1;
  bool aligned_ = true;
  bool checks_ = false;
  bool divisors_ = false;
};

}  // namespace kiln::codegen::source
