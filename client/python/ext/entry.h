// Calls of a compiled function without what torch.compile's wrapper does in Python around each.
#pragma once

#include "client/python/ext/py_ref.h"

namespace kiln::python {

// Adds the types to `module`; false with a Python error set.
//
// Entry(function, whole, raise_as_torch, swaps, around): a callable that calls `function` as
// `whole`, torch's wrapper, would. `swaps` is a tuple of (set, value): set(value), which returns
// what was set before, is called for each in their order before the call, and set(that) in the
// opposite order after it. `around` has, as attributes:
//
//   * flags, a tuple of (dict, name, usual): where dict[name] is not the object usual, `whole` is
//     called.
//   * local and name: where the object `local` has an attribute of that name that is not None,
//     `whole` is called.
//   * is_tracing, a function: where it does not return False, `whole` is called.
//   * depth and pop, functions: where depth() is another int after the call, pop(that before it) is
//     called.
//   * keys, None or functions (include, exclude, guard): guard(include(), exclude()) is a context
//     manager that the call is in.
//   * error, a class: what the call raises of it is given to raise_as_torch, which raises in its
//     place.
//
// Callback(callback, backend, hooks): a callable that calls `callback`, between calls of the
// functions in the tuple `hooks` and of what those return. It has the one attribute that torch asks
// Dynamo's callbacks for in every call, _torchdynamo_orig_backend, which is `backend`.
bool AddEntryTypes(PyObject* module);

}  // namespace kiln::python
