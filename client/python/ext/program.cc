#include "client/python/ext/program.h"

#include <cstring>
#include <memory>
#include <vector>

#include "client/python/ext/prepared.h"
#include "client/python/ext/run.h"

namespace kiln::python {
namespace {

struct ProgramObject {
  PyObject_HEAD kiln_program* program;
  kiln_compile_info info;
  DLDevice device;
  PyObject* library_steps;          // list of callables; null before set_library_steps
  PyObject* observer;               // callable; null: nobody observes the steps of runs
  std::vector<bool>* plain_inputs;  // by input: its memory is what it shows; null: none is known
  PreparedWeights* prepared;
  RunCache* run_cache;
  // The program of the same graph that prepares nothing; before it is needed a callable that gives
  // it; null or None where there is none.
  PyObject* unprepared;
  long long run_calls;
};

ProgramObject* Self(PyObject* self) {
  return reinterpret_cast<ProgramObject*>(self);
}

void Dealloc(PyObject* self) {
  delete Self(self)->prepared;
  delete Self(self)->run_cache;
  kiln_program_destroy(Self(self)->program);
  Py_XDECREF(Self(self)->library_steps);
  Py_XDECREF(Self(self)->observer);
  Py_XDECREF(Self(self)->unprepared);
  delete Self(self)->plain_inputs;
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

// A Program, None or a callable that gives one.
void KeepUnprepared(PyObject* self, PyObject* given) {
  const PyRef before = PyRef::Steal(Self(self)->unprepared);
  Self(self)->unprepared = PyRef::Borrow(given).release();
}

PyObject* SetUnprepared(PyObject* self, PyObject* make) {
  KeepUnprepared(self, make);
  Py_RETURN_NONE;
}

// A Program or None; null with a Python error set.
PyRef Unprepared(PyObject* self) {
  PyRef known = PyRef::Borrow(Self(self)->unprepared);
  if (PyCallable_Check(known.get()) == 0) return known;
  PyRef made = PyRef::Steal(PyObject_CallNoArgs(known.get()));
  if (made && made.get() != Py_None && Py_TYPE(made.get()) != Py_TYPE(self)) {
    PyErr_SetString(PyExc_TypeError, "a callable for set_unprepared gives a Program or None");
    return PyRef();
  }
  if (made) KeepUnprepared(self, made.get());
  return made;
}

PyObject* RunMethod(PyObject* self, PyObject* inputs) {
  return RunProgram(self, inputs);
}

PyObject* LibrarySteps(PyObject* self, PyObject*) {
  kiln_program_stats stats = KILN_PROGRAM_STATS_INIT;
  kiln_program_get_stats(Self(self)->program, &stats);
  PyRef list = PyRef::Steal(PyList_New(stats.library_steps));
  for (int32_t i = 0; list && i < stats.library_steps; ++i) {
    kiln_library_info info;
    if (kiln_status* status = kiln_program_library_step(Self(self)->program, i, &info)) {
      return RaiseStatus(status);
    }
    PyList_SetItem(list.get(), i, PyUnicode_FromString(info.json));
  }
  return list.release();
}

PyObject* SetLibrarySteps(PyObject* self, PyObject* steps) {
  kiln_program_stats stats = KILN_PROGRAM_STATS_INIT;
  kiln_program_get_stats(Self(self)->program, &stats);
  if (!PyList_Check(steps) || PyList_Size(steps) != stats.library_steps) {
    PyErr_Format(PyExc_ValueError, "expected a list of %d callables", stats.library_steps);
    return nullptr;
  }
  Py_XDECREF(Self(self)->library_steps);
  Self(self)->library_steps = PyRef::Borrow(steps).release();
  Py_RETURN_NONE;
}

PyObject* SetObserver(PyObject* self, PyObject* observer) {
  const PyRef before = PyRef::Steal(Self(self)->observer);
  Self(self)->observer = observer == Py_None ? nullptr : PyRef::Borrow(observer).release();
  Py_RETURN_NONE;
}

PyObject* Steps(PyObject* self, PyObject*) {
  const size_t count = kiln_program_num_steps(Self(self)->program);
  PyRef list = PyRef::Steal(PyList_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; list && i < count; ++i) {
    kiln_step_info info;
    if (kiln_status* status = kiln_program_step(Self(self)->program, i, &info)) {
      return RaiseStatus(status);
    }
    PyObject* step = Py_BuildValue("(iss)", info.kind, info.name, info.nodes);
    if (step == nullptr) return nullptr;
    PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), step);
  }
  return list.release();
}

PyObject* SetCudaDevice(PyObject* self, PyObject* index) {
  const long number = PyLong_AsLong(index);
  if (PyErr_Occurred()) return nullptr;
  Self(self)->device = {kDlpackCuda, static_cast<int32_t>(number)};
  Py_RETURN_NONE;
}

PyObject* Check(PyObject* self, PyObject*) {
  if (kiln_status* status = kiln_program_check(Self(self)->program)) return RaiseStatus(status);
  Py_RETURN_NONE;
}

PyObject* SetLazyInputs(PyObject* self, PyObject* positions) {
  if (!PyList_Check(positions)) {
    PyErr_SetString(PyExc_TypeError, "set_lazy_inputs takes a list of positions");
    return nullptr;
  }
  const size_t count = kiln_program_num_inputs(Self(self)->program);
  auto plain = std::make_unique<std::vector<bool>>(count, true);
  for (Py_ssize_t i = 0; i < PyList_Size(positions); ++i) {
    const size_t position = PyLong_AsSize_t(PyList_GetItem(positions, i));
    if (PyErr_Occurred()) return nullptr;
    if (position >= count) {
      PyErr_Format(PyExc_IndexError, "there are %zu inputs", count);
      return nullptr;
    }
    (*plain)[position] = false;
  }
  delete Self(self)->plain_inputs;
  Self(self)->plain_inputs = plain.release();
  Py_RETURN_NONE;
}

// Adds one to library_ops[op].
bool CountOp(PyObject* ops, const char* op) {
  PyRef key = PyRef::Steal(PyUnicode_FromString(op));
  if (!key) return false;
  PyObject* old = PyDict_GetItemWithError(ops, key.get());
  if (old == nullptr && PyErr_Occurred()) return false;
  PyRef count = PyRef::Steal(PyLong_FromLong(old == nullptr ? 1 : PyLong_AsLong(old) + 1));
  return count && PyDict_SetItem(ops, key.get(), count.get()) == 0;
}

PyObject* Info(PyObject* self, PyObject*) {
  const ProgramObject& p = *Self(self);
  kiln_program_stats stats = KILN_PROGRAM_STATS_INIT;
  kiln_program_get_stats(p.program, &stats);
  PyRef ops = PyRef::Steal(PyDict_New());
  for (int32_t i = 0; ops && i < stats.library_steps; ++i) {
    kiln_library_info info;
    if (kiln_status* status = kiln_program_library_step(p.program, i, &info)) {
      return RaiseStatus(status);
    }
    if (!CountOp(ops.get(), info.op)) return nullptr;
  }
  if (!ops) return nullptr;
  return Py_BuildValue(
      "{s:s,s:s,s:d,s:d,s:d,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:L,s:O}", "source", p.info.source, "key",
      p.info.key, "fetch_ms", p.info.fetch_ms, "compile_ms", p.info.compile_ms, "load_ms",
      p.info.load_ms, "kernels", stats.kernels, "kernels_compiled", p.info.kernels_compiled,
      "kernels_cached", p.info.kernels_cached, "native_steps", stats.native_steps, "library_steps",
      stats.library_steps, "retries", p.info.retries, "threads", stats.threads, "workspace_bytes",
      static_cast<long long>(stats.workspace_bytes), "library_ops", ops.get());
}

PyObject* DescribeJson(PyObject* self, PyObject*) {
  kiln_bytes text;
  if (kiln_status* status = kiln_program_describe_json(Self(self)->program, &text)) {
    return RaiseStatus(status);
  }
  PyObject* out = PyUnicode_FromStringAndSize(text.data, static_cast<Py_ssize_t>(text.size));
  kiln_bytes_free(&text);
  return out;
}

PyObject* GetRunCalls(PyObject* self, void*) {
  return PyLong_FromLongLong(Self(self)->run_calls);
}

PyObject* GetNumOutputs(PyObject* self, void*) {
  return PyLong_FromSize_t(kiln_program_num_outputs(Self(self)->program));
}

PyObject* SetPrepareMemory(PyObject* self, PyObject* bytes) {
  const long long limit = PyLong_AsLongLong(bytes);
  if (PyErr_Occurred()) return nullptr;
  Self(self)->prepared->set_limit(limit);
  Py_RETURN_NONE;
}

PyObject* ExpectRun(PyObject* self, PyObject*) {
  Self(self)->prepared->Expect();
  Py_RETURN_NONE;
}

PyObject* GetPreparedBytes(PyObject* self, void*) {
  return PyLong_FromLongLong(Self(self)->prepared->kept_bytes());
}

PyObject* GetLaunchesTimed(PyObject* self, void*) {
  kiln_program_stats stats = KILN_PROGRAM_STATS_INIT;
  kiln_program_get_stats(Self(self)->program, &stats);
  return PyLong_FromLong(stats.launches_timed);
}

PyObject* GetPreparations(PyObject* self, void*) {
  return PyLong_FromLongLong(Self(self)->prepared->preparations());
}

PyMethodDef kMethods[] = {
    {"run", RunMethod, METH_O, "run(inputs: list or tuple) -> list of tensors, ints and Nones"},
    {"library_steps", LibrarySteps, METH_NOARGS, "each kiln.v1.LibraryStep as protobuf JSON"},
    {"set_library_steps", SetLibrarySteps, METH_O,
     "for each library step, a callable(tensors, ints) -> list of tensors with a method "
     "fit(number, result, declared, tensors)"},
    {"steps", Steps, METH_NOARGS,
     "of each step its kiln_step_kind, its kernel's symbol or operator, its nodes as far as known"},
    {"set_observer", SetObserver, METH_O,
     "a callable(step, begins) that runs call before and after each step; None: none"},
    {"set_cuda_device", SetCudaDevice, METH_O,
     "of a program for ptx: the ordinal of the CUDA device that its runs are on"},
    {"check", Check, METH_NOARGS,
     "raises IndexError for an index out of range that a run on a GPU has met by now; never waits"},
    {"set_lazy_inputs", SetLazyInputs, METH_O,
     "the positions, a list, of all inputs that may be torch's lazy views (conjugated, negated)"},
    {"set_prepare_memory", SetPrepareMemory, METH_O,
     "bytes that the process may keep of what follows from parameters alone; at first 0"},
    {"expect_run", ExpectRun, METH_NOARGS,
     "says that a run comes soon: memory of what it keeps is taken from the system meanwhile"},
    {"set_unprepared", SetUnprepared, METH_O,
     "a callable that gives the same graph's Program without such things, for when there is no "
     "room for them, or None"},
    {"info", Info, METH_NOARGS, "where the program came from and what it consists of"},
    {"describe_json", DescribeJson, METH_NOARGS, "kiln.v1.Artifact without code, protobuf JSON"},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kGetters[] = {
    {"run_calls", GetRunCalls, nullptr, "how often run was called", nullptr},
    {"num_outputs", GetNumOutputs, nullptr, "how many a run gives", nullptr},
    {"launches_timed", GetLaunchesTimed, nullptr, "how many had several schedules timed", nullptr},
    {"prepared_bytes", GetPreparedBytes, nullptr, "kept of what follows from parameters alone",
     nullptr},
    {"preparations", GetPreparations, nullptr, "how often that was computed to be kept", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_getset, kGetters},
                        {Py_tp_doc, const_cast<char*>("A loaded program. Thread-safe.")},
                        {0, nullptr}};

PyType_Spec kSpec = {"kiln_torch._kiln.Program", sizeof(ProgramObject), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};

PyObject* g_type = nullptr;

}  // namespace

bool IsProgram(PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == g_type;
}

PyObject* RunProgram(PyObject* self, PyObject* inputs) {
  ++Self(self)->run_calls;
  static const std::vector<bool> none;
  const std::vector<bool>* plain = Self(self)->plain_inputs;
  bool lacks_room = false;
  // Others may take the observer away while this runs.
  const PyRef observer = PyRef::Borrow(Self(self)->observer);
  PyObject* results =
      Run(Self(self)->program, Self(self)->device, Self(self)->library_steps, observer.get(),
          plain ? *plain : none, *Self(self)->prepared, *Self(self)->run_cache, inputs,
          Self(self)->unprepared != nullptr ? &lacks_room : nullptr);
  if (!lacks_room) return results;
  const PyRef other = Unprepared(self);
  if (!other) return nullptr;
  const ProgramObject& with = *Self(other.get() == Py_None ? self : other.get());
  return Run(with.program, with.device, with.library_steps, nullptr, plain ? *plain : none,
             *with.prepared, *with.run_cache, inputs);
}

bool AddProgramType(PyObject* module) {
  g_type = PyType_FromSpec(&kSpec);
  return g_type != nullptr && PyModule_AddObjectRef(module, "Program", g_type) == 0;
}

PyRef MakeProgram(kiln_program* program, const kiln_compile_info& info) {
  auto* self = PyObject_New(ProgramObject, reinterpret_cast<PyTypeObject*>(g_type));
  if (self == nullptr) {
    kiln_program_destroy(program);
    return PyRef();
  }
  self->program = program;
  self->info = info;
  self->device = {kDlpackCpu, 0};
  self->library_steps = nullptr;
  self->observer = nullptr;
  self->plain_inputs = nullptr;
  self->prepared = new PreparedWeights(program);
  self->run_cache = new RunCache(program);
  self->unprepared = nullptr;
  self->run_calls = 0;
  return PyRef::Steal(reinterpret_cast<PyObject*>(self));
}

PyObject* RaiseStatus(kiln_status* status, PyObject* type) {
  if (kiln_status_code(status) == KILN_OUT_OF_RANGE) {
    const bool divides = std::strcmp(kiln_status_reason(status), "REASON_DIVISION_BY_ZERO") == 0;
    type = divides ? g_division_by_zero : PyExc_IndexError;
  }
  PyErr_SetString(type, kiln_status_message(status));
  kiln_status_destroy(status);
  return nullptr;
}

}  // namespace kiln::python
