// The tensors that a run returns, and the memory that they show.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/python/ext/dlpack_abi.h"
#include "client/python/ext/py_ref.h"
#include "client/python/ext/tensor_exchange.h"
#include "kiln/kiln.h"

namespace kiln::python {

struct ManagedDeleter {
  void operator()(DLManagedTensorVersioned* managed) const { managed->deleter(managed); }
};
using Managed = std::unique_ptr<DLManagedTensorVersioned, ManagedDeleter>;

// Elements from the first one that sizes and strides reach to the last.
int64_t ReachableElements(int32_t ndim, const int64_t* sizes, const int64_t* strides);

// One program's, for one run at a time, and for the next run after Clear(). The GIL guards it.
class Outputs {
 public:
  // What a kiln_run_options.allocate_output is to do, on `device`. False with a Python error set.
  bool Allocate(const DLPackExchangeAPI& api, DLDevice device, int32_t allocation, int32_t dtype,
                int32_t ndim, const int64_t* sizes, const int64_t* strides, void** data);

  // A list of tensors, ints and Nones: what `outputs` say. Those in memory of an input or of a
  // library step's result view `inputs` (borrowed) and `results`. Of outputs that show the same of
  // the same memory all are one object: by that autograd sees that a gradient is not its
  // parameter's alone to write to. Null with a Python error set.
  PyObject* Make(const DLPackExchangeAPI& api, const std::vector<kiln_output>& outputs,
                 const std::vector<PyObject*>& inputs, const std::vector<PyRef>& results);

  // Forgets what is a run's own. What that holds may be the last of its kind, whose end may run
  // Python code.
  void Clear() { allocations_.clear(); }

 private:
  // Memory of one of TensorMaker's tensors, or of DLPack's allocator until a tensor shows it.
  struct Allocation {
    Managed managed;
    PyRef tensor;
    int64_t elements = 0;
    int users = 0;  // outputs that show it; one alone owns the memory directly
  };
  // What the last run asked for, by allocation: most ask for the same each time.
  struct Layout {
    int32_t dtype = 0;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    // Whether one output alone showed it, and as it is, or no run has: then its tensor is made at
    // once.
    bool is_an_output = true;
    PyRef arguments;  // TensorMaker's; null before they are needed
  };

  PyRef MakeTensor(DLDevice device, Layout& layout) const;
  PyRef MakeOne(const DLPackExchangeAPI& api, const std::vector<kiln_output>& outputs,
                size_t number, PyObject* before, const std::vector<PyObject*>& inputs,
                const std::vector<PyRef>& results);

  std::vector<Allocation> allocations_;
  std::vector<Layout> layouts_;
};

}  // namespace kiln::python
