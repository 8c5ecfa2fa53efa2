#include "compiler/schedule/interpret.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret_impl.h"
#include "compiler/schedule/interpret_attention.h"
#include "compiler/schedule/interpret_packed.h"
#include "compiler/schedule/interpret_queries.h"
#include "compiler/schedule/interpret_winograd.h"
#include "compiler/schedule/micro.h"
#include "compiler/schedule/nest.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule {
namespace {

using ir::IntExpr;
using ir::Lane;
using ir::ReduceKind;
using ir::ScalarOp;
using ir::ValueId;

class Runner {
 public:
  Runner(const ir::Module& module, const Tree& tree, absl::Span<const int64_t> symbols,
         std::vector<ir::Storage>& storage, const InterpretOptions& options)
      : module_(module),
        tree_(tree),
        symbols_(symbols),
        storage_(storage),
        random_(options.seed),
        values_(tree.num_values),
        types_(tree.num_values),
        memory_(tree.allocs.size()) {
    if (tree.threads) Set(tree.threads, options.threads);
  }

  absl::Status Run() {
    for (const ir::BufferId zeroed : tree_.zeroed) absl::c_fill(storage_[zeroed], Lane{});
    return RunBlock(tree_.body);
  }

 private:
  // Memory of the kernel's own.
  struct Memory {
    std::vector<Lane> data;
    std::vector<bool> written;
    std::vector<int64_t> best;  // of an accumulator of places: the place of each element
    size_t depth = 0;           // parallel loops around where it was opened
  };
  // Who touched an element in a parallel loop so far: iterations of the loop's run `run`, and of
  // earlier ones nobody that counts.
  struct Touched {
    int64_t run = 0;
    int64_t writer = kNobody, reader = kNobody;
  };
  // A parallel loop at some depth. Its tables outlive its runs: most are short, and buffers large.
  struct Parallel {
    int64_t run = 0, iteration = 0;
    std::vector<std::vector<Touched>> buffers, memories;  // by element
  };
  static constexpr int64_t kNobody = -1, kSeveral = -2;

  absl::Status Error(absl::string_view what) const {
    return absl::InternalError(absl::StrCat("schedule @", tree_.name, ": ", what));
  }

  void Set(IntExpr var, int64_t value) {
    const auto id = static_cast<size_t>(var.id());
    if (id >= vars_.size()) vars_.resize(id + 1);
    vars_[id] = value;
  }

  int64_t Evaluate(IntExpr e, const ir::Inst* inst = nullptr) {
    return module_.ints->Evaluate(e, [&](IntExpr leaf) -> int64_t {
      switch (leaf.kind()) {
        case ir::IntKind::kSymbol:
          return symbols_[leaf.id()];
        case ir::IntKind::kVar:
          return vars_.at(leaf.id()).value();
        default:
          break;
      }
      const int64_t value = values_[inst->operands[leaf.id()]].i;
      const int64_t extent = Evaluate(leaf.extent());
      if (value >= 0 && value < extent) return value;
      index_outside_ = true;
      return 0;
    });
  }

  absl::Status RunBlock(const Block& block) {
    for (const Node& node : block) {
      KILN_RETURN_IF_ERROR(std::visit([&](const auto& n) { return Do(n); }, node.value));
    }
    return absl::OkStatus();
  }

  absl::Status Do(const For& loop) {
    const int64_t begin = Evaluate(loop.begin), end = Evaluate(loop.end);
    const int64_t step = Evaluate(loop.step);
    if (step < 1) return Error("a loop's step is less than 1");
    const int64_t count = begin < end ? (end - begin + step - 1) / step : 0;
    if (!IsParallel(loop.binding)) {
      for (int64_t i = 0; i < count; ++i) {
        Set(loop.var, begin + i * step);
        KILN_RETURN_IF_ERROR(RunBlock(loop.body));
      }
      return absl::OkStatus();
    }
    std::vector<int64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    const size_t depth = depth_++;
    if (depth == parallel_.size()) {
      parallel_.push_back({.buffers{storage_.size()}, .memories{memory_.size()}});
    }
    ++parallel_[depth].run;
    for (int64_t i : order) {
      parallel_[depth].iteration = i;
      Set(loop.var, begin + i * step);
      KILN_RETURN_IF_ERROR(RunBlock(loop.body));
    }
    --depth_;
    return absl::OkStatus();
  }

  absl::Status Do(const If& branch) {
    return RunBlock(Evaluate(branch.less) < Evaluate(branch.than) ? branch.then : branch.otherwise);
  }

