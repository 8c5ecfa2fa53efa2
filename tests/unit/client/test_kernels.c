/* Hand-written kernels against the CPU ABI, for the tests of the loader and the executor. */
#include "proto/base/cpu_kernel_abi.h"

#define EXPORT __attribute__((visibility("default")))

/* kiln.v1.KernelInterface in parts: what is f32 times the first size, read or written. */
#define N_FLOATS                                                                    \
  "bytes{expr{kind:KIND_MUL operands{kind:KIND_CONSTANT constant:4} operands{kind:" \
  "KIND_SYMBOL}}} dtype:DTYPE_FLOAT32 "
#define N_FLOATS_SCRATCH                                                                    \
  "scratch_bytes{expr{kind:KIND_MUL operands{kind:KIND_CONSTANT constant:4} operands{kind:" \
  "KIND_SYMBOL}}}"
#define READS "buffers{" N_FLOATS "read:true} "
#define WRITES "buffers{" N_FLOATS "written:true} "
#define ANY_SIZE "sizes{max:9223372036854775807} "

struct AddArgs {
  const float* a;
  const float* b;
  float* out;
  long n, chunk;
};

static void AddTask(void* closure, long task, int thread) {
  const struct AddArgs* args = (const struct AddArgs*)closure;
  long end = (task + 1) * args->chunk;
  if (end > args->n) end = args->n;
  for (long i = task * args->chunk; i < end; ++i) args->out[i] = args->a[i] + args->b[i];
  (void)thread;
}

/* buffers: a, b, out; symbols: n */
EXPORT int test_add(const KilnCpuContext* context, void* const* buffers, const long* symbols) {
  struct AddArgs args = {(const float*)buffers[0], (const float*)buffers[1], (float*)buffers[2],
                         symbols[0], 16};
  context->parallel_for(context, (args.n + 15) / 16, AddTask, &args);
  return KILN_CPU_OK;
}

EXPORT const char test_add_interface[] = READS READS WRITES ANY_SIZE;

/* buffers: x, out; symbols: n. Goes through the launch's scratch block. */
EXPORT int test_double_through_scratch(const KilnCpuContext* context, void* const* buffers,
                                       const long* symbols) {
  float* scratch = (float*)context->scratch;
  for (long i = 0; i < symbols[0]; ++i) scratch[i] = 2 * ((const float*)buffers[0])[i];
  for (long i = 0; i < symbols[0]; ++i) ((float*)buffers[1])[i] = scratch[i];
  return KILN_CPU_OK;
}

EXPORT const char test_double_through_scratch_interface[] = READS WRITES ANY_SIZE N_FLOATS_SCRATCH;

struct CountArgs {
  const KilnCpuContext* context;
};

static void CountTask(void* closure, long task, int thread) {
  const KilnCpuContext* context = ((const struct CountArgs*)closure)->context;
  long* mine = (long*)(context->thread_scratch + thread * context->thread_scratch_bytes);
  ++*mine;
  (void)task;
}

/* buffers: out (one i64); symbols: tasks. Counts tasks in each thread's block, then adds up. */
EXPORT int test_count_tasks(const KilnCpuContext* context, void* const* buffers,
                            const long* symbols) {
  struct CountArgs args = {context};
  for (int t = 0; t < context->threads; ++t) {
    *(long*)(context->thread_scratch + t * context->thread_scratch_bytes) = 0;
  }
  context->parallel_for(context, symbols[0], CountTask, &args);
  long sum = 0;
  for (int t = 0; t < context->threads; ++t) {
    sum += *(long*)(context->thread_scratch + t * context->thread_scratch_bytes);
  }
  *(long*)buffers[0] = sum;
  return KILN_CPU_OK;
}

EXPORT const char test_count_tasks_interface[] =
    "buffers{bytes{value:8} dtype:DTYPE_INT64 written:true} sizes{max:100000} "
    "thread_scratch_bytes{value:8}";

EXPORT int test_bad_index(const KilnCpuContext* context, void* const* buffers,
                          const long* symbols) {
  (void)context, (void)buffers, (void)symbols;
  return KILN_CPU_INDEX_OUT_OF_RANGE;
}

EXPORT const char test_bad_index_interface[] = READS WRITES ANY_SIZE N_FLOATS_SCRATCH;

EXPORT int test_zero_divisor(const KilnCpuContext* context, void* const* buffers,
                             const long* symbols) {
  (void)context, (void)buffers, (void)symbols;
  return KILN_CPU_DIVISION_BY_ZERO;
}

EXPORT const char test_zero_divisor_interface[] = READS WRITES ANY_SIZE N_FLOATS_SCRATCH;

/* It states no interface. */
EXPORT int test_stateless(const KilnCpuContext* context, void* const* buffers,
                          const long* symbols) {
  (void)context, (void)buffers, (void)symbols;
  return KILN_CPU_OK;
}
