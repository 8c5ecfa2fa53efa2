// Taking the GIL again, which a thread may have given away for ever.
#pragma once

#include <cxxabi.h>
#include <unistd.h>

#include "client/python/ext/py_ref.h"

namespace kiln::python {

// PyEval_RestoreThread. Once the interpreter ends, Python ends threads that ask for the GIL: such a
// one waits here for the process's end instead, since unwinding would run destructors that let go
// of Python's objects without it, and end the process where one may not throw.
inline void TakeGil(PyThreadState* thread) {
  try {
    PyEval_RestoreThread(thread);
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

}  // namespace kiln::python
