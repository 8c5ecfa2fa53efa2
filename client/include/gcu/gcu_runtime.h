/* The runtime of a GCU: memory, programs, launches. Kiln's client loads libgcu_runtime.so by name
 * and knows no more than this; the one that is built here simulates the machine of
 * proto/gcu/README.md, and a vendor's may take its place.
 *
 * Every function returns GCU_OK or another of the codes below, and never ends the process: a null,
 * unknown or destroyed handle, and any other wrong argument, is GCU_INVALID_ARGUMENT.
 * gcu_get_last_error has the text of the calling thread's last error. All functions may be called
 * from any thread; calls on one context run one at a time. What is not in this list of ownership
 * stays the caller's: a context owns its streams, events, modules and memory, and destroying it
 * destroys them.
 *
 * Copies and launches on a stream take place in the order in which they are issued, those of two
 * streams in any, and beside each other, unless one waits: gcu_stream_wait_event orders two
 * streams, and what the host has waited for (gcu_stream_synchronize, gcu_event_synchronize) comes
 * before whatever it issues then. Work without an order must not touch the same bytes where one
 * writes them. What an asynchronous call is given by pointer must stay until it is done; arguments
 * of launches are taken at once.
 *
 * Times are the device's own. The simulator does what it is told before a call returns, in the
 * order of the calls; a stream has a clock, which copies and launches on it set forward, and events
 * read (section Streams of the specification). It finds work that lacks an order: the later call is
 * GCU_RACE. On a device that runs on by itself the codes of launches and asynchronous copies may
 * come later, from the call that waits for them. */
#ifndef GCU_RUNTIME_H_
#define GCU_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GCU_API __attribute__((visibility("default")))

enum gcu_status {
  GCU_OK = 0,
  GCU_INVALID_ARGUMENT = 1,
  GCU_OUT_OF_MEMORY = 2,
  GCU_BAD_BINARY = 3,    /* no binary of a GCU, or a damaged one */
  GCU_WRONG_PROFILE = 4, /* a binary of another machine */
  GCU_NOT_FOUND = 5,
  GCU_TRAP = 6,   /* a kernel's own guard */
  GCU_BOUNDS = 7, /* an access outside of an allocation */
  GCU_POISON = 8, /* a read of what was never written */
  /* an access that another one, not waited for, forbids: of a core, a copy, or another stream */
  GCU_RACE = 9,
  GCU_PROGRAM_FAULT = 10,
  GCU_INDEX = 11 /* an index of a gather or scatter outside of the rows */
};

typedef struct gcu_context* gcu_context_t;
typedef struct gcu_stream* gcu_stream_t;
typedef struct gcu_event* gcu_event_t;
typedef struct gcu_module* gcu_module_t;
typedef struct gcu_function* gcu_function_t;
typedef uint64_t gcu_address_t; /* of device memory; never 0 */

/* The spaces of the specification that a host allocates from. */
enum gcu_memory_type { GCU_MEMORY_L3 = 0, GCU_MEMORY_L2 = 1 };
enum gcu_memcpy_kind { GCU_HOST_TO_DEVICE = 1, GCU_DEVICE_TO_HOST = 2, GCU_DEVICE_TO_DEVICE = 3 };

typedef struct gcu_device_properties {
  char name[24]; /* the profile, which binaries must have */
  uint64_t l3_bytes, l3_bytes_per_s, l2_bytes, l2_bytes_per_s, l1_bytes;
  uint32_t cores, vector_bytes;
  uint64_t clock_hz;
  uint32_t f32_macs, f16_macs, i8_macs; /* of a core in a cycle */
  uint64_t launch_ns;
} gcu_device_properties;

/* What the last launch on a stream did. Times are picoseconds; those of units are sums over cores.
 */
typedef struct gcu_launch_report {
  int64_t time_ps; /* with the launch's overhead */
  int64_t l3_read_bytes, l3_written_bytes, l2_read_bytes, l2_written_bytes;
  int64_t l3_busy_ps, l2_busy_ps;
  int64_t dma_ps, vector_ps, matrix_ps, scalar_ps, waiting_ps;
  int64_t macs, instructions;
  int64_t l2_peak_bytes; /* allocated in L2, the launch's own memory included */
} gcu_launch_report;

typedef struct gcu_argument_info {
  const char* name; /* lives as long as the module */
  uint32_t kind;    /* 1 pointer to L3, 2 pointer to L2, 3 integer, 4 bits of a number */
  uint32_t access;  /* bits: 1 read, 2 written */
} gcu_argument_info;

GCU_API const char* gcu_error_name(int status); /* "GCU_OK"; never null */
GCU_API const char* gcu_get_last_error(void);   /* never null; until this thread's next call */

