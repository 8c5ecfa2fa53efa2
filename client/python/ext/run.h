// One run of a program on torch's tensors.
#pragma once

#include <vector>

#include "client/python/ext/py_ref.h"
#include "kiln/kiln.h"

namespace kiln::python {

// What a Program knows about its outputs and library steps before any run.
struct RunPlan {
  // By allocation: how many outputs show it. One output alone owns its allocation directly.
  std::vector<int> allocation_users;
  PyObject* library_steps = nullptr;  // list of callables, or null; owned by the Program
};

// Runs `program` on `inputs`, a list of tensors and ints; a new list of tensors, ints and Nones, or
// null with a Python error set. The GIL is released while kernels run.
PyObject* Run(const kiln_program* program, const RunPlan& plan, PyObject* inputs);

}  // namespace kiln::python
