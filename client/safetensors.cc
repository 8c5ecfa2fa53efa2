#include "client/safetensors.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMostHeaderBytes = 100'000'000;
constexpr size_t kMostDims = 32;

struct FileType {
  absl::string_view name;
  DType dtype;
};
constexpr FileType kTypes[] = {
    {"BOOL", DType::kBool},
    {"U8", DType::kU8},
    {"I8", DType::kI8},
    {"I16", DType::kI16},
    {"I32", DType::kI32},
    {"I64", DType::kI64},
    {"U16", DType::kU16},
    {"U32", DType::kU32},
    {"U64", DType::kU64},
    {"F16", DType::kF16},
    {"BF16", DType::kBF16},
    {"F32", DType::kF32},
    {"F64", DType::kF64},
    {"C64", DType::kC64},
    {"F8_E4M3", DType::kF8E4M3FN},
    {"F8_E4M3FNUZ", DType::kF8E4M3FNUZ},
    {"F8_E5M2", DType::kF8E5M2},
    {"F8_E5M2FNUZ", DType::kF8E5M2FNUZ},
    {"F8_E8M0", DType::kF8E8M0FNU},
};

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

absl::Status BadTensor(const SafetensorsEntry& entry, absl::string_view what) {
  return Bad(absl::StrCat("its tensor '", Shown(entry.name), "' ", what));
}

void AppendUtf8(uint32_t code, std::string& out) {
  const auto byte = [&out](uint32_t value) { out.push_back(static_cast<char>(value)); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xC0 | code >> 6);
    byte(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    byte(0xE0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3F));
    byte(0x80 | (code & 0x3F));
  } else {
    byte(0xF0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3F));
    byte(0x80 | (code >> 6 & 0x3F));
    byte(0x80 | (code & 0x3F));
  }
}

// The JSON that such headers are made of: objects, strings, and arrays of numbers from 0 up.
class JsonReader {
 public:
  explicit JsonReader(absl::string_view text) : rest_(text) {}

