/* Kiln's C interface: compile a tensor graph through a Kiln server and run it here.
 *
 *   kiln_client* client;     kiln_client_create(NULL, &client);
 *   kiln_graph* graph;       kiln_graph_load("bert.kgraph", &graph);
 *   kiln_program* program;   kiln_compile(client, graph, NULL, &program, NULL);
 *   kiln_output outputs[1];  kiln_program_run(program, inputs, 3, outputs, 1, NULL);
 *   ...                      kiln_outputs_release(outputs, 1);
 *
 * Every call that can fail returns a kiln_status*: NULL for success, else an object that the caller
 * reads and destroys. No call throws, aborts or prints. Out parameters are written only on success.
 * Strings handed out are zero-terminated UTF-8 and live as long as the object they came from.
 *
 * Threads: clients, graphs and programs may be used from several threads at once; destroying one
 * must not overlap another use of it. A status or an output array belongs to one thread at a time.
 *
 * Structs that callers fill start with `struct_size`: set it to sizeof of the struct (the
 * KILN_..._INIT macros do), so that later versions may append fields.
 */
#ifndef KILN_KILN_H_
#define KILN_KILN_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KILN_EXPORT __attribute__((visibility("default")))
#else
#define KILN_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_C_API_VERSION 1
/* The most dimensions that a tensor can have. */
#define KILN_MAX_DIMS 32

typedef struct kiln_status kiln_status;
typedef struct kiln_client kiln_client;
typedef struct kiln_graph kiln_graph;
typedef struct kiln_program kiln_program;
typedef struct kiln_weights kiln_weights;

/* "0.1.0" */
KILN_EXPORT const char* kiln_version(void);

/* ---- Errors ------------------------------------------------------------------------------- */

/* The numbers are those of gRPC and Abseil. */
typedef enum kiln_code {
  KILN_OK = 0,
  KILN_CANCELLED = 1,
  KILN_UNKNOWN = 2,
  KILN_INVALID_ARGUMENT = 3,  /* the graph or a call's argument is wrong; see kiln_status_node */
  KILN_DEADLINE_EXCEEDED = 4, /* timeout_ms went by */
  KILN_NOT_FOUND = 5,
  KILN_ALREADY_EXISTS = 6,
  KILN_PERMISSION_DENIED = 7,
  KILN_RESOURCE_EXHAUSTED = 8,  /* the server's queue is full; see kiln_status_retry_after_ms */
  KILN_FAILED_PRECONDITION = 9, /* this machine cannot run the program, or a callback is missing */
  KILN_ABORTED = 10,
  /* A tensor of a run held an index outside of its dimension or, where kiln_status_reason is
     "REASON_DIVISION_BY_ZERO", a 0 that an integer is divided by. */
  KILN_OUT_OF_RANGE = 11,
  KILN_UNIMPLEMENTED = 12,
  KILN_INTERNAL = 13,
  KILN_UNAVAILABLE = 14, /* the server cannot be reached */
  KILN_DATA_LOSS = 15,   /* an artifact is damaged, or not of its graph */
  KILN_UNAUTHENTICATED = 16
} kiln_code;

/* All of these accept NULL and then describe success. A text that is absent is "". */
KILN_EXPORT kiln_code kiln_status_code(const kiln_status* status);
KILN_EXPORT const char* kiln_status_code_name(const kiln_status* status); /* "NOT_FOUND" */
KILN_EXPORT const char* kiln_status_message(const kiln_status* status);
KILN_EXPORT const char* kiln_status_node(const kiln_status* status); /* graph's node at fault */
KILN_EXPORT const char* kiln_status_op(const kiln_status* status);
KILN_EXPORT const char* kiln_status_expected(const kiln_status* status);
/* "REASON_WORKER_CRASHED": a value of kiln.v1.ErrorDetail.Reason, "" where none was given. */
KILN_EXPORT const char* kiln_status_reason(const kiln_status* status);
KILN_EXPORT int64_t kiln_status_retry_after_ms(const kiln_status* status); /* 0: no hint */
KILN_EXPORT void kiln_status_destroy(kiln_status* status);
/* For callbacks that fail: an error of theirs. The message is copied. */
KILN_EXPORT kiln_status* kiln_status_create(kiln_code code, const char* message);

