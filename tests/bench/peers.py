#!/usr/bin/env python3
"""Saves and loads the same tensors by shardwright's C interface and by what else there is, in one run and one directory: a
plain durable write (the ceiling), torch.save, PyTorch's distributed checkpoint (DCP), safetensors, h5py with several filters.

    python3 tests/bench/peers.py [--build build/release] [--state RUN_OR_CHECKPOINT | --size 64MiB] [--type fp32|bf16]
        [--copies N] [--dir .] [--rounds 3] [--threads CORES] [--only PATTERN] [--json]

State: --state takes param, exp_avg and exp_avg_sq of a trained model (tests/bench/trained_state.py makes one); --size makes
random values instead, which compress like no trained model. --copies repeats the tensors under other names in memory of their
own: chunks are compressed one by one, so ratios stay, but with many small tensors some ways are slower than with large ones. Types: fp32 is those 12 bytes a parameter; bf16 adds the weights of mixed
precision, rounded from the master, 14 bytes. Shardwright saves the master and rounds it again after loading (timed); its
line `all 14 B` saves the weights as well. Everybody else saves all 14 bytes, which are what GB/s and ratios are counted in.

Saving is timed from the call until file and name are durable (fsync); loading is from the page cache, and every byte
is compared. A round does everything once, in an order that turns; one before them is not counted. Medians, and the slowest
and fastest save. Stall: milliseconds until the call of an asynchronous save returns; until memory may change; until
durable. Opening a run, once in a program's life, is not timed. A Python package that is missing is left out, in one line.
"""

import argparse
import ctypes
import fnmatch
import importlib.metadata
import json
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

try:
    import numpy
except ImportError:
    print(f"skipped: {sys.executable} cannot import numpy, which holds the tensors")
    sys.exit(0)
from peer_ways import Plain, Shardwright, package, raw, round_to_bf16, ways

LIBC = ctypes.CDLL(None)
LIBC.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def bytes_of(arrays):
    return sum(array.nbytes for array in arrays.values())


def tree_bytes(path):
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def timed(what):
    start = time.perf_counter()
    result = what()
    return time.perf_counter() - start, result


def trained_state(api, path, threads):
    """"KIND/NAME" -> fp32 array of all that a checkpoint holds, and the type that its configuration names."""
    checkpoint, text, state = ctypes.c_void_p(), ctypes.c_char_p(), {}
    api("checkpoint_open", path.encode(), ctypes.byref(checkpoint))
    try:
        for index, name, kind, dtype, shape in api.tensors(checkpoint):
            if dtype != api.F32:
                raise RuntimeError(f"{path}: {kind} of {name} is not fp32; a checkpoint of `shardwright train` is right")
            state[f"{kind}/{name}"] = numpy.empty(shape, numpy.float32)
            api.read(checkpoint, index, state[f"{kind}/{name}"], threads)
        api("checkpoint_document", checkpoint, 2, ctypes.byref(text))
        return state, json.loads(text.value).get("train", {}).get("dtype", "fp32")
    finally:
        api.library.shardwright_checkpoint_close(checkpoint)


