// What a program has prepared from torch's parameters, and when that still holds.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "client/python/ext/py_ref.h"
#include "kiln/kiln.h"

namespace kiln::python {

// One for each program: modules of one structure share a program, each with its own parameters. All
// use needs the GIL. A prepared block holds while every parameter that it was made from is the same
// object at the same address, with the same version counter, which every write of torch's to it or
// to a view of it advances. Writes that torch does not see (through .data, numpy, other processes)
// are looked for in kSamples elements of each parameter: one that changes none of those is missed.
class PreparedWeights {
 public:
  static constexpr int kSamples = 16;

  // `program` must outlive it.
  explicit PreparedWeights(const kiln_program* program);
  PreparedWeights(const PreparedWeights&) = delete;
  PreparedWeights& operator=(const PreparedWeights&) = delete;

  // Bytes that all programs of the process may keep together; at first 0.
  void set_limit(int64_t bytes) { limit_bytes_ = bytes; }

  // A run comes soon: has its memory taken meanwhile, where something would be kept.
  void Expect() const;

  // What a run on these inputs is given: null where nothing can be kept, and then the run computes
  // it, or there is nothing to prepare. `objects` has the input for each of `tensors`; of one that
  // was made for this call nothing outlives it. Null with a Python error set where preparing fails.
  std::shared_ptr<const kiln_prepared> Get(const std::vector<PyObject*>& objects,
                                           const std::vector<kiln_tensor>& tensors);

  // Whether the last Get gave nothing because of the limit.
  bool lacks_room() const { return lacks_room_; }

  int64_t kept_bytes() const { return static_cast<int64_t>(entries_.size()) * bytes_; }
  int64_t preparations() const { return preparations_; }

 private:
  struct Source {
    PyObject* object = nullptr;  // the parameter; `weak` tells when it goes
    PyRef weak;
    // Keeps the memory, so that no other tensor comes to lie there: .data = ... may drop it.
    PyRef alias;
    const char* data = nullptr;
    int64_t version = 0;
    std::vector<int64_t> places;  // of the sampled elements, in bytes
    std::vector<uint64_t> samples;
  };
  struct Entry {
    std::vector<Source> sources;
    std::shared_ptr<const kiln_prepared> prepared;
    bool used_again = false;  // by a later call than the one that made it
  };

  // Of each parameter; false where one has none, as those made under inference_mode.
  bool ReadVersions(const std::vector<PyObject*>& objects);
  bool IsOf(const Entry& entry, const std::vector<PyObject*>& objects) const;
  bool Holds(const Entry& entry, const std::vector<kiln_tensor>& tensors) const;
  bool Make(const std::vector<PyObject*>& objects, const std::vector<kiln_tensor>& tensors,
            Entry& entry);
  // Counts the entry's end, for ShouldWait.
  void Leaves(const Entry& entry);
  // Whether this call does without: where parameters change from call to call, keeping is for
  // nothing.
  bool ShouldWait();
  static PyObject* ParameterGone(PyObject* capsule, PyObject* weak);

  const kiln_program* const program_;
  std::vector<size_t> inputs_;  // that are prepared from
  int64_t bytes_ = 0;           // of one entry
  int64_t limit_bytes_ = 0;
  bool lacks_room_ = false;
  int64_t preparations_ = 0;
  int wasted_ = 0;                 // entries in a row that no second call used
  int waits_for_ = 0;              // calls
  std::vector<int64_t> versions_;  // by inputs_, of the call at hand
  std::list<Entry> entries_;
};

}  // namespace kiln::python
