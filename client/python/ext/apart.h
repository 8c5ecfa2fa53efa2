// Calls of a graph that was traced with arguments that lie apart in memory.
#pragma once

#include "client/python/ext/py_ref.h"

namespace kiln::python {

// Adds the type to `module`; false with a Python error set.
//
// Apart(graph, otherwise, written, groups): a callable that calls `graph`, unless an argument that
// the graph writes shares memory with another one: then otherwise(args, i, j) with the positions of
// two such. `written` has for each argument whether it is written, `groups` a number: two arguments
// of one number that is not negative may share memory. What is no strided tensor shares none.
// Thread-safe.
bool AddApartType(PyObject* module);

}  // namespace kiln::python
