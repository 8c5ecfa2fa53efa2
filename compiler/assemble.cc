#include "compiler/assemble.h"

#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/grid.h"
#include "compiler/ir/fixed_values.h"
#include "compiler/sym_int.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

template <typename Repeated>
absl::Status ToSymInts(const std::vector<ir::IntExpr>& in, Repeated* out) {
  for (ir::IntExpr expr : in) {
    KILN_ASSIGN_OR_RETURN(*out->Add(), ToSymInt(expr));
  }
  return absl::OkStatus();
}

class Assembler {
 public:
  Assembler(const ir::Module& module, const memory::Plan& plan, v1::Program& program)
      : module_(module), plan_(plan), program_(program) {}

  absl::Status AddLaunch(const NamedKernel& kernel) {
    KILN_RETURN_IF_ERROR(AddOne(kernel));
    if (kernel.alternatives.empty()) return absl::OkStatus();
    program_.mutable_steps()->rbegin()->mutable_launch()->set_alternatives(
        static_cast<uint32_t>(kernel.alternatives.size()));
    for (const NamedKernel& other : kernel.alternatives) KILN_RETURN_IF_ERROR(AddOne(other));
    return absl::OkStatus();
  }

  absl::Status AddLibrary(const ir::Library& library) {
    v1::LibraryStep& step = *program_.add_steps()->mutable_library();
    step.set_op(library.op);
    step.set_node(library.origin);
    for (const ir::LibraryArg& arg : library.args) {
      v1::LibraryStep::Arg* out = nullptr;
      if (arg.name.empty()) {
        out = step.add_args();
      } else {
        v1::LibraryStep::NamedArg* named = step.add_kwargs();
        named->set_name(arg.name);
        out = named->mutable_value();
      }
      KILN_RETURN_IF_ERROR(SetArg(arg, *out));
    }
    for (ir::BufferId buffer : library.results) {
      KILN_ASSIGN_OR_RETURN(uint32_t id, BufferNumber(buffer));
      step.add_results(id);
    }
    for (int position : library.positions) step.add_positions(static_cast<uint32_t>(position));
    return absl::OkStatus();
  }

  absl::Status AddOutput(const ir::ModuleOutput& output) {
    v1::ProgramOutput& out = *program_.add_outputs();
    return std::visit(Overloaded{[&](ir::NoneArg) {
                                   out.mutable_none();
                                   return absl::OkStatus();
                                 },
                                 [&](const ir::BufferWindow& window) {
                                   return SetView(window, *out.mutable_tensor());
                                 },
                                 [&](ir::IntExpr size) -> absl::Status {
                                   KILN_ASSIGN_OR_RETURN(*out.mutable_sym_int(), ToSymInt(size));
                                   return absl::OkStatus();
                                 }},
                      output.value);
  }

 private:
  absl::Status AddOne(const NamedKernel& kernel) {
    v1::LaunchStep& step = *program_.add_steps()->mutable_launch();
    step.set_kernel(kernel.symbol);
    for (ir::BufferId buffer : kernel.emitted.buffers) {
      KILN_ASSIGN_OR_RETURN(uint32_t id, BufferNumber(buffer));
      step.add_buffers(id);
    }
    ir::IntContext& ints = *module_.ints;
    const auto at_launch = [&](ir::IntExpr size) {
      return ints.Substitute(size, kernel.emitted.stands_for);
    };
    for (const int symbol : kernel.emitted.symbols) {
      KILN_ASSIGN_OR_RETURN(*step.add_symbols(), ToSymInt(at_launch(ints.Symbol(symbol))));
    }
    KILN_ASSIGN_OR_RETURN(*step.mutable_scratch_bytes(), ToSymInt(kernel.emitted.scratch_bytes));
    KILN_ASSIGN_OR_RETURN(*step.mutable_thread_scratch_bytes(),
                          ToSymInt(kernel.emitted.thread_scratch_bytes));
    if (!kernel.emitted.grid.blocks.empty()) {
      codegen::EmittedGrid grid = kernel.emitted.grid;
      for (ir::IntExpr& blocks : grid.blocks) blocks = at_launch(blocks);
      KILN_ASSIGN_OR_RETURN(*step.mutable_grid(), ToGrid(grid));
    }
    step.set_binary(static_cast<uint32_t>(kernel.emitted.binary));
    step.set_tensor_maps(static_cast<uint32_t>(kernel.emitted.tensor_maps.size()));
    step.set_zeroed(static_cast<uint32_t>(kernel.emitted.zeroed.size()));
    return absl::OkStatus();
  }

