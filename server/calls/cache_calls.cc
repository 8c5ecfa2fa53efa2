#include "server/calls/cache_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

absl::StatusOr<std::vector<cache::EntryInfo>> EntriesOf(cache::Store& store,
                                                        const std::string& prefix) {
  KILN_ASSIGN_OR_RETURN(KeyFilter filter, ParseKeyPrefixes({prefix}));
  std::vector<cache::EntryInfo> entries;
  store.ForEach([&](const cache::EntryInfo& info) {
    if (filter(info.key.digest)) entries.push_back(info);
  });
  if (!entries.empty()) return entries;
  return absl::NotFoundError(absl::StrCat("no entry's key begins with '", prefix, "'"));
}

std::string NameOf(const cache::Key& key) {
  return absl::StrCat("the ", cache::EntryKindName(key.kind), " ", key.digest.ShortHex());
}

}  // namespace

absl::StatusOr<KeyFilter> ParseKeyPrefixes(const std::vector<std::string>& prefixes) {
  std::vector<std::string> wanted;
  for (const std::string& prefix : prefixes) {
    bool digits = std::all_of(prefix.begin(), prefix.end(), [](char c) {
      return absl::ascii_isxdigit(static_cast<unsigned char>(c));
    });
    if (!digits || prefix.size() < kLeastPrefixDigits ||
        prefix.size() > 2 * sizeof(Digest::bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", prefix, "' is no key: expected ", kLeastPrefixDigits, " to 64 hexadecimal digits"));
    }
    wanted.push_back(absl::AsciiStrToLower(prefix));
  }
  return [wanted = std::move(wanted)](const Digest& key) {
    std::string hex = key.ToHex();
    return std::any_of(wanted.begin(), wanted.end(),
                       [&hex](const std::string& prefix) { return absl::StartsWith(hex, prefix); });
  };
}

absl::StatusOr<std::vector<cache::EntryKind>> ParseKinds(absl::string_view name) {
  std::vector<cache::EntryKind> kinds;
  std::vector<absl::string_view> names;
  for (cache::EntryKind kind : cache::kEntryKinds) {
    names.push_back(cache::EntryKindName(kind));
    if (name.empty() || name == names.back()) kinds.push_back(kind);
  }
  if (!kinds.empty()) return kinds;
  return absl::InvalidArgumentError(absl::StrCat(
      "no kind of entry is called '", name, "'; expected one of ", absl::StrJoin(names, ", ")));
}

absl::Status PinEntries(cache::PinningStore& store, const v1::PinCacheRequest& request,
                        v1::PinCacheResponse& response) {
  KILN_ASSIGN_OR_RETURN(auto entries, EntriesOf(store, request.key_prefix()));
  for (const cache::EntryInfo& info : entries) {
    if (info.pinned == request.pinned()) continue;
    absl::Status changed = store.SetPinned(info.key, request.pinned());
    if (absl::IsNotFound(changed)) continue;  // evicted meanwhile
    if (!changed.ok()) {
      return Annotate(
          changed, absl::StrCat("cannot ", request.pinned() ? "pin " : "unpin ", NameOf(info.key),
                                ", after ", response.changed(), " others"));
    }
    response.set_changed(response.changed() + 1);
  }
  return absl::OkStatus();
}

absl::Status RemoveEntries(cache::Store& store, const v1::RemoveCacheRequest& request,
                           v1::RemoveCacheResponse& response) {
  KILN_ASSIGN_OR_RETURN(auto entries, EntriesOf(store, request.key_prefix()));
  for (const cache::EntryInfo& info : entries) {
    absl::Status removed = store.Remove(info.key);
    if (!removed.ok()) return Annotate(removed, absl::StrCat("cannot remove ", NameOf(info.key)));
    response.set_removed(response.removed() + 1);
  }
  return absl::OkStatus();
}

}  // namespace kiln::server