/* Bytes that the library allocated; release with kiln_bytes_free. `data` has a zero after it. */
typedef struct kiln_bytes {
  char* data;
  size_t size;
} kiln_bytes;
KILN_EXPORT void kiln_bytes_free(kiln_bytes* bytes); /* NULL and freed ones are ignored */

/* ---- Graphs ------------------------------------------------------------------------------- */

/* A serialized kiln.v1.Graph, protobuf JSON of one, or a .kgraph file (the serialized message).
   INVALID_ARGUMENT for what does not parse; whether the graph makes sense is the server's say. */
KILN_EXPORT kiln_status* kiln_graph_parse(const void* data, size_t size, kiln_graph** graph);
KILN_EXPORT kiln_status* kiln_graph_parse_json(const char* text, size_t size, kiln_graph** graph);
KILN_EXPORT kiln_status* kiln_graph_load(const char* path, kiln_graph** graph);
KILN_EXPORT kiln_status* kiln_graph_serialize(const kiln_graph* graph, kiln_bytes* bytes);
KILN_EXPORT kiln_status* kiln_graph_to_json(const kiln_graph* graph, kiln_bytes* text);
KILN_EXPORT void kiln_graph_destroy(kiln_graph* graph); /* NULL is ignored */
/* A program's inputs are its graph's, in the same order. */
KILN_EXPORT size_t kiln_graph_num_inputs(const kiln_graph* graph);
/* Number `which` of the names of an input: 0 is the graph's own ("arg3_1"), then come those that
   its module has the parameter or buffer under ("encoder.weight"); NULL past the last. */
KILN_EXPORT const char* kiln_graph_input_name(const kiln_graph* graph, size_t input, size_t which);

/* ---- Client ------------------------------------------------------------------------------- */

typedef struct kiln_client_options {
  size_t struct_size;
  const char* server; /* "127.0.0.1:7461", "https://HOST:PORT", or several, comma-separated; NULL:
                         $KILN_SERVER, else the user's own kilnd, started where it does not run */
  int64_t timeout_ms; /* of a call with all its retries; 0: 120000 */
  int32_t threads;    /* that programs run on; 0: one a physical core. In no key */
  const char* libraries; /* what library steps can call, comma-separated: "torch"; NULL: none */
  const char*
      debug_dir; /* a folder for IR, sources and times of every graph; NULL: $KILN_DEBUG_DIR */
  int32_t optimization_level; /* 1 to 3; 0: the compiler's default */
  int32_t disable_fusion;
  int32_t fast_math;
  const char* arch; /* of the target: for cpp an LLVM CPU name; NULL: this machine's */
  int32_t debug;    /* ask for IR, sources and decisions; implied by debug_dir */
  /* Security: see client/README.md. NULL: from the environment. */
  const char* tls_ca;     /* PEM file: who vouches for servers; $KILN_TLS_CA, else the system's */
  const char* tls_cert;   /* PEM file: this client's certificate; $KILN_TLS_CERT */
  const char* tls_key;    /* PEM file: its key; $KILN_TLS_KEY */
  const char* token;      /* $KILN_TOKEN */
  const char* token_file; /* read again while the client lives; $KILN_TOKEN_FILE */
  const char* public_key; /* "ed25519:...", comma-separated: whose artifacts to load;
                             $KILN_PUBLIC_KEY, else those known from the first time */
  const char* known_servers; /* file; $KILN_KNOWN_SERVERS, else ~/.config/kiln/known_servers */
  int32_t fail_on_miss;      /* kiln_compile returns NOT_FOUND instead; or KILN_FAIL_ON_MISS=1 */
  const char* local_cache;   /* "DIR" or "DIR:SIZE": keep artifacts on disk; $KILN_LOCAL_CACHE */
  const char* tenant;        /* whose share of the server; $KILN_TENANT */
  const char* priority;      /* of compiles: "interactive" or "warmup"; $KILN_PRIORITY */
  /* "cpp", "ptx", "null"; NULL: cpp. Programs for ptx run on NVIDIA GPUs; arch is then NULL or
     "native", the machine's first GPU, or "sm_90a" and the like, for which no GPU is needed. Those
     for null do not run. */
  const char* target;
  int64_t prepare_memory; /* bytes that kiln_program_prepare may take for one program; 0: none */
  /* Whether first runs of a program time several schedules of its kernels on this device, where no
     client of the server has; the server keeps which are the fastest. */
  int32_t autotune;
} kiln_client_options;
#define KILN_CLIENT_OPTIONS_INIT {sizeof(kiln_client_options)}