  // Buffers get numbers in order of first use; unused ones are left out.
  absl::StatusOr<uint32_t> BufferNumber(ir::BufferId id) {
    const ir::BufferId from = plan_.in_place_of[id];
    if (from >= 0 && module_.buffers[from].kind == ir::BufferKind::kInput) id = from;
    auto [it, added] = numbers_.try_emplace(id, program_.buffers_size());
    if (added) {
      const ir::Buffer& buffer = module_.buffers[id];
      v1::Buffer& out = *program_.add_buffers();
      switch (buffer.kind) {
        case ir::BufferKind::kInput:
          out.set_kind(v1::Buffer::KIND_INPUT);
          break;
        case ir::BufferKind::kConstant:
          out.set_kind(v1::Buffer::KIND_CONSTANT);
          break;
        case ir::BufferKind::kTemp:
          out.set_kind(v1::Buffer::KIND_WORKSPACE);
          break;
        case ir::BufferKind::kOutput:
          out.set_kind(v1::Buffer::KIND_OUTPUT);
          break;
        case ir::BufferKind::kLibrary:
          out.set_kind(v1::Buffer::KIND_LIBRARY);
          break;
        case ir::BufferKind::kTile:
          return absl::InternalError(absl::StrCat("a launch gets @", buffer.name, ", a tile"));
        case ir::BufferKind::kPrepared:
          out.set_kind(v1::Buffer::KIND_PREPARED);
          break;
      }
      if (buffer.index >= 0) out.set_index(static_cast<uint32_t>(buffer.index));
      if (buffer.kind == ir::BufferKind::kTemp || buffer.kind == ir::BufferKind::kPrepared) {
        KILN_ASSIGN_OR_RETURN(*out.mutable_workspace_offset(), ToSymInt(plan_.offsets[id]));
      }
      out.set_dtype(static_cast<v1::DType>(DTypeToProto(buffer.dtype)));
      KILN_ASSIGN_OR_RETURN(*out.mutable_size_bytes(),
                            ToSymInt(ir::SizeBytes(*module_.ints, buffer)));
      KILN_RETURN_IF_ERROR(ToSymInts(buffer.sizes, out.mutable_sizes()));
      KILN_RETURN_IF_ERROR(ToSymInts(buffer.strides, out.mutable_strides()));
    }
    return it->second;
  }

  absl::Status SetView(const ir::BufferWindow& window, v1::BufferView& out) {
    KILN_ASSIGN_OR_RETURN(uint32_t id, BufferNumber(window.buffer));
    out.set_buffer(id);
    out.set_dtype(static_cast<v1::DType>(DTypeToProto(module_.buffers[window.buffer].dtype)));
    KILN_RETURN_IF_ERROR(ToSymInts(window.sizes, out.mutable_sizes()));
    KILN_RETURN_IF_ERROR(ToSymInts(window.strides, out.mutable_strides()));
    KILN_ASSIGN_OR_RETURN(*out.mutable_offset(), ToSymInt(window.offset));
    if (window.row_padding > 0) out.set_row_padding(static_cast<uint32_t>(window.row_padding));
    return absl::OkStatus();
  }

  absl::Status SetArg(const ir::LibraryArg& arg, v1::LibraryStep::Arg& out) {
    return std::visit(
        Overloaded{
            [&](const ir::BufferWindow& window) { return SetView(window, *out.mutable_tensor()); },
            [&](const ir::LibraryArgs& items) {
              out.mutable_list();
              for (const ir::LibraryArg& item : items) {
                KILN_RETURN_IF_ERROR(SetArg(item, *out.mutable_list()->add_items()));
              }
              return absl::OkStatus();
            },
            [&](ir::IntExpr size) -> absl::Status {
              KILN_ASSIGN_OR_RETURN(*out.mutable_scalar()->mutable_sym_int(), ToSymInt(size));
              return absl::OkStatus();
            },
            [&](ir::NoneArg) {
              out.mutable_scalar()->mutable_none();
              return absl::OkStatus();
            },
            [&](double v) {
              out.mutable_scalar()->set_float_(v);
              return absl::OkStatus();
            },
            [&](std::complex<double> v) {
              out.mutable_scalar()->mutable_complex()->set_real(v.real());
              out.mutable_scalar()->mutable_complex()->set_imag(v.imag());
              return absl::OkStatus();
            },
            [&](bool v) {
              out.mutable_scalar()->set_bool_(v);
              return absl::OkStatus();
            },
            [&](const std::string& v) {
              out.mutable_scalar()->set_string(v);
              return absl::OkStatus();
            },
            [&](DType v) {
              out.mutable_scalar()->set_dtype(static_cast<v1::DType>(DTypeToProto(v)));
              return absl::OkStatus();
            }},
        arg.value);
  }

  const ir::Module& module_;
  const memory::Plan& plan_;
  v1::Program& program_;
  absl::flat_hash_map<ir::BufferId, uint32_t> numbers_;
};

}  // namespace

absl::StatusOr<v1::Program> Assemble(const v1::Graph& graph, const ir::Module& module,
                                     const memory::Plan& plan,
                                     const std::vector<NamedKernel>& kernels) {
  v1::Program program;
  *program.mutable_symbols() = graph.symbols();
  // Import may know more than the graph says: what the kernels rely on, the client checks.
  for (int i = 0; i < program.symbols_size(); ++i) {
    program.mutable_symbols(i)->set_min(module.ints->symbols()[i].min);
  }
  *program.mutable_inputs() = graph.inputs();
  // Another module's graph of the same key may give them in another order.
  for (v1::Input& input : *program.mutable_inputs()) input.clear_module_names();
  *program.mutable_constants() = graph.constants();
  Assembler assembler(module, plan, program);
  for (size_t i = 0; i < module.operations.size(); ++i) {
    const auto* library = std::get_if<ir::Library>(&module.operations[i]);
    if (library == nullptr && kernels[i].symbol.empty()) continue;  // another's launch runs it
    KILN_RETURN_IF_ERROR(library != nullptr ? assembler.AddLibrary(*library)
                                            : assembler.AddLaunch(kernels[i]));
    if (ir::StoresPrepared(module, KernelsOf(module.operations[i]))) {
      program.set_prepare_steps(static_cast<uint32_t>(i + 1));
    }
  }
  for (const ir::ModuleOutput& output : module.outputs) {
    KILN_RETURN_IF_ERROR(assembler.AddOutput(output));
  }
  KILN_ASSIGN_OR_RETURN(*program.mutable_workspace_bytes(), ToSymInt(plan.workspace_bytes));
  program.set_prepared_bytes(plan.prepared_bytes);
  return program;
}

}  // namespace kiln
