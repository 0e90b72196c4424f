/* Shardwright for C, and for everything that can call C: save named tensors from many processes, load any box
 * of them.
 *
 * This interface is stable: what is here keeps its meaning and its binary form within libshardwright.so.1;
 * what comes later is added, and raises SHARDWRIGHT_API_VERSION. The C++ headers beside it promise no such
 * thing.
 *
 * Errors. A function that returns int returns a status, SHARDWRIGHT_OK or what went wrong;
 * shardwright_error_message() then says what and what would be right. Nothing is thrown, nothing is printed.
 * Every argument is checked; where one is refused (SHARDWRIGHT_USAGE), nothing was done. Out-parameters are
 * written only on success.
 *
 * Threads. A checkpoint may be used by any number of threads at once. A run or a writer belongs to one thread
 * at a time. The last error is each thread's own. A writer has a thread of its own behind it: a process that
 * forks opens its writers after that.
 *
 * Memory. Arrays are dense, row-major and little-endian. Names and paths are UTF-8, ended by a NUL; text that
 * is returned belongs to its handle and lives as long, unless said otherwise. A process uses either this
 * library or the C++ one.
 */
#ifndef SHARDWRIGHT_H
#define SHARDWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SHARDWRIGHT_API __attribute__((visibility("default")))
#else
#define SHARDWRIGHT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Versions ---- */

#define SHARDWRIGHT_API_VERSION 3

/* Of the library that is loaded: its SHARDWRIGHT_API_VERSION, the release ("0.1.0"), the newest checkpoint
 * format it reads. */
SHARDWRIGHT_API int shardwright_api_version(void);
SHARDWRIGHT_API const char* shardwright_version(void);
SHARDWRIGHT_API int shardwright_format_version(void);

/* ---- Errors ---- */

enum {
  SHARDWRIGHT_OK = 0,
  SHARDWRIGHT_USAGE = 1,           /* asked for wrongly: an argument, a name, a call out of order */
  SHARDWRIGHT_MISSING = 2,         /* a file or checkpoint does not exist */
  SHARDWRIGHT_EXISTS = 3,          /* the target is there already */
  SHARDWRIGHT_MISMATCH = 4,        /* the request contradicts what is stored */
  SHARDWRIGHT_BUSY = 5,            /* held by another process, or still being written */
  SHARDWRIGHT_IO = 6,              /* the system refused */
  SHARDWRIGHT_NO_SPACE = 7,        /* disk, quota or size limit */
  SHARDWRIGHT_DAMAGED = 8,         /* bytes are not what their digest says */
  SHARDWRIGHT_INCOMPLETE = 9,      /* a checkpoint without a whole COMMIT */
  SHARDWRIGHT_FUTURE_VERSION = 10, /* written by a newer major version of the format */
  SHARDWRIGHT_DEADLINE = 11,       /* a wait ended without what it waited for */
  SHARDWRIGHT_PEER = 12,           /* another process of the save failed */
  SHARDWRIGHT_NO_MEMORY = 13,
  SHARDWRIGHT_INTERNAL = 14 /* a defect of the library; its message helps to report it */
};

/* "usage", "no_space", ...; "unknown" for a number that is no status. */
SHARDWRIGHT_API const char* shardwright_status_name(int status);

/* Of this thread's last call that returned a status: that status, what went wrong, and the file or directory
 * at fault. Empty where there is nothing to say, never NULL. The texts live until this thread's next call
 * that returns a status. */
SHARDWRIGHT_API int shardwright_error_status(void);
SHARDWRIGHT_API const char* shardwright_error_message(void);
SHARDWRIGHT_API const char* shardwright_error_path(void);

/* ---- Tensors ---- */

#define SHARDWRIGHT_MAX_DIMS 8

enum {
  SHARDWRIGHT_F32 = 0,
  SHARDWRIGHT_BF16 = 1,
  SHARDWRIGHT_F16 = 2,
  SHARDWRIGHT_F64 = 3,
  SHARDWRIGHT_I8 = 4,
  SHARDWRIGHT_U8 = 5,
  SHARDWRIGHT_I16 = 6,
  SHARDWRIGHT_U16 = 7,
  SHARDWRIGHT_I32 = 8,
  SHARDWRIGHT_U32 = 9,
  SHARDWRIGHT_I64 = 10,
  SHARDWRIGHT_U64 = 11,
  SHARDWRIGHT_BOOL = 12
};

