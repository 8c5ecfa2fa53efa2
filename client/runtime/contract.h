// What a graph promises about its program, whatever a server answers.
//
// All that a client believes of an artifact is its machine code. Inputs, outputs, constants, ranges
// of sizes and the calls of library steps follow from the graph that was asked for; this is the one
// place where they are derived from it, and a program that differs is refused.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/runtime/plan.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::runtime {

// Immutable. Its graph's numbers of symbols are the program's: equal keys allow other ones.
class Contract {
 public:
  // Compares what needs no sizes. DATA_LOSS with the place where the program is not the graph's;
  // INVALID_ARGUMENT for a graph that makes no sense. REQUIRES: CheckProgram(program) passed, and
  // `program` outlives the contract.
  static absl::StatusOr<std::unique_ptr<const Contract>> Compare(const v1::Graph& graph,
                                                                 const v1::Program& program);

  // Compares the rest: sizes, strides and numbers of outputs and library steps. DATA_LOSS with the
  // place. REQUIRES: a plan of the program.
  absl::Status CheckPlan(const Plan& plan) const;

  // Whether the graph writes the input in place.
  bool MayWrite(int input) const { return written_[static_cast<size_t>(input)]; }

 private:
  struct Output {
    kiln_value_kind kind = KILN_NONE;
    v1::SymInt number;
    v1::TensorType type;
    uint32_t root = 0;      // the value whose memory it lies in, in eager mode
    bool at_start = false;  // from its first byte on
    bool is_value = false;  // the root itself
  };
  class Maker;

  explicit Contract(const v1::Program& program) : program_(program) {}
  absl::Status CheckOutput(const Plan& plan, size_t i) const;
  absl::Status CheckLibrarySteps(const Plan& plan) const;
  // Whether a step is a call of nodes_[number], at the plan's sizes.
  bool IsCall(const Plan& plan, const PlanLibrary& at, const v1::LibraryStep& step,
              size_t number) const;
  bool IsType(const Plan& plan, const PlanTensor& at, uint32_t value) const;

  const v1::Program& program_;
  std::vector<bool> written_;  // by input
  std::vector<Output> outputs_;
  std::vector<v1::Node> nodes_;          // those that a library step may be a call of
  std::vector<uint32_t> first_results_;  // of each of them: the number of its first result
  absl::flat_hash_map<uint32_t, v1::ValueType> types_;  // of their arguments and results
};

}  // namespace kiln::runtime
