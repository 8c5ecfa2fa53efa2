#include "compiler/schedule/parse.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/parse_impl.h"
#include "compiler/schedule/micro.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule {
namespace {

using ir::IntExpr;
using ir::TokenKind;

constexpr int kMaxBlockDepth = 64;
constexpr size_t kMaxNodes = 1 << 20;
constexpr int64_t kMaxConstant = INT32_MAX;  // the bits of a float, too

class Parser : public ir::Parser {
 public:
  using ir::Parser::Parser;

  absl::StatusOr<Scheduled> ParseScheduled() {
    Scheduled scheduled;
    KILN_ASSIGN_OR_RETURN(scheduled.module, ParseModule());
    scheduled.trees = std::move(trees_);
    return scheduled;
  }

 private:
  absl::Status OtherItem() override {
    if (Accept("schedule")) return Schedule();
    return Expected(
        "'symbol', 'buffer', 'kernel', 'repeat', 'schedule', 'library', 'output' or '}'");
  }

  // Accesses have one index, whatever the buffer's dimensions are.
  absl::StatusOr<std::vector<IntExpr>> Place(ir::Inst& inst) override {
    if (tree_ == nullptr) return ir::Parser::Place(inst);
    place_ = -1;
    if (token_.kind == TokenKind::kIdentifier) {
      KILN_ASSIGN_OR_RETURN(place_, AllocRef());
    } else {
      KILN_ASSIGN_OR_RETURN(inst.buffer, BufferRef());
    }
    return std::vector<IntExpr>(1);
  }

  absl::Status Schedule() {
    Tree tree;
    tree_ = &tree;
    allocs_.clear();
    vars_.clear();
    nodes_ = 0;
    KILN_ASSIGN_OR_RETURN(tree.name, Take(TokenKind::kName, "a kernel's name"));
    if (Accept("from")) {
      KILN_ASSIGN_OR_RETURN(tree.origins, Strings());
    }
    if (Accept("threads")) {
      KILN_ASSIGN_OR_RETURN(std::string name, Take(TokenKind::kIdentifier, "a variable"));
      tree.threads = vars_[name] = module_.ints->NewVar(module_.ints->Const(kMostThreads));
    }
    if (Accept("team")) {
      KILN_ASSIGN_OR_RETURN(const int64_t team, Int());
      if (team < 1 || team > kMostTeam) return Error("a team has 1 to 1024 threads");
      tree.team = static_cast<int>(team);
    }
    while (Accept("zeroed")) {
      KILN_ASSIGN_OR_RETURN(tree.zeroed.emplace_back(), BufferRef());
    }
    KILN_RETURN_IF_ERROR(Expect("{"));
    while (Accept("because")) {
      KILN_ASSIGN_OR_RETURN(std::string reason, Take(TokenKind::kString, "a reason"));
      tree.reasons.push_back(std::move(reason));
    }
    KILN_ASSIGN_OR_RETURN(tree.body, BlockRest(0));
    vars_.clear();
    tree_ = nullptr;
    module_.operations.push_back(Stub(tree));
    trees_.push_back(std::move(tree));
    return absl::OkStatus();
  }

  // A kernel that names the buffers that the tree touches.
  static ir::Kernel Stub(const Tree& tree) {
    ir::Kernel kernel;
    kernel.name = tree.name;
    std::vector<ir::Inst>& body = kernel.phases.emplace_back().body;
    const auto name = [&](ir::BufferId buffer) {
      if (buffer >= 0) body.emplace_back().buffer = buffer;
    };
    ForEachNode(tree.body, [&](const Node& node) {
      if (const auto* compute = std::get_if<Compute>(&node.value)) name(compute->inst.buffer);
      if (const auto* micro = std::get_if<Micro>(&node.value)) {
        for (const schedule::Window& window : micro->windows) name(window.buffer);
      }
    });
    return kernel;
  }

