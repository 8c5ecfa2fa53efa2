// A graph's calls without what torch puts around a program that needs none of it.
#pragma once

#include "client/python/ext/py_ref.h"

namespace kiln::python {

// Adds the types to `module`; false with a Python error set.
//
// Shortcut(program, whole, written): a callable that runs a Program on its arguments where `whole`,
// a callable, would do that and no more: after the version counters of the arguments `written`, a
// tuple of positions, were advanced. `whole` is called instead the first
// time, with keywords, while torch's profiler records, and where the run raises an Exception.
// Thread-safe.
//
// GraphType, a metaclass: a call of its classes is one of their attribute `call`.
bool AddShortcutTypes(PyObject* module);

}  // namespace kiln::python
