#include "compiler/ir/packed_weights.h"

#include <utility>

#include "absl/container/flat_hash_map.h"

namespace kiln::ir {
namespace {

constexpr int64_t kPackedOctet = 8;  // of k, of which four lanes have two neighbours each

bool IsContiguous(const Buffer& buffer) {
  int64_t stride = 1;
  for (size_t i = buffer.sizes.size(); i-- > 0;) {
    if (!buffer.sizes[i].is_const() || buffer.sizes[i].value() < 1) return false;
    if (!buffer.sizes[i].is_const(1) && !buffer.strides[i].is_const(stride)) return false;
    stride *= buffer.sizes[i].value();
  }
  return true;
}

class Finder {
 public:
  Finder(IntContext& ints, const Module& module, const std::vector<Inst>& body, IntExpr column,
         IntExpr k)
      : ints_(ints), module_(module), column_(column), k_(k) {
    for (const Inst& inst : body) {
      if (inst.result != kNoValue) by_value_[inst.result] = &inst;
    }
  }

  std::optional<PackedWeights> Find(ValueId value);

 private:
  // What the value is before it was given other types of float, or other integers.
  const Inst* Source(ValueId value) const;
  // The instruction `op` that the value is, of two operands, in either order as `found` likes them.
  template <typename Found>  // bool(const Inst& first, const Inst& second)
  bool IsOf(const Inst& inst, ScalarOp op, const Found& found) const;
  bool IsConst(const Inst& inst, int64_t value) const;
  bool IsNumber(const Inst& inst);
  bool IsCentred(const Inst& inst);
  bool IsScaled(const Inst& inst);
  bool IsOfScales(const Inst& inst, int64_t which);
  IntExpr Place(const Inst& load) const {
    return LinearIndex(ints_, module_.buffers[load.buffer], load.indices);
  }