/* Does not connect. `options` may be NULL. INVALID_ARGUMENT for impossible options. */
KILN_EXPORT kiln_status* kiln_client_create(const kiln_client_options* options,
                                            kiln_client** client);
/* Programs made through the client live on. NULL is ignored. */
KILN_EXPORT void kiln_client_destroy(kiln_client* client);

/* kiln.v1.Device of this client, as JSON. */
KILN_EXPORT kiln_status* kiln_client_device_json(const kiln_client* client, kiln_bytes* text);
/* kiln.v1.ServerInfo, asked of the server now, as JSON. UNAVAILABLE when it is away. */
KILN_EXPORT kiln_status* kiln_client_server_info_json(kiln_client* client, kiln_bytes* text);

/* ---- Compiling ---------------------------------------------------------------------------- */

typedef struct kiln_compile_options {
  size_t struct_size;
  /* Called from the calling thread of kiln_compile while the server works: at each step, and a few
     times a second with what the last was ("" before the first) where none comes. A return value
     other than zero cancels the compile, which then returns CANCELLED. May be NULL. */
  int (*progress)(void* user, const char* stage, int32_t kernels_done, int32_t kernels_total,
                  int32_t kernels_cached);
  void* user;
  int64_t timeout_ms; /* 0: the client's */
} kiln_compile_options;
#define KILN_COMPILE_OPTIONS_INIT {sizeof(kiln_compile_options)}

typedef struct kiln_compile_info {
  size_t struct_size;
  /* Where the program came from: "local" (this process had it), "local_disk" (the local cache),
     "memory" or "disk" (the server's cache), "compiled", or "coalesced" (compiled for another
     client that asked first). */
  const char* source; /* static storage */
  double fetch_ms;    /* in Fetch, the server's first description included; 0 for "local" */
  double compile_ms;  /* in Compile; 0 where no compile was asked for */
  double load_ms;     /* checking and loading the artifact */
  int64_t artifact_bytes;
  char key[65];             /* hex */
  int32_t kernels_compiled; /* in that compile; 0 unless source is "compiled" or "coalesced" */
  int32_t kernels_cached;   /* kernels that the compile found in the kernel cache */
  int32_t retries;          /* calls to servers after the first */
} kiln_compile_info;
#define KILN_COMPILE_INFO_INIT {sizeof(kiln_compile_info)}

/* The program of `graph`, from this process, the local cache or the server's; compiles nothing.
   NOT_FOUND on a miss. `options` and `info` may be NULL. The caller destroys the program. */
KILN_EXPORT kiln_status* kiln_client_fetch(kiln_client* client, const kiln_graph* graph,
                                           const kiln_compile_options* options,
                                           kiln_program** program, kiln_compile_info* info);
/* As kiln_client_fetch, and on a miss sends the graph and waits for the compile. NOT_FOUND only
   with fail_on_miss. */
KILN_EXPORT kiln_status* kiln_compile(kiln_client* client, const kiln_graph* graph,
                                      const kiln_compile_options* options, kiln_program** program,
                                      kiln_compile_info* info);
/* Forgets every program that the process keeps for "local" answers. Handles stay valid. */
KILN_EXPORT void kiln_forget_programs(void);