  absl::Status Do(const Let& let) {
    Set(let.var, Evaluate(let.value));
    return absl::OkStatus();
  }

  absl::Status Do(const Open& open) {
    const Alloc& alloc = tree_.allocs[open.alloc];
    const int64_t size = Evaluate(alloc.size);
    if (size < 0) return Error("memory of a negative size");
    Memory& memory = memory_[open.alloc];
    memory.depth = depth_;
    memory.data.assign(size,
                       alloc.reduce ? ir::ReduceIdentity(*alloc.reduce, alloc.dtype) : Lane{});
    memory.written.assign(size, alloc.reduce.has_value());
    memory.best.assign(alloc.reduce ? size : 0, -1);
    return absl::OkStatus();
  }

  // Notes an access to element `index` of the buffer or memory, which has one, and finds whether it
  // races. Memory that an iteration opened is its own.
  absl::Status Touch(AllocId alloc, ir::BufferId buffer, int64_t index, bool writes) {
    const size_t size = alloc >= 0 ? memory_[alloc].data.size() : storage_[buffer].size();
    for (size_t i = alloc >= 0 ? memory_[alloc].depth : 0; i < depth_; ++i) {
      Parallel& loop = parallel_[i];
      std::vector<Touched>& table = alloc >= 0 ? loop.memories[alloc] : loop.buffers[buffer];
      if (table.size() < size) table.resize(size);
      Touched& touched = table[index];
      if (touched.run != loop.run) touched = {.run = loop.run};
      const bool other_wrote = touched.writer != kNobody && touched.writer != loop.iteration;
      const bool other_read = touched.reader != kNobody && touched.reader != loop.iteration;
      if (other_wrote || (writes && other_read)) {
        return Error(absl::StrCat("two iterations of a parallel loop race for element ", index,
                                  alloc >= 0 ? " of memory #" : " of buffer ",
                                  alloc >= 0 ? alloc : buffer));
      }
      if (writes) {
        touched.writer = loop.iteration;
      } else {
        touched.reader = other_read ? kSeveral : loop.iteration;
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Lane> Read(AllocId alloc, ir::BufferId buffer, int64_t index) {
    const int64_t size =
        static_cast<int64_t>(alloc >= 0 ? memory_[alloc].data.size() : storage_[buffer].size());
    if (index < 0 || index >= size) {
      return Error(absl::StrCat("reads element ", index, " of ", size));
    }
    if (alloc >= 0 && !memory_[alloc].written[index]) {
      return Error(absl::StrCat("reads element ", index, " of memory #", alloc,
                                ", which nothing was stored to"));
    }
    KILN_RETURN_IF_ERROR(Touch(alloc, buffer, index, false));
    return alloc >= 0 ? memory_[alloc].data[index] : storage_[buffer][index];
  }

  absl::Status Write(AllocId alloc, ir::BufferId buffer, int64_t index, Lane value) {
    const int64_t size =
        static_cast<int64_t>(alloc >= 0 ? memory_[alloc].data.size() : storage_[buffer].size());
    if (index < 0 || index >= size) {
      return Error(absl::StrCat("writes element ", index, " of ", size));
    }
    KILN_RETURN_IF_ERROR(Touch(alloc, buffer, index, true));
    if (alloc >= 0) memory_[alloc].written[index] = true;
    (alloc >= 0 ? memory_[alloc].data[index] : storage_[buffer][index]) = value;
    return absl::OkStatus();
  }

  // To what is zeroed: nothing but additions touches it, in any order.
  absl::Status Add(ir::BufferId buffer, int64_t index, double value) {
    if (!absl::c_linear_search(tree_.zeroed, buffer)) return Error("adds to what is not zeroed");
    if (index < 0 || index >= static_cast<int64_t>(storage_[buffer].size())) {
      return Error(absl::StrCat("adds to element ", index, " of ", storage_[buffer].size()));
    }
    storage_[buffer][index].f += value;
    return absl::OkStatus();
  }

  absl::Status Do(const Compute& compute) {
    const ir::Inst& inst = compute.inst;
    if (inst.op == ScalarOp::kStore) {
      KILN_ASSIGN_OR_RETURN(const int64_t index, IndexOf(inst));
      Lane value = values_[inst.operands.back()];
      if (inst.accumulates) {
        KILN_ASSIGN_OR_RETURN(const Lane before, Read(compute.alloc, inst.buffer, index));
        value = ir::Fold(inst.reduce_kind, inst.dtype, before, value);
      }
      return Write(compute.alloc, inst.buffer, index, value);
    }
    Lane result{};
    if (inst.op == ScalarOp::kConst) {
      result = ImmediateLane(inst);
    } else if (inst.op == ScalarOp::kIndex) {
      result.i = Evaluate(inst.indices[0], &inst);
    } else if (inst.op == ScalarOp::kLoad) {
      if (inst.has_mask && values_[inst.operands.back()].i == 0) {
        result = ImmediateLane(inst);
      } else {
        KILN_ASSIGN_OR_RETURN(const int64_t index, IndexOf(inst));
        KILN_ASSIGN_OR_RETURN(result, Read(compute.alloc, inst.buffer, index));
      }
    } else {
      ir::Step step{ir::StepKind::kScalar, inst.op};
      step.dtype = inst.dtype;
      Lane operands[3] = {};
      for (size_t i = 0; i < inst.operands.size(); ++i) operands[i] = values_[inst.operands[i]];
      const size_t typed = inst.op == ScalarOp::kSelect ? 1 : 0;
      step.operand_dtype = types_[inst.operands[typed]];
      ir::RunScalarOp(step, &result, &operands[0], &operands[1], &operands[2], 1);
      if (inst.op == ScalarOp::kNonzero) KILN_RETURN_IF_ERROR(ir::CheckDivisors(&result, 1));
    }
    values_[inst.result] = result;
    types_[inst.result] = inst.dtype;
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> IndexOf(const ir::Inst& inst) {
    const int64_t index = Evaluate(inst.indices[0], &inst);
    for (const IntExpr check : inst.checks) Evaluate(check, &inst);
    if (!std::exchange(index_outside_, false)) return index;
    return absl::OutOfRangeError("an index tensor's value lies outside its dimension");
  }

  // `a` taken into `into`, which `best` is the place of; of equals the first place counts.
  static void Take(ReduceKind kind, DType dtype, Lane a, int64_t place, Lane& into, int64_t& best) {
    if (!IsArg(kind)) {
      into = ir::Fold(kind, dtype, into, a);
      return;
    }
    const auto beats = [&](Lane x, Lane y) {
      return ir::Beats(IsFloat(dtype), kind == ReduceKind::kArgMax, x, y);
    };
    if (best >= 0 && !beats(a, into) && (beats(into, a) || place > best)) return;
    into = a;
    best = place;
  }

  absl::Status Do(const Update& update) {
    Memory& memory = memory_[update.alloc];
    const int64_t index = Evaluate(update.index);
    if (index < 0 || index >= static_cast<int64_t>(memory.data.size())) {
      return Error("an accumulator lacks an element");
    }
    const Alloc& alloc = tree_.allocs[update.alloc];
    const int64_t place = update.number ? Evaluate(update.number) : 0;
    Take(*alloc.reduce, alloc.dtype, values_[update.value], place, memory.data[index],
         memory.best[index]);
    return absl::OkStatus();
  }

  absl::Status Do(const Fold& fold) {
    const Alloc& alloc = tree_.allocs[fold.into];
    Memory &into = memory_[fold.into], &from = memory_[fold.from];
    for (size_t i = 0; i < into.data.size(); ++i) {
      Take(*alloc.reduce, alloc.dtype, from.data[i], from.best[i], into.data[i], into.best[i]);
    }
    return absl::OkStatus();
  }

  absl::Status Do(const Combine& combine) {
    const Alloc& alloc = tree_.allocs[combine.from];
    const Memory& memory = memory_[combine.from];
    Lane value = ir::ReduceIdentity(*alloc.reduce, alloc.dtype);
    int64_t best = -1;
    const bool numbered = IsArg(*alloc.reduce);
    for (size_t i = 0; i < memory.data.size(); ++i) {
      if (numbered && memory.best[i] < 0) continue;  // a lane that saw nothing
      Take(*alloc.reduce, alloc.dtype, memory.data[i], memory.best[i], value, best);
    }
    if (numbered && !combine.best) value.i = best;
    values_[combine.result] = value;
    types_[combine.result] = combine.dtype;
    return absl::OkStatus();
  }

  absl::Status Do(const Prefetch&) { return absl::OkStatus(); }

  absl::Status Do(const Micro& micro) {
    std::vector<int64_t> s, at;
    for (IntExpr size : micro.sizes) s.push_back(Evaluate(size));
    for (const Window& window : micro.windows) at.push_back(Evaluate(window.index));
    const std::vector<int>& c = micro.constants;
    const auto read = [&](size_t window, int64_t i) {
      return Read(micro.windows[window].alloc, micro.windows[window].buffer, at[window] + i);
    };
    const auto write = [&](int64_t i, Lane value) {
      return Write(micro.windows[0].alloc, micro.windows[0].buffer, at[0] + i, value);
    };
    // What nothing was stored to may be moved: it stays so.
    const auto move = [&](int64_t to, int64_t from) -> absl::Status {
      const Window& source = micro.windows[1];
      if (source.alloc >= 0) {
        const std::vector<bool>& written = memory_[source.alloc].written;
        const int64_t index = at[1] + from;
        if (index >= 0 && index < static_cast<int64_t>(written.size()) && !written[index]) {
          KILN_RETURN_IF_ERROR(write(to, Lane{}));
          if (micro.windows[0].alloc >= 0) {
            memory_[micro.windows[0].alloc].written[at[0] + to] = false;
          }
          return absl::OkStatus();
        }
      }
      KILN_ASSIGN_OR_RETURN(Lane value, read(1, from));
      return write(to, value);
    };
    switch (micro.kind) {
      case MicroKind::kZero:
        for (int64_t i = 0; i < s[0]; ++i) KILN_RETURN_IF_ERROR(write(i, Lane{}));
        return absl::OkStatus();
      case MicroKind::kSort:
      case MicroKind::kSelect: {
        std::vector<int64_t> row;
        for (int64_t i = 0; i < s[0]; ++i) {
          KILN_ASSIGN_OR_RETURN(const Lane value, read(0, i));
          row.push_back(value.i);
        }
        absl::c_sort(row);
        for (int64_t i = 0; i < s[0]; ++i) KILN_RETURN_IF_ERROR(write(i, Lane{.i = row[i]}));
        if (micro.kind == MicroKind::kSelect && micro.windows[0].alloc >= 0) {
          std::vector<bool>& written = memory_[micro.windows[0].alloc].written;
          for (int64_t i = s[1]; i < s[0]; ++i) written[at[0] + i] = false;
        }
        return absl::OkStatus();
      }
      case MicroKind::kCopyRows:
        for (int64_t r = 0; r < c[0]; ++r) {
          for (int64_t i = 0; i < s[3]; ++i) {
            KILN_RETURN_IF_ERROR(move(r * s[3] + i, std::min(r, s[0] - 1) * s[1] + i * s[2]));
          }
        }
        return absl::OkStatus();
      case MicroKind::kPackTransposed:
        for (int64_t lane = 0; lane < s[1]; ++lane) {
          for (int64_t i = 0; i < s[2]; ++i) {
            KILN_RETURN_IF_ERROR(move(i * s[3] + lane, lane * s[0] + i));
          }
        }
        return absl::OkStatus();
      case MicroKind::kPackPairs:
      case MicroKind::kInterleave: {
        const bool pairs = micro.kind == MicroKind::kPackPairs;  // k is contiguous, not the lanes
        for (int64_t lane = 0; lane < s[1]; ++lane) {
          for (int64_t i = 0; i < s[2]; ++i) {
            KILN_RETURN_IF_ERROR(
                move(PairIndex(i, lane, c[0]), pairs ? lane * s[0] + i : i * s[0] + lane));
          }
        }
        return absl::OkStatus();
      }
      case MicroKind::kTranspose:
        for (int64_t row = 0; row < c[0]; ++row) {
          for (int64_t lane = 0; lane < c[1]; ++lane) {
            KILN_RETURN_IF_ERROR(move(lane * c[0] + row, row * c[1] + lane));
          }
        }
        return absl::OkStatus();
      case MicroKind::kMultiply:
        return Multiply(
            c[1], c[0] * c[2], s, s[2],
            [](int64_t i, int64_t lane, int64_t width) { return i * width + lane; }, read, write);
      case MicroKind::kMultiplyPairs:
        return Multiply(c[1], c[0] * c[2], s, 1, PairIndex, read, write);
      case MicroKind::kWinogradImage:
        return InterpretWinogradImage(s, read, write);
      case MicroKind::kWinogradSums:
        return InterpretWinogradSums(int64_t{c[0]} * c[1], s, read, write);
      case MicroKind::kMultiplyRows:
        if (c[kRowsInner] != 0) return InterpretPackedRows(module_, micro, s, read, write);
        [[fallthrough]];
      case MicroKind::kMultiplyWarps:
      case MicroKind::kMultiplyTile: {
        const int buffer = micro.windows[2].buffer;
        const bool is_integer = buffer >= 0 && module_.buffers[buffer].dtype == DType::kI8;
        for (int64_t r = 0; r < c[0]; ++r) {
          for (int64_t column = 0; column < c[1]; ++column) {
            double sum = 0;
            for (int64_t i = 0; r < s[0] && column < s[1] && i < s[2]; ++i) {
              KILN_ASSIGN_OR_RETURN(const Lane x, read(1, r * s[3] + i * s[4]));
              KILN_ASSIGN_OR_RETURN(const Lane y, read(2, column * s[5] + i * s[6]));
              sum += x.f * (is_integer ? static_cast<double>(y.i) : y.f);
            }
            KILN_RETURN_IF_ERROR(write(r * c[1] + column, Lane{.f = sum}));
          }
        }
        return absl::OkStatus();
      }
      case MicroKind::kAttendTile:
      case MicroKind::kAttendWarps:
        return InterpretAttention(c, s, read, [&](size_t window, int64_t i, double value) {
          return Write(micro.windows[window].alloc, micro.windows[window].buffer, at[window] + i,
                       Lane{.f = value});
        });
      case MicroKind::kAttendGradients:
        return InterpretGradients(
            c, s, read,
            [&](size_t window, int64_t i, double value) {
              return Write(micro.windows[window].alloc, micro.windows[window].buffer,
                           at[window] + i, Lane{.f = value});
            },
            [&](int64_t i, double value) {
              return Add(micro.windows[OfGradients::kQueries].buffer, at[OfGradients::kQueries] + i,
                         value);
            });
      case MicroKind::kAttend:
      case MicroKind::kAttendMasked:
        return InterpretFewQueries(module_, micro, s, read, write);
    }
    return absl::OkStatus();
  }

  // Of element (i, lane) in a panel of pairs along i.
  static int64_t PairIndex(int64_t i, int64_t lane, int64_t width) {
    return i / 2 * 2 * width + 2 * lane + i % 2;
  }

  template <typename Index, typename Read, typename Write>
  static absl::Status Multiply(int64_t rows, int64_t width, const std::vector<int64_t>& s,
                               int64_t k_stride, const Index& index, const Read& read,
                               const Write& write) {
    std::vector<double> sums(rows * width, 0);
    std::vector<double> panel(width);
    for (int64_t i = 0; i < s[0]; ++i) {
      for (int64_t lane = 0; lane < width; ++lane) {
        KILN_ASSIGN_OR_RETURN(Lane value, read(2, index(i, lane, width)));
        panel[lane] = value.f;
      }
      for (int64_t r = 0; r < rows; ++r) {
        KILN_ASSIGN_OR_RETURN(Lane value, read(1, r * s[1] + i * k_stride));
        for (int64_t lane = 0; lane < width; ++lane)
          sums[r * width + lane] += value.f * panel[lane];
      }
    }
    for (int64_t i = 0; i < rows * width; ++i) KILN_RETURN_IF_ERROR(write(i, Lane{.f = sums[i]}));
    return absl::OkStatus();
  }

  const ir::Module& module_;
  const Tree& tree_;
  absl::Span<const int64_t> symbols_;
  std::vector<ir::Storage>& storage_;
  std::mt19937_64 random_;
  std::vector<Lane> values_;
  std::vector<DType> types_;
  std::vector<Memory> memory_;
  std::vector<Parallel> parallel_;            // by depth
  size_t depth_ = 0;                          // of parallel loops that are under way
  std::vector<std::optional<int64_t>> vars_;  // by number
  bool index_outside_ = false;                // an indirect operand evaluated since the last check
};

}  // namespace

absl::StatusOr<std::vector<ir::ReferenceTensor>> Interpret(const ir::Module& module,
                                                           absl::Span<const Tree> trees,
                                                           absl::Span<const HostTensor> inputs,
                                                           absl::Span<const int64_t> symbols,
                                                           absl::Span<const std::string> constants,
                                                           const InterpretOptions& options) {
  const auto kernels = absl::c_count_if(module.operations, [](const ir::Operation& operation) {
    return !std::holds_alternative<ir::Library>(operation);
  });
  if (static_cast<size_t>(kernels) != trees.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the module has ", kernels, " kernels and ", trees.size(), " schedules"));
  }
  size_t number = 0;
  return ir::InterpretWith(
      module, inputs, symbols, constants, {},
      [&](const ir::Operation&, std::vector<ir::Storage>& storage) {
        return Runner(module, trees[number++], symbols, storage, options).Run();
      });
}

}  // namespace kiln::schedule
