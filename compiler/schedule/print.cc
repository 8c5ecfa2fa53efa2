#include "compiler/schedule/print.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/ir/module_text.h"
#include "compiler/ir/print.h"
#include "compiler/schedule/micro.h"

namespace kiln::schedule {
namespace {

using absl::StrAppend;
using absl::StrCat;
using ir::IntExpr;

std::string Value(ir::ValueId id) {
  return StrCat("%", id);
}

std::string Type(DType dtype) {
  return std::string(DTypeName(dtype));
}

class Printer {
 public:
  Printer(const ir::Module& module, const ir::ModuleNames& names, const Tree& tree)
      : module_(module), tree_(tree), names_(names), exprs_(names_, &vars_, nullptr) {}

  std::string Text() {
    const std::string& name = tree_.name;
    std::string head =
        StrCat("schedule @", ir::IsIdentifier(name) ? name : ir::QuoteText(name), " ");
    if (!tree_.origins.empty()) {
      const auto quoted = [](std::string* out, const std::string& origin) {
        StrAppend(out, ir::QuoteText(origin));
      };
      StrAppend(&head, "from ", absl::StrJoin(tree_.origins, ", ", quoted), " ");
    }
    if (tree_.threads) StrAppend(&head, "threads ", NameVar(tree_.threads, 'r'), " ");
    if (tree_.team > 1) StrAppend(&head, "team ", tree_.team, " ");
    for (const ir::BufferId buffer : tree_.zeroed) {
      StrAppend(&head, "zeroed ", names_.buffers[buffer], " ");
    }
    Line(1, head, "{");
    for (const std::string& reason : tree_.reasons) Line(2, "because ", ir::QuoteText(reason));
    BlockText(tree_.body, 2);
    Line(1, "}");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Line(int depth, const Args&... args) {
    StrAppend(&out_, std::string(2 * depth, ' '), args..., "\n");
  }

  std::string NameVar(IntExpr var, char prefix) {
    int& count = prefix == 'd' ? tasks_ : others_;
    return vars_[var] = StrCat(std::string(1, prefix), count++);
  }

  // In the order in which they are opened.
  std::string AllocName(AllocId id) {
    const int number = static_cast<int>(allocs_.size());
    return StrCat("a", allocs_.try_emplace(id, number).first->second);
  }

  std::string Expr(IntExpr e) const { return exprs_.Text(e); }

  void BlockText(const Block& block, int depth) {
    for (const Node& node : block) {
      std::visit([&](const auto& n) { Write(n, depth); }, node.value);
    }
  }

  void Write(const For& loop, int depth) {
    std::string range, binding;
    const IntExpr extent = loop.var.extent();
    if (!loop.begin.is_const(0) || loop.end != extent || !loop.step.is_const(1)) {
      range = StrCat(" from ", Expr(loop.begin), " to ", Expr(loop.end));
      if (!loop.step.is_const(1)) StrAppend(&range, " step ", Expr(loop.step));
    }
    if (HasTasks(loop.binding)) StrAppend(&binding, ", task");
    if (loop.binding == Binding::kGroup) StrAppend(&binding, ", group ", loop.width);
    if (HasLanes(loop.binding)) {
      StrAppend(&binding, HasTasks(loop.binding) ? " " : ", ", "vector ", loop.width);
    }
    const std::string size = Expr(extent);
    Line(depth, "for ", NameVar(loop.var, HasTasks(loop.binding) ? 'd' : 'r'), " < ", size, range,
         binding, " {");
    BlockText(loop.body, depth + 1);
    Line(depth, "}");
  }

  void Write(const If& branch, int depth) {
    Line(depth, "if ", Expr(branch.less), " < ", Expr(branch.than), " {");
    BlockText(branch.then, depth + 1);
    if (!branch.otherwise.empty()) {
      Line(depth, "} else {");
      BlockText(branch.otherwise, depth + 1);
    }
    Line(depth, "}");
  }

  void Write(const Let& let, int depth) {
    const std::string value = Expr(let.value), extent = Expr(let.var.extent());
    Line(depth, "let ", NameVar(let.var, 'r'), " < ", extent, " = ", value);
  }

  void Write(const Open& open, int depth) {
    const Alloc& alloc = tree_.allocs[open.alloc];
    std::string kind;
    if (alloc.reduce) kind = StrCat(" ", ir::ReduceKindName(*alloc.reduce));
    if (alloc.cascade) StrAppend(&kind, " cascade");
    if (alloc.narrow) StrAppend(&kind, " narrow");
    Line(depth, "open ", AllocName(open.alloc), " ", Type(alloc.dtype), "[", Expr(alloc.size), "]",
         kind, " in ", SpaceName(alloc.space));
  }

  void Write(const Compute& compute, int depth) {
    const std::string place = compute.alloc >= 0 ? AllocName(compute.alloc) : "";
    Line(depth, ir::InstText(module_, names_, vars_, compute.inst, place),
         compute.stream ? " stream" : "");
  }

  void Write(const Update& update, int depth) {
    Line(depth, "update ", AllocName(update.alloc), "[", Expr(update.index), "], ",
         Value(update.value), update.number ? StrCat(" at ", Expr(update.number)) : "",
         update.order == UpdateOrder::kFirst   ? " first"
         : update.order == UpdateOrder::kLater ? " later"
                                               : "");
  }

  void Write(const Fold& fold, int depth) {
    Line(depth, "fold ", AllocName(fold.into), ", ", AllocName(fold.from));
  }

  void Write(const Combine& combine, int depth) {
    Line(depth, Value(combine.result), " = combine ", Type(combine.dtype), " ",
         AllocName(combine.from), combine.best ? " best" : "");
  }

  void Write(const Prefetch& prefetch, int depth) {
    Line(depth, "prefetch ", names_.buffers[prefetch.buffer], "[", Expr(prefetch.index), "], ",
         prefetch.count);
  }

  void Write(const Micro& micro, int depth) {
    std::string text = StrCat("micro ", Info(micro.kind).name);
    if (!micro.constants.empty()) StrAppend(&text, "<", absl::StrJoin(micro.constants, ", "), ">");
    StrAppend(&text, "(");
    for (size_t i = 0; i < micro.windows.size(); ++i) {
      const Window& window = micro.windows[i];
      StrAppend(&text, i > 0 ? ", " : "",
                window.alloc >= 0 ? AllocName(window.alloc) : names_.buffers[window.buffer], "[",
                Expr(window.index), "]");
    }
    for (size_t i = 0; i < micro.sizes.size(); ++i) {
      StrAppend(&text, i > 0 ? ", " : "; ", Expr(micro.sizes[i]));
    }
    Line(depth, text, ")");
  }

  const ir::Module& module_;
  const Tree& tree_;
  const ir::ModuleNames& names_;
  ir::VarNames vars_;
  const ir::ExprWriter exprs_;
  absl::flat_hash_map<AllocId, int> allocs_;
  int tasks_ = 0, others_ = 0;
  std::string out_;
};

}  // namespace

std::string Print(const ir::Module& module, const Tree& tree) {
  return Printer(module, ir::NameModule(module), tree).Text();
}

std::string Print(const ir::Module& module, const std::vector<Tree>& trees) {
  const ir::ModuleNames names = ir::NameModule(module);
  size_t number = 0;
  return ir::Print(module, [&](const ir::Operation& operation) {
    if (number == trees.size() || trees[number].name != NameOf(operation)) {
      return absl::StrCat("  // @", NameOf(operation), " runs as an equal one before it\n");
    }
    return Printer(module, names, trees[number++]).Text();
  });
}

}  // namespace kiln::schedule
