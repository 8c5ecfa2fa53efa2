#include "client/python/ext/entry.h"

#include <memory>
#include <utility>
#include <vector>

namespace kiln::python {
namespace {

constexpr char kBackend[] = "_torchdynamo_orig_backend";
constexpr Py_ssize_t kMostSwaps = 4;

PyRef Call(PyObject* function, PyObject* argument = nullptr) {
  return PyRef::Steal(PyObject_CallFunctionObjArgs(function, argument, nullptr));
}

// The error that is set, kept while other calls are made.
class KeptError {
 public:
  KeptError() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~KeptError() {
    if (type_ != nullptr) PyErr_Restore(type_, value_, trace_);
  }
  KeptError(const KeptError&) = delete;
  KeptError& operator=(const KeptError&) = delete;

 private:
  PyObject *type_, *value_, *trace_;
};

struct Flag {
  PyRef dict, name, usual;
};

struct Swap {
  PyRef set, value;
};

struct EntryParts {
  PyRef function, whole, raise_as_torch, error;
  PyRef local, name, is_tracing, depth, pop;
  PyRef include, exclude, guard;  // null: torch's wrapper has none
  std::vector<Flag> flags;
  std::vector<Swap> swaps;
};

// `item` taken apart, `count` borrowed objects; false with a Python error set.
bool TakeApart(PyObject* item, Py_ssize_t count, PyObject** out) {
  if (!PyTuple_Check(item) || PyTuple_Size(item) != count) {
    PyErr_Format(PyExc_TypeError, "expected a tuple of %zd", count);
    return false;
  }
  for (Py_ssize_t i = 0; i < count; ++i) out[i] = PyTuple_GetItem(item, i);
  return true;
}

bool ReadSwaps(PyObject* swaps, EntryParts& parts) {
  if (PyTuple_Size(swaps) > kMostSwaps) {
    PyErr_Format(PyExc_ValueError, "there are %zd swaps at most", kMostSwaps);
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(swaps); ++i) {
    PyObject* found[2];
    if (!TakeApart(PyTuple_GetItem(swaps, i), 2, found)) return false;
    parts.swaps.push_back({PyRef::Borrow(found[0]), PyRef::Borrow(found[1])});
  }
  return true;
}

bool ReadFlags(PyObject* flags, EntryParts& parts) {
  if (!PyTuple_Check(flags)) {
    PyErr_SetString(PyExc_TypeError, "flags are a tuple");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(flags); ++i) {
    PyObject* found[3];
    if (!TakeApart(PyTuple_GetItem(flags, i), 3, found)) return false;
    if (!PyDict_Check(found[0])) {
      PyErr_SetString(PyExc_TypeError, "a flag is in a dict");
      return false;
    }
    parts.flags.push_back(
        {PyRef::Borrow(found[0]), PyRef::Borrow(found[1]), PyRef::Borrow(found[2])});
  }
  return true;
}

bool ReadKeys(PyObject* keys, EntryParts& parts) {
  if (keys == Py_None) return true;
  PyObject* found[3];
  if (!TakeApart(keys, 3, found)) return false;
  parts.include = PyRef::Borrow(found[0]);
  parts.exclude = PyRef::Borrow(found[1]);
  parts.guard = PyRef::Borrow(found[2]);
  return true;
}

bool ReadAround(PyObject* around, EntryParts& parts) {
  const auto read = [&](const char* name) {
    return PyRef::Steal(PyObject_GetAttrString(around, name));
  };
  const PyRef flags = read("flags"), keys = read("keys");
  parts.local = read("local");
  parts.name = read("name");
  parts.is_tracing = read("is_tracing");
  parts.depth = read("depth");
  parts.pop = read("pop");
  parts.error = read("error");
  if (PyErr_Occurred() != nullptr) return false;
  return ReadFlags(flags.get(), parts) && ReadKeys(keys.get(), parts);
}

struct EntryObject {
  PyObject_HEAD EntryParts* parts;
};

struct CallbackObject {
  PyObject_HEAD PyObject *callback, *backend, *hooks;
};

EntryParts*& PartsOf(PyObject* self) {
  return reinterpret_cast<EntryObject*>(self)->parts;
}

CallbackObject& CallbackOf(PyObject* self) {
  return *reinterpret_cast<CallbackObject*>(self);
}

int InitEntry(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "whole", "raise_as_torch", "swaps", "around", nullptr};
  PyObject *function, *whole, *raise_as_torch, *swaps, *around;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!O", const_cast<char**>(names), &function,
                                   &whole, &raise_as_torch, &PyTuple_Type, &swaps, &around)) {
    return -1;
  }
  if (PartsOf(self) != nullptr) {
    PyErr_SetString(PyExc_TypeError, "an Entry stays what it is");
    return -1;
  }
  auto parts = std::make_unique<EntryParts>();
  parts->function = PyRef::Borrow(function);
  parts->whole = PyRef::Borrow(whole);
  parts->raise_as_torch = PyRef::Borrow(raise_as_torch);
  if (!ReadSwaps(swaps, *parts) || !ReadAround(around, *parts)) return -1;
  PartsOf(self) = parts.release();
  return 0;
}

