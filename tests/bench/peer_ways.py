"""Ways to save and load a state, a dictionary "KIND/NAME" -> numpy array (fp32, or bf16 as 16 bits), for peers.py.

save(folder) ends when all is durable and returns the seconds of an asynchronous one's stall, else None; load(folder, into)
fills the arrays of `into`, or returns others.
"""

import ctypes
import importlib
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy

BLOCK = 8 << 20  # of plain reads and writes
H5_CHUNK = 1 << 20  # bytes, as ours


def package(name):
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def raw(array):
    """The array's own bytes, flat."""
    return array.reshape(-1).view(numpy.uint8)


def durable(path):
    """Makes a file, and its name, durable."""
    for what in (path, os.path.dirname(path)):
        descriptor = os.open(what, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def round_to_bf16(master, weights):
    """Fills `weights`, bf16 as 16 bits, with `master` rounded to the nearest, ties to even."""
    torch = package("torch")
    if torch:
        torch.from_numpy(weights).view(torch.bfloat16).copy_(torch.from_numpy(master))
        return
    bits = master.reshape(-1).view(numpy.uint32)
    for first in range(0, bits.size, 1 << 18):
        part = bits[first:first + (1 << 18)]
        weights.reshape(-1)[first:first + part.size] = (part + 0x7FFF + ((part >> 16) & 1)) >> 16


class Shardwright:
    """The C interface, by ctypes."""

    F32, BF16 = 0, 1

    class Tensor(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("kind", ctypes.c_char_p), ("dtype", ctypes.c_int32),
                    ("ndim", ctypes.c_uint32), ("shape", ctypes.c_uint64 * 8), ("elements", ctypes.c_uint64),
                    ("fingerprint", ctypes.c_uint64 * 2)]

    def __init__(self, build):
        self.path = os.environ.get("SHARDWRIGHT_LIBRARY", os.path.join(build, "ckpt", "libshardwright.so.1"))
        self.library = ctypes.CDLL(self.path)
        self.library.shardwright_error_message.restype = ctypes.c_char_p

    def __call__(self, function, *arguments):
        if getattr(self.library, "shardwright_" + function)(*arguments) != 0:
            raise RuntimeError(f"{function}: {self.library.shardwright_error_message().decode()}")

    @staticmethod
    def memory(array):
        return ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)

    def tensors(self, checkpoint):
        """(index, name, kind, dtype, shape) of each tensor of an open checkpoint."""
        count, tensor = ctypes.c_uint64(), self.Tensor()
        self("checkpoint_info", checkpoint, None, ctypes.byref(count), None)
        for index in range(count.value):
            self("checkpoint_tensor", checkpoint, ctypes.c_uint64(index), ctypes.byref(tensor))
            yield index, tensor.name.decode(), tensor.kind.decode(), tensor.dtype, tuple(tensor.shape[:tensor.ndim])

    def read(self, checkpoint, index, array, threads):
        self("checkpoint_read", checkpoint, ctypes.c_uint64(index), None, None, *self.memory(array), threads)


class Plain:
    """Bytes one after the other through the page cache, or past it."""

    def __init__(self, state, direct=False):
        self.state, self.direct = state, direct
        self.buffer = mmap.mmap(-1, BLOCK) if direct else None  # aligned to a page

    @staticmethod
    def parts(arrays):
        for array in arrays.values():
            for first in range(0, array.nbytes, BLOCK):
                yield memoryview(raw(array))[first:first + BLOCK]

    def blocks(self):
        """For direct writing: all bytes in aligned blocks, the last one padded."""
        room, filled = numpy.frombuffer(self.buffer, numpy.uint8), 0
        for array in self.state.values():
            left = raw(array)
            while left.size:
                part = left[:BLOCK - filled]
                room[filled:filled + part.size] = part
                filled, left = filled + part.size, left[part.size:]
                if filled == BLOCK:
                    yield self.buffer
                    filled = 0
        if filled:
            yield memoryview(self.buffer)[:(filled + 4095) & ~4095]

    def save(self, folder):
        path = os.path.join(folder, "plain")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if self.direct else 0))
        for part in self.blocks() if self.direct else self.parts(self.state):
            if os.write(descriptor, part) != len(part):
                raise RuntimeError(f"{path}: written in part")
        os.close(descriptor)
        durable(path)

    def load(self, folder, into):
        with open(os.path.join(folder, "plain"), "rb", buffering=0) as file:
            for part in self.parts({key: into[key] for key in self.state}):
                if file.readinto(part) != len(part):
                    raise RuntimeError(f"{file.name}: read in part")


