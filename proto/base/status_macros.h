// Propagates an error to the caller, who must return absl::Status or absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define KILN_RETURN_IF_ERROR(expr)                              \
  do {                                                          \
    if (absl::Status kiln_status = (expr); !kiln_status.ok()) { \
      return kiln_status;                                       \
    }                                                           \
  } while (false)

#define KILN_CONCAT_INNER(a, b) a##b
#define KILN_CONCAT(a, b) KILN_CONCAT_INNER(a, b)

#define KILN_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  if (!tmp.ok()) return std::move(tmp).status();   \
  lhs = *std::move(tmp)

// KILN_ASSIGN_OR_RETURN(auto x, F()); `lhs` may declare a variable.
#define KILN_ASSIGN_OR_RETURN(lhs, expr) \
  KILN_ASSIGN_OR_RETURN_IMPL(KILN_CONCAT(kiln_statusor_, __LINE__), lhs, expr)
