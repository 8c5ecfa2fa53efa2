// Instructions of a kernel's body as statements on vectors.
//
// Every value is a Vec<T, W>: W > 1 lanes where it varies along the lane variable, one lane where
// it is uniform. The statements stand inside a lambda with a template parameter `kTail` and a
// parameter `n`, the number of active lanes, when a lane variable is set; they use `error`, an int.
#pragma once

#include <string>
#include <vector>

#include "compiler/codegen/cpp/kernel_text.h"
#include "compiler/codegen/cpp/nest.h"
#include "compiler/ir/module.h"

namespace kiln::codegen::cpp {

// A name for kiln::ir's arithmetic type of a value: half-precision types compute in float.
std::string ComputeTypeText(DType dtype);

// What a reduction needs in the generated text.
struct ReduceText {
  std::string functor;    // "KSum"; empty for argmax and argmin
  std::string identity;   // literal of the accumulation type
  bool greatest = false;  // argmax
};
ReduceText DescribeReduce(const ir::Inst& reduce, DType operand_type);

class Body {
 public:
  Body(ir::Module& module, const ir::Kernel& kernel, Names& names, Writer& out);

  // From here on statements are for `width` lanes of `var`; a null `var` means uniform code.
  void SetLanes(ir::IntExpr var, int width);
  // False: the first of `width` lanes may be any value of the lane variable, not only a multiple.
  void SetAligned(bool aligned) { aligned_ = aligned; }
  // Stores of whole vectors to these buffers go past the caches; the code that contains them ends
  // with a KStreamEnd().
  void SetStreamed(absl::flat_hash_set<ir::BufferId> buffers) { streamed_ = std::move(buffers); }
  // Which later statements treat as already defined, by the text of a Vec.
  void Define(ir::ValueId id, DType dtype, bool varying, std::string text);

  // True where the step's value (or the place stored to) differs between lanes.
  bool Varies(const Step& step) const;
  bool IsVarying(ir::ValueId id) const { return values_[id].varying; }
  DType TypeOf(ir::ValueId id) const { return values_[id].dtype; }
  // Emits one step that is not a reduction.
  void Emit(const Step& step);
  // The value as a Vec of `width` or 1 lanes.
  std::string Use(ir::ValueId id, bool varying) const;
  // The same, converted to the arithmetic type.
  std::string UseComputed(ir::ValueId id, bool varying) const;
  std::string NewName(absl::string_view prefix);
  int width() const { return width_; }
  ir::IntExpr lane_var() const { return lane_var_; }
  Names& names() { return names_; }
  Writer& out() { return out_; }
  ir::IntContext& ints() { return ints_; }

 private:
  ir::IntExpr StrideOf(const Step& step);

  struct Value {
    std::string text;  // of a Vec; for constants a literal
    DType dtype = DType::kF32;
    bool varying = false;
    bool constant = false;
  };

  bool IndirectVaries(const Step& step) const;
  // `index` as a long; lanes read at `lane` ("" for the first lane or uniform).
  std::string IndexText(const Step& step, absl::string_view lane);
  std::string PointerText(const Step& step);
  std::string LoadText(const Step& step, bool varying);
  void EmitStore(const Step& step, bool varying);
  std::string IndexValueText(const Step& step, bool varying);
  std::string ComputeText(const ir::Inst& inst, bool varying);
  std::string CallText(const ir::Inst& inst, const std::vector<std::string>& operands);

  ir::IntContext& ints_;
  Names& names_;
  Writer& out_;
  std::vector<Value> values_;
  absl::flat_hash_map<std::string, int> name_count_;
  ir::IntExpr lane_var_;
  int width_ = 1;
  bool aligned_ = true;
  absl::flat_hash_set<ir::BufferId> streamed_;
};

}  // namespace kiln::codegen::cpp
