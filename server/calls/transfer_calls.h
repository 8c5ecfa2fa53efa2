// The ExportCache and ImportCache calls: entries as streams of records.
#pragma once

#include "kiln/v1/compile_service.grpc.pb.h"
#include "server/service.h"

namespace kiln::server {

// Larger entries are refused: one call holds one entry in memory.
inline constexpr int64_t kMaxImportBytes = int64_t{512} << 20;

// Both belong to gRPC from here on and delete themselves when the call is over.

// Of the disk tier, the least recently used first, so that an import keeps the order. What is
// evicted or found damaged meanwhile is left out.
grpc::ServerWriteReactor<v1::CacheRecord>* StartExport(const ServiceContext& service,
                                                       grpc::CallbackServerContext* context,
                                                       const v1::ExportCacheRequest* request);

// Into the disk tier, an entry once all of it has come and its digest matches. INVALID_ARGUMENT,
// naming the entry, for one that is malformed; what came before it stays.
grpc::ServerReadReactor<v1::CacheRecord>* StartImport(const ServiceContext& service,
                                                      grpc::CallbackServerContext* context,
                                                      v1::ImportCacheResponse* response);

}  // namespace kiln::server
