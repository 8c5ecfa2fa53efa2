#include "compiler/schedule/cpu/flat_loops.h"

namespace kiln::schedule::cpu {

using ir::IntExpr;

void FlatLoops::Decode(IntExpr flat, const std::vector<IntExpr>& vars, Block& out) {
  for (size_t i = vars.size(); i-- > 0;) {
    const IntExpr extent = Extent(ints_, vars[i]);
    builder_.AddLet(vars[i], i == 0 ? flat : ints_.Mod(flat, extent), out);
    if (i > 0) flat = ints_.FloorDiv(flat, extent);
  }
}

void FlatLoops::AddRuns(const std::vector<IntExpr>& vars, const FlatRange& range,
                        const Visit& visit, Block& out) {
  const IntExpr last = vars.back();
  if (vars.size() == 1) {
    visit({last, range.begin, range.end}, ints_.Sub(last, range.begin), out);
    return;
  }
  const IntExpr extent = Extent(ints_, last);
  std::vector<IntExpr> others(vars.begin(), vars.end() - 1);
  IntExpr run;
  Block& body =
      builder_.AddSteps(run, NumPoints(ints_, others), ints_.FloorDiv(range.begin, extent),
                        ints_.CeilDiv(range.end, extent), ints_.Const(1), Binding::kSerial, out);
  Decode(run, others, body);
  const IntExpr start = ints_.Mul(run, extent);
  const IntExpr begin =
      builder_.Let(ints_.Max(ints_.Const(0), ints_.Sub(range.begin, start)), extent, body);
  const IntExpr end = builder_.Let(ints_.Min(extent, ints_.Sub(range.end, start)), extent, body);
  visit({last, begin, end}, ints_.Sub(ints_.Add(start, last), range.begin), body);
}

void FlatLoops::Finish(const SumTile& tile, const FlatRange& rows, const FlatRange& lanes,
                       Block& out) {
  const bool along_rows = plan_.store_along_rows;
  const std::vector<IntExpr>& slow = along_rows ? plan_.lanes : plan_.rows;
  const FlatRange& slow_range = along_rows ? lanes : rows;
  const IntExpr before = ints_.Sub(rows.begin, tile.first_row);
  IntExpr at;
  Block& body =
      builder_.AddSteps(at, along_rows ? plan_.num_lanes : plan_.num_rows, slow_range.begin,
                        slow_range.end, ints_.Const(1), Binding::kSerial, out);
  Decode(at, slow, body);
  std::vector<const Step*> steps = LaterSteps(nest_);
  const auto add_run = [&](const Loop& run, IntExpr place, Block& inside) {
    const IntExpr slow_place = ints_.Sub(at, along_rows ? lanes.begin : tile.first_row);
    const IntExpr fast_place = along_rows ? ints_.Add(place, before) : place;
    const IntExpr index = ints_.Add(ints_.Mul(slow_place, tile.pitch), fast_place);
    builder_.SetLevel(plan_.sum, 1);
    builder_.AddNest(
        steps, {{run.var, run.begin, run.end, Binding::kVector, plan_.vector_lanes}},
        [&](Block& vectors) {
          builder_.AddLoad(plan_.sum, plan_.type, tile.alloc, index, vectors);
        },
        [](Block&) {}, inside);
  };
  const std::vector<IntExpr>& fast = along_rows ? plan_.rows : plan_.lanes;
  const FlatRange& range = along_rows ? rows : lanes;
  std::vector<Step> joined;
  if (const IntExpr var = Join(fast, steps, joined)) {
    for (size_t i = 0; i < steps.size(); ++i) steps[i] = &joined[i];
    add_run({var, range.begin, range.end}, ints_.Sub(var, range.begin), body);
  } else {
    AddRuns(fast, range, add_run, body);
  }
}

// One variable for `vars` where all of `steps` reach the same with it: their places have no gaps
// between the last loop's runs. `joined` gets the steps with that variable. Null where some do not.
IntExpr FlatLoops::Join(const std::vector<IntExpr>& vars, const std::vector<const Step*>& steps,
                        std::vector<Step>& joined) {
  if (vars.size() < 2) return {};
  const IntExpr var = ints_.NewVar(NumPoints(ints_, vars));
  ir::IntContext::VarMap values;
  for (const IntExpr each : vars) values[each] = each == vars.back() ? var : ints_.Const(0);
  for (const Step* step : steps) {
    Step& made = joined.emplace_back(*step);
    if (!made.index) continue;
    IntExpr expected = ints_.CoefficientOf(made.index, vars.back());
    for (size_t i = vars.size(); i-- > 0;) {
      if (!expected || ints_.CoefficientOf(made.index, vars[i]) != expected) return {};
      expected = ints_.Mul(expected, Extent(ints_, vars[i]));
    }
    made.index = ints_.Substitute(made.index, values);
  }
  return var;
}

}  // namespace kiln::schedule::cpu