// What may hold a call that it is part of; the rest is torch's own, which lives as long.
int TraverseEntry(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const EntryParts* parts = PartsOf(self);
  if (parts == nullptr) return 0;
  Py_VISIT(parts->function.get());
  Py_VISIT(parts->whole.get());
  Py_VISIT(parts->raise_as_torch.get());
  for (const Swap& swap : parts->swaps) Py_VISIT(swap.value.get());
  return 0;
}

int ClearEntry(PyObject* self) {
  delete std::exchange(PartsOf(self), nullptr);
  return 0;
}

int TraverseCallback(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(CallbackOf(self).callback);
  Py_VISIT(CallbackOf(self).backend);
  Py_VISIT(CallbackOf(self).hooks);
  return 0;
}

int ClearCallback(PyObject* self) {
  Py_CLEAR(CallbackOf(self).callback);
  Py_CLEAR(CallbackOf(self).backend);
  Py_CLEAR(CallbackOf(self).hooks);
  return 0;
}

template <int (*clear)(PyObject*)>
void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// False, too, with a Python error set.
bool IsUsual(const EntryParts& parts) {
  for (const Flag& flag : parts.flags) {
    if (PyDict_GetItemWithError(flag.dict.get(), flag.name.get()) != flag.usual.get()) return false;
  }
  const PyRef local = PyRef::Steal(PyObject_GetAttr(parts.local.get(), parts.name.get()));
  if (!local) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return false;
    PyErr_Clear();
  } else if (local.get() != Py_None) {
    return false;
  }
  return Call(parts.is_tracing.get()).get() == Py_False;
}

// What holds from its beginning to its end. The end comes with what the call raised set, and keeps
// that.
class Surroundings {
 public:
  explicit Surroundings(const EntryParts& parts) : parts_(parts) {
    depth_ = Call(parts.depth.get());
    if (depth_ && parts.guard) EnterGuard();
    is_entered_ = PyErr_Occurred() == nullptr;
    while (is_entered_ && swapped_ < parts.swaps.size()) {
      const Swap& swap = parts.swaps[swapped_];
      prior_[swapped_] = Call(swap.set.get(), swap.value.get());
      is_entered_ = static_cast<bool>(prior_[swapped_]);
      if (is_entered_) ++swapped_;
    }
  }
  ~Surroundings() {
    const KeptError raised;
    while (swapped_-- > 0) {
      Report(Call(parts_.swaps[swapped_].set.get(), prior_[swapped_].get()));
    }
    if (depth_) {
      const PyRef now = Call(parts_.depth.get());
      Report(now);
      if (now && now.get() != depth_.get()) Report(Call(parts_.pop.get(), depth_.get()));
    }
    if (guard_) {
      Report(PyRef::Steal(
          PyObject_CallMethod(guard_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None)));
    }
  }
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;

  // False with a Python error set.
  bool is_entered() const { return is_entered_; }

 private:
  void EnterGuard() {
    const PyRef include = Call(parts_.include.get());
    const PyRef exclude = include ? Call(parts_.exclude.get()) : PyRef();
    if (!exclude) return;
    PyRef guard = PyRef::Steal(
        PyObject_CallFunctionObjArgs(parts_.guard.get(), include.get(), exclude.get(), nullptr));
    if (guard && PyRef::Steal(PyObject_CallMethod(guard.get(), "__enter__", nullptr))) {
      guard_ = std::move(guard);
    }
  }

  static void Report(const PyRef& done) {
    if (!done) PyErr_WriteUnraisable(nullptr);
  }

  const EntryParts& parts_;
  PyRef depth_, guard_;
  PyRef prior_[kMostSwaps];  // by swap
  size_t swapped_ = 0;
  bool is_entered_ = false;
};

