#include "client/cli/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

constexpr int64_t kMostArrayBytes = int64_t{1} << 34;
constexpr size_t kEndRecordBytes = 22;
constexpr size_t kCentralHeaderBytes = 46;
constexpr size_t kLocalHeaderBytes = 30;
constexpr absl::string_view kNpyMagic("\x93NUMPY", 6);

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the .npz file ", what));
}

// Little-endian numbers of a zip file. REQUIRES: inside of the data.
uint32_t U16(absl::string_view data, size_t at) {
  return static_cast<uint8_t>(data[at]) | static_cast<uint8_t>(data[at + 1]) << 8;
}
uint32_t U32(absl::string_view data, size_t at) {
  return U16(data, at) | U16(data, at + 2) << 16;
}

bool Inside(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

// Raw deflate (RFC 1951), as zip files hold it.
absl::StatusOr<std::string> Inflate(absl::string_view data, uint32_t size) {
  // Deflate cannot pack better than about 1032 to 1.
  if (size / 1100 > data.size() + 1) return Bad("announces impossible sizes");
  std::string out(size, '\0');
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return absl::ResourceExhaustedError("zlib failed");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = size;
  int result = inflate(&stream, Z_FINISH);
  bool whole = result == Z_STREAM_END && stream.total_out == size;
  inflateEnd(&stream);
  if (!whole) return Bad("has a damaged deflated array");
  return out;
}

struct ZipEntry {
  absl::string_view name;
  uint32_t method, crc, packed_size, size, local_offset;
};

absl::StatusOr<std::string> ReadEntry(absl::string_view data, const ZipEntry& entry) {
  if (!Inside(entry.local_offset, kLocalHeaderBytes, data.size()) ||
      U32(data, entry.local_offset) != 0x04034b50) {
    return Bad("has a damaged local header");
  }
  // The local header repeats the name and has extra fields of its own.
  uint64_t start = uint64_t{entry.local_offset} + kLocalHeaderBytes +
                   U16(data, entry.local_offset + 26) + U16(data, entry.local_offset + 28);
  if (!Inside(start, entry.packed_size, data.size())) return Bad("is cut off");
  absl::string_view packed = data.substr(start, entry.packed_size);
  std::string bytes;
  if (entry.method == 0 && entry.packed_size == entry.size) {
    bytes = std::string(packed);
  } else if (entry.method == 8) {
    KILN_ASSIGN_OR_RETURN(bytes, Inflate(packed, entry.size));
  } else {
    return Bad(absl::StrCat("uses zip method ", entry.method, "; stored and deflate are read"));
  }
  uLong crc =
      crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size()));
  if (crc != entry.crc) return Bad("has a wrong checksum");
  return bytes;
}

// Text of `'key': VALUE` in the header's Python dictionary, up to the comma that ends it.
absl::StatusOr<absl::string_view> HeaderField(absl::string_view header, absl::string_view key) {
  size_t at = header.find(absl::StrCat("'", key, "':"));
  if (at == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the array's header lacks '", key, "'"));
  }
  absl::string_view rest = absl::StripLeadingAsciiWhitespace(header.substr(at + key.size() + 3));
  size_t end = absl::StartsWith(rest, "(") ? rest.find(')') : rest.find_first_of(",}");
  return rest.substr(0, end);
}

absl::StatusOr<DType> ParseDescr(absl::string_view descr) {
  descr = absl::StripPrefix(absl::StripSuffix(descr, "'"), "'");
  static constexpr std::pair<absl::string_view, DType> kTypes[] = {
      {"|b1", DType::kBool},
      {"|u1", DType::kU8},
      {"|i1", DType::kI8},
      {"<i2", DType::kI16},
      {"<i4", DType::kI32},
      {"<i8", DType::kI64},
      {"<f2", DType::kF16},
      {"<f4", DType::kF32},
      {"<f8", DType::kF64},
      {"<c8", DType::kC64},
      {"<c16", DType::kC128},
      // NumPy has no bfloat16: ml_dtypes and kiln_torch write two raw bytes.
      {"|V2", DType::kBF16},
      {"<V2", DType::kBF16},
      {"<u2", DType::kU16},
      {"<u4", DType::kU32},
      {"<u8", DType::kU64}};
  for (const auto& [name, dtype] : kTypes) {
    if (name == descr) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the array's type '", descr, "' is not supported"));
}

}  // namespace

