#include "client/python/ext/shortcut.h"

#include "client/python/ext/program.h"

namespace kiln::python {
namespace {

// What a call needs of torch's private parts; all null before the first Shortcut.
struct Torch {
  PyRef increment_version;
  PyRef profiler;  // a module's dict

  // False with a Python error set where something is missing.
  bool Find() {
    if (profiler) return true;
    const PyRef core = PyRef::Steal(PyImport_ImportModule("torch._C"));
    const PyRef module = PyRef::Steal(PyImport_ImportModule("torch.autograd.profiler"));
    if (!core || !module) return false;
    increment_version = PyRef::Steal(PyObject_GetAttrString(core.get(), "_increment_version"));
    const PyRef flag = PyRef::Steal(PyObject_GetAttrString(module.get(), "_is_profiler_enabled"));
    if (!increment_version || !flag) return false;
    profiler = PyRef::Borrow(PyModule_GetDict(module.get()));
    return true;
  }

  bool IsProfiling() const {
    static PyObject* const name = PyUnicode_InternFromString("_is_profiler_enabled");
    return PyDict_GetItemWithError(profiler.get(), name) != Py_False;
  }
};

Torch& torch() {
  static auto* const found = new Torch();  // never freed: Python may be gone by then
  return *found;
}

struct ShortcutObject {
  PyObject_HEAD PyObject* program;
  PyObject* whole;
  PyObject* written;
  PyObject* index_error;  // makes a run's IndexError and its inputs the caller's; None: the whole's
  bool was_called;
};

ShortcutObject* Self(PyObject* self) {
  return reinterpret_cast<ShortcutObject*>(self);
}

int Init(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"program", "whole", "written", "index_error", nullptr};
  PyObject *program, *whole, *written, *index_error = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!|O", const_cast<char**>(names), &program,
                                   &whole, &PyTuple_Type, &written, &index_error) ||
      !torch().Find()) {
    return -1;
  }
  if (!IsProgram(program) || PyCallable_Check(whole) == 0) {
    PyErr_SetString(PyExc_TypeError, "Shortcut takes a Program, a callable and a tuple");
    return -1;
  }
  if (Self(self)->program != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a Shortcut stays what it is");
    return -1;
  }
  Self(self)->program = PyRef::Borrow(program).release();
  Self(self)->whole = PyRef::Borrow(whole).release();
  Self(self)->written = PyRef::Borrow(written).release();
  Self(self)->index_error = PyRef::Borrow(index_error).release();
  return 0;
}

void Dealloc(PyObject* self) {
  Py_XDECREF(Self(self)->program);
  Py_XDECREF(Self(self)->whole);
  Py_XDECREF(Self(self)->written);
  Py_XDECREF(Self(self)->index_error);
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// False with a Python error set.
bool AdvanceVersions(PyObject* written, PyObject* args) {
  const Py_ssize_t count = PyTuple_Size(written);
  if (count == 0) return true;
  const PyRef tensors = PyRef::Steal(PyTuple_New(count));
  for (Py_ssize_t i = 0; tensors && i < count; ++i) {
    const Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GetItem(written, i));
    PyObject* tensor = PyErr_Occurred() == nullptr ? PyTuple_GetItem(args, position) : nullptr;
    if (tensor == nullptr) return false;
    PyTuple_SetItem(tensors.get(), i, PyRef::Borrow(tensor).release());
  }
  return tensors && PyRef::Steal(PyObject_CallFunctionObjArgs(torch().increment_version.get(),
                                                              tensors.get(), nullptr));
}

// In place of the IndexError that is set: what `index_error` makes of it.
void MakeTheCallers(PyObject* index_error, PyObject* inputs) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const PyRef made =
      PyRef::Steal(PyObject_CallFunctionObjArgs(index_error, value, inputs, nullptr));
  if (made) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.get())), made.get());
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

PyObject* CallShortcut(PyObject* self, PyObject* args, PyObject* kwargs) {
  ShortcutObject& shortcut = *Self(self);
  if (shortcut.program == nullptr) {
    PyErr_SetString(PyExc_TypeError, "this Shortcut was not initialized");
    return nullptr;
  }
  if (shortcut.was_called && (kwargs == nullptr || PyDict_Size(kwargs) == 0) &&
      !torch().IsProfiling()) {
    if (AdvanceVersions(shortcut.written, args)) {
      PyObject* outputs = RunProgram(shortcut.program, args);
      if (outputs != nullptr) return outputs;
    }
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return nullptr;
    if (shortcut.index_error != Py_None && PyErr_ExceptionMatches(PyExc_IndexError) != 0) {
      MakeTheCallers(shortcut.index_error, args);
      return nullptr;
    }
    // A run that failed has written to none of its inputs; the whole says what is to be done.
    PyErr_Clear();
  }
  PyObject* outputs = PyObject_Call(shortcut.whole, args, kwargs);
  if (outputs != nullptr) shortcut.was_called = true;
  return outputs;
}

PyObject* CallGraph(PyObject* type, PyObject* args, PyObject* kwargs) {
  static PyObject* const name = PyUnicode_InternFromString("call");
  const PyRef call = PyRef::Steal(PyObject_GetAttr(type, name));
  return call ? PyObject_Call(call.get(), args, kwargs) : nullptr;
}

PyType_Slot kShortcutSlots[] = {
    {Py_tp_init, reinterpret_cast<void*>(Init)},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(CallShortcut)},
    {Py_tp_doc, const_cast<char*>("Shortcut(program, whole, written, index_error=None): calls "
                                  "that only run a program, and of `whole` where there is more to "
                                  "do")},
    {0, nullptr}};

PyType_Spec kShortcutSpec = {"kiln_torch._kiln.Shortcut", sizeof(ShortcutObject), 0,
                             Py_TPFLAGS_DEFAULT, kShortcutSlots};

PyType_Slot kGraphSlots[] = {
    {Py_tp_call, reinterpret_cast<void*>(CallGraph)},
    {Py_tp_doc, const_cast<char*>("a call of such a class is one of its attribute `call`")},
    {0, nullptr}};

// Its size is that of its base.
PyType_Spec kGraphSpec = {"kiln_torch._kiln.GraphType", 0, 0, Py_TPFLAGS_DEFAULT, kGraphSlots};

}  // namespace

bool AddShortcutTypes(PyObject* module) {
  const PyRef shortcut = PyRef::Steal(PyType_FromSpec(&kShortcutSpec));
  const PyRef graph = PyRef::Steal(
      PyType_FromSpecWithBases(&kGraphSpec, reinterpret_cast<PyObject*>(&PyType_Type)));
  return shortcut && graph && PyModule_AddObjectRef(module, "Shortcut", shortcut.get()) == 0 &&
         PyModule_AddObjectRef(module, "GraphType", graph.get()) == 0;
}

}  // namespace kiln::python
