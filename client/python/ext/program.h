// _kiln.Program: a loaded program that runs on torch's tensors.
#pragma once

#include <string>

#include "client/python/ext/py_ref.h"
#include "kiln/kiln.h"

namespace kiln::python {

// Adds the type to `module`; false with a Python error set.
bool AddProgramType(PyObject* module);

// A new Program that takes `program` over. `info` says where it came from.
PyRef MakeProgram(kiln_program* program, const kiln_compile_info& info);

bool IsProgram(PyObject* object);

// As the method run(inputs) of `program`, a Program: `inputs` is a list or tuple.
PyObject* RunProgram(PyObject* program, PyObject* inputs);

// The module's exception types, made once by module.cc.
extern PyObject* g_error;
extern PyObject* g_input_mismatch;
extern PyObject* g_division_by_zero;
extern PyObject* g_cache_miss;
extern PyObject* g_unavailable;

// Sets a Python exception of `type` for `status`, destroys it and returns null. OUT_OF_RANGE
// becomes an IndexError, as in eager mode.
PyObject* RaiseStatus(kiln_status* status, PyObject* type = g_error);

}  // namespace kiln::python
