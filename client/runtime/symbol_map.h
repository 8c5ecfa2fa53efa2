// Which symbol of a program is which of the graph that was asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::runtime {

// A key is blind to the numbers of symbols, so a program made for an equal graph may have others.
class SymbolMap {
 public:
  using Symbols = google::protobuf::RepeatedPtrField<v1::Symbol>;
  SymbolMap(const Symbols& of_graph, const Symbols& of_program);

  // Whether both are the same, term by term. Symbols met here first become each other's partners,
  // where the program is for no value that the graph does not have.
  bool Match(const v1::SymInt& of_graph, const v1::SymInt& of_program);
  bool Match(const v1::TensorType& of_graph, const v1::TensorType& of_program);

  // Gives every symbol its number in the program. INVALID_ARGUMENT for one without a partner that
  // has several values.
  absl::Status Translate(v1::SymInt& size) const;
  absl::Status Translate(v1::TensorType& type) const;
  absl::Status Translate(v1::ValueType& type) const;
  absl::Status Translate(v1::Argument& arg) const;

 private:
  bool Match(const v1::SymExpr& of_graph, const v1::SymExpr& of_program, int depth);
  bool MatchSymbol(uint32_t of_graph, uint32_t of_program);
  absl::Status Translate(v1::SymExpr& expr, int depth) const;
  absl::Status Translate(v1::Argument& arg, int depth) const;

  const Symbols& graph_;
  const Symbols& program_;
  std::vector<std::optional<uint32_t>> to_program_, to_graph_;
};

}  // namespace kiln::runtime
