// Nodes: interning, ranges, structural order.
#include <algorithm>

#include "compiler/ir/int_impl.h"

namespace kiln::ir {
namespace {

using Wide = __int128;

int64_t Saturate(Wide v) {
  if (v < IntRange::kMinInt) return IntRange::kMinInt;
  if (v > IntRange::kMaxInt) return IntRange::kMaxInt;
  return static_cast<int64_t>(v);
}

IntRange FloorDivRange(IntRange a, IntRange b) {
  if (b.min <= 0 && b.max >= 0) {
    // Division by zero is excluded, so the quotient is no further from 0 than the dividend.
    if (b.min >= 0) return FloorDivRange(a, {1, std::max<int64_t>(b.max, 1)});
    int64_t reach = std::max(Saturate(-static_cast<Wide>(a.min)), a.max);
    return {-std::max<int64_t>(reach, 1), std::max<int64_t>(reach, 1)};
  }
  int64_t corners[4] = {FloorDivInt(a.min, b.min), FloorDivInt(a.min, b.max),
                        FloorDivInt(a.max, b.min), FloorDivInt(a.max, b.max)};
  IntRange range = {*std::min_element(corners, corners + 4),
                    *std::max_element(corners, corners + 4)};
  // -2^63 / -1 wraps; nothing is known then.
  if (a.min == IntRange::kMinInt && b.max < 0) return {};
  // With an unbounded divisor the quotient's limit is 0 or -1, which the far corner shows; an
  // unbounded dividend stays unbounded when divided by something that may be 1.
  return range;
}

IntRange ModRange(IntRange a, IntRange b) {
  if (b.min >= 0) {
    int64_t max = std::max<int64_t>(b.max, 1) - 1;
    if (a.min >= 0) max = std::min(max, a.max);
    return {0, max};
  }
  int64_t least = b.min < 0 ? b.min + 1 : 0;
  int64_t greatest = b.max > 0 ? b.max - 1 : 0;
  return {least, greatest};
}

// One step of a multiplicative hash; the tables use its high bits and its low ones.
uint64_t Mix(uint64_t hash, uint64_t value) {
  Wide product = static_cast<Wide>(hash ^ value ^ 0x9e3779b97f4a7c15u) * 0x2545f4914f6cdd1du;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t Address(IntExpr e) {
  return reinterpret_cast<uintptr_t>(e.node());
}

}  // namespace

size_t IntContext::Impl::PairHash::operator()(const std::pair<IntExpr, IntExpr>& p) const {
  return Mix(Address(p.first), Address(p.second));
}

int64_t FloorDivInt(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<int64_t>(0 - static_cast<uint64_t>(a));
  int64_t q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

int64_t FloorModInt(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  int64_t r = a % b;
  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}

IntRange AddRanges(IntRange a, IntRange b) {
  // An unbounded side stays unbounded whatever is added.
  IntRange r = {Saturate(static_cast<Wide>(a.min) + b.min),
                Saturate(static_cast<Wide>(a.max) + b.max)};
  if (a.min == IntRange::kMinInt || b.min == IntRange::kMinInt) r.min = IntRange::kMinInt;
  if (a.max == IntRange::kMaxInt || b.max == IntRange::kMaxInt) r.max = IntRange::kMaxInt;
  return r;
}

IntRange MulRanges(IntRange a, IntRange b) {
  Wide corners[4] = {static_cast<Wide>(a.min) * b.min, static_cast<Wide>(a.min) * b.max,
                     static_cast<Wide>(a.max) * b.min, static_cast<Wide>(a.max) * b.max};
  return {Saturate(*std::min_element(corners, corners + 4)),
          Saturate(*std::max_element(corners, corners + 4))};
}

IntRange SumRange(const Sum& sum) {
  IntRange range = {sum.constant, sum.constant};
  for (const Term& t : sum.terms) {
    range = AddRanges(range, MulRanges({t.coef, t.coef}, t.base.range()));
  }
  return range;
}

uint64_t LeafBit(IntExpr leaf) {
  int id = leaf.id();
  switch (leaf.kind()) {
    case IntKind::kVar:
      return uint64_t{1} << (id & 31);
    case IntKind::kSymbol:
      return uint64_t{1} << (32 + (id & 15));
    default:
      return uint64_t{1} << (48 + (id & 15));
  }
}

absl::Span<const IntExpr> Factors(const IntExpr& base) {
  if (base.kind() == IntKind::kMul && !base.node()->unfolded) return base.operands();
  return absl::MakeConstSpan(&base, 1);
}

int CompareExprs(IntExpr a, IntExpr b) {
  // By IntKind.
  static constexpr int kRank[] = {9, 2, 0, 1, 8, 3, 4, 5, 6, 7};
  while (a != b) {
    const IntNode& x = *a.node();
    const IntNode& y = *b.node();
    if (x.kind != y.kind) {
      return kRank[static_cast<int>(x.kind)] - kRank[static_cast<int>(y.kind)];
    }
    if (x.id != y.id) return x.id < y.id ? -1 : 1;
    if (x.kind == IntKind::kConst) return x.value < y.value ? -1 : 1;
    if (x.num_operands != y.num_operands) return x.num_operands < y.num_operands ? -1 : 1;
    if (x.kind == IntKind::kIndirect) {
      a = x.extent;
      b = y.extent;
      continue;
    }
    if (x.unfolded != y.unfolded) return x.unfolded ? 1 : -1;
    // Interned nodes differ in some operand, and different operands never compare equal: the first
    // one that differs decides, so the cost is the depth and not the size.
    uint32_t i = 0;
    while (i + 1 < x.num_operands && x.operands[i] == y.operands[i]) ++i;
    if (x.num_operands == 0 || x.operands[i] == y.operands[i]) return 0;
    a = x.operands[i];
    b = y.operands[i];
  }
  return 0;
}

IntContext::Impl::Impl() {
  nodes.reserve(8192);
  zero = Const(0);
  one = Const(1);
}

bool IntContext::Impl::SlotEq::operator()(const Slot& slot, const Key& b) const {
  if (slot.hash != b.hash) return false;
  const IntNode* a = slot.node;
  if (a->kind != b.kind || a->id != b.id || a->extent != b.extent || a->unfolded != b.unfolded ||
      a->num_operands != b.operands.size()) {
    return false;
  }
  if (a->kind == IntKind::kConst) return a->value == b.value;
  return std::equal(b.operands.begin(), b.operands.end(), a->operands);
}

IntExpr IntContext::Impl::Const(int64_t value) {
  bool small = value >= kLeastSmall && value < kLeastSmall + kNumSmall;
  if (small && small_constants[value - kLeastSmall]) return small_constants[value - kLeastSmall];
  IntExpr constant = Intern(IntKind::kConst, -1, value, IntExpr(), {});
  if (small) small_constants[value - kLeastSmall] = constant;
  return constant;
}

IntExpr IntContext::Impl::Intern(IntKind kind, int id, int64_t value, IntExpr extent,
                                 absl::Span<const IntExpr> operands, bool unfolded) {
  steps += 1 + static_cast<int64_t>(operands.size());
  if (steps > budget && id < 0) return zero;
  Key key = {kind, id, value, extent, unfolded, operands, 0};
  uint64_t hash = Mix(static_cast<uint64_t>(kind) * 2 + unfolded, static_cast<uint64_t>(id));
  hash = Mix(Mix(hash, static_cast<uint64_t>(value)), Address(extent));
  for (IntExpr operand : operands) hash = Mix(hash, Address(operand));
  key.hash = hash;
  auto it =
      nodes.lazy_emplace(key, [&](const auto& emplace) { emplace(Slot{key.hash, NewNode(key)}); });
  return IntExpr(it->node);
}

const IntNode* IntContext::Impl::NewNode(const Key& key) {
  absl::Span<const IntExpr> operands = key.operands;
  IntNode& node = node_arena.emplace_back();
  node.kind = key.kind;
  node.unfolded = key.unfolded;
  node.id = key.id;
  node.value = key.value;
  node.extent = key.extent;
  node.kinds_mask = static_cast<uint16_t>(1u << static_cast<int>(key.kind));
  node.num_operands = static_cast<uint32_t>(operands.size());
  if (!operands.empty()) {
    if (operand_block_used + operands.size() > operand_block_size) {
      operand_block_size = std::max<size_t>(4096, operands.size());
      operand_blocks.push_back(std::make_unique<IntExpr[]>(operand_block_size));
      operand_block_used = 0;
    }
    IntExpr* storage = operand_blocks.back().get() + operand_block_used;
    operand_block_used += operands.size();
    std::copy(operands.begin(), operands.end(), storage);
    node.operands = storage;
    uint64_t tree_size = 1;
    for (IntExpr operand : operands) {
      node.kinds_mask |= operand.node()->kinds_mask;
      node.leaf_mask |= operand.node()->leaf_mask;
      tree_size += operand.node()->tree_size;
    }
    node.tree_size = static_cast<uint32_t>(std::min<uint64_t>(tree_size, UINT32_MAX));
  }
  if (key.id >= 0) node.leaf_mask = LeafBit(IntExpr(&node));
  node.range = RangeOf(node);
  return &node;
}

IntRange IntContext::Impl::RangeOf(const IntNode& node) const {
  absl::Span<const IntExpr> operands(node.operands, node.num_operands);
  switch (node.kind) {
    case IntKind::kConst:
      return {node.value, node.value};
    case IntKind::kSymbol:
      return {symbols[node.id].min, symbols[node.id].max};
    case IntKind::kVar:
    case IntKind::kIndirect: {
      // A loop of extent 0 never runs: any value will do for its variable.
      int64_t extent_max = node.extent.range().max;
      if (extent_max == IntRange::kMaxInt) return {0, IntRange::kMaxInt};
      return {0, std::max<int64_t>(extent_max - 1, 0)};
    }
    case IntKind::kFloorDiv:
      return FloorDivRange(operands[0].range(), operands[1].range());
    case IntKind::kMod:
      return ModRange(operands[0].range(), operands[1].range());
    case IntKind::kAdd:
    case IntKind::kMul:
    case IntKind::kMin:
    case IntKind::kMax:
      break;
  }
  IntRange range = operands[0].range();
  for (IntExpr operand : operands.subspan(1)) {
    IntRange r = operand.range();
    switch (node.kind) {
      case IntKind::kAdd:
        range = AddRanges(range, r);
        break;
      case IntKind::kMul:
        range = MulRanges(range, r);
        break;
      case IntKind::kMin:
        range = {std::min(range.min, r.min), std::min(range.max, r.max)};
        break;
      default:
        range = {std::max(range.min, r.min), std::max(range.max, r.max)};
    }
  }
  return range;
}

}  // namespace kiln::ir
