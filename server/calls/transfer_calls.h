// The ExportCache and ImportCache calls: entries as streams of records.
#pragma once

#include "server/calls/service_context.h"
#include "server/rpc/reactor.h"

namespace kiln::server {

// Larger entries are refused: one call holds one entry in memory.
inline constexpr int64_t kMaxImportBytes = int64_t{512} << 20;

// Of the disk tier, the least recently used first, so that an import keeps the order. What is
// evicted or found damaged meanwhile is left out.
Method ExportMethod(const ServiceContext& service);

// Into the disk tier, an entry once all of it has come and its digest matches. INVALID_ARGUMENT,
// naming the entry, for one that is malformed; what came before it stays.
Method ImportMethod(const ServiceContext& service);

}  // namespace kiln::server