def random_state(size):
    """About `size` bytes of values spread like weights and moments, but random."""
    generator, state, rows = numpy.random.default_rng(1), {}, 509
    for number in range(max(1, size // (12 * rows * 2051))):
        columns = min(2051, max(1, size // (12 * rows)))
        for kind, scale in (("param", 0.02), ("exp_avg", 1e-4), ("exp_avg_sq", 1e-4)):
            values = generator.standard_normal((rows, columns), numpy.float32) * numpy.float32(scale)
            state[f"{kind}/random.{number}"] = values * values if kind == "exp_avg_sq" else values
    return state


def with_copies(state, copies):
    return {f"{key}.{copy}" if copies > 1 else key: array.copy() for copy in range(copies) for key, array in state.items()}


def with_weights(state):
    """Adds the bf16 weights of each master, as 16 bits."""
    out = dict(state)
    for key, array in state.items():
        if key.startswith("param/"):
            out["weight" + key[5:]] = numpy.empty(array.shape, numpy.uint16)
            round_to_bf16(array, out["weight" + key[5:]])
    return out


def copy_rate(state, into, threads):
    """Bytes per second of copying the state in memory with so many threads."""
    pairs = [(into[key], array) for key, array in state.items()]
    with ThreadPoolExecutor(threads) as pool:
        return bytes_of(state) / timed(lambda: list(pool.map(lambda pair: numpy.copyto(*pair), pairs)))[0]


def workers_alone(build, state, threads, missing):
    """What bench_codec says of a trained state: GB/s of fp32 state a core, over all kinds; or None, and why in `missing`."""
    program = os.path.join(build, "bin", "bench_codec")
    if not os.path.exists(program):
        missing.append("left out: what the workers do alone; bench_codec is not built")
        return None
    told = subprocess.run([program, state, "auto", str(threads)], capture_output=True, text=True)
    if told.returncode != 0:
        missing.append(f"left out: what the workers do alone; {told.stderr.strip()}")
        return None
    kinds = list(json.loads(told.stdout)["kinds"].values())
    return {key: sum(kind["raw_bytes"] for kind in kinds) / sum(kind["raw_bytes"] / kind[key] for kind in kinds)
            for key in kinds[0] if key.endswith("gbps") or key.endswith("of_all")}


def differing(state, loaded):
    return [key for key, array in state.items()
            if loaded[key].nbytes != array.nbytes or loaded[key].dtype != array.dtype
            or LIBC.memcmp(loaded[key].ctypes.data, array.ctypes.data, array.nbytes) != 0]


def settle(folder, size, limit_s=3):
    """Writes out what others left, and waits until the disk has nothing to do: a file system that is mounted with discard
    goes on with what was removed, and the next way would pay for it. Then touches memory: a virtual machine gives free pages
    back to its host, and who takes them next, for the page cache or a copy, waits for them (0.35 GB/s were seen)."""
    os.sync()
    device = os.stat(folder).st_dev
    path, end, idle = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat", time.monotonic() + limit_s, 0
    while os.path.exists(path) and idle < 5 and time.monotonic() < end:
        time.sleep(0.02)
        with open(path) as file:
            idle = idle + 1 if file.read().split()[8] == "0" else 0  # requests in flight
    memory = numpy.empty(min(2 * size, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2), numpy.uint8)
    memory[::4096] = 1


def measured(way, state, into, folder):
    """One save and one load of one way."""
    os.mkdir(folder)
    try:
        settle(folder, bytes_of(state))
        seconds, stall = timed(lambda: way.save(folder))
        sample = {"save_s": stall["whole"] if stall else seconds, "stored_bytes": tree_bytes(folder), "stall": stall}
        for array in into.values():
            raw(array).fill(0xA5)
        sample["load_s"], loaded = timed(lambda: way.load(folder, into))
        if isinstance(way, Plain) and len(way.state) < len(into):
            return sample  # the ceiling of a part
        wrong = differing(state, loaded or into)
        if wrong:
            raise RuntimeError(f"{wrong[0]} and {len(wrong) - 1} others were loaded with other bytes than were saved")
        return sample
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def summary(name, samples, size):
    saves, stalls = [s["save_s"] for s in samples], [s["stall"] for s in samples if s["stall"]]
    return {"name": name, "save_gbps": size / statistics.median(saves) / 1e9,
            "save_gbps_lowest": size / max(saves) / 1e9, "save_gbps_highest": size / min(saves) / 1e9,
            "stored_ratio": samples[0]["stored_bytes"] / size,
            "load_gbps": size / statistics.median(s["load_s"] for s in samples) / 1e9,
            "stall_ms": {key: 1e3 * statistics.median(s[key] for s in stalls) for key in stalls[0]} if stalls else None,
            "samples": samples}


def report(rows, header):
    print(header)
    print(f"{'':34}{'save GB/s':>10}{'lowest-highest':>16}{'/ plain':>9}{'stored/raw':>12}{'load GB/s':>11}"
          "   stall ms: call, staged, whole")
    ceiling = next((row["save_gbps"] for row in rows if row["name"] == "plain durable write"), None)
    for row in rows:
        stall, spread = row["stall_ms"], f"{row['save_gbps_lowest']:.2f}-{row['save_gbps_highest']:.2f}"
        print(f"{row['name']:34}{row['save_gbps']:10.2f}{spread:>16}"
              f"{format(row['save_gbps'] / ceiling, '.2f') if ceiling else '':>9}"
              f"{row['stored_ratio']:12.4f}{row['load_gbps']:11.2f}   "
              + (", ".join(f"{stall[key]:.0f}" for key in ("call", "staged", "whole")) if stall else ""))


def bytes_from(text):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)):
        if text.endswith(unit) and text[:len(text) - len(unit)].isdigit():
            return int(text[:len(text) - len(unit)]) * factor
    raise argparse.ArgumentTypeError(f"{text}: 64MiB is right, or KiB, GiB, bytes")


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 is right")
    return int(text)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("SHARDWRIGHT_BUILD", "build/release"))
    parser.add_argument("--state")
    parser.add_argument("--size", type=bytes_from, default=64 << 20)
    parser.add_argument("--type", choices=["fp32", "bf16"], help="default: as the state was trained, else fp32")
    parser.add_argument("--copies", type=positive, default=1)
    parser.add_argument("--dir", default=".")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)), help="of ours")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="ways whose name matches, as 'shardwright*'")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not os.path.isdir(arguments.dir):
        parser.error(f"--dir {arguments.dir}: not a directory")
    return arguments


