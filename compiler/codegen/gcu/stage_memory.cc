// What of a kernel's buffers lies in L1, and the copies that bring it there and back.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/gcu/stage_impl.h"

namespace kiln::codegen::gcu {
namespace {

using ir::Inst;
using ir::ScalarOp;

constexpr int64_t kAlignment = 64;
constexpr int64_t kSmall = 2048;  // bytes of a box that is not worth two places
constexpr size_t kMostRank = 4;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

int64_t L1::Take(int64_t bytes) {
  bytes = RoundUp(std::max<int64_t>(bytes, 1));
  int64_t address = 0;
  for (const auto& [begin, size] : taken_) {
    if (begin - address >= bytes) break;
    address = begin + size;
  }
  taken_[address] = bytes;
  peak_ = std::max(peak_, address + bytes);
  return mirrored_ ? bytes_ - address - bytes : address;
}

void L1::Give(int64_t address) {
  if (!mirrored_) {
    taken_.erase(address);
    return;
  }
  std::erase_if(taken_,
                [&](const auto& piece) { return bytes_ - piece.first - piece.second == address; });
}

// What an earlier phase of the kernel stores, and what is a part of an inner loop that is no step,
// is loaded where it is used.
bool StageCoder::IsLate(const Access& access) const {
  for (const Access& other : form_.accesses) {
    if (other.inst->op == ScalarOp::kStore && other.inst->buffer == access.inst->buffer &&
        other.phase < access.phase) {
      return true;
    }
  }
  for (int l : form_.LoopsOf(access.phase)) {
    if (form_.loops[l].phase < 0 || l == tiling_.blocked || tiling_.serial[l]) continue;
    if (!schedule::gcu::IsPart(form_, tiling_, l)) continue;
    for (const Affine& index : access.indices) {
      if (index.coefficients[l] != 0) return true;
    }
  }
  return false;
}

Staged StageCoder::PlanBox(const Access& access) {
  const Placement& placement = placements_[access.inst->buffer];
  Staged staged;
  staged.access = &access;
  staged.late = IsLate(access);
  for (size_t d = 0; d < access.indices.size(); ++d) staged.dims.push_back(static_cast<int>(d));
  absl::c_stable_sort(staged.dims, [&](int a, int b) {
    return schedule::gcu::TypicalOf(ints_, placement.strides[a]) >
           schedule::gcu::TypicalOf(ints_, placement.strides[b]);
  });
  staged.box = schedule::gcu::BoxOf(form_, extents_, tiling_, access, staged.dims);
  int64_t elements = 1;
  for (const int64_t extent : staged.box.extents) {
    elements *= extent;
    if (elements > (int64_t{1} << 24)) {
      code_.Fail(absl::UnimplementedError("a tile's operand is too large"));
      break;
    }
  }
  staged.bytes = RoundUp(elements * SizeOf(TypeOf(access.inst->dtype)));
  for (size_t l = 0; l < form_.loops.size(); ++l) {
    if (counts_[l].is(1)) continue;
    for (const Affine& index : access.indices) {
      if (index.coefficients[l] == 0) continue;
      staged.depends.push_back(static_cast<int>(l));
      break;
    }
  }
  return staged;
}

void StageCoder::PlanLoads() {
  absl::flat_hash_map<std::string, size_t> known;
  for (const Access& access : form_.accesses) {
    if (access.inst->op != ScalarOp::kLoad) continue;
    Staged staged = PlanBox(access);
    // Boxes are equal where only inner loops of other phases, equally long, tell them apart.
    std::string key = absl::StrCat(access.inst->buffer, staged.late ? access.phase : -1, " ",
                                   access.mask_is_clip ? access.inst->immediate_float : 0, " ",
                                   access.mask_is_clip ? access.inst->immediate_int : 0);
    for (size_t d = 0; d < access.indices.size(); ++d) {
      absl::StrAppend(&key, ";", reinterpret_cast<uintptr_t>(access.indices[d].rest.node()), " ",
                      staged.box.extents[d], " ", staged.box.steps[d], " ", staged.box.strides[d],
                      " ", reinterpret_cast<uintptr_t>(access.clips[d].begin.node()), " ",
                      reinterpret_cast<uintptr_t>(access.clips[d].end.node()));
      for (size_t l = 0; l < form_.loops.size(); ++l) {
        const int64_t c = access.indices[d].coefficients[l];
        const bool moves = form_.loops[l].phase < 0 || static_cast<int>(l) == tiling_.blocked;
        if (moves) absl::StrAppend(&key, ",", c);
        if (!moves && c < 0) absl::StrAppend(&key, "n", l);
      }
    }
    const auto [at, added] = known.try_emplace(key, staged_.size());
    staged_of_[access.inst] = at->second;
    if (!added) continue;
    staged.twice = !staged.late && !staged.depends.empty() && staged.bytes > kSmall;
    staged.fixed = !staged.late && options_.fixed != nullptr &&
                   (*options_.fixed)[access.inst->buffer] &&
                   (staged.twice || staged.depends.empty());
    staged_.push_back(std::move(staged));
  }
  // What may be loaded ahead of the stage comes first.
  for (const bool fixed : {true, false}) {
    for (Staged& staged : staged_) {
      if (staged.fixed != fixed) continue;
      staged.address = l1_.Take(staged.twice ? 2 * staged.bytes : staged.bytes);
      staged.token = NewToken();
    }
    if (fixed) fixed_bytes_ = l1_.peak();
  }
}

void StageCoder::PlanStores() {
  for (const Access& access : form_.accesses) {
    const Inst& inst = *access.inst;
    if (inst.op != ScalarOp::kStore) continue;
    const int token = NewToken();
    store_tokens_[&inst] = token;
    const ir::ValueId value = inst.operands.back();
    tokens_of_value_[value].push_back(token);
    // Before anything else is given memory: nothing may be written there while it is copied.
    if (!store_slots_.contains(value)) store_slots_[value] = l1_.Take(MostBytes(value));
    if (definitions_[value]->op == ScalarOp::kLoad) {
      const Access& load = form_.AccessOf(*definitions_[value]);
      if (!definitions_[value]->has_mask || load.mask_is_clip) {
        staged_[staged_of_.at(definitions_[value])].stores.push_back(token);
      }
    }
  }
}

// Of a tile of the value, at most.
int64_t StageCoder::MostBytes(ir::ValueId value) const {
  int64_t elements = 1;
  for (int l : form_.LoopsOf(phase_of_[value])) {
    if (form_.loops[l].phase >= 0 &&
        (tiling_.serial[l] || definitions_[value]->op == ScalarOp::kReduce)) {
      continue;
    }
    elements *= tiling_.tile[l];
  }
  return elements * SizeOf(TypeOf(form_.types[value]));
}

Scalar StageCoder::BaseAddress(const Placement& placement) {
  return placement.space == Space::kL3 ? code_.Argument(placement.argument)
                                       : code_.Add(InRegister(5), Known(placement.offset));
}

void StageCoder::Issue(const Staged& staged, const Place& place, Scalar offset) {
  const Access& access = *staged.access;
  const Inst& inst = *access.inst;
  const Placement& placement = placements_[inst.buffer];
  const Type type = TypeOf(inst.dtype);
  const int scope = code_.mark();
  for (int token : staged.stores) code_.Wait(token);

  struct Dim {
    Scalar extent, stride;  // of the buffer's side
    Scalar from_extent;     // the same, but of what a clip leaves of the buffer
    int64_t local = 0;      // stride in L1
    bool clipped = false;
    Scalar low;
    bool whole = false;  // all of a dimension of known size
  };
  std::vector<Dim> dims;
  Scalar start = Known(0);  // elements
  for (int d : staged.dims) {
    const Affine& index = access.indices[d];
    // The least index in the box, and how many there are.
    Scalar low = code_.Evaluate(index.rest);
    Scalar reach = Known(0);
    for (size_t l = 0; l < form_.loops.size(); ++l) {
      const int64_t c = index.coefficients[l];
      if (c == 0) continue;
      Scalar extent = place.extents[l], begin = place.begins[l];
      if (tiling_.serial[l]) {
        extent = Known(form_.loops[l].extent.value());
        begin = Known(0);
      }
      low = code_.Add(low, code_.Multiply(begin, Known(c)));
      const Scalar last = code_.Multiply(code_.Add(extent, Known(-1)), Known(std::abs(c)));
      if (c < 0) low = code_.Subtract(low, last);
      reach = code_.Add(reach, last);
    }
    const int64_t step = staged.box.steps[d];
    Dim dim;
    dim.extent = code_.Add(code_.Divide(reach, Known(step)), Known(1));
    dim.local = staged.box.strides[d];
    const Scalar stride = code_.Evaluate(placement.strides[d]);
    dim.stride = code_.Multiply(stride, Known(step));
    const schedule::gcu::Clip& clip = access.clips[d];
    if (clip.begin || clip.end) {
      // What of the box is there.
      const Scalar begin = code_.Max(clip.begin ? code_.Evaluate(clip.begin) : Known(0), low);
      const Scalar end =
          code_.Min(clip.end ? code_.Evaluate(clip.end) : code_.Evaluate(placement.sizes[d]),
                    code_.Add(low, dim.extent));
      dim.clipped = true;
      dim.low = code_.Subtract(begin, low);
      dim.from_extent = code_.Max(code_.Subtract(end, begin), Known(0));
      start = code_.Add(start, code_.Multiply(begin, stride));
      dims.push_back(dim);
      continue;
    }
    dim.from_extent = dim.extent;
    dim.low = Known(0);
    start = code_.Add(start, code_.Multiply(low, stride));
    if (staged.box.extents[d] == 1) continue;
    dim.whole = step == 1 && placement.sizes[d].is_const() && stride.known() &&
                dim.extent.is(placement.sizes[d].value());
    // Together with the dimension around it, where both are one in memory.
    if (dim.whole && !dims.empty() && !dims.back().clipped && dims.back().stride.known() &&
        dims.back().extent.known() &&
        dims.back().stride.value == placement.sizes[d].value() * stride.value &&
        dims.back().local == dim.local * dim.extent.value) {
      Dim& around = dims.back();
      around.extent = around.from_extent = Known(around.extent.value * dim.extent.value);
      around.stride = dim.stride;
      around.local = dim.local;
      continue;
    }
    dims.push_back(dim);
  }
  if (dims.size() > kMostRank) {
    code_.Fail(absl::UnimplementedError("a load has more than four dimensions"));
    return;
  }
  Tile to, from;
  to.type = from.type = type;
  from.space = placement.space;
  std::vector<Scalar> lows;
  bool padded = false;
  for (const Dim& dim : dims) {
    to.dims.push_back({dim.extent, Known(dim.local)});
    from.dims.push_back({dim.from_extent, dim.stride});
    lows.push_back(dim.low);
    padded = padded || dim.clipped;
  }
  to.address = code_.Add(offset, Known(staged.address));
  from.address = code_.Add(BaseAddress(placement), code_.Multiply(start, Known(SizeOf(type))));
  if (padded) {
    code_.CopyPadded(to, from, lows, access.mask_is_clip ? BitsOf(type, ImmediateOf(inst)) : 0,
                     staged.token);
  } else {
    code_.Copy(to, from, staged.token);
  }
  code_.Release(scope);
}

// Where the box of the next tile is another one than that which is there.
void StageCoder::IssueIfChanged(Staged& staged, const Place& next,
                                const std::vector<Scalar>& current) {
  const Label changed = code_.NewLabel(), same = code_.NewLabel();
  if (staged.twice) code_.Set(staged.next_parity, InRegister(staged.parity));
  for (int l : staged.depends) {
    code_.JumpIf(Op::kJumpNotEqual, current[l], next.begins[l], changed);
  }
  code_.Jump(same);
  code_.Bind(changed);
  if (staged.twice) {
    const int scope = code_.mark();
    code_.Set(staged.next_parity, code_.Subtract(Known(staged.bytes), InRegister(staged.parity)));
    code_.Release(scope);
    Issue(staged, next, InRegister(staged.next_parity));
  } else {
    Issue(staged, next, Known(0));
  }
  code_.Bind(same);
}

View StageCoder::ViewOf(const Staged& staged, const Access& access, const Place& place) {
  View view;
  view.type = TypeOf(access.inst->dtype);
  view.address = staged.address;
  view.parity = staged.parity;
  view.strides.assign(form_.loops.size(), 0);
  view.dims.assign(form_.loops.size(), false);
  view.staged = static_cast<int>(&staged - staged_.data());
  const int64_t size = SizeOf(view.type);
  for (size_t l = 0; l < form_.loops.size(); ++l) {
    bool has = false;
    for (size_t d = 0; d < access.indices.size(); ++d) {
      const int64_t c = access.indices[d].coefficients[l];
      if (c == 0) continue;
      has = true;
      if (c < 0) {
        // The first iteration is at the box's end.
        const Scalar extent =
            tiling_.serial[l] ? Known(form_.loops[l].extent.value()) : place.extents[l];
        if (!extent.known()) {
          code_.Fail(absl::UnimplementedError("a load runs backwards over a part of a loop"));
          continue;
        }
        view.address +=
            -c / staged.box.steps[d] * staged.box.strides[d] * (extent.value - 1) * size;
      }
    }
    view.strides[l] = staged.box.StrideOf(access, static_cast<int>(l));
    view.dims[l] = has;
  }
  return view;
}

void StageCoder::Store(const Inst& inst, const Place& place) {
  const Access& access = form_.AccessOf(inst);
  const Placement& placement = placements_[inst.buffer];
  const ir::ValueId value = inst.operands.back();
  const View& view = Of(value);
  const int token = store_tokens_.at(&inst);
  const int scope = code_.mark();
  std::vector<bool> dims(form_.loops.size(), false);
  Tile to;
  to.type = TypeOf(inst.dtype);
  to.space = placement.space;
  Scalar start = Known(0);
  for (size_t d = 0; d < access.indices.size(); ++d) {
    Scalar at = code_.Evaluate(access.indices[d].rest);
    for (size_t l = 0; l < form_.loops.size(); ++l) {
      const int64_t c = access.indices[d].coefficients[l];
      if (c != 0) at = code_.Add(at, code_.Multiply(place.begins[l], Known(c)));
    }
    start = code_.Add(start, code_.Multiply(at, code_.Evaluate(placement.strides[d])));
  }
  for (int l : tiling_.lanes) {
    const Loop& loop = form_.loops[l];
    if (loop.phase >= 0 && loop.phase != access.phase) continue;
    if (tiling_.serial[l] || place.extents[l].is(1)) continue;
    Scalar stride = Known(0);
    for (size_t d = 0; d < access.indices.size(); ++d) {
      const int64_t c = access.indices[d].coefficients[l];
      if (c == 0) continue;
      stride = code_.Add(stride, code_.Multiply(code_.Evaluate(placement.strides[d]), Known(c)));
    }
    dims[l] = true;
    to.dims.push_back({place.extents[l], stride});
  }
  to.address = code_.Add(BaseAddress(placement), code_.Multiply(start, Known(SizeOf(to.type))));
  const Tile from = TileOf(view, dims, place);
  code_.Copy(to, from, token);
  code_.Release(scope);
}

}  // namespace kiln::codegen::gcu