  // Nodes up to the closing brace.
  absl::StatusOr<Block> BlockRest(int depth) {
    if (depth > kMaxBlockDepth) return Error("blocks are nested too deep");
    const auto vars = vars_;
    Block block;
    while (!At("}")) {
      if (++nodes_ > kMaxNodes) return Error("a schedule is too long");
      KILN_ASSIGN_OR_RETURN(Node node, NodeText(depth));
      block.push_back(std::move(node));
    }
    Advance();
    vars_ = vars;
    return block;
  }

  absl::StatusOr<Node> NodeText(int depth) {
    if (Accept("for")) return ForRest(depth);
    if (Accept("if")) return IfRest(depth);
    if (Accept("let")) return LetRest();
    if (Accept("open")) return OpenRest();
    if (Accept("update")) return UpdateRest();
    if (Accept("fold")) return FoldRest();
    if (Accept("prefetch")) return PrefetchRest();
    if (Accept("micro")) return MicroRest();
    return ComputeOrCombine();
  }

  // "r0 < EXTENT": a new variable, in scope once the caller puts it there.
  absl::StatusOr<std::pair<std::string, IntExpr>> Variable() {
    KILN_ASSIGN_OR_RETURN(std::string name, Take(TokenKind::kIdentifier, "a variable"));
    if (vars_.contains(name)) return Error(absl::StrCat("'", name, "' is in scope already"));
    KILN_RETURN_IF_ERROR(Expect("<"));
    KILN_ASSIGN_OR_RETURN(IntExpr extent, Expr());
    return std::make_pair(std::move(name), module_.ints->NewVar(extent));
  }

  absl::StatusOr<Node> ForRest(int depth) {
    For loop;
    KILN_ASSIGN_OR_RETURN(auto variable, Variable());
    loop.var = variable.second;
    loop.begin = module_.ints->Const(0);
    loop.end = loop.var.extent();
    loop.step = module_.ints->Const(1);
    if (Accept("from")) {
      KILN_ASSIGN_OR_RETURN(loop.begin, Expr());
      KILN_RETURN_IF_ERROR(Expect("to"));
      KILN_ASSIGN_OR_RETURN(loop.end, Expr());
      if (Accept("step")) {
        KILN_ASSIGN_OR_RETURN(loop.step, Expr());
      }
    }
    bool tasks = false, lanes = false, groups = false;
    if (Accept(",")) {
      groups = Accept("group");
      tasks = !groups && Accept("task");
      lanes = !groups && Accept("vector");
      if (!tasks && !lanes && !groups) return Expected("'task', 'vector' or 'group'");
    }
    if (lanes || groups) {
      KILN_ASSIGN_OR_RETURN(loop.width, Constant());
    }
    loop.binding = groups  ? Binding::kGroup
                   : tasks ? (lanes ? Binding::kTaskVector : Binding::kTask)
                           : (lanes ? Binding::kVector : Binding::kSerial);
    KILN_RETURN_IF_ERROR(Expect("{"));
    const auto vars = vars_;
    vars_[variable.first] = loop.var;
    KILN_ASSIGN_OR_RETURN(loop.body, BlockRest(depth + 1));
    vars_ = vars;
    return Node{std::move(loop)};
  }

  absl::StatusOr<Node> IfRest(int depth) {
    If branch;
    KILN_ASSIGN_OR_RETURN(branch.less, Expr());
    KILN_RETURN_IF_ERROR(Expect("<"));
    KILN_ASSIGN_OR_RETURN(branch.than, Expr());
    KILN_RETURN_IF_ERROR(Expect("{"));
    KILN_ASSIGN_OR_RETURN(branch.then, BlockRest(depth + 1));
    if (Accept("else")) {
      KILN_RETURN_IF_ERROR(Expect("{"));
      KILN_ASSIGN_OR_RETURN(branch.otherwise, BlockRest(depth + 1));
    }
    return Node{std::move(branch)};
  }