absl::StatusOr<HostTensor> ParseNpy(absl::string_view data) {
  auto bad = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("the array ", what));
  };
  if (data.size() < 12 || !absl::StartsWith(data, kNpyMagic)) return bad("is no .npy file");
  bool wide = static_cast<uint8_t>(data[6]) >= 2;
  size_t header_at = wide ? 12 : 10;
  size_t header_size = wide ? U32(data, 8) : U16(data, 8);
  if (!Inside(header_at, header_size, data.size())) return bad("is cut off");
  absl::string_view header = data.substr(header_at, header_size);
  HostTensor out;
  KILN_ASSIGN_OR_RETURN(absl::string_view descr, HeaderField(header, "descr"));
  KILN_ASSIGN_OR_RETURN(out.dtype, ParseDescr(descr));
  KILN_ASSIGN_OR_RETURN(absl::string_view order, HeaderField(header, "fortran_order"));
  KILN_ASSIGN_OR_RETURN(absl::string_view shape, HeaderField(header, "shape"));
  if (!absl::StartsWith(shape, "(")) return bad("has no shape");
  int64_t elements = 1;
  for (absl::string_view text : absl::StrSplit(shape.substr(1), ',')) {
    text = absl::StripAsciiWhitespace(text);
    if (text.empty()) continue;
    int64_t size = 0;
    if (!absl::SimpleAtoi(text, &size) || size < 0 ||
        __builtin_mul_overflow(elements, size, &elements) || elements > kMostArrayBytes) {
      return bad("has an impossible shape");
    }
    out.sizes.push_back(size);
  }
  // In Fortran's order the first dimension is the densest.
  bool fortran = absl::StartsWith(order, "True");
  out.strides.assign(out.sizes.size(), 1);
  int64_t stride = 1;
  for (size_t i = 0; i < out.sizes.size(); ++i) {
    size_t d = fortran ? i : out.sizes.size() - 1 - i;
    out.strides[d] = stride;
    stride *= std::max<int64_t>(out.sizes[d], 1);
  }
  absl::string_view values = data.substr(header_at + header_size);
  if (static_cast<int64_t>(values.size()) != elements * DTypeSize(out.dtype)) {
    return bad("has fewer or more values than its shape");
  }
  out.data = std::string(values);
  return out;
}

absl::StatusOr<std::vector<NpzArray>> ParseNpz(absl::string_view data) {
  // The end record is last, before a comment of at most 65535 bytes.
  size_t end = absl::string_view::npos;
  for (size_t back = kEndRecordBytes; back <= data.size() && back <= kEndRecordBytes + 65535;
       ++back) {
    if (U32(data, data.size() - back) == 0x06054b50) {
      end = data.size() - back;
      break;
    }
  }
  if (end == absl::string_view::npos) return Bad("is no zip archive");
  uint32_t count = U16(data, end + 10);
  uint64_t at = U32(data, end + 16);
  std::vector<NpzArray> out;
  for (uint32_t i = 0; i < count; ++i) {
    if (!Inside(at, kCentralHeaderBytes, data.size()) || U32(data, at) != 0x02014b50) {
      return Bad("has a damaged directory");
    }
    if ((U16(data, at + 8) & 1) != 0) return Bad("is encrypted");
    ZipEntry entry{{},
                   U16(data, at + 10),
                   U32(data, at + 16),
                   U32(data, at + 20),
                   U32(data, at + 24),
                   U32(data, at + 42)};
    if (entry.size == UINT32_MAX || entry.packed_size == UINT32_MAX) {
      return Bad("uses Zip64, for arrays over 4 GiB");
    }
    uint64_t name_size = U16(data, at + 28);
    if (!Inside(at + kCentralHeaderBytes, name_size, data.size())) return Bad("is cut off");
    entry.name = data.substr(at + kCentralHeaderBytes, name_size);
    at += kCentralHeaderBytes + name_size + U16(data, at + 30) + U16(data, at + 32);
    NpzArray array;
    array.name = std::string(absl::StripSuffix(entry.name, ".npy"));
    KILN_ASSIGN_OR_RETURN(std::string bytes, ReadEntry(data, entry));
    absl::StatusOr<HostTensor> tensor = ParseNpy(bytes);
    if (!tensor.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", array.name, "': ", tensor.status().message()));
    }
    array.tensor = *std::move(tensor);
    out.push_back(std::move(array));
  }
  return out;
}

}  // namespace kiln::cli