  // Whether `c` comes next, past white space, and is taken.
  bool Take(char c) {
    SkipSpace();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  absl::Status Expect(char c) {
    return Take(c) ? absl::OkStatus()
                   : Bad(absl::StrCat("its header lacks a '", std::string(1, c), "'"));
  }
  bool AtEnd() {
    SkipSpace();
    return rest_.empty();
  }

  // Calls on_key(key) for each of an object's keys; it reads the value.
  template <typename OnKey>
  absl::Status Object(const OnKey& on_key) {
    KILN_RETURN_IF_ERROR(Expect('{'));
    if (Take('}')) return absl::OkStatus();
    do {
      KILN_ASSIGN_OR_RETURN(std::string key, String());
      KILN_RETURN_IF_ERROR(Expect(':'));
      KILN_RETURN_IF_ERROR(on_key(std::move(key)));
    } while (Take(','));
    return Expect('}');
  }

  absl::StatusOr<std::string> String() {
    KILN_RETURN_IF_ERROR(Expect('"'));
    std::string out;
    while (!rest_.empty()) {
      const char c = rest_[0];
      rest_.remove_prefix(1);
      if (c == '"') return out;
      if (static_cast<unsigned char>(c) < 0x20) break;
      if (c != '\\') {
        out.push_back(c);
      } else {
        KILN_RETURN_IF_ERROR(Escaped(out));
      }
    }
    return Bad("its header has a string that does not end");
  }

  absl::StatusOr<std::vector<int64_t>> Numbers() {
    KILN_RETURN_IF_ERROR(Expect('['));
    std::vector<int64_t> out;
    if (Take(']')) return out;
    do {
      KILN_ASSIGN_OR_RETURN(const int64_t value, Number());
      out.push_back(value);
    } while (Take(','));
    KILN_RETURN_IF_ERROR(Expect(']'));
    return out;
  }

 private:
  void SkipSpace() {
    const size_t end = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(end == absl::string_view::npos ? rest_.size() : end);
  }

  absl::StatusOr<int64_t> Number() {
    SkipSpace();
    int64_t value = 0;
    size_t digits = 0;
    for (; digits < rest_.size() && absl::ascii_isdigit(rest_[digits]); ++digits) {
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, int64_t{rest_[digits] - '0'}, &value)) {
        return Bad("its header has a number beyond 64 bits");
      }
    }
    if (digits == 0 || (digits > 1 && rest_[0] == '0')) {
      return Bad("its header has something else where a number from 0 up has to be");
    }
    rest_.remove_prefix(digits);
    return value;
  }

  absl::StatusOr<uint32_t> FourHexDigits() {
    uint32_t code = 0;
    if (rest_.size() < 4) return Bad("its header has a string that does not end");
    for (const char c : rest_.substr(0, 4)) {
      if (!absl::ascii_isxdigit(c)) return Bad("its header has a wrong escape in a string");
      const char lower = absl::ascii_tolower(c);
      code = code * 16 + static_cast<uint32_t>(lower <= '9' ? lower - '0' : lower - 'a' + 10);
    }
    rest_.remove_prefix(4);
    return code;
  }

  absl::Status Escaped(std::string& out) {
    static constexpr absl::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    const char letter = rest_.empty() ? '\0' : rest_[0];
    rest_.remove_prefix(rest_.empty() ? 0 : 1);
    if (const size_t at = kLetters.find(letter); letter != '\0' && at != kLetters.npos) {
      out.push_back(kMeant[at]);
      return absl::OkStatus();
    }
    if (letter != 'u') return Bad("its header has a wrong escape in a string");
    KILN_ASSIGN_OR_RETURN(uint32_t code, FourHexDigits());
    if (code >= 0xD800 && code < 0xE000) {  // half of a pair of UTF-16
      if (code >= 0xDC00 || !absl::ConsumePrefix(&rest_, "\\u")) {
        return Bad("its header has a wrong escape in a string");
      }
      KILN_ASSIGN_OR_RETURN(const uint32_t low, FourHexDigits());
      if (low < 0xDC00 || low >= 0xE000) return Bad("its header has a wrong escape in a string");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(code, out);
    return absl::OkStatus();
  }

  absl::string_view rest_;
};

