#include "compiler/codegen/cpp/cost_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/micro.h"

namespace kiln::codegen::cpp {
namespace {

using ir::IntExpr;
using ir::ScalarOp;

constexpr double kMultiplyAddsPerOperation = 3;  // of the micro-kernel, in an operation's time

class CostPrinter {
 public:
  CostPrinter(ir::IntContext& ints, const schedule::Tree& tree, source::Names& names)
      : ints_(ints), names_(names) {
    if (tree.threads) at_first_[tree.threads] = ints.Const(1);
  }

  struct Cost {
    double number = 0;
    std::string text;  // of terms over symbols, to be added
    std::string Text() const {
      if (text.empty()) return absl::StrCat(number);
      return number == 0 ? text : absl::StrCat(number, " + ", text);
    }
  };

  Cost OfBlock(absl::Span<const schedule::Node> nodes) {
    Cost sum;
    int lanes_loops = 0;
    for (const schedule::Node& node : nodes) {
      const auto* loop = std::get_if<schedule::For>(&node.value);
      lanes_loops += loop != nullptr && loop->binding == schedule::Binding::kTaskVector;
    }
    for (const schedule::Node& node : nodes) Add(OfNode(node, lanes_loops), sum);
    return sum;
  }

 private:
  static void Add(const Cost& more, Cost& sum) {
    sum.number += more.number;
    if (more.text.empty()) return;
    absl::StrAppend(&sum.text, sum.text.empty() ? "" : " + ", more.text);
  }

  IntExpr AtFirst(IntExpr e) { return ints_.Substitute(e, at_first_); }

  Cost Times(IntExpr count, double factor, const Cost& cost) {
    if (count.is_const()) {
      factor *= static_cast<double>(std::max<int64_t>(count.value(), 0));
      Cost product{cost.number * factor, ""};
      if (!cost.text.empty()) product.text = absl::StrCat(factor, " * (", cost.text, ")");
      return product;
    }
    const std::string text = absl::StrCat("(double)", names_.Expr(count), " * ", factor);
    return {0, absl::StrCat(text, " * (", cost.Text(), ")")};
  }

  Cost OfNode(const schedule::Node& node, int lanes_loops) {
    if (const auto* compute = std::get_if<schedule::Compute>(&node.value)) {
      const ScalarOp op = compute->inst.op;
      if (op == ScalarOp::kLoad || op == ScalarOp::kStore) return {1, ""};
      return {static_cast<double>(Info(op).cost), ""};
    }
    if (std::holds_alternative<schedule::Update>(node.value)) return {1, ""};
    if (const auto* let = std::get_if<schedule::Let>(&node.value)) {
      at_first_[let->var] = AtFirst(let->value);
      return {};
    }
    if (const auto* micro = std::get_if<schedule::Micro>(&node.value)) {
      const bool multiplies = micro->kind == schedule::MicroKind::kMultiply ||
                              micro->kind == schedule::MicroKind::kMultiplyPairs;
      return Times(AtFirst(schedule::Work(ints_, *micro)),
                   multiplies ? 1 / kMultiplyAddsPerOperation : 1, {1, ""});
    }
    if (const auto* branch = std::get_if<schedule::If>(&node.value)) {
      Cost sum = OfBlock(branch->then);
      Add(OfBlock(branch->otherwise), sum);
      return Times(ints_.Const(1), branch->otherwise.empty() ? 1 : 0.5, sum);
    }
    const auto* loop = std::get_if<schedule::For>(&node.value);
    if (loop == nullptr) return {};
    const IntExpr begin = AtFirst(loop->begin);
    const IntExpr count = ints_.CeilDiv(ints_.Sub(AtFirst(loop->end), begin), AtFirst(loop->step));
    at_first_[loop->var] = begin;
    const Cost body = OfBlock(loop->body);
    // Points of the grid are one iteration of its loops; of loops beside each other, of one.
    if (loop->binding == schedule::Binding::kTask) return body;
    if (loop->binding == schedule::Binding::kTaskVector) {
      return Times(ints_.Const(1), 1.0 / lanes_loops, body);
    }
    return Times(count, 1, body);
  }

  ir::IntContext& ints_;
  source::Names& names_;
  ir::IntContext::VarMap at_first_;
};

}  // namespace

std::string CostText(ir::IntContext& ints, const schedule::Tree& tree,
                     absl::Span<const schedule::Node> nodes, source::Names& names) {
  return CostPrinter(ints, tree, names).OfBlock(nodes).Text();
}

}  // namespace kiln::codegen::cpp
