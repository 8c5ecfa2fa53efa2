#include "client/python/ext/run.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/python/ext/gil.h"
#include "client/python/ext/outputs.h"
#include "client/python/ext/program.h"
#include "client/python/ext/tensor_exchange.h"

namespace kiln::python {

// The memory of a run's state, which the program's next run uses again.
struct RunBuffers {
  std::vector<kiln_tensor> tensors;
  std::vector<int64_t> scalars;
  std::vector<PyRef> materialized;
  std::vector<PyObject*> input_objects;  // what outputs in an input's memory view; borrowed
  std::vector<kiln_output> outputs;
  Outputs made;
  std::vector<PyRef> library_results;
  std::vector<Managed> scratch;

  // What they hold may be the last of its kind, whose end may run Python code.
  void Clear() {
    scalars.clear();
    materialized.clear();
    input_objects.clear();
    made.Clear();
    library_results.clear();
    scratch.clear();
  }
};

RunCache::RunCache(const kiln_program* program) {
  kiln_program_stats stats = KILN_PROGRAM_STATS_INIT;
  kiln_program_get_stats(program, &stats);
  has_few_steps = stats.library_steps == 0 && stats.native_steps <= 8;
}
RunCache::~RunCache() = default;

namespace {

// Few steps on so few elements are over before another thread could have begun anything: to give it
// the GIL and take it back would cost more.
constexpr int64_t kFewElements = 4096;

constexpr uintptr_t kScratchAlignment = 256;

// The state of one run: what the callbacks fill and the outputs are made from.
class RunState {
 public:
  RunState(const kiln_program* program, DLDevice device, PyObject* library_steps,
           PyObject* observer, const std::vector<bool>& plain_inputs, RunCache& cache,
           const DLPackExchangeAPI& api)
      : program_(program),
        device_(device),
        library_steps_(library_steps),
        observer_(observer),
        plain_inputs_(plain_inputs),
        api_(api),
        cache_(cache),
        buffers_(std::move(cache.buffers)) {
    if (buffers_ == nullptr) buffers_ = std::make_unique<RunBuffers>();
    // A launch may wait for room in the stream.
    if (IsOnGpu()) elements_ = kFewElements + 1;
  }
  ~RunState() {
    buffers_->Clear();
    cache_.buffers = std::move(buffers_);
  }

  bool ReadInputs(PyObject* inputs) {
    const bool is_list = PyList_Check(inputs) != 0;
    const Py_ssize_t count = is_list ? PyList_Size(inputs) : PyTuple_Size(inputs);
    buffers_->tensors.resize(count);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = is_list ? PyList_GetItem(inputs, i) : PyTuple_GetItem(inputs, i);
      buffers_->input_objects.push_back(item);
      if (PyLong_Check(item)) {
        buffers_->scalars.reserve(count);  // they stay where they are
        buffers_->scalars.push_back(PyLong_AsLongLong(item));
        if (PyErr_Occurred()) return false;
        buffers_->tensors[i] = {
            &buffers_->scalars.back(), nullptr, nullptr, 0, KILN_INT64, KILN_CPU, 0};
      } else if (!ReadPlain(item, i)) {
        PyErr_Clear();
        buffers_->materialized.push_back(Materialize(item));
        if (!buffers_->materialized.back() ||
            !TensorFromPython(api_, buffers_->materialized.back().get(), &buffers_->tensors[i])) {
          return false;
        }
        buffers_->input_objects[i] = buffers_->materialized.back().get();
        if (buffers_->input_objects[i] != item && kiln_program_writes_input(program_, i) != 0) {
          PyErr_Format(g_input_mismatch, "input %zd is a lazy view, which no kernel writes", i);
          return false;
        }
      }
      if (!IsOnThisGpu(buffers_->tensors[i], i)) return false;
      Count(buffers_->tensors[i].ndim, buffers_->tensors[i].sizes);
    }
    return true;
  }

