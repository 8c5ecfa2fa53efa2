// torch's tensors as kiln_tensor and back, through DLPack's C exchange interface.
#pragma once

#include <cstdint>

#include "client/python/ext/dlpack_abi.h"
#include "client/python/ext/py_ref.h"
#include "kiln/kiln.h"

namespace kiln::python {

// Finds torch.Tensor's exchange interface; the first call imports torch. Null with a Python error
// set where this torch has none that we understand.
const DLPackExchangeAPI* ExchangeApi();

// Borrows `object`'s memory, sizes and strides: they live as long as the tensor does. False with a
// Python error set for what is no tensor of a known type. Says nothing about IsLazyView.
bool TensorFromPython(const DLPackExchangeAPI& api, PyObject* object, kiln_tensor* out);

int64_t ElementBytes(int32_t dtype);

// Whether what a tensor of that type shows is its memory conjugated or negated (torch.conj, and
// .imag of that), which DLPack's exchange interface does not say. True with a Python error set for
// what is no tensor.
bool IsLazyView(PyObject* object, int32_t dtype);

// A lazy view is no plain memory, and zeros that autograd made may have no memory at all: torch
// makes them plain. Null with a Python error set where it cannot.
PyRef Materialize(PyObject* object);

// Memory of torch's own allocator for `elements` elements; a GPU's belongs to the current stream,
// in whose order others get it again. Null with a Python error set.
DLManagedTensorVersioned* Allocate(const DLPackExchangeAPI& api, DLDevice device, int32_t dtype,
                                   int64_t elements);

// Null with a Python error set.
PyRef TupleOf(int32_t count, const int64_t* values);

// Makes tensors without DLPack, which makes two for each. It needs a function of torch's that is
// private; where torch has none, or another, IsThere() is false.
class TensorMaker {
 public:
  // Finds it in the first call for a kind of device: the CPU or CUDA. Others have none.
  static const TensorMaker& Get(int32_t device_type);
  bool IsThere() const { return static_cast<bool>(empty_strided_); }

  // For Make: a tensor of that dtype with memory of torch's for what sizes and strides reach.
  // Null with a Python error set.
  static PyRef Arguments(int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides);
  // A new torch.Tensor, on torch's current GPU where it is for those; null with a Python error set.
  PyRef Make(PyObject* arguments) const;

 private:
  explicit TensorMaker(int32_t device_type);

  PyRef empty_strided_;
};

// torch's current stream of a CUDA device. False with a Python error set.
bool CurrentStream(const DLPackExchangeAPI& api, DLDevice device, void** stream);

// A torch.Tensor that owns `managed` and shows it with these sizes and strides. Takes `managed`
// over in any case. Null with a Python error set.
PyRef TensorToPython(const DLPackExchangeAPI& api, DLManagedTensorVersioned* managed, int32_t ndim,
                     const int64_t* sizes, const int64_t* strides);

// A torch.Tensor that views memory of somebody else, who must outlive it, on the device it names.
PyRef ViewToPython(const DLPackExchangeAPI& api, const kiln_tensor& tensor);

}  // namespace kiln::python
