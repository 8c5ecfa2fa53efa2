// Large values, each in a file of its own; FORMAT.md says where.
//
// Folder "moving" makes a change of a file and a record of the database one: a value is written
// there before its record and goes to its place after it; it goes back there before the record is
// deleted, and is deleted after. Whatever a kill leaves in "moving", the records decide.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/store.h"

namespace kiln::cache {

// Read is thread-safe; of the others one runs at a time.
class ValueFiles {
 public:
  explicit ValueFiles(std::string root) : root_(std::move(root)) {}

  // Makes the folders where they are missing.
  absl::Status Prepare() const;

  // NOT_FOUND where there is no such file; DATA_LOSS where it is too short to be one.
  absl::StatusOr<EntryPtr> Read(const Key& key) const;
  // Into "moving". RESOURCE_EXHAUSTED for a full disk; nothing is left behind then.
  absl::Status Write(const Key& key, const Entry& entry) const;
  // From "moving" to its place, over what is there.
  absl::Status Publish(const Key& key) const;
  // From its place to "moving". NOT_FOUND where there is none.
  absl::Status Retire(const Key& key) const;
  // From "moving"; OK where there is none.
  absl::Status Discard(const Key& key) const;

  // Empties "moving": what `wanted` goes to its place, the rest is deleted.
  absl::Status Settle(const std::function<bool(const Key&)>& wanted) const;
  // Calls `visit` for every file at its place, unless it returns false.
  void ForEach(const std::function<bool(const Key&)>& visit) const;
  // Deletes a file at its place.
  void Delete(const Key& key) const;
  // Deletes all of them, and the folders that are empty then.
  void DeleteAll() const;

 private:
  std::string PlaceOf(const Key& key) const;
  std::string MovingOf(const Key& key) const;
  const std::string root_;
};

// Bytes that the files under `path` take, as du(1) counts them: blocks, folders included. Files
// that vanish meanwhile are left out.
int64_t DiskUsageBytes(const std::string& path);

}  // namespace kiln::cache
