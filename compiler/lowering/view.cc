#include "compiler/lowering/view.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace kiln::lowering {
namespace {

using ir::IntContext;
using ir::IntExpr;

// A run of dimensions of either shape with equal products: [begin, end) of each list.
struct Group {
  std::vector<int> from;
  std::vector<int> to;
};

std::vector<int> NontrivialDimensions(const Ints& sizes) {
  std::vector<int> dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!sizes[i].is_const(1)) dims.push_back(static_cast<int>(i));
  }
  return dims;
}

// Splits both shapes into the shortest runs of equal products, so that dimensions that a reshape
// leaves alone keep simple indices. Products are compared as expressions; the hints only choose
// which side to extend.
std::vector<Group> MatchGroups(IntContext& ints, const Ints& from, const Ints& to) {
  const std::vector<int> a = NontrivialDimensions(from);
  const std::vector<int> b = NontrivialDimensions(to);
  std::vector<Group> groups;
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    Group group{{a[i]}, {b[j]}};
    IntExpr left = from[a[i++]];
    IntExpr right = to[b[j++]];
    while (left != right) {
      const bool extend_left = j == b.size() || (i < a.size() && ints.EvaluateAtHints(left) <=
                                                                     ints.EvaluateAtHints(right));
      if (extend_left) {
        if (i == a.size()) break;
        group.from.push_back(a[i]);
        left = ints.Mul(left, from[a[i++]]);
      } else {
        group.to.push_back(b[j]);
        right = ints.Mul(right, to[b[j++]]);
      }
    }
    groups.push_back(std::move(group));
  }
  // What symbolic sizes left unmatched belongs to the last run.
  if (groups.empty()) groups.emplace_back();
  for (; i < a.size(); ++i) groups.back().from.push_back(a[i]);
  for (; j < b.size(); ++j) groups.back().to.push_back(b[j]);
  return groups;
}

// Coordinates in `from` of the row-major position that `vars` have in `to`, for one run.
void MapGroup(IntContext& ints, const Group& group, const Ints& from, const Ints& to,
              const Ints& vars, Ints& coordinates) {
  if (group.from.size() == 1 && group.to.size() == 1) {
    coordinates[group.from[0]] = vars[group.to[0]];
    return;
  }
  IntExpr linear = ints.Const(0);
  IntExpr stride = ints.Const(1);
  for (size_t k = group.to.size(); k-- > 0;) {
    linear = ints.Add(linear, ints.Mul(vars[group.to[k]], stride));
    stride = ints.Mul(stride, to[group.to[k]]);
  }
  stride = ints.Const(1);
  for (size_t k = group.from.size(); k-- > 0;) {
    const int dim = group.from[k];
    IntExpr coordinate = ints.FloorDiv(linear, stride);
    if (k > 0) coordinate = ints.Mod(coordinate, from[dim]);
    coordinates[dim] = coordinate;
    stride = ints.Mul(stride, from[dim]);
  }
}

}  // namespace

Ints NewVars(IntContext& ints, const Ints& sizes) {
  Ints vars;
  vars.reserve(sizes.size());
  for (const IntExpr size : sizes) {
    vars.push_back(size.is_const(1) ? ints.Const(0) : ints.NewVar(size));
  }
  return vars;
}

View WholeBuffer(ir::Module& module, ir::BufferId buffer) {
  const ir::Buffer& info = module.buffers[buffer];
  View view{buffer, info.dtype, info.sizes, NewVars(*module.ints, info.sizes), {}};
  view.indices = view.vars;
  return view;
}

Ints IndicesAt(IntContext& ints, const View& view, const Ints& coordinates) {
  IntContext::VarMap map;
  for (size_t i = 0; i < view.vars.size(); ++i) {
    if (!view.vars[i].is_const()) map[view.vars[i]] = coordinates[i];
  }
  Ints indices;
  indices.reserve(view.indices.size());
  for (const IntExpr index : view.indices) indices.push_back(ints.Substitute(index, map));
  return indices;
}

View Remap(IntContext& ints, const View& base, Ints sizes,
           const std::function<Ints(const Ints&)>& coordinates) {
  View view{base.buffer, base.dtype, std::move(sizes), {}, {}};
  view.vars = NewVars(ints, view.sizes);
  view.indices = IndicesAt(ints, base, coordinates(view.vars));
  return view;
}

View Reshape(IntContext& ints, const View& base, const Ints& sizes) {
  return Remap(ints, base, sizes, [&](const Ints& vars) {
    Ints coordinates(base.sizes.size(), ints.Const(0));
    for (const Group& group : MatchGroups(ints, base.sizes, sizes)) {
      MapGroup(ints, group, base.sizes, sizes, vars, coordinates);
    }
    return coordinates;
  });
}