  // False with a Python error set.
  bool Prepare(PreparedWeights& weights) {
    prepared_ = weights.Get(buffers_->input_objects, buffers_->tensors);
    return prepared_ != nullptr || PyErr_Occurred() == nullptr;
  }

  // Null with a Python error set, too, where a callback failed or torch gave no stream.
  kiln_status* Execute() {
    kiln_run_options options = KILN_RUN_OPTIONS_INIT;
    options.user = this;
    if (IsOnGpu()) {
      if (!CurrentStream(api_, device_, &options.stream)) return nullptr;
      options.allocate_scratch = [](void* user, int64_t bytes, void** data) {
        auto* self = static_cast<RunState*>(user);
        return self->WithGil([&] { return self->AllocateScratch(bytes, data); });
      };
    }
    options.prepared = prepared_.get();
    options.allocate_output = [](void* user, int32_t allocation, int32_t dtype, int32_t ndim,
                                 const int64_t* sizes, const int64_t* strides, void** data) {
      auto* self = static_cast<RunState*>(user);
      return self->WithGil(
          [&] { return self->AllocateOutput(allocation, dtype, ndim, sizes, strides, data); });
    };
    options.library_step = [](void* user, int32_t step, const kiln_tensor* tensors,
                              size_t num_tensors, const int64_t* ints, size_t num_ints,
                              kiln_tensor* results, size_t num_results) {
      auto* self = static_cast<RunState*>(user);
      return self->WithGil([&] {
        return self->LibraryStep(step, tensors, num_tensors, ints, num_ints, results, num_results);
      });
    };
    if (observer_ != nullptr) {
      options.step = [](void* user, int32_t step, int32_t begins) {
        auto* self = static_cast<RunState*>(user);
        kiln_status_destroy(self->WithGil([&] { return self->Observe(step, begins); }));
      };
    }
    buffers_->outputs.resize(kiln_program_num_outputs(program_));
    if (!IsShort()) saved_thread_ = PyEval_SaveThread();
    kiln_status* status =
        kiln_program_run(program_, buffers_->tensors.data(), buffers_->tensors.size(),
                         buffers_->outputs.data(), buffers_->outputs.size(), &options);
    TakeGil();
    return status;
  }

  PyObject* MakeOutputs() {
    return buffers_->made.Make(api_, buffers_->outputs, buffers_->input_objects,
                               buffers_->library_results);
  }

 private:
  // False where the tensor's memory is not what it shows, or an error is set.
  bool ReadPlain(PyObject* item, Py_ssize_t i) {
    if (!TensorFromPython(api_, item, &buffers_->tensors[i]) ||
        buffers_->tensors[i].data == nullptr)
      return false;
    const auto at = static_cast<size_t>(i);
    const bool is_plain = at < plain_inputs_.size() && plain_inputs_[at];
    return is_plain || !IsLazyView(item, buffers_->tensors[i].dtype);
  }

  bool IsOnGpu() const { return device_.device_type == kDlpackCuda; }
  // Whether input `i` is not on another GPU than the graph's other tensors: false with an error
  // set.
  bool IsOnThisGpu(const kiln_tensor& tensor, Py_ssize_t i) const {
    if (!IsOnGpu() || tensor.device_type != KILN_CUDA || tensor.device_index == device_.device_id) {
      return true;
    }
    PyErr_Format(g_input_mismatch, "input %zd is on cuda:%d; the graph is for cuda:%d", i,
                 tensor.device_index, device_.device_id);
    return false;
  }

  void Count(int32_t ndim, const int64_t* sizes) {
    int64_t count = 1;
    for (int32_t d = 0; d < ndim; ++d) count *= sizes[d];
    if (elements_ <= kFewElements) elements_ += count;
  }
  bool IsShort() const { return cache_.has_few_steps && elements_ <= kFewElements; }
  void TakeGil() {
    if (saved_thread_ != nullptr) python::TakeGil(std::exchange(saved_thread_, nullptr));
  }