class Ours:
    """`skip_weights`: bf16 weights are not saved but rounded from the master again. `lent`: nothing is copied, and memory must
    not change until all is durable."""

    def __init__(self, api, state, codec, threads, skip_weights=False, lent=True):
        self.api, self.codec, self.threads, self.lent = api, codec, threads, lent
        self.items = [(key, *reversed(key.split("/", 1)), array) for key, array in state.items()
                      if not (skip_weights and key.startswith("weight/"))]
        self.rounded = [key for key in state if skip_weights and key.startswith("weight/")]

    def save(self, folder):
        api, run, writer = self.api, ctypes.c_void_p(), ctypes.c_void_p()
        generation, u64 = ctypes.c_uint64(), lambda numbers: (ctypes.c_uint64 * max(1, len(numbers)))(*numbers)
        directory = os.path.join(folder, "run").encode()
        api("run_open", directory, ctypes.byref(run))
        try:
            api("run_generation", run, ctypes.byref(generation))
            api("writer_open", directory, generation, 0, 1, ctypes.c_double(120), 0, self.threads, ctypes.byref(writer))
            api("writer_codec", writer, self.codec.encode())
            start = time.perf_counter()
            for _, name, kind, array in self.items:
                dtype, shape = api.F32 if array.dtype == numpy.float32 else api.BF16, u64(array.shape)
                api("writer_add", writer, name.encode(), kind.encode(), dtype, array.ndim, shape, u64([0] * array.ndim),
                    shape, *api.memory(array))
            api("writer_start_lent" if self.lent else "writer_start", writer, ctypes.c_uint64(1))
            started = time.perf_counter() - start  # unless lent, it has copied everything
            api("writer_wait", writer, None)
            whole = time.perf_counter() - start
            api("writer_close", writer)
            return None if self.lent else {"call": started, "staged": started, "whole": whole}
        finally:
            api.library.shardwright_run_close(run)

    def load(self, folder, into):
        api, checkpoint = self.api, ctypes.c_void_p()
        api("checkpoint_open", os.path.join(folder, "run").encode(), ctypes.byref(checkpoint))
        try:
            # Tensor by tensor on each thread, the largest first.
            wanted = sorted(((index, into[f"{kind}/{name}"]) for index, name, kind, _, _ in api.tensors(checkpoint)),
                            key=lambda item: -item[1].nbytes)
            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(lambda item: api.read(checkpoint, *item, 1), wanted))
        finally:
            api.library.shardwright_checkpoint_close(checkpoint)
        for key in self.rounded:
            round_to_bf16(into["param" + key[6:]], into[key])


def torch_tensors(arrays):
    torch = package("torch")
    return {key: torch.from_numpy(a) if a.dtype == numpy.float32 else torch.from_numpy(a).view(torch.bfloat16)
            for key, a in arrays.items()}


def numpy_arrays(tensors):
    torch = package("torch")
    return {key: (t.view(torch.uint16) if t.dtype == torch.bfloat16 else t).numpy() for key, t in tensors.items()}


class TorchSave:
    def __init__(self, state):
        self.tensors = torch_tensors(state)

    def save(self, folder):
        path = os.path.join(folder, "state.pt")
        package("torch").save(self.tensors, path)
        durable(path)

    def load(self, folder, into):
        return numpy_arrays(package("torch").load(os.path.join(folder, "state.pt"), weights_only=True))


