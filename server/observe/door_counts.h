// Who is connected and what has begun to come, at one moment.
#pragma once

#include <cstdint>

namespace kiln::server {

struct DoorCounts {
  int64_t connections = 0;
  int64_t max_connections = 0;
  bool out_of_descriptors = false;  // now
  int64_t exhaustions = 0;          // how often descriptors ran out
  // Connections that were closed at once, by reason.
  int64_t refused_limit = 0;
  int64_t refused_address_limit = 0;
  int64_t refused_descriptors = 0;
  // Requests of which not every byte has come; bytes are those of requests that take long.
  int64_t incomplete_requests = 0;
  int64_t incomplete_request_bytes = 0;
  // Such requests that were refused, by reason.
  int64_t refused_bytes = 0;
  int64_t refused_time = 0;
};

}  // namespace kiln::server