  absl::StatusOr<Node> LetRest() {
    KILN_ASSIGN_OR_RETURN(auto variable, Variable());
    KILN_RETURN_IF_ERROR(Expect("="));
    KILN_ASSIGN_OR_RETURN(IntExpr value, Expr());
    vars_[variable.first] = variable.second;
    return Node{Let{variable.second, value}};
  }

  absl::StatusOr<Node> OpenRest() {
    Alloc alloc;
    KILN_ASSIGN_OR_RETURN(std::string name, Take(TokenKind::kIdentifier, "a name such as a0"));
    KILN_ASSIGN_OR_RETURN(alloc.dtype, Type());
    KILN_RETURN_IF_ERROR(Expect("["));
    KILN_ASSIGN_OR_RETURN(alloc.size, Expr());
    KILN_RETURN_IF_ERROR(Expect("]"));
    if (!At("in")) {
      alloc.reduce = ir::ReduceKindFromName(token_.text);
      if (!alloc.reduce) return Expected("a kind of reduction or 'in'");
      Advance();
      alloc.cascade = Accept("cascade");
      alloc.narrow = Accept("narrow");
    }
    KILN_RETURN_IF_ERROR(Expect("in"));
    const Space spaces[] = {Space::kRegister, Space::kL1, Space::kL2, Space::kGlobal};
    const auto* space = std::find_if(std::begin(spaces), std::end(spaces),
                                     [&](Space candidate) { return Accept(SpaceName(candidate)); });
    if (space == std::end(spaces)) return Expected("'reg', 'l1', 'l2' or 'global'");
    alloc.space = *space;
    const auto id = static_cast<AllocId>(tree_->allocs.size());
    if (!allocs_.emplace(name, id).second) {
      return Error(absl::StrCat("'", name, "' is opened twice"));
    }
    tree_->allocs.push_back(std::move(alloc));
    return Node{Open{id}};
  }

  absl::StatusOr<AllocId> AllocRef() {
    const auto it = allocs_.find(token_.text);
    if (token_.kind != TokenKind::kIdentifier || it == allocs_.end()) {
      return Expected("memory that is open, such as a0");
    }
    Advance();
    return it->second;
  }

  absl::StatusOr<IntExpr> Index() {
    KILN_RETURN_IF_ERROR(Expect("["));
    KILN_ASSIGN_OR_RETURN(IntExpr index, Expr());
    KILN_RETURN_IF_ERROR(Expect("]"));
    return index;
  }

  absl::StatusOr<int> Constant() {
    KILN_ASSIGN_OR_RETURN(int64_t value, Int());
    if (value < 0 || value > kMaxConstant) {
      return Error(absl::StrCat("expected 0 to ", kMaxConstant));
    }
    return static_cast<int>(value);
  }

  absl::StatusOr<ir::ValueId> Result() {
    KILN_ASSIGN_OR_RETURN(ir::ValueId id, Value());
    tree_->num_values = std::max(tree_->num_values, id + 1);
    return id;
  }

  absl::StatusOr<Node> UpdateRest() {
    Update update;
    KILN_ASSIGN_OR_RETURN(update.alloc, AllocRef());
    KILN_ASSIGN_OR_RETURN(update.index, Index());
    KILN_RETURN_IF_ERROR(Expect(","));
    KILN_ASSIGN_OR_RETURN(update.value, Result());
    if (Accept("at")) {
      KILN_ASSIGN_OR_RETURN(update.number, Expr());
    }
    if (Accept("first")) update.order = UpdateOrder::kFirst;
    if (Accept("later")) update.order = UpdateOrder::kLater;
    return Node{update};
  }

  absl::StatusOr<Node> FoldRest() {
    Fold fold;
    KILN_ASSIGN_OR_RETURN(fold.into, AllocRef());
    KILN_RETURN_IF_ERROR(Expect(","));
    KILN_ASSIGN_OR_RETURN(fold.from, AllocRef());
    return Node{fold};
  }

