#!/usr/bin/env python3
"""Three processes save the rows of an array together, then one reads its columns 1 to 3: numpy_arrays.py RUN_DIR.
SHARDWRIGHT_LIBRARY names the library where the loader does not find it."""
import ctypes as c
import os
import sys

import numpy

library = c.CDLL(os.environ.get("SHARDWRIGHT_LIBRARY", "libshardwright.so.1"))
library.shardwright_error_message.restype = c.c_char_p
F64 = 3
u64, memory = lambda *n: (c.c_uint64 * len(n))(*n), lambda a: (a.ctypes.data_as(c.c_void_p), c.c_size_t(a.nbytes))


def call(name, *arguments):
    if library["shardwright_" + name](*arguments) != 0:
        sys.exit(library.shardwright_error_message().decode())


def save(directory, generation, rank, processes, array):
    first, end = len(array) * rank // processes, len(array) * (rank + 1) // processes
    rows, writer = array[first:end], c.c_void_p()
    call("writer_open", directory, generation, rank, processes, c.c_double(60), 0, 1, c.byref(writer))
    box = 2, u64(*array.shape), u64(first, 0), u64(*rows.shape)
    call("writer_add", writer, b"table", b"array", F64, *box, *memory(rows))
    call("writer_start_lent", writer, c.c_uint64(1))
    call("writer_wait", writer, None)
    call("writer_close", writer)


array, part, directory = numpy.arange(70.0).reshape(10, 7) ** 0.5, numpy.empty((10, 3)), sys.argv[1].encode()
run, generation, checkpoint, index = c.c_void_p(), c.c_uint64(), c.c_void_p(), c.c_uint64()
call("run_open", directory, c.byref(run))
call("run_generation", run, c.byref(generation))
for rank in range(3):
    if os.fork() == 0:
        sys.exit(save(directory, generation, rank, 3, array))
failed = [rank for rank in range(3) if os.wait()[1] != 0]
call("checkpoint_open", directory, c.byref(checkpoint))
call("checkpoint_find", checkpoint, b"table", b"array", c.byref(index))
call("checkpoint_read", checkpoint, index, u64(0, 1), u64(10, 3), *memory(part), 1)
print("different" if failed or (part != array[:, 1:4]).any() else "equal")