  IntContext& ints_;
  const Module& module_;
  const IntExpr column_, k_;
  absl::flat_hash_map<ValueId, const Inst*> by_value_;
  int64_t columns_ = 0, depth_ = 0;
  PackedWeights packed_;
};

const Inst* Finder::Source(ValueId value) const {
  const auto at = by_value_.find(value);
  if (at == by_value_.end()) return nullptr;
  const Inst* inst = at->second;
  if (inst->op != ScalarOp::kCast) return inst;
  const Inst* source = Source(inst->operands[0]);
  if (source == nullptr || source->dtype == DType::kBool) return nullptr;
  // An integer becomes a float, but no float one of the integers.
  if (IsFloat(source->dtype) && !IsFloat(inst->dtype)) return nullptr;
  return source;
}

template <typename Found>
bool Finder::IsOf(const Inst& inst, ScalarOp op, const Found& found) const {
  if (inst.op != op) return false;
  const Inst *a = Source(inst.operands[0]), *b = Source(inst.operands[1]);
  if (a == nullptr || b == nullptr) return false;
  return found(*a, *b) || (op != ScalarOp::kSub && op != ScalarOp::kShr && found(*b, *a));
}

bool Finder::IsConst(const Inst& inst, int64_t value) const {
  return inst.op == ScalarOp::kConst &&
         (IsFloat(inst.dtype) ? inst.immediate_float == static_cast<double>(value)
                              : inst.immediate_int == value);
}

// (word >> shift) & 15
bool Finder::IsNumber(const Inst& inst) {
  constexpr int64_t kMask = 15;
  return IsOf(inst, ScalarOp::kAnd, [&](const Inst& shifted, const Inst& mask) {
    return IsConst(mask, kMask) &&
           IsOf(shifted, ScalarOp::kShr, [&](const Inst& word, const Inst& shift) {
             if (word.op != ScalarOp::kLoad || word.has_mask || !word.checks.empty() ||
                 word.dtype != DType::kI32 || shift.op != ScalarOp::kIndex) {
               return false;
             }
             const Buffer& buffer = module_.buffers[word.buffer];
             if (buffer.sizes.size() != 4 || !IsContiguous(buffer)) return false;
             const int64_t inner = 2 * buffer.sizes[3].value();
             if (inner != 2 && inner != 4 && inner != 8) return false;
             packed_.words = word.buffer;
             packed_.inner = inner;
             columns_ = buffer.sizes[0].value() * kPackedColumns;
             depth_ = buffer.sizes[1].value() * kPackedDepth * inner;
             const std::array<IntExpr, 4> place = PackedWord(ints_, inner, column_, k_);
             return buffer.sizes[2].is_const(kPackedLanes) &&
                    Place(word) == LinearIndex(ints_, buffer, {place.begin(), place.end()}) &&
                    shift.indices[0] == PackedShift(ints_, k_);
           });
  });
}

bool Finder::IsCentred(const Inst& inst) {
  return IsOf(inst, ScalarOp::kSub,
              [&](const Inst& number, const Inst& middle) {
                return IsConst(middle, kPackedMiddle) && IsNumber(number);
              }) ||
         IsOf(inst, ScalarOp::kAdd, [&](const Inst& number, const Inst& middle) {
           return IsConst(middle, -kPackedMiddle) && IsNumber(number);
         });
}

// A load of the group's scale (0) or zero (1). REQUIRES: the words are known.
bool Finder::IsOfScales(const Inst& inst, int64_t which) {
  if (inst.op != ScalarOp::kLoad || inst.has_mask || !inst.checks.empty()) return false;
  if (inst.dtype != DType::kBF16 && inst.dtype != DType::kF16) return false;
  if (packed_.scales >= 0 && packed_.scales != inst.buffer) return false;
  const Buffer& buffer = module_.buffers[inst.buffer];
  if (buffer.sizes.size() != 3 || !IsContiguous(buffer)) return false;
  const int64_t groups = buffer.sizes[0].value();
  if (depth_ % groups != 0 || !buffer.sizes[1].is_const(columns_) || !buffer.sizes[2].is_const(2)) {
    return false;
  }
  packed_.scales = inst.buffer;
  packed_.group = depth_ / groups;
  return Place(inst) ==
         LinearIndex(ints_, buffer,
                     {ints_.FloorDiv(k_, packed_.group), column_, ints_.Const(which)});
}

bool Finder::IsScaled(const Inst& inst) {
  return IsOf(inst, ScalarOp::kMul, [&](const Inst& centred, const Inst& scale) {
    return IsCentred(centred) && IsOfScales(scale, 0);
  });
}

std::optional<PackedWeights> Finder::Find(ValueId value) {
  const Inst* const sum = Source(value);
  if (sum == nullptr || !IsOf(*sum, ScalarOp::kAdd, [&](const Inst& scaled, const Inst& zero) {
        return IsScaled(scaled) && IsOfScales(zero, 1);
      })) {
    return std::nullopt;
  }
  const auto is_all = [&](IntExpr var, int64_t size) {
    return ints_.vars()[var.id()].extent.is_const(size);
  };
  if (!is_all(column_, columns_) || !is_all(k_, depth_)) return std::nullopt;
  return packed_;
}

}  // namespace

std::array<IntExpr, 4> PackedWord(IntContext& ints, int64_t inner, IntExpr column, IntExpr k) {
  // Four lanes have a column, each two neighbours of every eight numbers.
  const IntExpr lane = ints.Add(ints.Mul(ints.Mod(column, kPackedColumns), 4),
                                ints.FloorDiv(ints.Mod(k, kPackedOctet), 2));
  return {ints.FloorDiv(column, kPackedColumns), ints.FloorDiv(k, kPackedDepth * inner), lane,
          ints.FloorDiv(ints.Mod(k, kPackedDepth * inner), 2 * kPackedDepth)};
}

IntExpr PackedShift(IntContext& ints, IntExpr k) {
  // Four pairs of numbers, 8 apart in k: one in the low half of the word, and one in the high half.
  const IntExpr pair = ints.FloorDiv(ints.Mod(k, 2 * kPackedDepth), kPackedOctet);
  return ints.Add(ints.Mul(pair, 4), ints.Mul(ints.Mod(k, 2), 16));
}

std::optional<PackedWeights> FindPackedWeights(IntContext& ints, const Module& module,
                                               const std::vector<Inst>& body, ValueId value,
                                               IntExpr column, IntExpr k) {
  return Finder(ints, module, body, column, k).Find(value);
}

bool UnpacksWeights(const Module& module, const Kernel& kernel) {
  if (kernel.outer.size() != 2 || kernel.phases.size() != 1 || !kernel.phases[0].inner.empty()) {
    return false;
  }
  const std::vector<Inst>& body = kernel.phases[0].body;
  if (body.empty() || body.back().op != ScalarOp::kStore || IsScatter(body.back())) return false;
  const std::vector<IntExpr>& at = body.back().indices;
  return at == kernel.outer &&
         FindPackedWeights(*module.ints, module, body, body.back().operands.back(), at[0], at[1]);
}

}  // namespace kiln::ir
