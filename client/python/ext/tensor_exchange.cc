#include "client/python/ext/tensor_exchange.h"

#include <algorithm>
#include <iterator>

namespace kiln::python {
namespace {

// DLPack's type codes.
enum Code : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3FN = 10,
  kFloat8E4M3FNUZ = 11,
  kFloat8E5M2 = 12,
  kFloat8E5M2FNUZ = 13,
  kFloat8E8M0FNU = 14,
};

struct TypeRow {
  int32_t dtype;
  Code code;
  uint8_t bits;
  const char* name;  // torch's
};

constexpr TypeRow kTypes[] = {
    {KILN_BOOL, kBool, 8, "bool"},
    {KILN_UINT8, kUInt, 8, "uint8"},
    {KILN_INT8, kInt, 8, "int8"},
    {KILN_INT16, kInt, 16, "int16"},
    {KILN_INT32, kInt, 32, "int32"},
    {KILN_INT64, kInt, 64, "int64"},
    {KILN_FLOAT16, kFloat, 16, "float16"},
    {KILN_BFLOAT16, kBfloat, 16, "bfloat16"},
    {KILN_FLOAT32, kFloat, 32, "float32"},
    {KILN_FLOAT64, kFloat, 64, "float64"},
    {KILN_COMPLEX64, kComplex, 64, "complex64"},
    {KILN_COMPLEX128, kComplex, 128, "complex128"},
    {KILN_COMPLEX32, kComplex, 32, "complex32"},
    {KILN_UINT16, kUInt, 16, "uint16"},
    {KILN_UINT32, kUInt, 32, "uint32"},
    {KILN_UINT64, kUInt, 64, "uint64"},
    {KILN_FLOAT8_E4M3FN, kFloat8E4M3FN, 8, "float8_e4m3fn"},
    {KILN_FLOAT8_E4M3FNUZ, kFloat8E4M3FNUZ, 8, "float8_e4m3fnuz"},
    {KILN_FLOAT8_E5M2, kFloat8E5M2, 8, "float8_e5m2"},
    {KILN_FLOAT8_E5M2FNUZ, kFloat8E5M2FNUZ, 8, "float8_e5m2fnuz"},
    {KILN_FLOAT8_E8M0FNU, kFloat8E8M0FNU, 8, "float8_e8m0fnu"},
};

int32_t FromDlpack(DLDataType type) {
  for (const TypeRow& row : kTypes) {
    if (row.code == type.code && row.bits == type.bits && type.lanes == 1) return row.dtype;
  }
  return 0;
}

DLDataType ToDlpack(int32_t dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return {row.code, row.bits, 1};
  }
  return {};
}

const DLPackExchangeAPI* FindApi() {
  PyRef torch = PyRef::Steal(PyImport_ImportModule("torch"));
  if (!torch) return nullptr;
  PyRef type = PyRef::Steal(PyObject_GetAttrString(torch.get(), "Tensor"));
  if (!type) return nullptr;
  PyRef capsule = PyRef::Steal(PyObject_GetAttrString(type.get(), "__dlpack_c_exchange_api__"));
  if (!capsule) return nullptr;
  auto* header = static_cast<DLPackExchangeAPIHeader*>(
      PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  while (header != nullptr && header->version.major != kDlpackMajorVersion) {
    header = header->prev_api;
  }
  auto* api = reinterpret_cast<DLPackExchangeAPI*>(header);
  if (api == nullptr || api->dltensor_from_py_object_no_sync == nullptr) {
    if (!PyErr_Occurred()) {
      PyErr_SetString(PyExc_ImportError, "this torch offers no DLPack 1 exchange interface");
    }
    return nullptr;
  }
  return api;
}

void SetError(void*, const char* kind, const char* message) {
  PyErr_Format(PyExc_RuntimeError, "%s: %s", kind, message);
}

}  // namespace

int64_t ElementBytes(int32_t dtype) {
  return ToDlpack(dtype).bits / 8;
}

bool IsLazyView(PyObject* object, int32_t dtype) {
  const int32_t code = ToDlpack(dtype).code;
  if (code != kComplex && code != kFloat && code != kBfloat) return false;
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  static PyObject* const is_conj = PyUnicode_InternFromString("is_conj");
  const auto says_no = [&](PyObject* method) {
    const PyRef answer = PyRef::Steal(PyObject_CallMethodObjArgs(object, method, nullptr));
    return answer.get() == Py_False;
  };
  return !says_no(is_neg) || (code == kComplex && !says_no(is_conj));
}

