#include "compiler/schedule/gcu/layout.h"

#include <cstdlib>
#include <optional>

#include "absl/algorithm/container.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/split.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::schedule::gcu {
namespace {

using ir::BufferId;
using ir::BufferKind;
using ir::Kernel;
using ir::ScalarOp;

// Whether every index is a loop's variable of its own, or a number; the loop by dimension, -1.
std::optional<std::vector<int>> PlainLoops(const Form& form, const Access& access) {
  std::vector<int> loops;
  for (const Affine& index : access.indices) {
    int loop = -1;
    for (size_t l = 0; l < form.loops.size(); ++l) {
      if (index.coefficients[l] == 0) continue;
      if (index.coefficients[l] != 1 || loop >= 0) return std::nullopt;
      loop = static_cast<int>(l);
    }
    loops.push_back(loop);
  }
  return loops;
}

void LayOutStores(ir::Module& module, const std::vector<bool>& own, const Kernel& kernel) {
  const absl::StatusOr<Form> form = MakeForm(module, kernel);
  if (!form.ok()) return;
  const std::optional<MatrixRoles> roles = RolesOf(module, *form);
  for (const Access& access : form->accesses) {
    const BufferId id = access.inst->buffer;
    if (access.inst->op != ScalarOp::kStore || !own[id]) continue;
    const std::optional<std::vector<int>> loops = PlainLoops(*form, access);
    if (!loops) continue;
    std::vector<int64_t> weights;
    if (roles) {
      for (int l : *loops) {
        const bool column = absl::c_linear_search(roles->columns, l);
        weights.push_back(l < 0 ? 1000 : column ? -1 - l : 900 - l);
      }
    } else {
      // As the largest buffer that it is made of lies.
      const Access* from = nullptr;
      int64_t most = 0;
      for (const Access& load : form->accesses) {
        if (load.inst->op != ScalarOp::kLoad) continue;
        const ir::Buffer& buffer = module.buffers[load.inst->buffer];
        const int64_t size = TypicalOf(*module.ints, ir::NumElements(*module.ints, buffer));
        if (size > most) {
          most = size;
          from = &load;
        }
      }
      if (from == nullptr) continue;
      const ir::Buffer& buffer = module.buffers[from->inst->buffer];
      bool all = true;
      for (int l : *loops) {
        int64_t stride = 0;
        for (size_t d = 0; l >= 0 && d < from->indices.size(); ++d) {
          stride += std::abs(from->indices[d].coefficients[l]) *
                    TypicalOf(*module.ints, buffer.strides[d]);
        }
        all = all && (l < 0 || stride != 0 || form->loops[l].extent.is_const(1));
        weights.push_back(l < 0 ? int64_t{1} << 60 : stride);
      }
      if (!all) continue;
    }
    ir::Buffer& stored = module.buffers[id];
    stored.strides = PackedStrides(*module.ints, stored.sizes, weights);
  }
}

}  // namespace

std::vector<bool> OwnBuffers(const ir::Module& module, const BufferUses& uses) {
  std::vector<bool> own(module.buffers.size());
  for (size_t b = 0; b < own.size(); ++b) {
    const auto id = static_cast<BufferId>(b);
    own[b] = module.buffers[b].kind == BufferKind::kTemp && uses.StorerOf(id) &&
             !uses.LoadersOf(id).empty();
  }
  return own;
}

void LayOut(ir::Module& module) {
  const std::vector<bool> own = OwnBuffers(module, BufferUses(module));
  Unflatten(module, own);
  for (const ir::Operation& operation : module.operations) {
    if (const auto* kernel = std::get_if<Kernel>(&operation)) LayOutStores(module, own, *kernel);
  }
}

}  // namespace kiln::schedule::gcu
