// The extension module kiln_torch._kiln: the C interface of libkiln.so for Python.
#include <unistd.h>

#include <cstring>
#include <string>

#include "client/python/ext/apart.h"
#include "client/python/ext/entry.h"
#include "client/python/ext/gil.h"
#include "client/python/ext/program.h"
#include "client/python/ext/py_ref.h"
#include "client/python/ext/shortcut.h"
#include "kiln/kiln.h"

namespace kiln::python {

PyObject* g_error = nullptr;
PyObject* g_input_mismatch = nullptr;
PyObject* g_division_by_zero = nullptr;
PyObject* g_cache_miss = nullptr;
PyObject* g_unavailable = nullptr;

namespace {

struct ClientObject {
  PyObject_HEAD kiln_client* client;
};

ClientObject* Self(PyObject* self) {
  return reinterpret_cast<ClientObject*>(self);
}

int InitClient(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {
      "server",      "timeout_s", "threads",   "debug_dir",    "debug",          "tls_ca",
      "tls_cert",    "tls_key",   "token",     "token_file",   "public_key",     "known_servers",
      "local_cache", "tenant",    "priority",  "fail_on_miss", "prepare_memory", "arch",
      "target",      "autotune",  "libraries", nullptr};
  const char* server = "";
  const char* debug_dir = "";
  const char* arch = "";
  const char* target = "";
  const char* libraries = "torch";
  double timeout_s = 120;
  int threads = 0;
  int debug = 0;
  int fail_on_miss = 0;
  int autotune = 0;
  long long prepare_memory = 0;
  // An empty text is as good as none: the library then asks the environment.
  kiln_client_options options = KILN_CLIENT_OPTIONS_INIT;
  if (!PyArg_ParseTupleAndKeywords(
          args, kwargs, "|sdispsssssssssspLssps", const_cast<char**>(names), &server, &timeout_s,
          &threads, &debug_dir, &debug, &options.tls_ca, &options.tls_cert, &options.tls_key,
          &options.token, &options.token_file, &options.public_key, &options.known_servers,
          &options.local_cache, &options.tenant, &options.priority, &fail_on_miss, &prepare_memory,
          &arch, &target, &autotune, &libraries)) {
    return -1;
  }
  options.server = *server != '\0' ? server : nullptr;
  options.timeout_ms = static_cast<int64_t>(timeout_s * 1e3);
  options.threads = threads;
  options.libraries = *libraries != '\0' ? libraries : nullptr;
  options.arch = *arch != '\0' ? arch : nullptr;
  options.target = *target != '\0' ? target : nullptr;
  options.debug_dir = *debug_dir != '\0' ? debug_dir : nullptr;
  options.debug = debug;
  options.fail_on_miss = fail_on_miss;
  options.prepare_memory = prepare_memory;
  options.autotune = autotune;
  if (kiln_status* status = kiln_client_create(&options, &Self(self)->client)) {
    RaiseStatus(status);
    return -1;
  }
  return 0;
}

void DeallocClient(PyObject* self) {
  kiln_client_destroy(Self(self)->client);
  PyTypeObject* type = Py_TYPE(self);
  auto* free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

// A graph for the length of a scope.
class Graph {
 public:
  explicit Graph(PyObject* text) {
    Py_ssize_t size = 0;
    const char* json = PyUnicode_AsUTF8AndSize(text, &size);
    if (json == nullptr) return;
    if (kiln_status* status = kiln_graph_parse_json(json, static_cast<size_t>(size), &graph_)) {
      RaiseStatus(status);
    }
  }
  ~Graph() { kiln_graph_destroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  // Null with a Python error set where the text was no graph.
  kiln_graph* get() const { return graph_; }

 private:
  kiln_graph* graph_ = nullptr;
};

// The exception's type for a compile that failed.
PyObject* TypeOf(kiln_code code) {
  switch (code) {
    case KILN_NOT_FOUND:
      return g_cache_miss;
    case KILN_DEADLINE_EXCEEDED:
    case KILN_RESOURCE_EXHAUSTED:
    case KILN_UNAVAILABLE:
      return g_unavailable;
    default:
      return g_error;
  }
}

// Without the GIL up to End(). Of a compile with its `options`, Python's handlers of signals run
// meanwhile, and what they raise, as Ctrl-C's does, cancels it.
class Interruptible {
 public:
  Interruptible() : thread_(PyEval_SaveThread()) {
    options_.user = this;
    // Handlers run on no other thread.
    if (gettid() == getpid()) options_.progress = Look;
  }
  const kiln_compile_options* options() const { return &options_; }
  void End() { TakeGil(thread_); }

 private:
  static int Look(void* user, const char*, int32_t, int32_t, int32_t) {
    auto* self = static_cast<Interruptible*>(user);
    TakeGil(self->thread_);
    const int raised = PyErr_CheckSignals();
    self->thread_ = PyEval_SaveThread();
    return raised;
  }

  PyThreadState* thread_;
  kiln_compile_options options_ = KILN_COMPILE_OPTIONS_INIT;
};

PyObject* Compile(PyObject* self, PyObject* json) {
  Graph graph(json);
  if (graph.get() == nullptr) return nullptr;
  kiln_program* program = nullptr;
  kiln_compile_info info = KILN_COMPILE_INFO_INIT;
  Interruptible interruptible;
  kiln_status* status =
      kiln_compile(Self(self)->client, graph.get(), interruptible.options(), &program, &info);
  interruptible.End();
  if (PyErr_Occurred()) {  // a signal's handler raised it, perhaps once the program had come
    kiln_status_destroy(status);
    kiln_program_destroy(program);
    return nullptr;
  }
  if (status != nullptr) {
    return RaiseStatus(status, TypeOf(kiln_status_code(status)));
  }
  return MakeProgram(program, info).release();
}

PyObject* GraphToBytes(PyObject*, PyObject* json) {
  Graph graph(json);
  if (graph.get() == nullptr) return nullptr;
  kiln_bytes bytes;
  if (kiln_status* status = kiln_graph_serialize(graph.get(), &bytes)) return RaiseStatus(status);
  PyObject* out = PyBytes_FromStringAndSize(bytes.data, static_cast<Py_ssize_t>(bytes.size));
  kiln_bytes_free(&bytes);
  return out;
}

// What `read` writes, protobuf JSON, as text.
PyObject* Json(PyObject* self, kiln_status* (*read)(kiln_client*, kiln_bytes*)) {
  kiln_bytes text;
  PyThreadState* thread = PyEval_SaveThread();
  kiln_status* status = read(Self(self)->client, &text);
  TakeGil(thread);
  if (status != nullptr) return RaiseStatus(status, TypeOf(kiln_status_code(status)));
  PyObject* out = PyUnicode_FromStringAndSize(text.data, static_cast<Py_ssize_t>(text.size));
  kiln_bytes_free(&text);
  return out;
}

PyObject* DeviceJson(PyObject* self, PyObject*) {
  return Json(self, [](kiln_client* client, kiln_bytes* text) {
    return kiln_client_device_json(client, text);
  });
}

PyObject* ServerInfoJson(PyObject* self, PyObject*) {
  return Json(self, kiln_client_server_info_json);
}

PyObject* ClearPrograms(PyObject*, PyObject*) {
  kiln_forget_programs();
  Py_RETURN_NONE;
}

PyObject* SetThreadTrace(PyObject*, PyObject* text) {
  const char* traceparent = PyUnicode_AsUTF8AndSize(text, nullptr);
  if (traceparent == nullptr) return nullptr;
  kiln_set_thread_trace(traceparent);
  Py_RETURN_NONE;
}

PyMethodDef kClientMethods[] = {
    {"compile", Compile, METH_O,
     "compile(graph_json: str) -> Program; raises CacheMiss with "
     "fail_on_miss, Unavailable where the server is away, full or slow, "
     "Error where it refuses"},
    {"device_json", DeviceJson, METH_NOARGS, "the kiln.v1.Device that this client asks for"},
    {"server_info_json", ServerInfoJson, METH_NOARGS,
     "kiln.v1.ServerInfo; raises Unavailable where no server answers"},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot kClientSlots[] = {
    {Py_tp_init, reinterpret_cast<void*>(InitClient)},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocClient)},
    {Py_tp_methods, kClientMethods},
    {Py_tp_doc,
     const_cast<char*>(
         "Client(server, timeout_s, threads, debug_dir, debug, **options of kiln_client_options)")},
    {0, nullptr}};

PyType_Spec kClientSpec = {"kiln_torch._kiln.Client", sizeof(ClientObject), 0, Py_TPFLAGS_DEFAULT,
                           kClientSlots};

PyMethodDef kModuleMethods[] = {
    {"graph_to_bytes", GraphToBytes, METH_O, "serialized kiln.v1.Graph of protobuf JSON"},
    {"set_thread_trace", SetThreadTrace, METH_O,
     "the W3C traceparent of this thread's calls; an empty string takes it away"},
    {"clear_programs", ClearPrograms, METH_NOARGS, "forgets the programs this process has loaded"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_kiln", "libkiln.so for kiln_torch", -1,
                       kModuleMethods};

bool AddException(PyObject* module, const char* name, PyObject* base, PyObject** out) {
  const std::string qualified = std::string("kiln_torch._kiln.") + name;
  *out = PyErr_NewException(qualified.c_str(), base, nullptr);
  return *out != nullptr && PyModule_AddObjectRef(module, name, *out) == 0;
}

}  // namespace
}  // namespace kiln::python

PyMODINIT_FUNC PyInit__kiln() {
  using namespace kiln::python;
  PyRef module = PyRef::Steal(PyModule_Create(&kModule));
  if (!module) return nullptr;
  PyRef client = PyRef::Steal(PyType_FromSpec(&kClientSpec));
  if (!client || PyModule_AddObjectRef(module.get(), "Client", client.get()) != 0) return nullptr;
  if (!AddException(module.get(), "Error", PyExc_RuntimeError, &g_error) ||
      !AddException(module.get(), "InputMismatch", g_error, &g_input_mismatch) ||
      !AddException(module.get(), "DivisionByZero", g_error, &g_division_by_zero) ||
      !AddException(module.get(), "CacheMiss", g_error, &g_cache_miss) ||
      !AddException(module.get(), "Unavailable", g_error, &g_unavailable) ||
      !AddProgramType(module.get()) || !AddShortcutTypes(module.get()) ||
      !AddEntryTypes(module.get()) || !AddApartType(module.get())) {
    return nullptr;
  }
  return module.release();
}
