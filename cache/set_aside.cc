#include "cache/set_aside.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/rocksdb_format.h"
#include "cache/value_files.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kSuffix = ".set-aside-";
constexpr absl::string_view kFirstFormat = "kiln-cache 1";
constexpr size_t kMostVersionBytes = 100;

// Whole or not at all, whatever happens meanwhile.
absl::Status WriteVersion(const std::string& file) {
  std::string draft = absl::StrCat(file, ".new");
  std::ofstream out(draft, std::ios::binary | std::ios::trunc);
  out << std::string(kFormatVersion) << "\n";
  out.close();
  std::error_code error;
  if (out.good()) fs::rename(draft, file, error);
  if (out.good() && !error) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write ", file, error ? ": " + error.message() : ""));
}

// Holds nothing that somebody could miss: a folder just made, perhaps with a draft of FORMAT.
bool IsUnused(const std::string& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (!absl::StartsWith(entry.path().filename().string(), kFormatFile)) return false;
  }
  return !error;
}

}  // namespace

SetAsideFolders::SetAsideFolders(std::string path) : path_(std::move(path)) {
  fs::path cache(path_);
  std::string prefix = absl::StrCat(cache.filename().string(), kSuffix);
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(cache.parent_path(), error)) {
    std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, prefix)) names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());  // their times have equally many digits
  for (const std::string& name : names) {
    folders_.push_back({name, DiskUsageBytes(name)});
    size_bytes_ += folders_.back().size_bytes;
  }
}

absl::Status SetAsideFolders::Add(absl::string_view why) {
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
    std::error_code error;
    fs::remove_all(folder.path, error);
    Log(LogLevel::kWarning, "deleted a cache that was set aside, for its room",
        {{"path", folder.path}, {"outcome", error ? error.message() : "OK"}});
  }
}

absl::Status CheckFormat(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("cannot make ", path, ": ", error.message()));
  }
  std::string file = absl::StrCat(path, "/", kFormatFile);
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    if (IsUnused(path)) return WriteVersion(file);
    // The first format had its database here and no such file.
    bool first = fs::exists(absl::StrCat(path, "/CURRENT"), error);
    return absl::DataLossError(
        first ? absl::StrCat("has the format '", kFirstFormat, "'; this build's is '",
                             kFormatVersion, "'")
              : absl::StrCat("has no file ", kFormatFile, " that names its format"));
  }
  std::string text(kMostVersionBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  absl::string_view version = absl::StripAsciiWhitespace(text);
  if (version == kFormatVersion) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("has the format '", version, "'; this build's is '", kFormatVersion, "'"));
}

}  // namespace kiln::cache