/* The span that this thread's calls to servers belong to, as a W3C "traceparent" header; NULL or
 * anything that is none takes it away. Where a thread has none, TRACEPARENT of the environment
 * counts. */
KILN_EXPORT void kiln_set_thread_trace(const char* traceparent);

/* ---- Programs ----------------------------------------------------------------------------- */

/* Loads an artifact file's bytes (`kiln compile -o` writes one). DATA_LOSS for a damaged one,
   FAILED_PRECONDITION for one that this machine cannot run. `threads` as in the client's options.
 */
KILN_EXPORT kiln_status* kiln_program_load(const void* data, size_t size, int32_t threads,
                                           kiln_program** program);
/* NULL is ignored. Must not overlap a run. Memory of outputs lives on. */
KILN_EXPORT void kiln_program_destroy(kiln_program* program);

/* The numbers are those of kiln.v1.DType. */
typedef enum kiln_dtype {
  KILN_BOOL = 1,
  KILN_UINT8 = 2,
  KILN_INT8 = 3,
  KILN_INT16 = 4,
  KILN_INT32 = 5,
  KILN_INT64 = 6,
  KILN_FLOAT16 = 7,
  KILN_BFLOAT16 = 8,
  KILN_FLOAT32 = 9,
  KILN_FLOAT64 = 10,
  KILN_COMPLEX64 = 11,
  KILN_COMPLEX128 = 12,
  KILN_COMPLEX32 = 13,
  KILN_UINT16 = 14,
  KILN_UINT32 = 15,
  KILN_UINT64 = 16,
  KILN_FLOAT8_E4M3FN = 17,
  KILN_FLOAT8_E4M3FNUZ = 18,
  KILN_FLOAT8_E5M2 = 19,
  KILN_FLOAT8_E5M2FNUZ = 20,
  KILN_FLOAT8_E8M0FNU = 21
} kiln_dtype;

typedef enum kiln_role { /* The numbers are those of kiln.v1.Input.Role. */
                         KILN_ROLE_USER = 1,
                         KILN_ROLE_PARAMETER = 2,
                         KILN_ROLE_SYMBOL = 3
} kiln_role;

typedef enum kiln_value_kind {
  KILN_TENSOR = 1,
  KILN_INT = 2,
  KILN_NONE = 3 /* outputs only */
} kiln_value_kind;

/* What an output's memory belongs to. */
typedef enum kiln_storage {
  KILN_STORAGE_NONE = 0,      /* not a tensor */
  KILN_STORAGE_ALLOCATED = 1, /* an allocation of the run: number `storage_index` */
  KILN_STORAGE_INPUT = 2,     /* input number `storage_index` */
  KILN_STORAGE_LIBRARY = 3    /* a library step's result; `storage_index` counts results of all
                                 library steps in order */
} kiln_storage;

/* A size or stride that depends on symbols. */
#define KILN_DYNAMIC INT64_MIN

/* Describes one input or output; texts and arrays live as long as the program. */
typedef struct kiln_value_info {
  const char* name; /* of inputs; "" for outputs */
  int32_t kind;     /* kiln_value_kind */
  int32_t role;     /* of inputs: kiln_role */
  int32_t dtype;    /* kiln_dtype; KILN_INT64 for KILN_INT */
  int32_t ndim;
  const int64_t* sizes;   /* elements, or KILN_DYNAMIC */
  const int64_t* strides; /* elements, or KILN_DYNAMIC */
  int32_t storage;        /* of outputs: kiln_storage, unless a library result had to be copied */
  int32_t storage_index;
  int64_t offset; /* of outputs: elements from the storage's start (an input's: its data pointer) */
} kiln_value_info;

KILN_EXPORT size_t kiln_program_num_inputs(const kiln_program* program);
KILN_EXPORT size_t kiln_program_num_outputs(const kiln_program* program);
/* INVALID_ARGUMENT for an index out of range. */
KILN_EXPORT kiln_status* kiln_program_input(const kiln_program* program, size_t index,
                                            kiln_value_info* info);