/* Bytes of an element, 0 for a number that is no data type; "f32", ..., "bool", or "unknown". */
SHARDWRIGHT_API size_t shardwright_dtype_size(int dtype);
SHARDWRIGHT_API const char* shardwright_dtype_name(int dtype);

/* One kind of state of one tensor. This struct never changes. */
typedef struct shardwright_tensor {
  const char* name; /* global name */
  const char* kind; /* "param", or whatever the program that saved it chose */
  int32_t dtype;
  uint32_t ndim;                        /* 0 for a scalar */
  uint64_t shape[SHARDWRIGHT_MAX_DIMS]; /* global; 0 from ndim on */
  uint64_t elements;
  uint64_t fingerprint[2]; /* of the values, however they were divided; printed as %016x%016x */
} shardwright_tensor;

/* ---- Reading ---- */

typedef struct shardwright_checkpoint shardwright_checkpoint;

/* Opens a checkpoint, or, given a run or a directory of checkpoints, the newest valid one in it. Structure is
 * checked here, values as they are read. */
SHARDWRIGHT_API int shardwright_checkpoint_open(const char* path, shardwright_checkpoint** checkpoint);
/* NULL is fine, here and in the other functions that close. */
SHARDWRIGHT_API void shardwright_checkpoint_close(shardwright_checkpoint* checkpoint);

/* Step, number of tensors (counting each kind), path. Any out-parameter may be NULL. */
SHARDWRIGHT_API int shardwright_checkpoint_info(const shardwright_checkpoint* checkpoint, uint64_t* step,
                                                uint64_t* tensors, const char** path);
/* The tensor of an index below that number; sorted by name, then kind. */
SHARDWRIGHT_API int shardwright_checkpoint_tensor(const shardwright_checkpoint* checkpoint, uint64_t index,
                                                  shardwright_tensor* tensor);
/* The index of a tensor; SHARDWRIGHT_MISMATCH if the checkpoint has none of that name and kind. */
SHARDWRIGHT_API int shardwright_checkpoint_find(const shardwright_checkpoint* checkpoint, const char* name,
                                                const char* kind, uint64_t* index);

/* Fills `bytes` bytes at `destination` with a box of a tensor: the elements from offset[d] on, shape[d] of
 * them, along each of its dimensions d. offset and shape both NULL: all of it. `bytes` must be exactly what
 * the box has. `threads` (at least 1) read and decode. On SHARDWRIGHT_DAMAGED and other failures the memory
 * holds anything. */
SHARDWRIGHT_API int shardwright_checkpoint_read(const shardwright_checkpoint* checkpoint, uint64_t index,
                                                const uint64_t* offset, const uint64_t* shape,
                                                void* destination, size_t bytes, int threads);

/* JSON text that a checkpoint carries for the program that saved it. */
enum {
  SHARDWRIGHT_TRAINING = 0, /* if it is an object with a "step", that is the checkpoint's */
  SHARDWRIGHT_MODEL = 1,
  SHARDWRIGHT_CONFIG = 2,
  SHARDWRIGHT_LAYOUT = 3
};
SHARDWRIGHT_API int shardwright_checkpoint_document(const shardwright_checkpoint* checkpoint, int document,
                                                    const char** json);

/* ---- Owning a run ---- */

typedef struct shardwright_run shardwright_run;

/* Takes the run (a directory, made where it is new; its checkpoints lie in DIRECTORY/checkpoints), starts its
 * next generation and tidies what earlier ones left: their processes cannot commit or remove anything from
 * here on. One process at a time has a run, the one that starts the writers, for as long as they live:
 * SHARDWRIGHT_BUSY otherwise. */
SHARDWRIGHT_API int shardwright_run_open(const char* directory, shardwright_run** run);
SHARDWRIGHT_API void shardwright_run_close(shardwright_run* run);

