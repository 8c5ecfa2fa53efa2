// Tensors of .safetensors files as inputs of a graph.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/graph_inputs.h"
#include "client/runtime/memory.h"
#include "client/runtime/strided_copy.h"
#include "client/safetensors.h"
#include "kiln/client.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/dtype.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

// A file's bytes. Writes to them stay in this process.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (size_ > 0) munmap(data_, size_);
  }

  absl::Status Map(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return Error(path);
    struct stat status{};
    absl::Status result;
    if (fstat(file, &status) != 0) {
      result = Error(path);
    } else if (!S_ISREG(status.st_mode)) {
      result = absl::InvalidArgumentError(absl::StrCat("'", path, "' is no regular file"));
    } else if (status.st_size > 0) {
      const auto size = static_cast<size_t>(status.st_size);
      void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
      if (data == MAP_FAILED) {
        result = Error(path);
      } else {
        data_ = static_cast<char*>(data);
        size_ = size;
      }
    }
    close(file);
    return result;
  }

  char* data() const { return data_; }
  absl::string_view bytes() const { return {data_, size_}; }

 private:
  static absl::Status Error(const std::string& path) {
    const int error = errno;
    return absl::ErrnoToStatus(error, absl::StrCat("cannot read '", path, "'"));
  }

  char* data_ = nullptr;
  size_t size_ = 0;
};

struct Weight {
  SafetensorsEntry entry;
  const std::string* path;
  char* data;
  std::vector<int64_t> strides;  // row-major
};

// The same values where the graph wants them in another order, or aligned.
struct Arranged {
  runtime::Block bytes;
  std::vector<int64_t> strides;
};

std::string Sizes(absl::Span<const int64_t> sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

std::string Describe(const Weight& weight) {
  const SafetensorsEntry& entry = weight.entry;
  return absl::StrCat(entry.dtype.has_value() ? DTypeName(*entry.dtype) : entry.dtype_name,
                      Sizes(entry.sizes));
}

bool Matches(const v1::TensorType& type, const SafetensorsEntry& entry) {
  if (!entry.dtype.has_value() || DTypeToProto(*entry.dtype) != type.dtype() ||
      static_cast<size_t>(type.sizes_size()) != entry.sizes.size()) {
    return false;
  }
  for (int d = 0; d < type.sizes_size(); ++d) {
    if (!type.sizes(d).has_expr() && type.sizes(d).value() != entry.sizes[d]) return false;
  }
  return true;
}

// The strides that the type has; none where they depend on symbols: those of the file will do, or
// the run says that they do not.
std::optional<std::vector<int64_t>> FixedStrides(const v1::TensorType& type) {
  std::vector<int64_t> strides;
  for (const v1::SymInt& stride : type.strides()) {
    if (stride.has_expr()) return std::nullopt;
    strides.push_back(stride.value());
  }
  return strides;
}

}  // namespace

struct Weights::Impl {
  absl::Status Add(const std::string& path);
  absl::StatusOr<const Weight*> Find(const v1::Graph& graph, size_t number) const;
  absl::Status Place(const v1::Graph& graph, int number, const Weight& weight, kiln_tensor& tensor);

  std::deque<std::string> paths;
  std::deque<MappedFile> files;
  std::deque<Weight> weights;
  absl::flat_hash_map<absl::string_view, const Weight*> by_name;
  std::deque<Arranged> arranged;
};

absl::Status Weights::Impl::Add(const std::string& path) {
  paths.push_back(path);
  MappedFile& file = files.emplace_back();
  KILN_RETURN_IF_ERROR(file.Map(path));
  absl::StatusOr<std::vector<SafetensorsEntry>> entries = ParseSafetensors(file.bytes());
  if (!entries.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' cannot be used: ", entries.status().message()));
  }
  for (SafetensorsEntry& entry : *entries) {
    Weight& weight = weights.emplace_back();
    weight.path = &paths.back();
    weight.data = file.data() + entry.offset;
    weight.strides.assign(entry.sizes.size(), 1);
    for (size_t d = entry.sizes.size(); d-- > 1;) {
      weight.strides[d - 1] = weight.strides[d] * std::max<int64_t>(entry.sizes[d], 1);
    }
    weight.entry = std::move(entry);
    const auto [other, is_new] = by_name.emplace(weight.entry.name, &weight);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", Shown(weight.entry.name),
                                                     "' is in '", *other->second->path,
                                                     "' and in '", path, "'"));
    }
  }
  return absl::OkStatus();
}

