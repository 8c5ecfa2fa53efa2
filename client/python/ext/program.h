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

// Sets the Python exception for `status`, destroys it and returns null. Codes map to _kiln.Error;
// from runs also to _kiln.InputMismatch and IndexError.
PyObject* RaiseStatus(kiln_status* status);

// The module's exception types, made once by module.cc.
extern PyObject* g_error;
extern PyObject* g_input_mismatch;

}  // namespace kiln::python