  // Callbacks come on the thread of the run. Those that allocate come before any kernel runs, and
  // may show that it is not short.
  template <typename Body>
  kiln_status* WithGil(const Body& body) {
    TakeGil();
    const bool ok = body();
    if (!IsShort()) saved_thread_ = PyEval_SaveThread();
    // The Python error stays set in this thread's state and is what the caller sees.
    return ok ? nullptr : kiln_status_create(KILN_UNKNOWN, "a Python callback failed");
  }

  bool AllocateOutput(int32_t allocation, int32_t dtype, int32_t ndim, const int64_t* sizes,
                      const int64_t* strides, void** data) {
    const int64_t elements = ReachableElements(ndim, sizes, strides);
    Count(1, &elements);
    return buffers_->made.Allocate(api_, device_, allocation, dtype, ndim, sizes, strides, data);
  }

  bool AllocateScratch(int64_t bytes, void** data) {
    Managed memory(Allocate(api_, device_, KILN_UINT8, bytes));
    if (memory == nullptr) return false;
    *data = static_cast<char*>(memory->dl_tensor.data) + memory->dl_tensor.byte_offset;
    if (reinterpret_cast<uintptr_t>(*data) % kScratchAlignment != 0) {
      PyErr_SetString(PyExc_RuntimeError,
                      "torch's allocator gave memory that is not aligned to 256 bytes");
      return false;
    }
    buffers_->scratch.push_back(std::move(memory));
    return true;
  }

  // Nothing that an observer raises stops a run.
  bool Observe(int32_t step, int32_t begins) {
    if (PyErr_Occurred()) return false;  // a step's own, which the caller is to see
    PyRef done = PyRef::Steal(PyObject_CallFunction(observer_, "ii", step, begins));
    if (!done) PyErr_WriteUnraisable(observer_);
    return true;
  }

  bool LibraryStep(int32_t step, const kiln_tensor* tensors, size_t num_tensors,
                   const int64_t* ints, size_t num_ints, kiln_tensor* results, size_t num_results) {
    if (library_steps_ == nullptr) {
      PyErr_SetString(PyExc_RuntimeError, "set_library_steps comes before the first run");
      return false;
    }
    PyObject* call = PyList_GetItem(library_steps_, step);
    PyRef arguments = PyRef::Steal(PyList_New(static_cast<Py_ssize_t>(num_tensors)));
    PyRef numbers = TupleOf(static_cast<int32_t>(num_ints), ints);
    if (call == nullptr || !arguments || !numbers) return false;
    for (size_t i = 0; i < num_tensors; ++i) {
      PyRef view = ViewToPython(api_, tensors[i]);
      if (!view) return false;
      PyList_SetItem(arguments.get(), static_cast<Py_ssize_t>(i), view.release());
    }
    PyRef made =
        PyRef::Steal(PyObject_CallFunctionObjArgs(call, arguments.get(), numbers.get(), nullptr));
    if (!made) return false;
    if (!PyList_Check(made.get()) ||
        PyList_Size(made.get()) != static_cast<Py_ssize_t>(num_results)) {
      PyErr_Format(PyExc_RuntimeError, "library step %d returned another number of results", step);
      return false;
    }
    for (size_t i = 0; i < num_results; ++i) {
      const kiln_tensor declared = results[i];
      PyRef result = PyRef::Borrow(PyList_GetItem(made.get(), static_cast<Py_ssize_t>(i)));
      if (!TensorFromPython(api_, result.get(), &results[i]) ||
          results[i].dtype != declared.dtype || !SameLayout(results[i], declared)) {
        PyErr_Clear();
        result = Fit(call, static_cast<int>(i), result.get(), declared, arguments.get());
        if (!result || !TensorFromPython(api_, result.get(), &results[i])) return false;
      }
      buffers_->library_results.push_back(std::move(result));
    }
    return true;
  }