class Dcp:
    """stager: None saves at once; "default" and "shared" are asynchronous."""

    def __init__(self, state, threads=1, stager=None):
        self.dcp, self.tensors, self.threads = package("torch.distributed.checkpoint"), torch_tensors(state), threads
        self.asynchronous, self.stager = stager is not None, None
        if stager == "shared":  # pinned memory needs CUDA
            staging = package("torch.distributed.checkpoint.staging")
            self.stager = staging.DefaultStager(staging.StagingOptions(False, True, True, False))

    def save(self, folder):
        writer = self.dcp.FileSystemWriter(os.path.join(folder, "dcp"), thread_count=self.threads)
        if not self.asynchronous:
            self.dcp.save(self.tensors, storage_writer=writer, no_dist=True)
            return None
        start = time.perf_counter()
        answer = self.dcp.async_save(self.tensors, storage_writer=writer, async_stager=self.stager, no_dist=True)
        call = staged = time.perf_counter() - start
        if hasattr(answer, "staging_completion"):
            answer.staging_completion.result()
            staged = time.perf_counter() - start
            answer = answer.upload_completion
        answer.result()
        return {"call": call, "staged": staged, "whole": time.perf_counter() - start}

    def load(self, folder, into):
        self.dcp.load(torch_tensors(into), checkpoint_id=os.path.join(folder, "dcp"), no_dist=True)


class Safetensors:
    def __init__(self, state):
        self.state = state

    def save(self, folder):
        path = os.path.join(folder, "state.safetensors")
        package("safetensors.numpy").save_file(self.state, path)
        durable(path)

    def load(self, folder, into):
        return package("safetensors.numpy").load_file(os.path.join(folder, "state.safetensors"))


class H5py:
    def __init__(self, state, filters=None):
        self.h5py, self.state, self.filters = package("h5py"), state, filters

    def save(self, folder):
        path = os.path.join(folder, "state.h5")
        with self.h5py.File(path, "w", libver="latest") as file:
            for key, array in self.state.items():
                options = {} if self.filters is None else dict(
                    self.filters, chunks=(min(array.size, H5_CHUNK // array.itemsize),))
                file.create_dataset(key, data=array.reshape(-1), **options)
        durable(path)

    def load(self, folder, into):
        with self.h5py.File(os.path.join(folder, "state.h5"), "r") as file:
            for key, array in into.items():
                file[key].read_direct(array.reshape(-1))


def ways(api, state, threads, mixed):
    """Name -> way to save, of what is installed; and lines about the rest."""
    found, missing = {"plain durable write": Plain(state), "plain, O_DIRECT": Plain(state, direct=True)}, []
    if mixed:
        found["plain, without the bf16 weights"] = Plain({k: a for k, a in state.items() if not k.startswith("weight/")})
    if package("torch"):
        found["torch.save + fsync"] = TorchSave(state)
        for count in sorted({1, 2}):
            found[f"DCP, {count} thread{'s'[:count - 1]}"] = Dcp(state, count)
        found["DCP asynchronous, default"] = Dcp(state, 2, "default")
        if hasattr(package("torch.distributed.checkpoint.staging"), "StagingOptions"):
            found["DCP asynchronous, shared memory"] = Dcp(state, 2, "shared")
        else:
            missing.append(f"left out: PyTorch {package('torch').__version__} has no staging to shared memory")
    else:
        missing.append("left out: torch.save and DCP; the package torch is not installed")
    if package("safetensors"):
        found["safetensors + fsync"] = Safetensors(state)
    else:
        missing.append("left out: safetensors is not installed")
    if package("h5py"):
        found["h5py, no filter"] = H5py(state)
        plugin = package("hdf5plugin")
        if plugin:
            found["h5py, shuffle + zstd 3"] = H5py(state, {"shuffle": True, **plugin.Zstd(clevel=3)})
            found["h5py, Blosc2 bitshuffle + zstd 1"] = H5py(
                state, dict(plugin.Blosc2(cname="zstd", clevel=1, filters=plugin.Blosc2.BITSHUFFLE)))
        else:
            missing.append("left out: h5py with zstd and Blosc2; the package hdf5plugin is not installed")
    else:
        missing.append("left out: h5py is not installed")
    for codec in ("auto", "fast", "none"):
        found[f"shardwright, {codec}"] = Ours(api, state, codec, threads, skip_weights=mixed)
    if mixed:
        found["shardwright, auto, all 14 B"] = Ours(api, state, "auto", threads)
    found["shardwright, fast, asynchronous"] = Ours(api, state, "fast", threads, skip_weights=mixed, lent=False)
    return found, missing
