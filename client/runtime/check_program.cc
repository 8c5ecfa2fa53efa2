// Structural checks of a program, before anything is computed from it.
#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/malformed.h"
#include "client/runtime/plan.h"
#include "client/runtime/symbols.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/digest.h"
#include "proto/base/dtype.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

constexpr int kMaxDepth = 60;
constexpr int kMaxBuffersOfLaunch = 4096;
constexpr int kMaxGridSizes = 3;

class Checker {
 public:
  explicit Checker(const v1::Program& program)
      : program_(program),
        used_symbols_(program.symbols_size()),
        made_(program.buffers_size(), false) {}

  absl::Status Check() {
    KILN_RETURN_IF_ERROR(CheckInputs());
    for (int i = 0; i < program_.buffers_size(); ++i) KILN_RETURN_IF_ERROR(CheckBuffer(i));
    if (program_.prepare_steps() > static_cast<uint32_t>(program_.steps_size())) {
      return Malformed("the prepare part", "has more steps than there are");
    }
    for (int i = 0; i < program_.steps_size(); ++i) KILN_RETURN_IF_ERROR(CheckStep(i));
    for (int i = 0; i < static_cast<int>(program_.prepare_steps()); ++i) {
      KILN_RETURN_IF_ERROR(CheckPrepareStep(i));
    }
    for (int i = 0; i < program_.buffers_size(); ++i) {
      if (!made_[i]) return Malformed(absl::StrCat("library buffer ", i), "is made by no step");
    }
    for (int i = 0; i < program_.outputs_size(); ++i) KILN_RETURN_IF_ERROR(CheckOutput(i));
    KILN_RETURN_IF_ERROR(CheckInt("the workspace's size", program_.workspace_bytes()));
    return CheckSymbolSources();
  }

