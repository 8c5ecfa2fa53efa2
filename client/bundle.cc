#include "client/bundle.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/signing.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr absl::string_view kMagic = "KILNBNDL";
constexpr uint64_t kVersion = 2;
constexpr size_t kVersionBytes = 4;
constexpr absl::string_view kEntryMark = "KREC";
constexpr absl::string_view kEndMark = "KEND";
constexpr size_t kKindBytes = 16;
constexpr size_t kDigestBytes = 32;
constexpr size_t kCountBytes = 8;
constexpr size_t kCheckBytes = 8;
// Where parts of a header begin.
constexpr size_t kKindAt = 4;
constexpr size_t kKeyAt = kKindAt + kKindBytes;
constexpr size_t kDigestAt = kKeyAt + kDigestBytes;
constexpr size_t kSignerAt = kDigestAt + kDigestBytes;
constexpr size_t kSignatureAt = kSignerAt + kPublicKeyBytes;
constexpr size_t kCountAt = kSignatureAt + kSignatureBytes;
constexpr int64_t kHeaderBytes = kCountAt + kCountBytes + kCheckBytes;
constexpr int64_t kEndBytes = 4 + kCountBytes + kCheckBytes;
constexpr int64_t kSearchBytes = 1 << 20;

std::string Word(uint64_t value, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

uint64_t ReadWord(absl::string_view raw) {
  uint64_t value = 0;
  for (size_t i = raw.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(raw[i]);
  return value;
}

std::string WithCheck(std::string header) {
  Digest digest = Sha256(header);
  header.append(digest.view().data(), kCheckBytes);
  return header;
}

// Of cache::EntryKind, which signatures are over.
std::optional<uint8_t> KindNumber(absl::string_view kind) {
  if (kind == "artifact") return kArtifactKind;
  if (kind == "kernel") return kKernelKind;
  if (kind == "description") return kDescriptionKind;
  if (kind == "choice") return kChoiceKind;
  return std::nullopt;
}

bool CheckHolds(absl::string_view header) {
  absl::string_view body = header.substr(0, header.size() - kCheckBytes);
  return Sha256(body).view().substr(0, kCheckBytes) == header.substr(body.size());
}

}  // namespace

absl::Status CheckSigner(const BundleEntry& entry, const std::vector<std::string>& keys) {
  const std::string name = absl::StrCat("the ", entry.kind, " ", absl::BytesToHexString(entry.key));
  if (std::find(keys.begin(), keys.end(), entry.public_key) == keys.end()) {
    return absl::UnauthenticatedError(
        absl::StrCat(name, " is signed by ", FormatPublicKey(entry.public_key),
                     ", which is not the server's key nor one of --signed-by"));
  }
  KILN_ASSIGN_OR_RETURN(Digest key, Digest::FromBytes(entry.key));
  const std::optional<uint8_t> kind = KindNumber(entry.kind);
  if (!kind || !VerifySignature(entry.public_key, *kind, key, entry.digest, entry.signature).ok()) {
    return absl::DataLossError(absl::StrCat(name, " has a wrong signature"));
  }
  return absl::OkStatus();
}

BundleWriter::BundleWriter(std::string path)
    : path_(std::move(path)),
      draft_(absl::StrCat(path_, ".part-", std::random_device{}())),  // nobody's yet
      out_(draft_, std::ios::binary | std::ios::trunc) {}

absl::StatusOr<std::unique_ptr<BundleWriter>> BundleWriter::Create(const std::string& path) {
  std::unique_ptr<BundleWriter> writer(new BundleWriter(path));
  writer->Write(absl::StrCat(kMagic, Word(kVersion, kVersionBytes)));
  KILN_RETURN_IF_ERROR(writer->Check());
  return writer;
}

BundleWriter::~BundleWriter() {
  if (finished_) return;
  out_.close();
  std::remove(draft_.c_str());
}

void BundleWriter::Write(const std::string& bytes) {
  out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  size_bytes_ += static_cast<int64_t>(bytes.size());
}

absl::Status BundleWriter::Check() {
  if (out_.good()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write '", draft_, "': ", std::strerror(errno)));
}

absl::Status BundleWriter::Add(const v1::CacheRecord& record) {
  if (!record.key().empty()) {
    if (missing_bytes_ != 0 || record.key().size() != kDigestBytes ||
        record.digest().size() != kDigestBytes || record.kind().size() > kKindBytes ||
        record.public_key().size() != kPublicKeyBytes ||
        record.signature().size() != kSignatureBytes || record.total_bytes() < 0) {
      return absl::DataLossError("the server sent an entry that is malformed or not whole");
    }
    std::string kind = record.kind();
    kind.resize(kKindBytes, '\0');
    Write(WithCheck(absl::StrCat(kEntryMark, kind, record.key(), record.digest(),
                                 record.public_key(), record.signature(),
                                 Word(static_cast<uint64_t>(record.total_bytes()), kCountBytes))));
    missing_bytes_ = record.total_bytes();
    ++entries_;
  }
  missing_bytes_ -= static_cast<int64_t>(record.data().size());
  if (missing_bytes_ < 0)
    return absl::DataLossError("the server sent more of an entry than it said");
  Write(record.data());
  return Check();
}

absl::Status BundleWriter::Finish() {
  if (missing_bytes_ != 0) return absl::DataLossError("the last entry is not whole");
  Write(WithCheck(absl::StrCat(kEndMark, Word(static_cast<uint64_t>(entries_), kCountBytes))));
  out_.close();
  KILN_RETURN_IF_ERROR(Check());
  if (std::rename(draft_.c_str(), path_.c_str()) != 0) {
    return absl::InternalError(absl::StrCat("cannot write '", path_, "': ", std::strerror(errno)));
  }
  finished_ = true;
  return absl::OkStatus();
}

struct BundleReader::Header {
  BundleEntry entry;
  int64_t bytes = 0;
};

absl::StatusOr<std::unique_ptr<BundleReader>> BundleReader::Open(const std::string& path,
                                                                 OnDamage on_damage) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  auto size = static_cast<int64_t>(in.tellg());
  if (!in || size < 0) {
    return absl::NotFoundError(absl::StrCat("cannot read '", path, "': ", std::strerror(errno)));
  }
  std::unique_ptr<BundleReader> reader(new BundleReader(std::move(in), size, std::move(on_damage)));
  std::string start = reader->ReadAt(0, kMagic.size() + kVersionBytes);
  if (!absl::StartsWith(start, kMagic) || start.size() < kMagic.size() + kVersionBytes) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is no bundle"));
  }
  uint64_t version = ReadWord(absl::string_view(start).substr(kMagic.size()));
  if (version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is a bundle of version ", version,
                                                   "; this build reads version ", kVersion));
  }
  reader->offset_ = static_cast<int64_t>(start.size());
  return reader;
}

