#include "client/python/ext/prepared.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/python/ext/gil.h"
#include "client/python/ext/program.h"
#include "client/python/ext/tensor_exchange.h"

namespace kiln::python {
namespace {

int64_t g_kept_bytes = 0;  // by all programs; the GIL guards it

// Elements spread evenly over the tensor, its first and last among them.
std::vector<int64_t> SamplePlaces(const kiln_tensor& tensor) {
  int64_t elements = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) elements *= tensor.sizes[d];
  std::vector<int64_t> places;
  const int64_t count = std::min<int64_t>(elements, PreparedWeights::kSamples);
  for (int64_t s = 0; s < count; ++s) {
    // Of very many elements, steps of equal size: no product may overflow.
    int64_t number = count == 1 ? 0 : s + 1 == count ? elements - 1 : elements / count * s;
    int64_t place = 0;
    for (int32_t d = tensor.ndim; d-- > 0; number /= tensor.sizes[d]) {
      place += number % tensor.sizes[d] * tensor.strides[d];
    }
    places.push_back(place * ElementBytes(tensor.dtype));
  }
  return places;
}

uint64_t ReadSample(const char* at, int64_t bytes) {
  uint64_t sample = 0;
  std::memcpy(&sample, at, static_cast<size_t>(std::min<int64_t>(bytes, 8)));
  return sample;
}

}  // namespace

PreparedWeights::PreparedWeights(const kiln_program* program) : program_(program) {
  kiln_program_stats stats = KILN_PROGRAM_STATS_INIT;
  kiln_program_get_stats(program, &stats);
  bytes_ = stats.prepared_bytes;
  for (size_t i = 0; i < kiln_program_num_inputs(program); ++i) {
    if (kiln_program_prepares_input(program, i) != 0) inputs_.push_back(i);
  }
}

bool PreparedWeights::ReadVersions(const std::vector<PyObject*>& objects) {
  static PyObject* const name = PyUnicode_InternFromString("_version");
  versions_.clear();
  if (objects.size() != kiln_program_num_inputs(program_)) return false;  // the run says so
  for (size_t input : inputs_) {
    const PyRef version = PyRef::Steal(PyObject_GetAttr(objects[input], name));
    versions_.push_back(version ? PyLong_AsLongLong(version.get()) : -1);
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

bool PreparedWeights::IsOf(const Entry& entry, const std::vector<PyObject*>& objects) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (entry.sources[i].object != objects[inputs_[i]]) return false;
  }
  return true;
}

bool PreparedWeights::Holds(const Entry& entry, const std::vector<kiln_tensor>& tensors) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Source& source = entry.sources[i];
    const kiln_tensor& tensor = tensors[inputs_[i]];
    if (source.data != tensor.data || source.version != versions_[i] ||
        tensor.device_type != KILN_CPU) {
      return false;
    }
    const int64_t bytes = ElementBytes(tensor.dtype);
    for (size_t s = 0; s < source.places.size(); ++s) {
      if (ReadSample(source.data + source.places[s], bytes) != source.samples[s]) return false;
    }
  }
  return true;
}

void PreparedWeights::Expect() const {
  if (bytes_ > 0 && g_kept_bytes <= limit_bytes_ - bytes_) kiln_program_expect_prepare(program_);
}

std::shared_ptr<const kiln_prepared> PreparedWeights::Get(const std::vector<PyObject*>& objects,
                                                          const std::vector<kiln_tensor>& tensors) {
  lacks_room_ = false;
  if (bytes_ == 0 || limit_bytes_ < bytes_ || !ReadVersions(objects)) return nullptr;
  // Nothing below runs Python code before an entry is returned or copied, so entries stay.
  auto entry = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& e) { return IsOf(e, objects); });
  if (entry != entries_.end()) {
    if (Holds(*entry, tensors)) {
      entry->used_again = true;
      return entry->prepared;
    }
    Leaves(*entry);
    std::list<Entry> stale;
    stale.splice(stale.begin(), entries_, entry);
  }
  if (ShouldWait()) return nullptr;
  lacks_room_ = g_kept_bytes > limit_bytes_ - bytes_;
  if (lacks_room_) return nullptr;
  Entry made;
  if (!Make(objects, tensors, made)) return nullptr;
  std::shared_ptr<const kiln_prepared> prepared = made.prepared;
  // Another thread may have been as far; and one whose parameter died meanwhile serves this run
  // only.
  std::list<Entry> known;
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    if (IsOf(*at, objects)) known.splice(known.begin(), entries_, at);
    at = next;
  }
  entries_.push_back(std::move(made));
  return prepared;
}

