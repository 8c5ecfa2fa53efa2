#include "compiler/ir/identity.h"

#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/fixed_values.h"

namespace kiln::ir {

IdentityWriter::IdentityWriter(const Module& module)
    : module_(module), names_(NameModule(module)), sizes_(names_, nullptr, nullptr) {}

std::string IdentityWriter::Text(const Operation& operation, std::vector<BufferId>& buffers) {
  ForEachInst(operation, [&](const Inst& inst) {
    if (inst.buffer < 0 || absl::c_linear_search(buffers, inst.buffer)) return;
    names_.buffers[inst.buffer] = absl::StrCat("@", buffers.size());
    buffers.push_back(inst.buffer);
  });
  std::string out;
  if (const auto* repeat = std::get_if<Repeat>(&operation)) {
    for (int64_t steps : repeat->steps) absl::StrAppend(&out, steps, " ");
    absl::StrAppend(&out, "before ", repeat->before, " after ", repeat->after, " ");
    for (const std::vector<TileWindow>& windows : repeat->windows) {
      for (const TileWindow& w : windows)
        absl::StrAppend(&out, w.scale, " ", w.low, " ", w.high, " ");
    }
    for (IntExpr symbol : repeat->by) absl::StrAppend(&out, "by ", sizes_.Text(symbol), " ");
    for (const RepeatVersion& version : repeat->versions) out += VersionText(names_, version);
  }
  for (const Kernel& kernel : KernelsOf(operation)) AppendKernel(kernel, out);
  for (BufferId buffer : buffers) AppendBuffer(module_.buffers[buffer], out);
  return out;
}

void IdentityWriter::AppendKernel(const Kernel& kernel, std::string& out) const {
  absl::StrAppend(&out, "kernel ", static_cast<int>(kernel.schedule));
  AppendLoops(kernel.outer, out);
  for (const Phase& phase : kernel.phases) {
    absl::StrAppend(&out, "phase");
    AppendLoops(phase.inner, out);
    const VarNames vars = NameVars(kernel.outer, phase.inner);
    for (const Inst& inst : phase.body) {
      absl::StrAppend(&out, InstText(module_, names_, vars, inst), "\n");
    }
  }
}

void IdentityWriter::AppendLoops(const std::vector<IntExpr>& vars, std::string& out) const {
  for (IntExpr var : vars) absl::StrAppend(&out, " ", sizes_.Text(var.extent()));
  absl::StrAppend(&out, "\n");
}

// Of what it is for, only what a schedule heeds.
void IdentityWriter::AppendBuffer(const Buffer& buffer, std::string& out) const {
  absl::StrAppend(&out, "buffer ", static_cast<int>(buffer.dtype), "[",
                  sizes_.ListText(buffer.sizes), "][", sizes_.ListText(buffer.strides), "]",
                  IsFixed(buffer) ? " fixed" : "",
                  buffer.kind == BufferKind::kTile ? " tile\n" : "\n");
}

std::vector<Identity> Identify(const Module& module) {
  IdentityWriter writer(module);
  absl::flat_hash_map<std::string, size_t> known;
  std::vector<Identity> out;
  for (size_t i = 0; i < module.operations.size(); ++i) {
    const Operation& operation = module.operations[i];
    Identity& identity = out.emplace_back(i);
    if (std::holds_alternative<Library>(operation)) continue;
    std::string text = writer.Text(operation, identity.buffers);
    identity.first = known.try_emplace(std::move(text), i).first->second;
  }
  return out;
}

}  // namespace kiln::ir
