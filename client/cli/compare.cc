#include "client/cli/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/dtype.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Of a complex type: one of its two parts.
double LoadElement(DType dtype, const char* at) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return Load<uint8_t>(at);
    case DType::kI8:
      return Load<int8_t>(at);
    case DType::kI16:
      return Load<int16_t>(at);
    case DType::kI32:
      return Load<int32_t>(at);
    case DType::kI64:
      return static_cast<double>(Load<int64_t>(at));
    case DType::kU16:
      return Load<uint16_t>(at);
    case DType::kU32:
      return Load<uint32_t>(at);
    case DType::kU64:
      return static_cast<double>(Load<uint64_t>(at));
    case DType::kF16:
    case DType::kC32:
      return static_cast<double>(std::bit_cast<_Float16>(Load<uint16_t>(at)));
    case DType::kBF16:
      return std::bit_cast<float>(static_cast<uint32_t>(Load<uint16_t>(at)) << 16);
    case DType::kF32:
    case DType::kC64:
      return Load<float>(at);
    case DType::kF64:
    case DType::kC128:
      return Load<double>(at);
    default:
      return Load<uint8_t>(at);  // 8-bit floats, by their bits
  }
}

const char* Address(const kiln_output& output, int64_t index, int64_t element_bytes) {
  int64_t offset = 0;
  for (int d = output.ndim; d-- > 0;) {
    offset += index % output.sizes[d] * output.strides[d];
    index /= output.sizes[d];
  }
  return static_cast<const char*>(output.data) + offset * element_bytes;
}

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-8;
    case DType::kF16:
      return 1e-2;
    case DType::kBF16:
      return 4e-2;
    default:
      return 1e-4;
  }
}

// Equal infinities and NaNs match; finite values match for now.
bool SameSpecials(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return true;
}

// What an element may be off by: that, and as much of its own magnitude.
double ElementTolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kC128:
      return 1e-8;
    case DType::kF16:
    case DType::kC32:
      return 1e-3;
    case DType::kBF16:
      return 1e-2;
    default:
      return 1e-4;
  }
}

const char* Address(const HostTensor& tensor, int64_t index) {
  int64_t offset = 0;
  for (size_t d = tensor.sizes.size(); d-- > 0;) {
    offset += index % tensor.sizes[d] * tensor.strides[d];
    index /= tensor.sizes[d];
  }
  return tensor.data.data() + offset * DTypeSize(tensor.dtype);
}

}  // namespace

int64_t NumElements(const kiln_output& output) {
  int64_t count = 1;
  for (int d = 0; d < output.ndim; ++d) count *= output.sizes[d];
  return count;
}

double ElementAt(const kiln_output& output, int64_t index) {
  DType dtype = static_cast<DType>(output.dtype);
  return LoadElement(dtype, Address(output, index, DTypeSize(dtype)));
}

absl::StatusOr<Comparison> Compare(const kiln_output& output, const v1::TensorData& reference) {
  KILN_ASSIGN_OR_RETURN(DType dtype, DTypeFromProto(output.dtype));
  KILN_ASSIGN_OR_RETURN(DType reference_dtype, DTypeFromProto(reference.type().dtype()));
  if (IsOpaque(dtype)) {
    return absl::UnimplementedError(
        absl::StrCat("outputs of type ", DTypeName(dtype), " cannot be checked"));
  }
  Comparison out;
  int64_t elements = NumElements(output);
  bool same_shape = reference.type().sizes_size() == output.ndim;
  for (int d = 0; same_shape && d < output.ndim; ++d) {
    same_shape = reference.type().sizes(d).value() == output.sizes[d];
  }
  if (!same_shape) {
    out.why = "it has another shape than the reference";
    return out;
  }
  const int64_t reference_bytes = DTypeSize(reference_dtype);
  if (static_cast<int64_t>(reference.data().size()) != elements * reference_bytes) {
    return absl::InvalidArgumentError("the reference's data does not fit its shape");
  }
  double squared_error = 0, squared_reference = 0;
  const bool is_float = IsFloat(dtype);
  const bool exact_bits = dtype == DType::kI64 && reference_dtype == DType::kI64;
  for (int64_t i = 0; i < elements; ++i) {
    const char* ours = Address(output, i, DTypeSize(dtype));
    const char* theirs = reference.data().data() + i * reference_bytes;
    double value = LoadElement(dtype, ours);
    double wanted = LoadElement(reference_dtype, theirs);
    // Doubles do not hold every 64-bit integer.
    bool equal = exact_bits ? Load<int64_t>(ours) == Load<int64_t>(theirs) : value == wanted;
    if (is_float ? !SameSpecials(value, wanted) : !equal) {
      out.why = absl::StrCat("element ", i, " is ", value, "; the reference has ", wanted);
      return out;
    }
    if (!is_float || !std::isfinite(wanted)) continue;
    squared_error += (value - wanted) * (value - wanted);
    squared_reference += wanted * wanted;
  }
  const double n = static_cast<double>(std::max<int64_t>(elements, 1));
  const double tolerance = Tolerance(dtype);
  out.rmse = std::sqrt(squared_error / n);
  out.limit = tolerance * std::sqrt(squared_reference / n) + tolerance / 10;
  out.same = out.rmse <= out.limit;
  if (!out.same) {
    out.why = absl::StrCat("the root of the mean squared error is ", out.rmse, "; at most ",
                           out.limit, " is right");
  }
  return out;
}

Comparison CompareElements(const kiln_output& output, const HostTensor& expected) {
  Comparison out;
  out.limit = 1;
  const DType dtype = expected.dtype;
  if (output.dtype != DTypeToProto(dtype)) {
    out.why = absl::StrCat("its type is ", DTypeName(static_cast<DType>(output.dtype)),
                           "; expected ", DTypeName(dtype));
    return out;
  }
  absl::Span<const int64_t> sizes(output.sizes, output.ndim);
  if (sizes != absl::MakeConstSpan(expected.sizes)) {
    out.why = absl::StrCat("its sizes are [", absl::StrJoin(sizes, ", "), "]; expected [",
                           absl::StrJoin(expected.sizes, ", "), "]");
    return out;
  }
  const bool floating = IsFloat(dtype) || IsComplex(dtype);
  const int64_t bytes = DTypeSize(dtype);
  const int64_t part_bytes = IsComplex(dtype) ? bytes / 2 : bytes;
  const double tolerance = ElementTolerance(dtype);
  const int64_t elements = NumElements(output);
  for (int64_t i = 0; i < elements; ++i) {
    for (int64_t part = 0; part < bytes; part += part_bytes) {
      const char* ours = Address(output, i, bytes) + part;
      const char* theirs = Address(expected, i) + part;
      const double value = LoadElement(dtype, ours);
      const double wanted = LoadElement(dtype, theirs);
      if (floating && std::isfinite(value) && std::isfinite(wanted)) {
        const double error = std::abs(value - wanted) / (tolerance * (1 + std::abs(wanted)));
        out.rmse = std::max(out.rmse, error);
        if (error <= out.limit) continue;
      } else if (floating ? SameSpecials(value, wanted)
                          : std::memcmp(ours, theirs, part_bytes) == 0) {
        continue;
      }
      out.why = absl::StrCat("element ", i, " is ", value, "; expected ", wanted);
      return out;
    }
  }
  out.same = true;
  return out;
}

}  // namespace kiln::cli
