#include "cache/set_aside.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/rocksdb_format.h"
#include "cache/value_files.h"
#include "proto/base/log.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kSuffix = ".set-aside-";
constexpr absl::string_view kFormatName = "kiln-cache";
constexpr char kDraftSuffix[] = ".new";
constexpr size_t kMostVersionBytes = 100;

std::string FormatFileOf(const std::string& path) {
  return absl::StrCat(path, "/", kFormatFile);
}

// Whole or not at all, whatever happens meanwhile.
absl::Status WriteVersion(const std::string& path) {
  const std::string file = FormatFileOf(path), draft = file + kDraftSuffix;
  std::ofstream out(draft, std::ios::binary | std::ios::trunc);
  out << std::string(kFormatVersion) << "\n";
  out.close();
  std::error_code error;
  if (out.good()) fs::rename(draft, file, error);
  if (out.good() && !error) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write ", file, error ? ": " + error.message() : ""));
}

// The text of the cache's FORMAT; nothing where there is none.
std::optional<std::string> ReadVersion(const std::string& path) {
  std::ifstream in(FormatFileOf(path), std::ios::binary);
  if (!in) return std::nullopt;
  std::string text(kMostVersionBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return std::string(absl::StripAsciiWhitespace(text));
}

// The name of something in the folder that no cache has; empty where there is none.
std::string ForeignNameIn(const std::string& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    const bool folder = fs::is_directory(entry.symlink_status(error));
    const bool own = folder
                         ? name == kDatabaseFolder || name == kFilesFolder || name == kMovingFolder
                         : name == kFormatFile || name == absl::StrCat(kFormatFile, kDraftSuffix);
    if (!own) return name;
  }
  return error ? error.message() : "";
}

// Of a FORMAT of Kiln's, whatever its number; a power failure may leave it empty.
bool IsVersion(absl::string_view text) {
  return text.empty() || absl::StartsWith(text, kFormatName);
}

// A cache of some version, and nothing else.
bool IsCache(const std::string& path) {
  const std::optional<std::string> version = ReadVersion(path);
  return version && IsVersion(*version) && ForeignNameIn(path).empty();
}

absl::Status NotACache(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is no cache of Kiln's, ", why,
                   "; it stays as it is: name another data directory, or move it away"));
}

// Deletes what a cache consists of, by its names, and the folders that are empty then.
absl::Status DeleteCache(const std::string& path) {
  const std::string database = absl::StrCat(path, "/", kDatabaseFolder);
  const rocksdb::Status destroyed = rocksdb::DestroyDB(database, rocksdb::Options());
  ValueFiles(path).DeleteAll();
  std::error_code error;
  fs::remove(FormatFileOf(path) + kDraftSuffix, error);
  if (!destroyed.ok()) return absl::UnavailableError(destroyed.ToString());
  // Last: without it nobody would take the rest for a cache.
  fs::remove(FormatFileOf(path), error);
  fs::remove(path, error);
  return error ? absl::UnavailableError(error.message()) : absl::OkStatus();
}

}  // namespace

SetAsideFolders::SetAsideFolders(std::string path) : path_(std::move(path)) {
  fs::path cache(path_);
  std::string prefix = absl::StrCat(cache.filename().string(), kSuffix);
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(cache.parent_path(), error)) {
    std::string name = entry.path().filename().string();
    absl::string_view time = name;
    const bool named = absl::ConsumePrefix(&time, prefix) && !time.empty() &&
                       std::all_of(time.begin(), time.end(), absl::ascii_isdigit);
    if (named && IsCache(entry.path())) names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());  // their times have equally many digits
  for (const std::string& name : names) {
    folders_.push_back({name, DiskUsageBytes(name)});
    size_bytes_ += folders_.back().size_bytes;
  }
}

absl::Status SetAsideFolders::Add(absl::string_view why) {
  const std::string foreign = ForeignNameIn(path_);
  if (!foreign.empty()) return NotACache(path_, absl::StrCat("it has '", foreign, "' in it"));
  std::string aside = absl::StrCat(path_, kSuffix, absl::ToUnixMillis(absl::Now()));
  std::error_code error;
  fs::rename(path_, aside, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot set ", path_, " aside, which ", why, ": ", error.message()));
  }
  Log(LogLevel::kWarning, "set an unreadable cache aside and started an empty one",
      {{"path", path_}, {"aside", aside}, {"why", std::string(why)}});
  folders_.push_back({aside, DiskUsageBytes(aside)});
  size_bytes_ += folders_.back().size_bytes;
  return absl::OkStatus();
}

void SetAsideFolders::Shrink(int64_t max_bytes) {
  while (size_bytes_ > std::max<int64_t>(max_bytes, 0) && !folders_.empty()) {
    Folder folder = std::move(folders_.front());
    folders_.pop_front();
    size_bytes_ -= folder.size_bytes;
    const absl::Status deleted = DeleteCache(folder.path);
    Log(LogLevel::kWarning, "deleted a cache that was set aside, for its room",
        {{"path", folder.path}, {"outcome", deleted.ok() ? "OK" : std::string(deleted.message())}});
  }
}

absl::Status CheckFormat(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("cannot make ", path, ": ", error.message()));
  }
  const std::optional<std::string> version = ReadVersion(path);
  if (!version) {
    const std::string draft = absl::StrCat(kFormatFile, kDraftSuffix);
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      const std::string name = entry.path().filename();
      if (name != draft) return NotACache(path, absl::StrCat("it has '", name, "' but no FORMAT"));
    }
    return WriteVersion(path);
  }
  if (*version == kFormatVersion) return absl::OkStatus();
  if (!IsVersion(*version)) {
    return NotACache(path, "its file FORMAT is another program's");
  }
  return absl::DataLossError(
      absl::StrCat("has the format '", *version, "'; this build's is '", kFormatVersion, "'"));
}

}  // namespace kiln::cache