def main():
    arguments = parsed()
    warnings.simplefilter("ignore")  # DCP's, about saving without a process group
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the scratch directory is removed then too
    try:
        api = Shardwright(arguments.build)
        if arguments.state:
            state, trained_as = trained_state(api, arguments.state, arguments.threads)
        else:
            state, trained_as = random_state(arguments.size), "fp32"
    except (OSError, RuntimeError) as error:
        raise SystemExit(f"peers.py: error: {error}") from error
    mixed = (arguments.type or trained_as) == "bf16"
    state = with_copies(state, arguments.copies)
    if mixed:
        state = with_weights(state)
    into, size = {key: numpy.zeros_like(array) for key, array in state.items()}, bytes_of(state)
    found, missing = ways(api, state, arguments.threads, mixed)
    chosen = {name: way for name, way in found.items()
              if not arguments.only or any(fnmatch.fnmatch(name, pattern) for pattern in arguments.only)}
    if not chosen:
        raise SystemExit(f"peers.py: error: --only matches no way; there are: {'; '.join(found)}")
    samples, copies = {name: [] for name in chosen}, []
    with tempfile.TemporaryDirectory(prefix="shardwright-peers-", dir=arguments.dir) as scratch:
        for number in range(arguments.rounds + 1):
            copies.append(copy_rate(state, into, arguments.threads))
            names = list(chosen)
            turn = number * len(names) // (arguments.rounds + 1)
            for name in names[turn:] + names[:turn]:
                try:
                    samples[name].append(measured(chosen[name], state, into, os.path.join(scratch, "way")))
                except Exception as error:
                    raise SystemExit(f"peers.py: error: {name}: {error}") from error
    alone = workers_alone(arguments.build, arguments.state, arguments.threads, missing) if arguments.state else None
    rows = [summary(name, of_way[1:], size) for name, of_way in samples.items()]
    versions = {name: getattr(package(name), "__version__", None) or importlib.metadata.version(name)
                for name in ("numpy", "torch", "safetensors", "h5py", "hdf5plugin") if package(name)}
    out = {"state": arguments.state or "random", "type": "bf16" if mixed else "fp32", "raw_bytes": size,
           "tensors": len(state), "copies": arguments.copies, "rounds": arguments.rounds, "threads": arguments.threads,
           "cores": len(os.sched_getaffinity(0)), "load_average": os.getloadavg()[0], "versions": versions,
           "memory_copy_gbps": statistics.median(copies[1:]) / 1e9, "workers_alone": alone, "left_out": missing,
           "ways": rows}
    if arguments.json:
        print(json.dumps(out))
        return 0
    for line in missing:
        print(line)
    report(rows, f"{'trained' if arguments.state else 'random'} {out['type']} state of {size / 1e6:.0f} MB, {len(state)} "
                 f"tensors; {arguments.rounds} rounds; memory copy {out['memory_copy_gbps']:.1f} GB/s with "
                 f"{arguments.threads} threads; load of the machine {out['load_average']:.1f}")
    if alone:
        print("workers alone, GB/s of fp32 state a core: "
              + ", ".join(f"{key.replace('_gbps', '').replace('_', ' ')} {rate:.2f}" for key, rate in alone.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
