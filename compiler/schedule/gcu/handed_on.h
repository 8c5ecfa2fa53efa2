// What contiguous kernels hand on among themselves, and how much of it lives at one time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/tileable.h"

namespace kiln::schedule::gcu {

class Handing {
 public:
  // `own`: OwnBuffers. What is given must outlive it.
  Handing(const ir::Module& module, const BufferUses& uses, const std::vector<bool>& own)
      : module_(module), uses_(uses), own_(own) {}

  // Buffers that the kernels of these operations hand on among themselves alone, in the order of
  // first stores.
  std::vector<ir::BufferId> Of(size_t begin, size_t end) const;

  struct Peak {
    int64_t bytes = 0;
    size_t kernel = 0;  // where it is
  };
  // The most bytes of these buffers that live at once. `bytes`: of each. `lasting`: those that live
  // all the time.
  Peak PeakOf(const std::vector<ir::BufferId>& kept, size_t begin, size_t end,
              const std::vector<int64_t>& bytes, const std::vector<bool>& lasting = {}) const;

  // Those that stay where there is `room`: where together they do not fit, those go that take the
  // most room for the longest time beside how often they are used. `bytes`: of each of `kept`.
  std::vector<ir::BufferId> Keep(std::vector<ir::BufferId> kept, size_t begin, size_t end,
                                 std::vector<int64_t> bytes, int64_t room) const;

 private:
  size_t LastUse(ir::BufferId id) const { return uses_.LoadersOf(id).back(); }

  const ir::Module& module_;
  const BufferUses& uses_;
  const std::vector<bool>& own_;
};

}  // namespace kiln::schedule::gcu