std::string BundleReader::ReadAt(int64_t offset, int64_t count) {
  std::string out(static_cast<size_t>(std::clamp<int64_t>(size_bytes_ - offset, 0, count)), '\0');
  in_.clear();
  in_.seekg(offset);
  in_.read(out.data(), static_cast<std::streamsize>(out.size()));
  out.resize(static_cast<size_t>(in_.gcount()));
  return out;
}

std::optional<int64_t> BundleReader::FindHeader(int64_t offset) {
  // Pieces overlap, so that no header lies across two.
  for (; offset < size_bytes_; offset += kSearchBytes) {
    std::string piece = ReadAt(offset, kSearchBytes + kHeaderBytes);
    for (size_t at = piece.find('K'); at != std::string::npos && at < kSearchBytes;
         at = piece.find('K', at + 1)) {
      absl::string_view rest = absl::string_view(piece).substr(at);
      bool entry = absl::StartsWith(rest, kEntryMark);
      if (!entry && !absl::StartsWith(rest, kEndMark)) continue;
      size_t size = entry ? kHeaderBytes : kEndBytes;
      if (rest.size() >= size && CheckHolds(rest.substr(0, size))) {
        return offset + static_cast<int64_t>(at);
      }
    }
  }
  return std::nullopt;
}

void BundleReader::AtTheEnd(int64_t promised) {
  ended_ = true;
  if (promised > seen_) {
    on_damage_(absl::StrCat(promised - seen_, " of ", promised, " entries cannot be found"));
  }
}

std::optional<BundleEntry> BundleReader::Next() {
  while (!ended_) {
    std::string header = ReadAt(offset_, kHeaderBytes);
    absl::string_view view = header;
    if (absl::StartsWith(view, kEndMark) && view.size() >= kEndBytes &&
        CheckHolds(view.substr(0, kEndBytes))) {
      AtTheEnd(static_cast<int64_t>(ReadWord(view.substr(4, kCountBytes))));
      break;
    }
    if (view.size() < kHeaderBytes || !absl::StartsWith(view, kEntryMark) || !CheckHolds(view)) {
      std::optional<int64_t> next = FindHeader(offset_);
      on_damage_(next ? absl::StrCat("the entry at byte ", offset_, " is damaged")
                      : absl::StrCat("the file ends early or is damaged from byte ", offset_));
      if (!next) break;
      ++seen_;
      offset_ = *next;
      continue;
    }
    ++seen_;
    BundleEntry entry;
    entry.kind = std::string(view.substr(kKindAt, kKindBytes));
    entry.kind.resize(std::strlen(entry.kind.c_str()));
    entry.key = std::string(view.substr(kKeyAt, kDigestBytes));
    entry.public_key = std::string(view.substr(kSignerAt, kPublicKeyBytes));
    entry.signature = std::string(view.substr(kSignatureAt, kSignatureBytes));
    absl::string_view digest = view.substr(kDigestAt, kDigestBytes);
    auto bytes = static_cast<int64_t>(ReadWord(view.substr(kCountAt, kCountBytes)));
    std::string name = absl::StrCat("the ", entry.kind, " ", absl::BytesToHexString(entry.key));
    offset_ += kHeaderBytes;
    if (bytes < 0 || bytes > size_bytes_ - offset_) {
      on_damage_(absl::StrCat(name, " is cut short: the file ends early"));
      break;
    }
    entry.bytes = ReadAt(offset_, bytes);
    entry.digest = Sha256(entry.bytes);
    if (entry.digest.view() == digest) {
      offset_ += bytes;
      return entry;
    }
    on_damage_(absl::StrCat(name, " is damaged: its bytes do not match its digest"));
    // The next entry is where this one ends, unless bytes are missing or too many.
    offset_ = FindHeader(offset_).value_or(size_bytes_);
    if (offset_ == size_bytes_) break;
  }
  ended_ = true;
  return std::nullopt;
}

}  // namespace kiln