PyRef Materialize(PyObject* object) {
  PyRef plain = PyRef::Steal(PyObject_CallMethod(object, "resolve_conj", nullptr));
  if (plain) plain = PyRef::Steal(PyObject_CallMethod(plain.get(), "resolve_neg", nullptr));
  if (!plain) return plain;
  PyRef zero = PyRef::Steal(PyObject_CallMethod(plain.get(), "_is_zerotensor", nullptr));
  if (!zero) return zero;
  if (PyObject_IsTrue(zero.get()) == 1) {
    plain = PyRef::Steal(PyObject_CallMethod(plain.get(), "clone", nullptr));
  }
  if (!plain || plain.get() == object) return plain;
  // With the strides that it had.
  PyRef sizes = PyRef::Steal(PyObject_CallMethod(object, "size", nullptr));
  PyRef strides = PyRef::Steal(PyObject_CallMethod(object, "stride", nullptr));
  if (!sizes || !strides) return PyRef();
  PyRef out = PyRef::Steal(
      PyObject_CallMethod(plain.get(), "new_empty_strided", "OO", sizes.get(), strides.get()));
  return out ? PyRef::Steal(PyObject_CallMethod(out.get(), "copy_", "O", plain.get())) : PyRef();
}

const DLPackExchangeAPI* ExchangeApi() {
  static const DLPackExchangeAPI* api = nullptr;
  if (api == nullptr) api = FindApi();
  return api;
}

bool TensorFromPython(const DLPackExchangeAPI& api, PyObject* object, kiln_tensor* out) {
  DLTensor tensor;
  if (api.dltensor_from_py_object_no_sync(object, &tensor) != 0) return false;
  out->dtype = FromDlpack(tensor.dtype);
  if (out->dtype == 0) {
    PyErr_Format(PyExc_TypeError, "a tensor has DLPack type code %d with %d bits",
                 tensor.dtype.code, tensor.dtype.bits);
    return false;
  }
  out->data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  out->sizes = tensor.shape;
  out->strides = tensor.strides;
  out->ndim = tensor.ndim;
  out->device_type = tensor.device.device_type;
  out->device_index = tensor.device.device_id;
  return true;
}

DLManagedTensorVersioned* Allocate(const DLPackExchangeAPI& api, DLDevice device, int32_t dtype,
                                   int64_t elements) {
  int64_t stride = 1;
  DLTensor prototype = {nullptr, device, 1, ToDlpack(dtype), &elements, &stride, 0};
  DLManagedTensorVersioned* managed = nullptr;
  if (api.managed_tensor_allocator(&prototype, &managed, nullptr, SetError) != 0) return nullptr;
  return managed;
}

PyRef TupleOf(int32_t count, const int64_t* values) {
  PyRef tuple = PyRef::Steal(PyTuple_New(count));
  for (int32_t i = 0; tuple && i < count; ++i) {
    PyTuple_SetItem(tuple.get(), i, PyLong_FromLongLong(values[i]));
  }
  return tuple;
}

const TensorMaker& TensorMaker::Get(int32_t device_type) {
  // Never freed: Python may be gone by then.
  if (device_type == KILN_CPU) {
    static const auto* const of_cpu = new TensorMaker(KILN_CPU);
    return *of_cpu;
  }
  static const auto* const of_cuda = new TensorMaker(KILN_CUDA);
  return *of_cuda;
}

TensorMaker::TensorMaker(int32_t device_type) {
  const char* const name = device_type == KILN_CPU ? "_empty_strided_cpu" : "_empty_strided_cuda";
  PyRef guards = PyRef::Steal(PyImport_ImportModule("torch._C._dynamo.guards"));
  if (guards) {
    empty_strided_ = PyRef::Steal(PyObject_GetAttrString(guards.get(), name));
  }
  const DLPackExchangeAPI* api = ExchangeApi();
  constexpr int64_t kSizes[] = {2, 3};
  constexpr int64_t kStrides[] = {1, 4};
  const PyRef arguments = Arguments(KILN_INT16, 2, kSizes, kStrides);
  kiln_tensor found = {};
  const PyRef probe =
      empty_strided_ && api != nullptr && arguments ? Make(arguments.get()) : PyRef();
  const bool is_as_asked = probe && TensorFromPython(*api, probe.get(), &found) &&
                           found.dtype == KILN_INT16 && found.device_type == device_type &&
                           found.ndim == 2 && std::equal(kSizes, kSizes + 2, found.sizes) &&
                           std::equal(kStrides, kStrides + 2, found.strides);
  PyErr_Clear();
  if (is_as_asked) return;
  empty_strided_ = PyRef();
  const PyRef logging = PyRef::Steal(PyImport_ImportModule("logging"));
  const PyRef log = PyRef::Steal(
      logging ? PyObject_CallMethod(logging.get(), "getLogger", "s", "kiln_torch") : nullptr);
  if (log) {
    PyRef::Steal(PyObject_CallMethod(log.get(), "info", "ss",
                                     "torch has no %s: results are made through DLPack", name));
  }
  PyErr_Clear();
}