void PreparedWeights::Leaves(const Entry& entry) {
  wasted_ = entry.used_again ? 0 : std::min(wasted_ + 1, 8);
  waits_for_ = wasted_ > 2 ? 1 << (wasted_ - 2) : 0;
}

bool PreparedWeights::ShouldWait() {
  if (waits_for_ == 0) return false;
  --waits_for_;
  return true;
}

bool PreparedWeights::Make(const std::vector<PyObject*>& objects,
                           const std::vector<kiln_tensor>& tensors, Entry& entry) {
  static PyMethodDef gone = {"parameter_gone", &PreparedWeights::ParameterGone, METH_O, nullptr};
  const std::vector<int64_t> versions = versions_;
  PyRef capsule = PyRef::Steal(PyCapsule_New(this, nullptr, nullptr));
  PyRef callback = PyRef::Steal(capsule ? PyCFunction_New(&gone, capsule.get()) : nullptr);
  if (!callback) return false;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const kiln_tensor& tensor = tensors[inputs_[i]];
    if (tensor.device_type != KILN_CPU) return false;  // the run says so
    Source& source = entry.sources.emplace_back();
    source.object = objects[inputs_[i]];
    source.weak = PyRef::Steal(PyWeakref_NewRef(source.object, callback.get()));
    source.alias = PyRef::Steal(PyObject_CallMethod(source.object, "detach", nullptr));
    if (!source.weak || !source.alias) return false;
    source.data = static_cast<const char*>(tensor.data);
    source.version = versions[i];
    source.places = SamplePlaces(tensor);
    for (int64_t place : source.places) {
      source.samples.push_back(ReadSample(source.data + place, ElementBytes(tensor.dtype)));
    }
  }
  kiln_prepared* made = nullptr;
  g_kept_bytes += bytes_;  // before others get a turn
  PyThreadState* thread = PyEval_SaveThread();
  kiln_status* status = kiln_program_prepare(program_, tensors.data(), tensors.size(), &made);
  TakeGil(thread);
  if (status != nullptr) {
    g_kept_bytes -= bytes_;
    // The run itself finds what is wrong with the inputs, and does without what has no memory.
    const kiln_code code = kiln_status_code(status);
    if (code == KILN_INVALID_ARGUMENT || code == KILN_RESOURCE_EXHAUSTED) {
      kiln_status_destroy(status);
      return false;
    }
    RaiseStatus(status);
    return false;
  }
  const int64_t bytes = bytes_;
  entry.prepared = std::shared_ptr<const kiln_prepared>(made, [bytes](kiln_prepared* prepared) {
    g_kept_bytes -= bytes;
    kiln_prepared_destroy(prepared);
  });
  ++preparations_;
  return true;
}

// Of a weak reference: its parameter is no more, and what was made of it serves nobody.
PyObject* PreparedWeights::ParameterGone(PyObject* capsule, PyObject* weak) {
  auto* self = static_cast<PreparedWeights*>(PyCapsule_GetPointer(capsule, nullptr));
  if (self == nullptr) return nullptr;
  std::list<Entry> dead;  // goes last: that may run more of these
  for (auto at = self->entries_.begin(); at != self->entries_.end();) {
    const auto next = std::next(at);
    const bool is_of = std::any_of(at->sources.begin(), at->sources.end(),
                                   [&](const Source& s) { return s.weak.get() == weak; });
    if (is_of) {
      self->Leaves(*at);
      dead.splice(dead.begin(), self->entries_, at);
    }
    at = next;
  }
  Py_RETURN_NONE;
}

}  // namespace kiln::python