KILN_EXPORT kiln_status* kiln_program_output(const kiln_program* program, size_t index,
                                             kiln_value_info* info);
/* 1 where a run stores a new value into that input, else 0; 0 for an index out of range. */
KILN_EXPORT int32_t kiln_program_writes_input(const kiln_program* program, size_t index);

typedef struct kiln_program_stats {
  size_t struct_size;
  int32_t native_steps;
  int32_t library_steps;
  int32_t kernels;          /* different ones */
  int32_t kernels_cached;   /* when the artifact was compiled */
  int32_t kernels_compiled; /* when the artifact was compiled */
  int32_t threads;          /* that a run uses */
  int32_t dynamic;          /* 1 where sizes depend on symbols */
  int64_t workspace_bytes;  /* of a run; at the symbols' hints where dynamic */
  int64_t prepared_bytes;   /* that kiln_program_prepare takes; 0: it has nothing to prepare */
  int32_t launches_timed;   /* of which runs have timed several schedules, by now */
} kiln_program_stats;
#define KILN_PROGRAM_STATS_INIT {sizeof(kiln_program_stats)}
KILN_EXPORT void kiln_program_get_stats(const kiln_program* program, kiln_program_stats* stats);
KILN_EXPORT const char* kiln_program_key(const kiln_program* program);  /* hex, 64 digits */
KILN_EXPORT const char* kiln_program_arch(const kiln_program* program); /* "znver4" */

/* Library steps, numbered from 0 in the order that they run in. */
typedef struct kiln_library_info {
  const char* op;     /* "aten.topk.default" */
  const char* node;   /* the graph's node */
  size_t num_tensors; /* tensor arguments, in lists too */
  size_t num_ints;    /* symbolic-integer arguments, in lists too */
  size_t num_results;
  int32_t first_result; /* its results' first number, as in storage_index */
  const char* proto;    /* serialized kiln.v1.LibraryStep */
  size_t proto_size;
  const char* json; /* the same as protobuf JSON (names as in the .proto file) */
} kiln_library_info;
KILN_EXPORT kiln_status* kiln_program_library_step(const kiln_program* program, size_t index,
                                                   kiln_library_info* info);

typedef enum kiln_step_kind {
  KILN_STEP_KERNEL = 1,
  KILN_STEP_LIBRARY = 2,
  KILN_STEP_COPY = 3
} kiln_step_kind;

/* All steps, in the order that they run in. */
typedef struct kiln_step_info {
  int32_t kind;     /* kiln_step_kind */
  int32_t prepares; /* 1: runs that are given kiln_run_options.prepared leave it out */
  const char* name; /* the kernel's symbol, a library step's operator, or "copy" */
  /* The graph's nodes that the step computes, comma-separated. Of kernels a debug compile tells
     them; otherwise "". */
  const char* nodes;
} kiln_step_info;
KILN_EXPORT size_t kiln_program_num_steps(const kiln_program* program);
KILN_EXPORT kiln_status* kiln_program_step(const kiln_program* program, size_t index,
                                           kiln_step_info* info);

/* The artifact without its machine code: header, program, and what a debug compile adds (IR after
   each stage, sources, assembly, decisions), as protobuf JSON of kiln.v1.Artifact. */
KILN_EXPORT kiln_status* kiln_program_describe_json(const kiln_program* program, kiln_bytes* text);

/* ---- Running ------------------------------------------------------------------------------ */

/* As DLPack numbers them. */
typedef enum kiln_device_type { KILN_CPU = 1, KILN_CUDA = 2 } kiln_device_type;

/* A strided view of memory that somebody else owns. `data` is its first element (a tensor without
   elements may have NULL), on a GPU a device pointer; device_index is then the CUDA ordinal. */
typedef struct kiln_tensor {
  void* data;
  const int64_t* sizes;   /* elements, ndim of them */
  const int64_t* strides; /* elements, ndim of them */
  int32_t ndim;
  int32_t dtype; /* kiln_dtype */
  int32_t device_type;
  int32_t device_index;
} kiln_tensor;

