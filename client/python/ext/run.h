// One run of a program on torch's tensors.
#pragma once

#include <memory>
#include <vector>

#include "client/python/ext/dlpack_abi.h"
#include "client/python/ext/prepared.h"
#include "client/python/ext/py_ref.h"
#include "kiln/kiln.h"

namespace kiln::python {

struct RunBuffers;  // run.cc

// What a program keeps for its next run. The GIL guards it.
struct RunCache {
  explicit RunCache(const kiln_program* program);
  ~RunCache();

  std::unique_ptr<RunBuffers> buffers;  // null while a run has them, and before the first
  bool has_few_steps = false;
};

// Runs `program` on `inputs`, a list or tuple of tensors and ints; a new list of tensors, ints and
// Nones, or null with a Python error set. A run on a GPU uses torch's current stream of `device`
// and torch's allocator, and waits for nothing: an error of a kernel's may come with a later run.
// `library_steps` is a list of one callable for each library step, or null where there is none.
// `observer`, where it is not null, is called with a step's number and 1 before it, 0 after it.
// Inputs that `plain_inputs` has as true are not asked whether they are lazy views. `prepared`
// keeps what follows from parameters alone; where that finds no room and `lacks_room` is not null,
// nothing runs, that becomes true, and the result is null without an error. The GIL is released
// while kernels run, unless that takes no time.
PyObject* Run(const kiln_program* program, DLDevice device, PyObject* library_steps,
              PyObject* observer, const std::vector<bool>& plain_inputs, PreparedWeights& prepared,
              RunCache& cache, PyObject* inputs, bool* lacks_room = nullptr);

}  // namespace kiln::python
