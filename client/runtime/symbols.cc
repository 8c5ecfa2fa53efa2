#include "client/runtime/symbols.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln::runtime {
namespace {

using Kind = SymbolSource::Kind;

class Sources {
 public:
  explicit Sources(const v1::Program& program) : sources_(program.symbols_size()) {}

  // Takes the source where `size` is a bare symbol that has none yet.
  void Offer(const v1::SymInt& size, SymbolSource source) {
    if (!size.has_expr() || size.expr().kind() != v1::SymExpr::KIND_SYMBOL) return;
    if (size.expr().symbol() >= sources_.size()) return;
    SymbolSource& slot = sources_[size.expr().symbol()];
    if (slot.kind == Kind::kNone) slot = source;
  }

  std::vector<SymbolSource> Take() { return std::move(sources_); }

 private:
  std::vector<SymbolSource> sources_;
};

}  // namespace

std::vector<SymbolSource> FindSymbolSources(const v1::Program& program) {
  Sources sources(program);
  for (int i = 0; i < program.inputs_size(); ++i) {
    sources.Offer(program.inputs(i).type().sym_int(), {Kind::kScalar, i, 0, 0});
  }
  for (Kind kind : {Kind::kSize, Kind::kStride}) {
    for (int i = 0; i < program.inputs_size(); ++i) {
      const v1::TensorType& type = program.inputs(i).type().tensor();
      const auto& list = kind == Kind::kSize ? type.sizes() : type.strides();
      for (int d = 0; d < list.size(); ++d) sources.Offer(list[d], {kind, i, d, 0});
    }
  }
  std::vector<SymbolSource> out = sources.Take();
  for (size_t s = 0; s < out.size(); ++s) {
    const v1::Symbol& symbol = program.symbols(static_cast<int>(s));
    out[s].fixed = std::max(symbol.min(), std::min(symbol.hint(), symbol.max()));
  }
  return out;
}

absl::StatusOr<std::vector<int64_t>> ReadSymbols(absl::Span<const SymbolSource> sources,
                                                 absl::Span<const kiln_tensor> inputs) {
  std::vector<int64_t> values;
  values.reserve(sources.size());
  for (const SymbolSource& source : sources) {
    if (source.kind == Kind::kNone) {
      values.push_back(source.fixed);
      continue;
    }
    const kiln_tensor& input = inputs[source.input];
    if (source.kind == Kind::kScalar) {
      values.push_back(*static_cast<const int64_t*>(input.data));
      continue;
    }
    if (source.dimension >= input.ndim) {
      return absl::InvalidArgumentError(absl::StrCat("input ", source.input, " has ", input.ndim,
                                                     " dimensions, too few for the program"));
    }
    values.push_back(source.kind == Kind::kSize ? input.sizes[source.dimension]
                                                : input.strides[source.dimension]);
  }
  return values;
}

}  // namespace kiln::runtime
