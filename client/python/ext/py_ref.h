// A counted reference to a Python object. Every use needs the GIL.
#pragma once

#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <utility>

namespace kiln::python {

class PyRef {
 public:
  PyRef() = default;
  // Takes over a reference that the caller owns; null stays null.
  static PyRef Steal(PyObject* object) {
    PyRef ref;
    ref.object_ = object;
    return ref;
  }
  static PyRef Borrow(PyObject* object) {
    Py_XINCREF(object);
    return Steal(object);
  }
  PyRef(PyRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PyRef& operator=(PyRef&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~PyRef() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

}  // namespace kiln::python