 private:
  absl::Status CheckInputs() {
    for (int i = 0; i < program_.symbols_size(); ++i) {
      if (program_.symbols(i).min() > program_.symbols(i).max()) {
        return Malformed(absl::StrCat("symbol ", i), "has an empty range");
      }
    }
    for (int i = 0; i < program_.inputs_size(); ++i) {
      const v1::ValueType& type = program_.inputs(i).type();
      std::string where = absl::StrCat("input ", i);
      if (type.has_tensor()) {
        const v1::TensorType& t = type.tensor();
        KILN_RETURN_IF_ERROR(CheckType(where, t.dtype(), t.sizes(), t.strides()));
      } else if (type.has_sym_int()) {
        KILN_RETURN_IF_ERROR(CheckInt(where, type.sym_int()));
      } else {
        return Malformed(where, "has no type");
      }
    }
    for (int i = 0; i < program_.constants_size(); ++i) {
      if (program_.constants(i).data().size() > (size_t{1} << 30)) {
        return Malformed(absl::StrCat("constant ", i), "is too large");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckBuffer(int i) {
    const v1::Buffer& buffer = program_.buffers(i);
    std::string where = absl::StrCat("buffer ", i);
    KILN_RETURN_IF_ERROR(CheckType(where, buffer.dtype(), buffer.sizes(), buffer.strides()));
    KILN_RETURN_IF_ERROR(CheckInt(where, buffer.workspace_offset()));
    KILN_RETURN_IF_ERROR(CheckInt(where, buffer.size_bytes()));
    made_[i] = buffer.kind() != v1::Buffer::KIND_LIBRARY;
    switch (buffer.kind()) {
      case v1::Buffer::KIND_INPUT:
        if (buffer.index() >= static_cast<uint32_t>(program_.inputs_size()) ||
            !program_.inputs(static_cast<int>(buffer.index())).type().has_tensor()) {
          return Malformed(where, "refers to an input that is no tensor");
        }
        return absl::OkStatus();
      case v1::Buffer::KIND_CONSTANT:
        if (buffer.index() >= static_cast<uint32_t>(program_.constants_size())) {
          return Malformed(where, "refers to a constant that does not exist");
        }
        return absl::OkStatus();
      case v1::Buffer::KIND_PREPARED: {
        const auto symbolic = [](const v1::SymInt& value) { return value.has_expr(); };
        if (symbolic(buffer.workspace_offset()) || symbolic(buffer.size_bytes()) ||
            std::any_of(buffer.sizes().begin(), buffer.sizes().end(), symbolic) ||
            std::any_of(buffer.strides().begin(), buffer.strides().end(), symbolic)) {
          return Malformed(where, "is prepared and depends on a symbol");
        }
        return absl::OkStatus();
      }
      case v1::Buffer::KIND_OUTPUT:
      case v1::Buffer::KIND_WORKSPACE:
      case v1::Buffer::KIND_LIBRARY:
        return absl::OkStatus();
      default:
        return Malformed(where, "is of an unknown kind");
    }
  }

  absl::Status CheckStep(int i) {
    const v1::Step& step = program_.steps(i);
    std::string where = absl::StrCat("step ", i);
    switch (step.kind_case()) {
      case v1::Step::kLaunch:
        KILN_RETURN_IF_ERROR(CheckAlternatives(where, i, step.launch()));
        return CheckLaunch(where, step.launch());
      case v1::Step::kLibrary:
        return CheckLibrary(where, step.library());
      case v1::Step::kCopy:
        KILN_RETURN_IF_ERROR(CheckView(where, step.copy().from()));
        KILN_RETURN_IF_ERROR(CheckView(where, step.copy().to()));
        if (step.copy().from().dtype() != step.copy().to().dtype()) {
          return Malformed(where, "copies between two types");
        }
        return absl::OkStatus();
      case v1::Step::KIND_NOT_SET:
        break;
    }
    return Malformed(where, "is of an unknown kind");
  }

  // It may run once for many runs: nothing that it reads changes without the caller's knowing.
  // (CheckLaunches sees what it writes.)
  absl::Status CheckPrepareStep(int i) {
    const std::string where = absl::StrCat("prepare step ", i);
    if (!program_.steps(i).has_launch()) return Malformed(where, "is no launch");
    const v1::LaunchStep& launch = program_.steps(i).launch();
    for (const v1::SymInt& value : launch.symbols()) {
      if (value.has_expr()) return Malformed(where, "depends on a symbol");
    }
    for (uint32_t number : launch.buffers()) {
      const v1::Buffer& buffer = program_.buffers(static_cast<int>(number));
      const bool is_fixed =
          buffer.kind() == v1::Buffer::KIND_PREPARED ||
          buffer.kind() == v1::Buffer::KIND_CONSTANT ||
          (buffer.kind() == v1::Buffer::KIND_INPUT &&
           program_.inputs(static_cast<int>(buffer.index())).role() == v1::Input::ROLE_PARAMETER);
      if (!is_fixed) {
        return Malformed(where, absl::StrCat("uses buffer ", number, ", which is no parameter"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckAlternatives(absl::string_view where, int i, const v1::LaunchStep& launch) {
    const int64_t alternatives = launch.alternatives();
    if (alternatives == 0) return absl::OkStatus();
    if (i < static_cast<int>(program_.prepare_steps())) {
      return Malformed(where, "is a prepare step with alternatives");
    }
    if (alternatives >= program_.steps_size() - i) {
      return Malformed(where, "has more alternatives than there are steps");
    }
    for (int n = i + 1; n <= i + alternatives; ++n) {
      if (program_.steps(n).has_launch() && program_.steps(n).launch().alternatives() == 0)
        continue;
      return Malformed(where, absl::StrCat("has step ", n, " as an alternative, which is none"));
    }
    return launch.choice().size() == sizeof(Digest::bytes)
               ? absl::OkStatus()
               : Malformed(where, "has alternatives and no key of their choice");
  }

  absl::Status CheckLaunch(absl::string_view where, const v1::LaunchStep& launch) {
    if (launch.kernel().empty()) return Malformed(where, "names no kernel");
    if (launch.buffers_size() > kMaxBuffersOfLaunch)
      return Malformed(where, "has too many buffers");
    for (uint32_t buffer : launch.buffers()) KILN_RETURN_IF_ERROR(CheckUse(where, buffer));
    for (const v1::SymInt& s : launch.symbols()) KILN_RETURN_IF_ERROR(CheckInt(where, s));
    KILN_RETURN_IF_ERROR(CheckInt(where, launch.scratch_bytes()));
    KILN_RETURN_IF_ERROR(CheckInt(where, launch.thread_scratch_bytes()));
    if (HasUnknownFields(launch) || HasUnknownFields(launch.grid())) {
      return absl::FailedPreconditionError(absl::StrCat(
          where, " says more of its launch than this client knows: the server is a newer one"));
    }
    return launch.has_grid() ? CheckGrid(where, launch.grid()) : absl::OkStatus();
  }

  static bool HasUnknownFields(const google::protobuf::Message& message) {
    return !message.GetReflection()->GetUnknownFields(message).empty();
  }

  absl::Status CheckGrid(absl::string_view where, const v1::Grid& grid) {
    for (const auto* sizes : {&grid.blocks(), &grid.threads()}) {
      if (sizes->empty() || sizes->size() > kMaxGridSizes) {
        return Malformed(
            where, absl::StrCat("has a grid with ", grid.blocks_size(), " sizes of blocks and ",
                                grid.threads_size(), " of threads"));
      }
      for (const v1::SymInt& size : *sizes) KILN_RETURN_IF_ERROR(CheckInt(where, size));
    }
    return CheckInt(where, grid.shared_bytes());
  }

  absl::Status CheckLibrary(absl::string_view where, const v1::LibraryStep& step) {
    for (const auto& arg : step.args()) KILN_RETURN_IF_ERROR(CheckArg(where, arg, 0));
    for (const auto& arg : step.kwargs()) KILN_RETURN_IF_ERROR(CheckArg(where, arg.value(), 0));
    if (step.positions_size() != 0 && step.positions_size() != step.results_size()) {
      return Malformed(where, absl::StrCat("has ", step.results_size(), " results and ",
                                           step.positions_size(), " positions"));
    }
    for (int i = 1; i < step.positions_size(); ++i) {
      if (step.positions(i) <= step.positions(i - 1))
        return Malformed(where, "takes results in no order");
    }
    for (uint32_t result : step.results()) {
      if (result >= made_.size() ||
          program_.buffers(static_cast<int>(result)).kind() != v1::Buffer::KIND_LIBRARY ||
          made_[result]) {
        return Malformed(where, absl::StrCat("makes buffer ", result,
                                             ", which is no library buffer or was made before"));
      }
      made_[result] = true;
    }
    return absl::OkStatus();
  }

  absl::Status CheckArg(absl::string_view where, const v1::LibraryStep::Arg& arg, int depth) {
    if (depth > kMaxDepth) return Malformed(where, "has arguments nested too deep");
    switch (arg.kind_case()) {
      case v1::LibraryStep::Arg::kTensor:
        return CheckView(where, arg.tensor());
      case v1::LibraryStep::Arg::kScalar:
        return CheckScalar(where, arg.scalar(), depth + 1);
      case v1::LibraryStep::Arg::kList:
        for (const auto& item : arg.list().items()) {
          KILN_RETURN_IF_ERROR(CheckArg(where, item, depth + 1));
        }
        return absl::OkStatus();
      case v1::LibraryStep::Arg::KIND_NOT_SET:
        break;
    }
    return Malformed(where, "has an argument of an unknown kind");
  }

  absl::Status CheckScalar(absl::string_view where, const v1::Argument& arg, int depth) {
    if (depth > kMaxDepth) return Malformed(where, "has arguments nested too deep");
    if (arg.kind_case() == v1::Argument::kValue) return Malformed(where, "has a value as a scalar");
    if (arg.has_sym_int()) return CheckInt(where, arg.sym_int());
    for (const v1::Argument& item : arg.list().items()) {
      KILN_RETURN_IF_ERROR(CheckScalar(where, item, depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOutput(int i) {
    const v1::ProgramOutput& output = program_.outputs(i);
    std::string where = absl::StrCat("output ", i);
    switch (output.kind_case()) {
      case v1::ProgramOutput::kTensor:
        KILN_RETURN_IF_ERROR(CheckView(where, output.tensor()));
        switch (program_.buffers(static_cast<int>(output.tensor().buffer())).kind()) {
          case v1::Buffer::KIND_WORKSPACE:
          case v1::Buffer::KIND_PREPARED:
            return Malformed(where, "lies in memory that the program keeps");
          default:
            break;
        }
        return absl::OkStatus();
      case v1::ProgramOutput::kSymInt:
        return CheckInt(where, output.sym_int());
      case v1::ProgramOutput::kNone:
        return absl::OkStatus();
      case v1::ProgramOutput::KIND_NOT_SET:
        break;
    }
    return Malformed(where, "is of an unknown kind");
  }

  absl::Status CheckView(absl::string_view where, const v1::BufferView& view) {
    KILN_RETURN_IF_ERROR(CheckUse(where, view.buffer()));
    if (program_.buffers(static_cast<int>(view.buffer())).dtype() != view.dtype()) {
      return Malformed(where, "views a buffer as another type");
    }
    KILN_RETURN_IF_ERROR(CheckType(where, view.dtype(), view.sizes(), view.strides()));
    return CheckInt(where, view.offset());
  }

  absl::Status CheckUse(absl::string_view where, uint32_t buffer) {
    if (buffer >= made_.size())
      return Malformed(where, absl::StrCat("uses buffer ", buffer, " of ", made_.size()));
    if (!made_[buffer]) {
      return Malformed(where, absl::StrCat("uses library buffer ", buffer, " before it is made"));
    }
    return absl::OkStatus();
  }

  template <typename Sizes>
  absl::Status CheckType(absl::string_view where, int dtype, const Sizes& sizes,
                         const Sizes& strides) {
    if (!DTypeFromProto(dtype).ok())
      return Malformed(where, absl::StrCat("has unknown dtype ", dtype));
    if (sizes.size() != strides.size() || sizes.size() > KILN_MAX_DIMS) {
      return Malformed(
          where, absl::StrCat("has ", sizes.size(), " sizes and ", strides.size(), " strides"));
    }
    for (const v1::SymInt& s : sizes) KILN_RETURN_IF_ERROR(CheckInt(where, s));
    for (const v1::SymInt& s : strides) KILN_RETURN_IF_ERROR(CheckInt(where, s));
    return absl::OkStatus();
  }

  absl::Status CheckInt(absl::string_view where, const v1::SymInt& value) {
    return value.has_expr() ? CheckExpr(where, value.expr(), 0) : absl::OkStatus();
  }

  absl::Status CheckExpr(absl::string_view where, const v1::SymExpr& expr, int depth) {
    if (depth > kMaxDepth) return Malformed(where, "has an expression nested too deep");
    if (expr.kind() == v1::SymExpr::KIND_CONSTANT) return absl::OkStatus();
    if (expr.kind() == v1::SymExpr::KIND_SYMBOL) {
      if (expr.symbol() >= used_symbols_.size()) {
        return Malformed(where,
                         absl::StrCat("uses symbol ", expr.symbol(), " of ", used_symbols_.size()));
      }
      used_symbols_[expr.symbol()] = true;
      return absl::OkStatus();
    }
    bool binary =
        expr.kind() == v1::SymExpr::KIND_FLOOR_DIV || expr.kind() == v1::SymExpr::KIND_MOD;
    if (expr.kind() < v1::SymExpr::KIND_ADD || expr.kind() > v1::SymExpr::KIND_MAX ||
        expr.operands_size() < 1 || (binary && expr.operands_size() != 2)) {
      return Malformed(where, "has an expression without its operands");
    }
    for (const v1::SymExpr& operand : expr.operands()) {
      KILN_RETURN_IF_ERROR(CheckExpr(where, operand, depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSymbolSources() {
    std::vector<SymbolSource> sources = FindSymbolSources(program_);
    for (size_t s = 0; s < sources.size(); ++s) {
      const v1::Symbol& symbol = program_.symbols(static_cast<int>(s));
      if (used_symbols_[s] && sources[s].kind == SymbolSource::Kind::kNone &&
          symbol.min() != symbol.max()) {
        return Malformed(absl::StrCat("symbol '", symbol.name(), "'"),
                         "has no input that gives it");
      }
    }
    return absl::OkStatus();
  }

  const v1::Program& program_;
  std::vector<bool> used_symbols_;
  std::vector<bool> made_;  // by buffer: holds data at this point of the steps
};

}  // namespace

absl::Status CheckProgram(const v1::Program& program) {
  return Checker(program).Check();
}

}  // namespace kiln::runtime