// In place of the error that is set.
void RaiseAsTorch(PyObject* raise_as_torch) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  if (Call(raise_as_torch, value)) {
    PyErr_Restore(type, value, trace);
    return;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

PyObject* CallEntry(PyObject* self, PyObject* args, PyObject* kwargs) {
  // Its end may come in the call.
  const PyRef alive = PyRef::Borrow(self);
  if (PartsOf(self) == nullptr) {
    PyErr_SetString(PyExc_TypeError, "this Entry was not initialized");
    return nullptr;
  }
  const EntryParts& parts = *PartsOf(self);
  if (!IsUsual(parts)) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    return PyObject_Call(parts.whole.get(), args, kwargs);
  }
  PyObject* result = nullptr;
  {
    const Surroundings surroundings(parts);
    if (surroundings.is_entered()) result = PyObject_Call(parts.function.get(), args, kwargs);
  }
  if (result == nullptr && PyErr_ExceptionMatches(parts.error.get()) != 0) {
    RaiseAsTorch(parts.raise_as_torch.get());
  }
  return result;
}

int InitCallback(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"callback", "backend", "hooks", nullptr};
  PyObject *callback, *backend, *hooks;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!", const_cast<char**>(names), &callback,
                                   &backend, &PyTuple_Type, &hooks)) {
    return -1;
  }
  if (CallbackOf(self).callback != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a Callback stays what it is");
    return -1;
  }
  CallbackOf(self).callback = PyRef::Borrow(callback).release();
  CallbackOf(self).backend = PyRef::Borrow(backend).release();
  CallbackOf(self).hooks = PyRef::Borrow(hooks).release();
  return 0;
}

PyObject* CallCallback(PyObject* self, PyObject* args, PyObject* kwargs) {
  const PyRef alive = PyRef::Borrow(self);
  const CallbackObject& parts = CallbackOf(self);
  if (parts.callback == nullptr) {
    PyErr_SetString(PyExc_TypeError, "this Callback was not initialized");
    return nullptr;
  }
  std::vector<PyRef> ends;
  for (Py_ssize_t i = 0; i < PyTuple_Size(parts.hooks); ++i) {
    ends.push_back(Call(PyTuple_GetItem(parts.hooks, i)));
    if (ends.back()) continue;
    ends.pop_back();
    break;
  }
  const bool is_begun = PyErr_Occurred() == nullptr;
  PyRef result = is_begun ? PyRef::Steal(PyObject_Call(parts.callback, args, kwargs)) : PyRef();
  const KeptError raised;
  for (const PyRef& end : ends) {
    if (!Call(end.get())) PyErr_WriteUnraisable(end.get());
  }
  return result.release();
}

PyObject* GetCallbackAttribute(PyObject* self, PyObject* name) {
  if (CallbackOf(self).backend != nullptr && PyUnicode_Check(name) &&
      PyUnicode_CompareWithASCIIString(name, kBackend) == 0) {
    return PyRef::Borrow(CallbackOf(self).backend).release();
  }
  return PyObject_GenericGetAttr(self, name);
}

PyType_Slot kEntrySlots[] = {
    {Py_tp_init, reinterpret_cast<void*>(InitEntry)},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc<ClearEntry>)},
    {Py_tp_traverse, reinterpret_cast<void*>(TraverseEntry)},
    {Py_tp_clear, reinterpret_cast<void*>(ClearEntry)},
    {Py_tp_call, reinterpret_cast<void*>(CallEntry)},
    {Py_tp_doc, const_cast<char*>("Entry(function, whole, raise_as_torch, swaps, around): calls a "
                                  "function as torch.compile's wrapper does")},
    {0, nullptr}};

PyType_Spec kEntrySpec = {"kiln_torch._kiln.Entry", sizeof(EntryObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, kEntrySlots};

PyType_Slot kCallbackSlots[] = {
    {Py_tp_init, reinterpret_cast<void*>(InitCallback)},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc<ClearCallback>)},
    {Py_tp_traverse, reinterpret_cast<void*>(TraverseCallback)},
    {Py_tp_clear, reinterpret_cast<void*>(ClearCallback)},
    {Py_tp_call, reinterpret_cast<void*>(CallCallback)},
    {Py_tp_getattro, reinterpret_cast<void*>(GetCallbackAttribute)},
    {Py_tp_doc, const_cast<char*>("Callback(callback, backend, hooks): Dynamo's callback, of which "
                                  "the backend is found at once")},
    {0, nullptr}};

PyType_Spec kCallbackSpec = {"kiln_torch._kiln.Callback", sizeof(CallbackObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, kCallbackSlots};

}  // namespace

bool AddEntryTypes(PyObject* module) {
  const PyRef entry = PyRef::Steal(PyType_FromSpec(&kEntrySpec));
  const PyRef callback = PyRef::Steal(PyType_FromSpec(&kCallbackSpec));
  return entry && callback && PyModule_AddObjectRef(module, "Entry", entry.get()) == 0 &&
         PyModule_AddObjectRef(module, "Callback", callback.get()) == 0;
}

}  // namespace kiln::python