  static bool SameLayout(const kiln_tensor& a, const kiln_tensor& b) {
    if (a.ndim != b.ndim || !std::equal(a.sizes, a.sizes + a.ndim, b.sizes)) return false;
    for (int32_t d = 0; d < a.ndim; ++d) {
      if (a.sizes[d] == 0) return true;
      if (a.sizes[d] > 1 && a.strides[d] != b.strides[d]) return false;
    }
    return true;
  }
  // Whether its elements fill memory without gaps, in whatever order of dimensions.
  static bool IsDense(const kiln_tensor& tensor) {
    std::vector<std::pair<int64_t, int64_t>> dims;  // stride and size
    for (int32_t d = 0; d < tensor.ndim; ++d) {
      if (tensor.sizes[d] != 1) dims.emplace_back(tensor.strides[d], tensor.sizes[d]);
    }
    std::sort(dims.begin(), dims.end());
    int64_t elements = 1;
    for (const auto& [stride, size] : dims) {
      if (stride != elements) return false;
      elements *= size;
    }
    return true;
  }

  // A tensor of the declared type that the step's `fit` has written `result` to; contiguous where
  // that type has gaps.
  PyRef Fit(PyObject* step, int number, PyObject* result, const kiln_tensor& declared,
            PyObject* arguments) {
    std::vector<int64_t> strides(declared.ndim);
    int64_t elements = 1;
    for (int32_t d = declared.ndim; d-- > 0; elements *= declared.sizes[d]) strides[d] = elements;
    if (IsDense(declared)) strides.assign(declared.strides, declared.strides + declared.ndim);
    DLManagedTensorVersioned* memory = Allocate(api_, device_, declared.dtype, elements);
    if (memory == nullptr) return PyRef();
    PyRef fitted = TensorToPython(api_, memory, declared.ndim, declared.sizes, strides.data());
    if (!fitted) return fitted;
    PyRef done = PyRef::Steal(
        PyObject_CallMethod(step, "fit", "iOOO", number, result, fitted.get(), arguments));
    return done ? std::move(fitted) : PyRef();
  }

  const kiln_program* program_;
  const DLDevice device_;
  PyObject* const library_steps_;
  PyObject* const observer_;
  const std::vector<bool>& plain_inputs_;
  const DLPackExchangeAPI& api_;
  PyThreadState* saved_thread_ = nullptr;
  RunCache& cache_;
  std::unique_ptr<RunBuffers> buffers_;
  int64_t elements_ = 0;  // of inputs and outputs, as far as they are few
  std::shared_ptr<const kiln_prepared> prepared_;
};

}  // namespace

PyObject* Run(const kiln_program* program, DLDevice device, PyObject* library_steps,
              PyObject* observer, const std::vector<bool>& plain_inputs, PreparedWeights& prepared,
              RunCache& cache, PyObject* inputs, bool* lacks_room) {
  const DLPackExchangeAPI* api = ExchangeApi();
  if (api == nullptr) return nullptr;
  if (!PyList_Check(inputs) && !PyTuple_Check(inputs)) {
    PyErr_SetString(PyExc_TypeError, "run takes a list or tuple of tensors and ints");
    return nullptr;
  }
  RunState state(program, device, library_steps, observer, plain_inputs, cache, *api);
  if (!state.ReadInputs(inputs) || !state.Prepare(prepared)) return nullptr;
  if (lacks_room != nullptr && prepared.lacks_room()) {
    *lacks_room = true;
    return nullptr;
  }
  kiln_status* status = state.Execute();
  if (PyErr_Occurred()) {
    kiln_status_destroy(status);
    return nullptr;
  }
  if (status != nullptr) {
    // Of a run, a wrong argument is a tensor that differs from what was captured.
    return RaiseStatus(
        status, kiln_status_code(status) == KILN_INVALID_ARGUMENT ? g_input_mismatch : g_error);
  }
  return state.MakeOutputs();
}

}  // namespace kiln::python