PyRef TensorMaker::Arguments(int32_t dtype, int32_t ndim, const int64_t* sizes,
                             const int64_t* strides) {
  static PyObject* const torch = PyImport_ImportModule("torch");
  const auto* row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                 [&](const TypeRow& type) { return type.dtype == dtype; });
  if (row == std::end(kTypes)) {
    PyErr_Format(PyExc_TypeError, "no torch.dtype is kiln_dtype %d", dtype);
    return PyRef();
  }
  const PyRef type = PyRef::Steal(PyObject_GetAttrString(torch, row->name));
  const PyRef python_sizes = TupleOf(ndim, sizes);
  const PyRef python_strides = TupleOf(ndim, strides);
  if (!type || !python_sizes || !python_strides) return PyRef();
  return PyRef::Steal(PyTuple_Pack(3, python_sizes.get(), python_strides.get(), type.get()));
}

PyRef TensorMaker::Make(PyObject* arguments) const {
  return PyRef::Steal(PyObject_Call(empty_strided_.get(), arguments, nullptr));
}

bool CurrentStream(const DLPackExchangeAPI& api, DLDevice device, void** stream) {
  if (api.current_work_stream != nullptr) {
    if (api.current_work_stream(device.device_type, device.device_id, stream) == 0) return true;
    if (PyErr_Occurred() == nullptr) {
      PyErr_Format(PyExc_RuntimeError, "torch gave no stream of cuda:%d", device.device_id);
    }
    return false;
  }
  const PyRef cuda = PyRef::Steal(PyImport_ImportModule("torch.cuda"));
  const PyRef current = PyRef::Steal(
      cuda ? PyObject_CallMethod(cuda.get(), "current_stream", "i", device.device_id) : nullptr);
  const PyRef handle =
      PyRef::Steal(current ? PyObject_GetAttrString(current.get(), "cuda_stream") : nullptr);
  if (!handle) return false;
  *stream = PyLong_AsVoidPtr(handle.get());
  return PyErr_Occurred() == nullptr;
}

PyRef TensorToPython(const DLPackExchangeAPI& api, DLManagedTensorVersioned* managed, int32_t ndim,
                     const int64_t* sizes, const int64_t* strides) {
  // The consumer copies sizes and strides, so they need to live through the call only; the
  // allocator's own come back before its deleter can look at them.
  const DLTensor allocated = managed->dl_tensor;
  managed->dl_tensor.ndim = ndim;
  managed->dl_tensor.shape = const_cast<int64_t*>(sizes);
  managed->dl_tensor.strides = const_cast<int64_t*>(strides);
  void* object = nullptr;
  const bool ok = api.managed_tensor_to_py_object_no_sync(managed, &object) == 0;
  if (!ok) return PyRef();
  managed->dl_tensor.ndim = allocated.ndim;
  managed->dl_tensor.shape = allocated.shape;
  managed->dl_tensor.strides = allocated.strides;
  return PyRef::Steal(static_cast<PyObject*>(object));
}

PyRef ViewToPython(const DLPackExchangeAPI& api, const kiln_tensor& tensor) {
  auto* managed = new DLManagedTensorVersioned{};
  managed->version = {kDlpackMajorVersion, 0};
  managed->deleter = [](DLManagedTensorVersioned* self) { delete self; };
  managed->dl_tensor = {tensor.data,
                        {tensor.device_type, tensor.device_index},
                        tensor.ndim,
                        ToDlpack(tensor.dtype),
                        const_cast<int64_t*>(tensor.sizes),
                        const_cast<int64_t*>(tensor.strides),
                        0};
  void* object = nullptr;
  if (api.managed_tensor_to_py_object_no_sync(managed, &object) != 0) {
    delete managed;
    return PyRef();
  }
  return PyRef::Steal(static_cast<PyObject*>(object));
}

}  // namespace kiln::python