/* Maps .safetensors files. NOT_FOUND; INVALID_ARGUMENT for a file that is not sound, with what is
   wrong with it, and for a name in two of them. They must not be made shorter while it lives.
   Unlike other objects it is not for several threads at once. */
KILN_EXPORT kiln_status* kiln_weights_load(const char* const* paths, size_t num_paths,
                                           kiln_weights** weights);
/* Tensors that bound inputs point to go with it. NULL is ignored. */
KILN_EXPORT void kiln_weights_destroy(kiln_weights* weights);
KILN_EXPORT size_t kiln_weights_size(const kiln_weights* weights);                    /* tensors */
KILN_EXPORT const char* kiln_weights_name(const kiln_weights* weights, size_t index); /* or NULL */
/* Describes in `inputs`, which are all of the graph's in order, those that the files have under one
   of the input's names, and leaves the others as they are; `*bound`, unless NULL,
   becomes their number. They point into the files' memory (what a run writes there stays in this
   process), or into a copy where the graph has another layout or the file does not align it.
   INVALID_ARGUMENT, and no input is changed, where dtype or sizes differ, or where the files have
   two different tensors for one input. */
KILN_EXPORT kiln_status* kiln_weights_bind(kiln_weights* weights, const kiln_graph* graph,
                                           kiln_tensor* inputs, size_t num_inputs, size_t* bound);

typedef struct kiln_run_options {
  size_t struct_size;
  void* user; /* handed to the callbacks, which are called on the thread that called run */

  /* Memory for one allocation of the run, whose contents outputs view; called once for each, before
     the first step runs or, where a library result is copied, while it runs. Numbers `allocation`
     count up from 0 but may leave some out. Set *data to at least the memory that sizes and strides
     reach, aligned to the element. The caller owns it, also when the run fails. NULL: the run
     allocates and kiln_outputs_release frees. */
  kiln_status* (*allocate_output)(void* user, int32_t allocation, int32_t dtype, int32_t ndim,
                                  const int64_t* sizes, const int64_t* strides, void** data);

  /* Executes library step number `step`. `tensors` are its tensor arguments and `ints` the values
     of its symbolic integers, each in the order in which they stand in LibraryStep.args, then
     .kwargs, depth first. Fill results[0 .. num_results), the operator's results that
     LibraryStep.positions names; each comes with the dtype, sizes and strides that the program
     expects. Memory, sizes and strides must stay valid until kiln_program_run returns, and as long
     as an output with KILN_STORAGE_LIBRARY is used; it must be storage of its own, not a view of
     an argument. A dtype or size other than expected is an error; other strides are copied. NULL:
     such steps are an error. */
  kiln_status* (*library_step)(void* user, int32_t step, const kiln_tensor* tensors,
                               size_t num_tensors, const int64_t* ints, size_t num_ints,
                               kiln_tensor* results, size_t num_results);

  /* Of this program and of the parameters among the run's inputs as they are now; see
     kiln_program_prepare. NULL: the run computes it anew. */
  const struct kiln_prepared* prepared;

  /* Of programs for GPUs alone. A CUstream of the device that the inputs are on; NULL: the legacy
     default stream. */
  void* stream;
  /* Memory of that device for what a run needs until its last step has been executed, aligned to
     256 bytes and good until then in the stream's order. Called at most once, before the first
     step. NULL: a pool of the runtime's own, in the stream's order. */
  kiln_status* (*allocate_scratch)(void* user, int64_t bytes, void** data);

  /* Called before (`begins` 1) and after (0) each step that the run executes: number `step` of
     kiln_program_step. On a GPU what lies between is putting the step into the stream. After a step
     that failed it is not called. NULL: not called. */
  void (*step)(void* user, int32_t step, int32_t begins);
} kiln_run_options;
#define KILN_RUN_OPTIONS_INIT {sizeof(kiln_run_options)}

