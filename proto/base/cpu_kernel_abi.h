/* The C ABI between a generated CPU kernel and the client's runtime, which share this one file: the
   compiler puts its text before each kernel's source. It therefore includes nothing and is plain C.
   Changing it means raising KILN_CPU_ABI_VERSION; a loader refuses other versions. */
#ifndef KILN_CPU_KERNEL_ABI_H_
#define KILN_CPU_KERNEL_ABI_H_

#define KILN_CPU_ABI_VERSION 1

typedef struct KilnCpuContext {
  /* Calls body(closure, task, thread) for every task in [0, tasks), on up to `threads` threads, and
     returns when all are done. `thread` is in [0, threads). Not re-entrant. */
  void (*parallel_for)(const struct KilnCpuContext* context, long tasks,
                       void (*body)(void* closure, long task, int thread), void* closure);
  void* pool; /* the runtime's own */
  int threads;
  char* scratch;             /* the launch's block, 64-byte aligned */
  char* thread_scratch;      /* `threads` blocks, 64-byte aligned */
  long thread_scratch_bytes; /* of one block */
} KilnCpuContext;

/* What a kernel returns. */
enum {
  KILN_CPU_OK = 0,
  KILN_CPU_INDEX_OUT_OF_RANGE = 1, /* an index tensor held a value outside its dimension */
  KILN_CPU_DIVISION_BY_ZERO = 2    /* of an integer */
};

/* Every kernel: buffers in the order of its launch step, then the values of its symbols. */
typedef int (*KilnCpuKernel)(const KilnCpuContext* context, void* const* buffers,
                             const long* symbols);

#endif
