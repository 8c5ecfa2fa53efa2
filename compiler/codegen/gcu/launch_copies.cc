#include "compiler/codegen/gcu/launch_copies.h"

#include <algorithm>

#include "proto/gcu/instructions.inc.h"

namespace kiln::codegen::gcu {
namespace {

constexpr int64_t kPartBytes = 512;  // parts are multiples of it
constexpr int kOwnTokens = KILN_GCU_TOKENS - kStageTokens;

// `bytes` from byte `at` on, if there are any.
void AppendCopy(const Placement& in_l3, const Placement& in_l2, Scalar at, Scalar bytes, int token,
                Code& code) {
  Tile from, to;
  from.type = to.type = Type::kU8;
  from.space = Space::kL3;
  to.space = Space::kL2;
  from.dims = to.dims = {{code.Max(Known(0), bytes), Known(1)}};
  from.address = code.Add(code.Argument(in_l3.argument), at);
  to.address = code.Add(code.Add(InRegister(5), at), Known(in_l2.offset));
  code.Copy(to, from, token);
}

}  // namespace

void AppendBesideCopies(const std::vector<BesideCopy>& copies, int next_step,
                        const std::vector<Placement>& in_l3, const std::vector<Placement>& in_l2,
                        Code& code) {
  const Label others = code.NewLabel();
  const int before = code.mark();
  const CoreSteps& by = copies[0].by;
  code.JumpIf(Op::kJumpNotEqual, InRegister(0), Known(by.core), others);
  const Scalar number = code.Add(InRegister(next_step), Known(-1 - by.first));
  for (const BesideCopy& copy : copies) {
    const int scope = code.mark();
    const Scalar done = code.Multiply(number, Known(copy.piece_bytes));
    const Scalar left = code.Subtract(Known(copy.part.bytes), done);
    AppendCopy(in_l3[copy.buffer], in_l2[copy.buffer], code.Add(done, Known(copy.part.begin)),
               code.Min(Known(copy.piece_bytes), left), copy.token, code);
    code.Release(scope);
  }
  code.Bind(others);
  code.Release(before);
}

void AppendWholeCopies(const std::vector<ir::BufferId>& buffers, const ir::Module& module,
                       const std::vector<Placement>& in_l3, const std::vector<Placement>& in_l2,
                       int cores, Code& code) {
  int copies = 0;
  for (const ir::BufferId buffer : buffers) {
    const int64_t all = *schedule::gcu::DenseBytes(module.buffers[buffer]);
    const int64_t part = (all + cores - 1) / cores;
    const int64_t bytes = (part + kPartBytes - 1) / kPartBytes * kPartBytes;
    const int scope = code.mark();
    const Scalar at = code.Multiply(InRegister(0), Known(bytes));
    AppendCopy(in_l3[buffer], in_l2[buffer], at,
               code.Min(Known(bytes), code.Subtract(Known(all), at)),
               kStageTokens + copies++ % kOwnTokens, code);
    code.Release(scope);
  }
  for (int token = 0; token < std::min(copies, kOwnTokens); ++token) {
    code.Wait(kStageTokens + token);
  }
}

}  // namespace kiln::codegen::gcu
