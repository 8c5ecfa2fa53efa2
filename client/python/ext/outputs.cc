#include "client/python/ext/outputs.h"

#include <algorithm>
#include <utility>

namespace kiln::python {
namespace {

bool IsLike(int32_t ndim, const int64_t* sizes, const int64_t* strides, const kiln_output& output) {
  return output.ndim == ndim && std::equal(sizes, sizes + ndim, output.sizes) &&
         std::equal(strides, strides + ndim, output.strides);
}

bool ShowTheSame(const kiln_output& a, const kiln_output& b) {
  return a.kind == KILN_TENSOR && a.storage == b.storage && a.storage_index == b.storage_index &&
         a.offset == b.offset && a.dtype == b.dtype && IsLike(a.ndim, a.sizes, a.strides, b);
}

// Whether `base` shows just what `output` does. False, too, with a Python error set.
bool IsOutput(const DLPackExchangeAPI& api, PyObject* base, const kiln_output& output) {
  kiln_tensor tensor;
  return TensorFromPython(api, base, &tensor) && tensor.data == output.data &&
         IsLike(tensor.ndim, tensor.sizes, tensor.strides, output);
}

// Gradients are disabled for the length of a scope.
class WithoutGradients {
 public:
  WithoutGradients() {
    const PyRef enabled = Call("is_grad_enabled", nullptr);
    if (enabled.get() == Py_True) were_enabled_ = static_cast<bool>(Call(kSet, Py_False));
  }
  ~WithoutGradients() {
    if (!were_enabled_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Call(kSet, Py_True);
    PyErr_Restore(type, value, trace);
  }
  WithoutGradients(const WithoutGradients&) = delete;
  WithoutGradients& operator=(const WithoutGradients&) = delete;

 private:
  static constexpr char kSet[] = "_set_grad_enabled";

  static PyRef Call(const char* name, PyObject* argument) {
    static PyObject* const core = PyImport_ImportModule("torch._C");
    const PyRef function = PyRef::Steal(PyObject_GetAttrString(core, name));
    return PyRef::Steal(function ? PyObject_CallFunctionObjArgs(function.get(), argument, nullptr)
                                 : nullptr);
  }

  bool were_enabled_ = false;
};

// Never part of a graph of autograd's: what compiled the program sees to gradients.
PyRef ViewOf(PyObject* base, const kiln_output& output) {
  const WithoutGradients disabled;
  PyRef storage_offset = PyRef::Steal(PyObject_CallMethod(base, "storage_offset", nullptr));
  if (!storage_offset) return PyRef();
  const long long offset = PyLong_AsLongLong(storage_offset.get()) + output.offset;
  PyRef sizes = TupleOf(output.ndim, output.sizes);
  PyRef strides = TupleOf(output.ndim, output.strides);
  if (!sizes || !strides) return PyRef();
  return PyRef::Steal(
      PyObject_CallMethod(base, "as_strided", "OOL", sizes.get(), strides.get(), offset));
}

// As ViewOf, a tensor that is none of torch's views: it owns the memory with `base`.
PyRef OwnerOf(PyObject* base, const kiln_output& output) {
  PyRef storage = PyRef::Steal(PyObject_CallMethod(base, "untyped_storage", nullptr));
  PyRef owner = PyRef::Steal(PyObject_CallMethod(base, "new_empty", "((i))", 0));
  PyRef sizes = TupleOf(output.ndim, output.sizes);
  PyRef strides = TupleOf(output.ndim, output.strides);
  if (!storage || !owner || !sizes || !strides) return PyRef();
  return PyRef::Steal(PyObject_CallMethod(owner.get(), "set_", "OLOO", storage.get(),
                                          static_cast<long long>(output.offset), sizes.get(),
                                          strides.get()));
}

}  // namespace

int64_t ReachableElements(int32_t ndim, const int64_t* sizes, const int64_t* strides) {
  int64_t last = 0;
  for (int32_t d = 0; d < ndim; ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

bool Outputs::Allocate(const DLPackExchangeAPI& api, DLDevice device, int32_t allocation,
                       int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides,
                       void** data) {
  const auto number = static_cast<size_t>(allocation);
  if (number >= allocations_.size()) allocations_.resize(number + 1);
  if (number >= layouts_.size()) layouts_.resize(number + 1);
  Allocation& slot = allocations_[number];
  Layout& layout = layouts_[number];
  if (layout.dtype != dtype || layout.sizes.size() != static_cast<size_t>(ndim) ||
      !std::equal(sizes, sizes + ndim, layout.sizes.begin()) ||
      !std::equal(strides, strides + ndim, layout.strides.begin())) {
    layout = Layout();
    layout.dtype = dtype;
    layout.sizes.assign(sizes, sizes + ndim);
    layout.strides.assign(strides, strides + ndim);
  }
  if (layout.is_an_output && TensorMaker::Get(device.device_type).IsThere()) {
    slot.tensor = MakeTensor(device, layout);
    kiln_tensor made;
    if (!slot.tensor || !TensorFromPython(api, slot.tensor.get(), &made)) return false;
    *data = made.data;
    if (made.device_index == device.device_id) return true;
    slot.tensor = PyRef();  // another GPU is torch's current one
  }
  slot.elements = ReachableElements(ndim, sizes, strides);
  slot.managed.reset(kiln::python::Allocate(api, device, dtype, slot.elements));
  if (slot.managed == nullptr) return false;
  const DLTensor& tensor = slot.managed->dl_tensor;
  *data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  return true;
}

PyRef Outputs::MakeTensor(DLDevice device, Layout& layout) const {
  if (!layout.arguments) {
    const auto ndim = static_cast<int32_t>(layout.sizes.size());
    layout.arguments =
        TensorMaker::Arguments(layout.dtype, ndim, layout.sizes.data(), layout.strides.data());
    if (!layout.arguments) return PyRef();
  }
  return TensorMaker::Get(device.device_type).Make(layout.arguments.get());
}

PyObject* Outputs::Make(const DLPackExchangeAPI& api, const std::vector<kiln_output>& outputs,
                        const std::vector<PyObject*>& inputs, const std::vector<PyRef>& results) {
  for (const kiln_output& output : outputs) {
    if (output.kind == KILN_TENSOR && output.storage == KILN_STORAGE_ALLOCATED) {
      ++allocations_[output.storage_index].users;
    }
  }
  PyRef list = PyRef::Steal(PyList_New(static_cast<Py_ssize_t>(outputs.size())));
  for (size_t i = 0; list && i < outputs.size(); ++i) {
    PyRef item = MakeOne(api, outputs, i, list.get(), inputs, results);
    if (!item) return nullptr;
    PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), item.release());
  }
  return list.release();
}

PyRef Outputs::MakeOne(const DLPackExchangeAPI& api, const std::vector<kiln_output>& outputs,
                       size_t number, PyObject* before, const std::vector<PyObject*>& inputs,
                       const std::vector<PyRef>& results) {
  const kiln_output& output = outputs[number];
  if (output.kind == KILN_NONE) return PyRef::Borrow(Py_None);
  if (output.kind == KILN_INT) return PyRef::Steal(PyLong_FromLongLong(output.value));
  const int32_t index = output.storage_index;
  PyObject* base = nullptr;
  if (output.storage == KILN_STORAGE_INPUT) {
    base = inputs[index];
  } else if (output.storage == KILN_STORAGE_LIBRARY) {
    base = results[index].get();
  } else {
    Allocation& slot = allocations_[index];
    Layout& layout = layouts_[index];
    layout.is_an_output = slot.users == 1 && output.offset == 0 && output.dtype == layout.dtype &&
                          IsLike(static_cast<int32_t>(layout.sizes.size()), layout.sizes.data(),
                                 layout.strides.data(), output);
    if (slot.users == 1 && slot.managed != nullptr && output.offset == 0) {
      return TensorToPython(api, slot.managed.release(), output.ndim, output.sizes, output.strides);
    }
    if (slot.users == 1 && slot.tensor) {
      return layout.is_an_output ? std::move(slot.tensor) : OwnerOf(slot.tensor.get(), output);
    }
    if (slot.managed != nullptr) {
      const int64_t stride = 1;
      slot.tensor = TensorToPython(api, slot.managed.release(), 1, &slot.elements, &stride);
    }
    base = slot.tensor.get();
  }
  if (base == nullptr) return PyRef();
  if (IsOutput(api, base, output)) return PyRef::Borrow(base);
  if (PyErr_Occurred() != nullptr) return PyRef();
  for (size_t i = 0; i < number; ++i) {
    if (ShowTheSame(outputs[i], output)) {
      return PyRef::Borrow(PyList_GetItem(before, static_cast<Py_ssize_t>(i)));
    }
  }
  return ViewOf(base, output);
}

}  // namespace kiln::python
