// The simulated GCU's library with a watch before it: counts what is made and given back, and lets
// one call fail. A library of its own, which $KILN_LIBGCU names; tests find the watch by dlsym.
#pragma once

#include <cstdint>

extern "C" {

struct GcuWatch {
  int64_t blocks = 0, streams = 0, events = 0, modules = 0;  // that live
  int64_t calls = 0;  // since the last reset, of all functions below
  int64_t bytes_to_device = 0, bytes_to_host = 0;
  int64_t copies_to_device = 0, copies_to_host = 0;
  int64_t waits = 0;  // of streams for events
};

// Counts calls and copies from 0 again. Call number `fails_at` from now on, from 0, gives `code`
// and does nothing; below 0: none does.
void gcu_watch_reset(int64_t fails_at, int code);
void gcu_watch_read(GcuWatch* watch);
// From now on, or no longer, streams do not wait for events.
void gcu_watch_drop_waits(int drop);
// A call is counted and may fail: stream_create, stream_synchronize, stream_wait_event,
// event_create, event_record, event_get_report, malloc, memcpy, memcpy_async, module_load,
// module_get_function, function_get_argument_count, function_get_argument, function_get_l2_bytes
// and launch_kernel.

}  // extern "C"