View Permute(IntContext& ints, const View& base, const std::vector<int>& order) {
  Ints sizes;
  for (const int dim : order) sizes.push_back(base.sizes[dim]);
  return Remap(ints, base, std::move(sizes), [&](const Ints& vars) {
    Ints coordinates(order.size());
    for (size_t i = 0; i < order.size(); ++i) coordinates[order[i]] = vars[i];
    return coordinates;
  });
}

View Expand(IntContext& ints, const View& base, const Ints& sizes) {
  return Remap(ints, base, sizes, [&](const Ints& vars) {
    // Dimensions of size 1 have no placeholder, so their coordinate does not matter.
    return Ints(vars.end() - base.sizes.size(), vars.end());
  });
}

View DropDimension(IntContext& ints, const View& base, int dim, IntExpr at) {
  Ints sizes = base.sizes;
  sizes.erase(sizes.begin() + dim);
  return Remap(ints, base, std::move(sizes), [&](const Ints& vars) {
    Ints coordinates = vars;
    coordinates.insert(coordinates.begin() + dim, at);
    return coordinates;
  });
}

View InsertDimension(IntContext& ints, const View& base, int dim) {
  Ints sizes = base.sizes;
  sizes.insert(sizes.begin() + dim, ints.Const(1));
  return Remap(ints, base, std::move(sizes), [&](const Ints& vars) {
    Ints coordinates = vars;
    coordinates.erase(coordinates.begin() + dim);
    return coordinates;
  });
}

View Slice(IntContext& ints, const View& base, int dim, IntExpr start, IntExpr step, IntExpr size) {
  Ints sizes = base.sizes;
  sizes[dim] = size;
  return Remap(ints, base, std::move(sizes), [&](const Ints& vars) {
    Ints coordinates = vars;
    coordinates[dim] = ints.Add(start, ints.Mul(vars[dim], step));
    return coordinates;
  });
}

std::optional<ir::BufferWindow> AsWindow(ir::Module& module, const View& view) {
  IntContext& ints = *module.ints;
  const ir::Buffer& buffer = module.buffers[view.buffer];
  const IntExpr linear = ir::LinearIndex(ints, buffer, view.indices);
  ir::BufferWindow window{view.buffer, view.sizes, {}, {}};
  IntContext::VarMap origin;
  for (const IntExpr var : view.vars) {
    if (var.is_const()) {
      window.strides.push_back(ints.Const(0));
      continue;
    }
    const IntExpr stride = ints.CoefficientOf(linear, var);
    if (!stride || !ints.ProvablyLessEqual(ints.Const(0), stride)) return std::nullopt;
    window.strides.push_back(stride);
    origin[var] = ints.Const(0);
  }
  window.offset = ints.Substitute(linear, origin);
  if (ir::ContainsKind(window.offset, ir::IntKind::kVar)) return std::nullopt;
  return window;
}

bool SameStrides(const Ints& sizes, const Ints& a, const Ints& b) {
  if (IsEmpty(sizes)) return true;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!sizes[i].is_const(1) && a[i] != b[i]) return false;
  }
  return true;
}

bool IsDense(IntContext& ints, const Ints& sizes, const Ints& strides) {
  std::vector<int> left = NontrivialDimensions(sizes);
  // Strides are products of sizes, or of sizes that count as 1 where they are 0: torch has both,
  // and they differ only where there are no elements.
  IntExpr expected = ints.Const(1), positive = expected;
  while (!left.empty()) {
    const auto next = std::find_if(left.begin(), left.end(), [&](int dim) {
      return strides[dim] == expected || strides[dim] == positive;
    });
    if (next == left.end()) return false;
    // Nothing is expected to follow at stride 0, where no two elements could be told apart.
    if (!sizes[*next].is_const(0)) expected = ints.Mul(expected, sizes[*next]);
    positive = ints.Mul(positive, ints.Max(sizes[*next], ints.Const(1)));
    left.erase(next);
  }
  return true;
}

std::vector<int> MemoryOrder(const IntContext& ints, const Ints& sizes, const Ints& strides) {
  std::vector<int> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<int64_t> keys;
  for (size_t i = 0; i < sizes.size(); ++i) {
    // Dimensions of one element have arbitrary strides and no loop: any fixed place will do.
    keys.push_back(sizes[i].is_const(1) ? INT64_MAX : ints.EvaluateAtHints(strides[i]));
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] > keys[b]; });
  return order;
}

bool IsEmpty(const Ints& sizes) {
  return std::any_of(sizes.begin(), sizes.end(), [](IntExpr size) { return size.is_const(0); });
}

}  // namespace kiln::lowering