// Bytes of the tensor by its type and shape, where the type is known.
absl::Status CheckSize(const SafetensorsEntry& entry) {
  if (entry.sizes.size() > kMostDims) {
    return BadTensor(entry, absl::StrCat("has ", entry.sizes.size(), " dimensions"));
  }
  // Whatever one of the sizes is: strides are made of all of them.
  int64_t reach = 1;
  bool is_empty = false;
  for (const int64_t size : entry.sizes) {
    is_empty = is_empty || size == 0;
    if (__builtin_mul_overflow(reach, std::max<int64_t>(size, 1), &reach)) {
      return BadTensor(entry, "has a shape whose elements no machine can count");
    }
  }
  if (!entry.dtype.has_value()) return absl::OkStatus();
  int64_t bytes = 0;
  if (__builtin_mul_overflow(is_empty ? 0 : reach, int64_t{DTypeSize(*entry.dtype)}, &bytes) ||
      static_cast<uint64_t>(bytes) != entry.size_bytes) {
    return BadTensor(entry,
                     absl::StrCat("has ", entry.size_bytes, " bytes, which is not what its type ",
                                  entry.dtype_name, " and its shape take"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsEntry> ReadTensor(JsonReader& json, std::string name, uint64_t data_begin,
                                            uint64_t file_bytes) {
  SafetensorsEntry entry;
  entry.name = std::move(name);
  std::vector<int64_t> offsets;
  int seen = 0;  // a bit for each key
  KILN_RETURN_IF_ERROR(json.Object([&](const std::string& key) -> absl::Status {
    const int bit = key == "dtype" ? 1 : key == "shape" ? 2 : key == "data_offsets" ? 4 : 0;
    if (bit == 0) return BadTensor(entry, absl::StrCat("has a field '", Shown(key), "'"));
    if ((seen & bit) != 0) return BadTensor(entry, absl::StrCat("has '", key, "' twice"));
    seen |= bit;
    if (bit == 1) {
      KILN_ASSIGN_OR_RETURN(entry.dtype_name, json.String());
    } else if (bit == 2) {
      KILN_ASSIGN_OR_RETURN(entry.sizes, json.Numbers());
    } else {
      KILN_ASSIGN_OR_RETURN(offsets, json.Numbers());
    }
    return absl::OkStatus();
  }));
  if (seen != 7) return BadTensor(entry, "lacks one of dtype, shape and data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return BadTensor(entry, "has data_offsets that are no begin and end");
  }
  const uint64_t data_bytes = file_bytes - data_begin;
  if (static_cast<uint64_t>(offsets[1]) > data_bytes) {
    return BadTensor(
        entry, absl::StrCat("ends at byte ", offsets[1], " of the data, which has ", data_bytes));
  }
  entry.offset = data_begin + static_cast<uint64_t>(offsets[0]);
  entry.size_bytes = static_cast<uint64_t>(offsets[1] - offsets[0]);
  for (const FileType& type : kTypes) {
    if (type.name == entry.dtype_name) entry.dtype = type.dtype;
  }
  KILN_RETURN_IF_ERROR(CheckSize(entry));
  return entry;
}

// That the tensors' bytes follow each other from the data's begin to its end.
absl::Status CheckPlaces(const std::vector<SafetensorsEntry>& entries, uint64_t data_begin,
                         uint64_t file_bytes) {
  std::vector<const SafetensorsEntry*> sorted;
  for (const SafetensorsEntry& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::pair(a->offset, a->size_bytes) < std::pair(b->offset, b->size_bytes);
  });
  uint64_t end = data_begin;
  for (const SafetensorsEntry* entry : sorted) {
    if (entry->offset < end) return BadTensor(*entry, "overlaps with another one");
    if (entry->offset > end) return BadTensor(*entry, "has bytes before it that belong to none");
    end += entry->size_bytes;
  }
  if (end == file_bytes) return absl::OkStatus();
  return Bad(absl::StrCat("it has ", file_bytes - end, " bytes after its last tensor"));
}

}  // namespace

std::string Shown(absl::string_view text) {
  constexpr size_t kMostShown = 200;
  std::string out = absl::Utf8SafeCHexEscape(text.substr(0, kMostShown));
  if (text.size() > kMostShown) out += "...";
  return out;
}

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(absl::string_view file) {
  if (file.size() < kLengthBytes) return Bad("it is too short to be a .safetensors file");
  uint64_t header_bytes = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    header_bytes = header_bytes << 8 | static_cast<uint8_t>(file[i]);
  }
  if (header_bytes > kMostHeaderBytes || header_bytes > file.size() - kLengthBytes) {
    if (file[0] == '{' && absl::StrContains(file.substr(0, kMostHeaderBytes), "\"weight_map\"")) {
      return Bad("it is the index of a model in several files: give those files themselves");
    }
    return Bad(absl::StrCat("it is no .safetensors file: its header would have ", header_bytes,
                            " bytes, and the file has ", file.size()));
  }
  const uint64_t data_begin = kLengthBytes + header_bytes;
  JsonReader json(file.substr(kLengthBytes, header_bytes));
  std::vector<SafetensorsEntry> entries;
  absl::flat_hash_set<std::string> names;
  KILN_RETURN_IF_ERROR(json.Object([&](std::string name) -> absl::Status {
    if (!names.insert(name).second) {
      return Bad(absl::StrCat("it has the name '", Shown(name), "' twice"));
    }
    if (name == "__metadata__") {
      return json.Object([&](const std::string&) { return json.String().status(); });
    }
    KILN_ASSIGN_OR_RETURN(SafetensorsEntry entry,
                          ReadTensor(json, std::move(name), data_begin, file.size()));
    entries.push_back(std::move(entry));
    return absl::OkStatus();
  }));
  if (!json.AtEnd()) return Bad("its header goes on after its end");
  KILN_RETURN_IF_ERROR(CheckPlaces(entries, data_begin, file.size()));
  return entries;
}

}  // namespace kiln