/* What a program computes from its inputs of role parameter alone, such as weights laid out for its
   matrix products: runs that are given it need not compute it again. A program has such a part
   where its client was given prepare_memory; on a GCU also the parameters themselves, which then
   stay in its memory. Nothing here sees that a parameter changes: whoever
   writes to one, or runs with another, prepares again. */
typedef struct kiln_prepared kiln_prepared;
/* Takes `inputs` as kiln_program_run does and reads those alone for which
   kiln_program_prepares_input is 1. The memory is the program's prepared_bytes; the caller destroys
   it. Errors as of a run; RESOURCE_EXHAUSTED where there is no memory. Thread-safe. On a GPU it
   waits for all of its work, before and after; not while a stream is being captured. */
KILN_EXPORT kiln_status* kiln_program_prepare(const kiln_program* program,
                                              const kiln_tensor* inputs, size_t num_inputs,
                                              kiln_prepared** prepared);
/* Says that kiln_program_prepare comes soon: on a thread of its own its memory is asked for
   meanwhile where the program runs on the CPU, which a large model waits for otherwise. The program
   has that memory until it is prepared, once, or destroyed, or another one is expected.
   Thread-safe; changes no result. NULL is ignored. */
KILN_EXPORT void kiln_program_expect_prepare(const kiln_program* program);
KILN_EXPORT int32_t kiln_program_prepares_input(const kiln_program* program, size_t index);
/* Must not overlap a run that was given it. NULL is ignored. */
KILN_EXPORT void kiln_prepared_destroy(kiln_prepared* prepared);

typedef struct kiln_output {
  int32_t kind;    /* kiln_value_kind */
  int32_t storage; /* kiln_storage */
  int32_t storage_index;
  int32_t dtype;
  int32_t ndim;
  int64_t offset;                 /* elements from the storage's start to `data` */
  int64_t value;                  /* of KILN_INT */
  void* data;                     /* first element */
  void* owner;                    /* the library's own; see kiln_outputs_release */
  int64_t sizes[KILN_MAX_DIMS];   /* elements */
  int64_t strides[KILN_MAX_DIMS]; /* elements */
} kiln_output;

/* Runs the program once. `inputs` are all of the graph's inputs in order; one of role symbol is a
   0-dimensional int64 tensor. Inputs' memory is read, and written where the graph mutates it,
   during the call only; outputs may be views of inputs. A symbol without an input of its own takes
   its value from the sizes it stands in.
   INVALID_ARGUMENT names the input whose dtype, sizes, strides or device differ from the program's
   (strides of dimensions of size 1 do not matter). OUT_OF_RANGE: an index tensor held a value
   outside its dimension. FAILED_PRECONDITION: a library step and no callback; names op and node.
   On failure nothing has to be released. Concurrent runs are safe; while one holds the threads,
   others run on the thread that called. */
KILN_EXPORT kiln_status* kiln_program_run(const kiln_program* program, const kiln_tensor* inputs,
                                          size_t num_inputs, kiln_output* outputs,
                                          size_t num_outputs, const kiln_run_options* options);
/* For GPUs. A run of such a program only puts its steps into options->stream, never waits for them,
   may be captured (cuStreamBeginCapture), and its inputs' memory must stay until they have been
   executed. All tensors of a run are on one GPU, any that runs the program's architecture; its code
   is loaded when it first runs there. A graph that was captured may outlive the program and what
   was prepared: it keeps what it needs of them. An index outside of its dimension is known when the
   kernel has been executed: OUT_OF_RANGE comes from the program's next run, or from here, where
   everything that was started before and has been executed by now counts. It is then forgotten.
   Never waits. */
KILN_EXPORT kiln_status* kiln_program_check(const kiln_program* program);
/* Frees what the run itself allocated for these outputs and clears them; memory of a GPU in the
   order of the run's stream, which must not have been destroyed. */
KILN_EXPORT void kiln_outputs_release(kiln_output* outputs, size_t num_outputs);

#ifdef __cplusplus
}
#endif

#endif /* KILN_KILN_H_ */
