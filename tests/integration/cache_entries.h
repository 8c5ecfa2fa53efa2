// Made-up entries of a server's cache, put there by ImportCache.
#pragma once

#include <string>
#include <vector>

#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/digest.h"

namespace kiln::integration {

struct MadeEntry {
  std::string kind;
  Digest key;
  std::string bytes;  // a serialized Artifact, whatever the kind
};

// The same for the same number and size; no two numbers share a byte of their values.
MadeEntry MakeUpEntry(int64_t number, size_t size_bytes, const std::string& kind = "artifact");

// The records that carry it, with at most 1 MiB in each.
std::vector<v1::CacheRecord> RecordsOf(const MadeEntry& entry);

// In one call; `response` may be null.
grpc::Status Import(v1::CompileService::Stub& stub, const std::vector<v1::CacheRecord>& records,
                    v1::ImportCacheResponse* response = nullptr);

v1::ListCacheResponse ListCache(v1::CompileService::Stub& stub);

}  // namespace kiln::integration
