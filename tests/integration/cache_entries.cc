#include "tests/integration/cache_entries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln::integration {

MadeEntry MakeUpEntry(int64_t number, size_t size_bytes, const std::string& kind) {
  MadeEntry entry{kind, Sha256(absl::StrCat("made-up entry ", number)), ""};
  v1::Artifact artifact;
  artifact.mutable_header()->set_key(entry.key.ToHex());
  std::mt19937_64 random(static_cast<uint64_t>(number));
  std::string& binary = *artifact.mutable_binary();
  while (binary.size() < size_bytes) {
    uint64_t word = random();
    binary.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  entry.bytes = artifact.SerializeAsString();
  return entry;
}

std::vector<v1::CacheRecord> RecordsOf(const MadeEntry& entry) {
  constexpr size_t kRecordBytes = 1 << 20;
  std::vector<v1::CacheRecord> records;
  for (size_t begin = 0; begin < entry.bytes.size(); begin += kRecordBytes) {
    v1::CacheRecord& record = records.emplace_back();
    if (begin == 0) {
      record.set_kind(entry.kind);
      record.set_key(std::string(entry.key.view()));
      record.set_digest(std::string(Sha256(entry.bytes).view()));
      record.set_total_bytes(static_cast<int64_t>(entry.bytes.size()));
    }
    record.set_data(entry.bytes.substr(begin, kRecordBytes));
  }
  return records;
}

grpc::Status Import(v1::CompileService::Stub& stub, const std::vector<v1::CacheRecord>& records,
                    v1::ImportCacheResponse* response) {
  grpc::ClientContext context;
  v1::ImportCacheResponse ignored;
  auto writer = stub.ImportCache(&context, response == nullptr ? &ignored : response);
  for (const v1::CacheRecord& record : records) {
    if (!writer->Write(record)) break;
  }
  writer->WritesDone();
  return writer->Finish();
}

v1::ListCacheResponse ListCache(v1::CompileService::Stub& stub) {
  grpc::ClientContext context;
  v1::ListCacheRequest request;
  request.set_limit(20000);
  v1::ListCacheResponse response;
  grpc::Status status = stub.ListCache(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

}  // namespace kiln::integration