/* What the writers need to be told. */
SHARDWRIGHT_API int shardwright_run_generation(const shardwright_run* run, uint64_t* generation);
/* Path of the newest valid checkpoint, until the next call with this run. SHARDWRIGHT_MISSING in a run
 * without any, SHARDWRIGHT_DAMAGED if there are some and none is valid. */
SHARDWRIGHT_API int shardwright_run_newest(shardwright_run* run, const char** path);
/* For a run that goes on from another checkpoint than its newest, before the first save: moves all after
 * `step` aside, all of them if it is negative. */
SHARDWRIGHT_API int shardwright_run_go_on_from(shardwright_run* run, int64_t step);

/* ---- Saving ---- */

typedef struct shardwright_writer shardwright_writer;

/* One of `writers` processes, number `rank` from 0, that save together in a generation of a run:
 * SHARDWRIGHT_BUSY if the run is in another. All make the same saves in the same order. A save is committed
 * by rank 0 within `deadline_s` of its start or given up. keep: newest valid checkpoints that rank 0 keeps, 0
 * for all. threads: at least 1, to compress. */
SHARDWRIGHT_API int shardwright_writer_open(const char* directory, uint64_t generation, uint32_t rank,
                                            uint32_t writers, double deadline_s, uint32_t keep, int threads,
                                            shardwright_writer** writer);
/* How hard to compress, before the writer's first save: "fast" (what it does otherwise), "small", "none",
 * "deflate" (which every HDF5 reads without a plugin), or "auto", which leaves the choice to this library.
 * Readers of this library need not know. Since version 2. */
SHARDWRIGHT_API int shardwright_writer_codec(shardwright_writer* writer, const char* codec);
/* SHARDWRIGHT_USAGE if a save was started and not waited for; it is given up. The writer is gone in any case.
 */
SHARDWRIGHT_API int shardwright_writer_close(shardwright_writer* writer);

/* Adds a box to the next save: `shape` elements from `offset` on of a tensor of `ndim` dimensions and
 * `global_shape`. The boxes of all processes must cover a tensor exactly once. `bytes` must be exactly what
 * the box has; `data` must stay as it is until the save has started, or, where it is
 * lent, has been waited for. For a scalar (ndim 0) the three arrays
 * may be NULL. Names have 1 to 1024 bytes of UTF-8 without '/', '@' and control
 * characters. */
SHARDWRIGHT_API int shardwright_writer_add(shardwright_writer* writer, const char* name, const char* kind,
                                           int dtype, uint32_t ndim, const uint64_t* global_shape,
                                           const uint64_t* offset, const uint64_t* shape, const void* data,
                                           size_t bytes);
/* Sets a document of the next save, a JSON object, on rank 0; `{}` where none is set. */
SHARDWRIGHT_API int shardwright_writer_document(shardwright_writer* writer, int document, const char* json);

/* Copies what was added and returns; memory may change, and boxes of the next save be added, from then on.
 * SHARDWRIGHT_BUSY before the wait for the save before. */
SHARDWRIGHT_API int shardwright_writer_start(shardwright_writer* writer, uint64_t step);
/* The same without a copy: the memory of what was added is lent. It is read until the wait for this save has
 * returned, whatever it returns, and must stay as it is for as long. A save that blocks is best made of this
 * and the wait. Since version 3. */
SHARDWRIGHT_API int shardwright_writer_start_lent(shardwright_writer* writer, uint64_t step);
/* For a program that goes on meanwhile: the lent boxes of (name, kind) may change once this has returned.
 * What of them was not yet read is copied first. Nothing is done where none are lent. Since version 3. */
SHARDWRIGHT_API int shardwright_writer_before_write(shardwright_writer* writer, const char* name,
                                                    const char* kind);
/* Returns once the checkpoint is committed, or with the reason why it is not: this process' own error,
 * SHARDWRIGHT_PEER if another failed (rank 0 names it), SHARDWRIGHT_DEADLINE without news in time. The save
 * is over then. path (may be NULL): the checkpoint, until the next call with this writer. */
SHARDWRIGHT_API int shardwright_writer_wait(shardwright_writer* writer, const char** path);

#ifdef __cplusplus
}
#endif

#endif
