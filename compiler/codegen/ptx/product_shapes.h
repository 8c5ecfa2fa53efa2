// What the prelude's templates of products on tensor cores are made for, as C++.
#pragma once

#include <string>

#include "compiler/schedule/micro.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

// Of a micro-kernel of tensor cores.
struct ProductShape {
  const schedule::Micro& micro;
  bool is_half;  // operands of float16, not bfloat16
  int weight_bits;
  bool waits_short;               // what waits of sums in shared memory has 16 bits
  int at_once;                    // times that a lane finishes 8 columns at a time
  bool is_whole;                  // tiles end with the result
  bool is_ragged;                 // columns are no octets
  bool is_turned_a, is_turned_b;  // contiguous along the result's side
  bool is_whole_a, is_whole_b;    // what is contiguous ends at a multiple of 16 bytes
  bool has_many_sums;
  bool stores_matrices;  // as sm_90 and later do
};

// A struct Shape, and what it refers to: of KProduct, KProductOfRows or KProductByWarps.
std::string ShapeText(const ProductShape& shape);

}  // namespace kiln::codegen::ptx