  absl::StatusOr<Node> PrefetchRest() {
    Prefetch prefetch;
    KILN_ASSIGN_OR_RETURN(prefetch.buffer, BufferRef());
    KILN_ASSIGN_OR_RETURN(prefetch.index, Index());
    KILN_RETURN_IF_ERROR(Expect(","));
    KILN_ASSIGN_OR_RETURN(prefetch.count, Constant());
    return Node{prefetch};
  }

  absl::StatusOr<Node> MicroRest() {
    const std::optional<MicroKind> kind = MicroKindFromName(token_.text);
    if (token_.kind != TokenKind::kIdentifier || !kind) return Expected("a micro-kernel");
    Advance();
    const MicroInfo& info = Info(*kind);
    Micro micro{*kind, {}, {}, {}};
    for (size_t i = 0; i < info.constants; ++i) {
      KILN_RETURN_IF_ERROR(Expect(i == 0 ? "<" : ","));
      KILN_ASSIGN_OR_RETURN(int constant, Constant());
      micro.constants.push_back(constant);
    }
    if (info.constants > 0) KILN_RETURN_IF_ERROR(Expect(">"));
    for (size_t i = 0; i < NumWindows(*kind, micro.constants); ++i) {
      KILN_RETURN_IF_ERROR(Expect(i == 0 ? "(" : ","));
      schedule::Window window;
      if (token_.kind == TokenKind::kIdentifier) {
        KILN_ASSIGN_OR_RETURN(window.alloc, AllocRef());
      } else {
        KILN_ASSIGN_OR_RETURN(window.buffer, BufferRef());
      }
      KILN_ASSIGN_OR_RETURN(window.index, Index());
      micro.windows.push_back(window);
    }
    for (size_t i = 0; i < info.sizes; ++i) {
      KILN_RETURN_IF_ERROR(Expect(i == 0 ? ";" : ","));
      KILN_ASSIGN_OR_RETURN(IntExpr size, Expr());
      micro.sizes.push_back(size);
    }
    KILN_RETURN_IF_ERROR(Expect(")"));
    return Node{std::move(micro)};
  }

  absl::StatusOr<Node> ComputeOrCombine() {
    const ir::Lexer bookmark = lexer_;
    const ir::Token token = token_;
    if (token_.kind == TokenKind::kValue) {
      KILN_ASSIGN_OR_RETURN(ir::ValueId result, Result());
      KILN_RETURN_IF_ERROR(Expect("="));
      if (Accept("combine")) {
        Combine combine;
        combine.result = result;
        KILN_ASSIGN_OR_RETURN(combine.dtype, Type());
        KILN_ASSIGN_OR_RETURN(combine.from, AllocRef());
        combine.best = Accept("best");
        return Node{combine};
      }
      lexer_ = bookmark;
      token_ = token;
    }
    Compute compute;
    place_ = -1;
    KILN_ASSIGN_OR_RETURN(compute.inst, Instruction());
    for (ir::ValueId id : compute.inst.operands) {
      tree_->num_values = std::max(tree_->num_values, id + 1);
    }
    compute.alloc = place_;
    compute.stream = Accept("stream");
    return Node{std::move(compute)};
  }

  std::vector<Tree> trees_;
  Tree* tree_ = nullptr;  // that is being read
  absl::flat_hash_map<std::string, AllocId> allocs_;
  AllocId place_ = -1;  // that the instruction being read accesses
  size_t nodes_ = 0;
};

}  // namespace

absl::StatusOr<Scheduled> Parse(absl::string_view text) {
  if (text.size() > ir::kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("line 1: the text has ", text.size(),
                                                   " bytes, more than ", ir::kMaxTextBytes));
  }
  return Parser(text).ParseScheduled();
}

}  // namespace kiln::schedule