GCU_API int gcu_get_device_count(int* count);
/* GCU_NOT_FOUND where GCU_PROFILE names no profile (the simulator's device is gcu-16m, or that
 * one). */
GCU_API int gcu_get_device_properties(int device, gcu_device_properties* properties);

GCU_API int gcu_context_create(int device, gcu_context_t* context);
GCU_API int gcu_context_destroy(gcu_context_t context);

GCU_API int gcu_stream_create(gcu_context_t context, gcu_stream_t* stream);
GCU_API int gcu_stream_destroy(gcu_stream_t stream); /* waits for its work */
GCU_API int gcu_stream_synchronize(gcu_stream_t stream);

/* `size` bytes, 1 and more; contents undefined. GCU_OUT_OF_MEMORY where no place is large enough.
 */
GCU_API int gcu_malloc(gcu_context_t context, uint64_t size, int memory_type,
                       gcu_address_t* address);
/* Waits for all streams' work, which may use the memory. */
GCU_API int gcu_free(gcu_context_t context, gcu_address_t address, int memory_type);
/* The same of L2: freed blocks are handed out again, the lowest first. */
GCU_API int gcu_l2_malloc(gcu_context_t context, uint64_t size, gcu_address_t* address);
GCU_API int gcu_l2_free(gcu_context_t context, gcu_address_t address);

/* `to` and `from` are addresses of the device or pointers, as `kind` says. A read of device memory
 * that was never written gives zeros. GCU_BOUNDS where the device's bytes are not in one
 * allocation. The one without a stream comes behind all streams' work, and is done when the call
 * returns. */
GCU_API int gcu_memcpy(gcu_context_t context, uint64_t to, uint64_t from, uint64_t size, int kind);
GCU_API int gcu_memcpy_async(gcu_stream_t stream, uint64_t to, uint64_t from, uint64_t size,
                             int kind);

/* GCU_BAD_BINARY, GCU_WRONG_PROFILE. The binary need not live on. */
GCU_API int gcu_module_load(gcu_context_t context, const void* binary, size_t size,
                            gcu_module_t* module);
GCU_API int gcu_module_unload(gcu_module_t module); /* its functions go with it */
GCU_API int gcu_module_get_function(gcu_module_t module, const char* name,
                                    gcu_function_t* function);
/* L2 memory of its own that a launch of the kernel needs. */
GCU_API int gcu_function_get_l2_bytes(gcu_function_t function, uint64_t* bytes);
GCU_API int gcu_function_get_argument_count(gcu_function_t function, uint32_t* count);
GCU_API int gcu_function_get_argument(gcu_function_t function, uint32_t number,
                                      gcu_argument_info* info);

/* Runs the kernel in grid_x * grid_y * grid_z cells. Every cell has all cores: block_x is 0 or
 * their number, block_y and block_z are 0 or 1. `args` points to as many pointers to 64-bit values
 * as the kernel has arguments. `shared_mem` is the launch's own L2 memory in bytes, no less than
 * the kernel wants. A fault names kernel, core and instruction; what was written by then stays. */
GCU_API int gcu_launch_kernel(gcu_function_t function, uint32_t grid_x, uint32_t grid_y,
                              uint32_t grid_z, uint32_t block_x, uint32_t block_y, uint32_t block_z,
                              void** args, uint64_t shared_mem, gcu_stream_t stream);
/* Waits for the launch. GCU_NOT_FOUND before the stream's first launch. */
GCU_API int gcu_stream_get_report(gcu_stream_t stream, gcu_launch_report* report);

GCU_API int gcu_event_create(gcu_context_t context, gcu_event_t* event);
GCU_API int gcu_event_destroy(gcu_event_t event);
/* The event stands for what was issued on the stream so far; recorded again, for that alone. */
GCU_API int gcu_event_record(gcu_event_t event, gcu_stream_t stream);
/* The next two: of an event that was recorded. */
GCU_API int gcu_event_synchronize(gcu_event_t event);
GCU_API int gcu_stream_wait_event(gcu_stream_t stream, gcu_event_t event);
/* As gcu_stream_get_report, of the stream's last launch before the event was recorded. */
GCU_API int gcu_event_get_report(gcu_event_t event, gcu_launch_report* report);
/* From `begin` to `end`, both recorded, of the device's time. */
GCU_API int gcu_event_elapsed(gcu_event_t begin, gcu_event_t end, double* milliseconds);

/* From now on, or no longer, what launches do is kept; gcu_write_trace writes it as a Chrome trace
 * (JSON; microseconds; a process is the device, a thread a core's engine) and forgets it. */
GCU_API int gcu_set_tracing(gcu_context_t context, int on);
GCU_API int gcu_write_trace(gcu_context_t context, const char* path);

#ifdef __cplusplus
}
#endif

#endif /* GCU_RUNTIME_H_ */
