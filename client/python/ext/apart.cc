#include "client/python/ext/apart.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/python/ext/tensor_exchange.h"

namespace kiln::python {
namespace {

struct Argument {
  bool is_written;
  long group;
};

struct ApartObject {
  PyObject_HEAD PyObject* graph;
  PyObject* otherwise;
  std::vector<Argument>* arguments;
};

ApartObject* Self(PyObject* self) {
  return reinterpret_cast<ApartObject*>(self);
}

int Init(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"graph", "otherwise", "written", "groups", nullptr};
  PyObject *graph, *otherwise, *written, *groups;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!O!", const_cast<char**>(names), &graph,
                                   &otherwise, &PyTuple_Type, &written, &PyTuple_Type, &groups)) {
    return -1;
  }
  const Py_ssize_t count = PyTuple_Size(written);
  if (PyCallable_Check(graph) == 0 || PyCallable_Check(otherwise) == 0 ||
      PyTuple_Size(groups) != count || Self(self)->arguments != nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "Apart takes two callables and two tuples of one length, once");
    return -1;
  }
  auto arguments = std::make_unique<std::vector<Argument>>();
  for (Py_ssize_t i = 0; i < count; ++i) {
    const int is_written = PyObject_IsTrue(PyTuple_GetItem(written, i));
    const long group = PyLong_AsLong(PyTuple_GetItem(groups, i));
    if (is_written < 0 || PyErr_Occurred() != nullptr) return -1;
    arguments->push_back({is_written == 1, group});
  }
  Self(self)->graph = PyRef::Borrow(graph).release();
  Self(self)->otherwise = PyRef::Borrow(otherwise).release();
  Self(self)->arguments = arguments.release();
  return 0;
}

void Dealloc(PyObject* self) {
  Py_XDECREF(Self(self)->graph);
  Py_XDECREF(Self(self)->otherwise);
  delete Self(self)->arguments;
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

struct Range {
  uintptr_t begin, end;  // bytes
  Py_ssize_t position;
};

// What `tensor` reaches; nothing of one without elements.
std::optional<Range> Reach(const DLTensor& tensor, Py_ssize_t position) {
  int64_t last = 0;
  int64_t dense = 1;
  for (int32_t d = tensor.ndim - 1; d >= 0; --d) {
    if (tensor.shape[d] == 0) return std::nullopt;
    last += (tensor.shape[d] - 1) * (tensor.strides != nullptr ? tensor.strides[d] : dense);
    dense *= tensor.shape[d];
  }
  if (tensor.data == nullptr) return std::nullopt;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  const uintptr_t bytes = tensor.dtype.bits / 8 * tensor.dtype.lanes;
  return Range{begin, begin + (static_cast<uintptr_t>(last) + 1) * bytes, position};
}

// Two positions in `args` that may not share memory and do. With a Python error set where there is
// no telling.
std::optional<std::pair<Py_ssize_t, Py_ssize_t>> FindShared(const std::vector<Argument>& arguments,
                                                            PyObject* args) {
  const DLPackExchangeAPI* api = ExchangeApi();
  if (api == nullptr) return std::nullopt;
  std::vector<Range> ranges;
  ranges.reserve(arguments.size());
  const auto count = std::min<Py_ssize_t>(PyTuple_Size(args), std::ssize(arguments));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = PyTuple_GetItem(args, i);
    if (PyLong_Check(value) || PyFloat_Check(value)) continue;
    DLTensor tensor;
    if (api->dltensor_from_py_object_no_sync(value, &tensor) != 0) {
      PyErr_Clear();  // no plain tensor
      continue;
    }
    if (const std::optional<Range> range = Reach(tensor, i)) ranges.push_back(*range);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> open;  // those that reach to where the next one begins
  for (const Range& range : ranges) {
    const Argument& argument = arguments[range.position];
    std::erase_if(open, [&](const Range& earlier) { return earlier.end <= range.begin; });
    for (const Range& earlier : open) {
      const Argument& other = arguments[earlier.position];
      const bool may_share = argument.group >= 0 && argument.group == other.group;
      if ((argument.is_written || other.is_written) && !may_share) {
        return std::pair(earlier.position, range.position);
      }
    }
    open.push_back(range);
  }
  return std::nullopt;
}

PyObject* Call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const ApartObject& apart = *Self(self);
  if (apart.arguments == nullptr) {
    PyErr_SetString(PyExc_TypeError, "this Apart was not initialized");
    return nullptr;
  }
  if (const auto shared = FindShared(*apart.arguments, args)) {
    return PyObject_CallFunction(apart.otherwise, "Onn", args, shared->first, shared->second);
  }
  return PyErr_Occurred() == nullptr ? PyObject_Call(apart.graph, args, kwargs) : nullptr;
}

PyType_Slot kSlots[] = {
    {Py_tp_init, reinterpret_cast<void*>(Init)},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(Call)},
    {Py_tp_doc,
     const_cast<char*>("Apart(graph, otherwise, written, groups): calls of a graph whose "
                       "written arguments share no memory, and of `otherwise`")},
    {0, nullptr}};

PyType_Spec kSpec = {"kiln_torch._kiln.Apart", sizeof(ApartObject), 0, Py_TPFLAGS_DEFAULT, kSlots};

}  // namespace

bool AddApartType(PyObject* module) {
  const PyRef type = PyRef::Steal(PyType_FromSpec(&kSpec));
  return type && PyModule_AddObjectRef(module, "Apart", type.get()) == 0;
}

}  // namespace kiln::python