// Null where the files have it under none of its names.
absl::StatusOr<const Weight*> Weights::Impl::Find(const v1::Graph& graph, size_t number) const {
  const Weight* found = nullptr;
  const std::string* name = nullptr;
  for (size_t i = 0; (name = InputName(graph, number, i)) != nullptr; ++i) {
    const auto it = by_name.find(*name);
    if (it == by_name.end() || it->second == found) continue;
    const Weight* other = it->second;
    if (found == nullptr) {
      found = other;
      continue;
    }
    const SafetensorsEntry &a = found->entry, &b = other->entry;
    if (a.dtype_name != b.dtype_name || a.sizes != b.sizes ||
        std::memcmp(found->data, other->data, a.size_bytes) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors '", Shown(a.name), "' of '", *found->path, "' and '", Shown(b.name),
                       "' of '", *other->path, "' differ; the graph has them as one, its input '",
                       Shown(*InputName(graph, number, 0)), "'"));
    }
  }
  return found;
}

absl::Status Weights::Impl::Place(const v1::Graph& graph, int number, const Weight& weight,
                                  kiln_tensor& tensor) {
  const v1::Input& input = graph.inputs(number);
  const v1::TensorType& type = input.type().tensor();
  const SafetensorsEntry& entry = weight.entry;
  if (!Matches(type, entry)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", Shown(entry.name), "' of '", *weight.path, "' is ", Describe(weight),
        "; the graph's input '", Shown(input.name()), "' is ", TypeText(type, graph)));
  }
  tensor.dtype = type.dtype();
  tensor.ndim = type.sizes_size();
  tensor.sizes = entry.sizes.data();
  tensor.strides = weight.strides.data();
  tensor.device_type = KILN_CPU;
  tensor.device_index = 0;
  tensor.data = weight.data;
  const int64_t element = DTypeSize(*entry.dtype);
  const std::optional<std::vector<int64_t>> wanted = FixedStrides(type);
  const bool is_in_order =
      !wanted.has_value() || (wanted->size() == entry.sizes.size() &&
                              runtime::SameLayout(entry.sizes, wanted->data(), tensor.strides));
  if (is_in_order && reinterpret_cast<uintptr_t>(weight.data) % element == 0) {
    return absl::OkStatus();
  }
  std::vector<int64_t> strides = wanted.value_or(weight.strides);
  const std::optional<int64_t> reach = strides.size() == entry.sizes.size()
                                           ? runtime::ReachElements(entry.sizes, strides)
                                           : std::nullopt;
  if (!reach.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the graph's input '", Shown(input.name()), "' has impossible strides"));
  }
  KILN_ASSIGN_OR_RETURN(runtime::Block bytes, runtime::Block::Allocate(*reach * element));
  if (*reach > 0) {
    std::memset(bytes.data(), 0, static_cast<size_t>(*reach * element));
    runtime::CopyStrided(bytes.data(), strides, weight.data, weight.strides, entry.sizes, element);
  }
  const Arranged& kept = arranged.emplace_back(Arranged{std::move(bytes), std::move(strides)});
  tensor.data = kept.bytes.data();
  tensor.strides = kept.strides.data();
  return absl::OkStatus();
}

Weights::Weights(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Weights::~Weights() = default;

absl::StatusOr<std::unique_ptr<Weights>> Weights::Load(absl::Span<const std::string> paths) {
  auto impl = std::make_unique<Impl>();
  for (const std::string& path : paths) KILN_RETURN_IF_ERROR(impl->Add(path));
  return std::unique_ptr<Weights>(new Weights(std::move(impl)));
}

size_t Weights::size() const {
  return impl_->weights.size();
}

absl::string_view Weights::name(size_t index) const {
  return index < size() ? impl_->weights[index].entry.name : absl::string_view();
}

absl::StatusOr<Weights::Binding> Weights::Bind(const v1::Graph& graph,
                                               absl::Span<kiln_tensor> inputs) {
  if (inputs.size() != static_cast<size_t>(graph.inputs_size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", inputs.size(), " inputs; the graph has ", graph.inputs_size()));
  }
  Binding out;
  out.given.assign(inputs.size(), false);
  std::vector<const Weight*> found(inputs.size(), nullptr);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!graph.inputs(static_cast<int>(i)).type().has_tensor()) continue;
    KILN_ASSIGN_OR_RETURN(found[i], impl_->Find(graph, i));
  }
  std::vector<kiln_tensor> placed(inputs.begin(), inputs.end());
  absl::flat_hash_map<absl::string_view, bool> used;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (found[i] == nullptr) continue;
    KILN_RETURN_IF_ERROR(impl_->Place(graph, static_cast<int>(i), *found[i], placed[i]));
    out.given[i] = true;
    const std::string* name = nullptr;
    for (size_t j = 0; (name = InputName(graph, i, j)) != nullptr; ++j) used[*name] = true;
  }
  for (const Weight& weight : impl_->weights) {
    if (!used.contains(weight.entry.name)) out.unused.push_back(weight.entry.name);
  }
  std::copy(placed.begin(), placed.end(), inputs.begin());
  return out;
}

}  // namespace kiln
