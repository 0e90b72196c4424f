#!/usr/bin/env python3
"""Changes the layout of the same training state by shardwright and by what else there is, in one run and one directory:
DeepSpeed's ds_to_universal, PyTorch's distributed checkpoint (DCP; load on two ranks, save), and a plain durable copy.

    python3 tests/bench/reshard_peers.py [--build build/release] [--size 256MiB] [--dir .] [--rounds 3] [--json]

State: weights and moments in fp32, made by `shardwright bench reshard`, in four data parallel pieces (d4z1). Each peer gets the
same tensors in its own form, written before anything is timed: for DeepSpeed a ZeRO-1 checkpoint of four ranks as its sources
document it (no training), for DCP one saved by four ranks. All is read from the page cache.

Timed: the conversion until its files are durable. Of ours the whole process; of the peers their work alone, without starting
Python and importing, and for ds_to_universal, which does not sync, the fsync of what it wrote, in a column of its own. Memory:
the highest sum of all processes' proportional resident memory (Pss), sampled every 50 ms, imports included. Written: what is
left at the end. What each made is compared with the state, bit for bit. A package that is missing is left out, in one line.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

try:
    import numpy
except ImportError:
    print(f"skipped: {sys.executable} cannot import numpy, which holds the tensors")
    sys.exit(0)
from peer_ways import Shardwright, durable, package
from peers import bytes_from, positive, settle, trained_state

RANKS = 4  # of the source; DCP loads on two
KINDS = {"param": "fp32", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}  # ours -> DeepSpeed's
LIMIT_S = 900  # of any one piece of work


def installed(name):
    """A package's version, without importing it here; None where it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# --- the state, in files that every process maps

def put_state(state, folder):
    os.mkdir(folder)
    for number, key in enumerate(sorted(state)):
        numpy.save(os.path.join(folder, f"{number}.npy"), state[key])
    with open(os.path.join(folder, "keys.json"), "w") as file:
        json.dump(sorted(state), file)


def mapped_state(folder):
    with open(os.path.join(folder, "keys.json")) as file:
        return {key: numpy.load(os.path.join(folder, f"{number}.npy"), mmap_mode="r") for number, key in enumerate(json.load(file))}


def files_of(folder):
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]


def tell(**document):
    """To the parent, which measures memory until then."""
    print("told " + json.dumps(document), flush=True)


# --- DeepSpeed

def write_deepspeed(state_folder, folder):
    """ZeRO stage 1 with tp = pp = 1: all parameters one after the other, cut in RANKS equal pieces, the last padded."""
    torch, address = package("torch"), importlib.import_module("deepspeed.utils.tensor_fragment").fragment_address
    state = mapped_state(state_folder)
    names = [key.split("/", 1)[1] for key in state if key.startswith("param/")]
    shapes = {name: torch.Size(state["param/" + name].shape) for name in names}
    total = sum(shape.numel() for shape in shapes.values())
    piece = -(-total // (2 * RANKS)) * 2  # even, as NCCL wants it
    padding = RANKS * piece - total
    flat = {kind: torch.from_numpy(numpy.concatenate([state[f"{kind}/{name}"].reshape(-1) for name in names]
                                                     + [numpy.zeros(padding, numpy.float32)])) for kind in KINDS}
    os.mkdir(folder)
    torch.save({"module": {name: torch.from_numpy(numpy.array(state["param/" + name])).bfloat16() for name in names},
                "param_shapes": [shapes], "iteration": 7, "ds_config": {}, "ds_version": package("deepspeed").__version__,
                "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
                "universal_checkpoint_info": {"universal_checkpoint_version": 0.4}},
               os.path.join(folder, "mp_rank_00_model_states.pt"))
    for rank in range(RANKS):
        first, last, start, fragments = rank * piece, (rank + 1) * piece, 0, {}
        for name in names:
            low, high = max(start, first), min(start + shapes[name].numel(), last)
            if low < high:
                fragments[name] = address(high - low, low - first)
            start += shapes[name].numel()
        mine = {kind: values[first:last].clone() for kind, values in flat.items()}
        torch.save({"optimizer_state_dict": {
            "zero_stage": 1, "partition_count": [RANKS], "group_paddings": [padding if rank == RANKS - 1 else 0],
            "single_partition_of_fp32_groups": [mine["param"]], "param_slice_mappings": [fragments],
            "base_optimizer_state": {"state": {0: {"step": torch.tensor(7.0), "exp_avg": mine["exp_avg"],
                                                   "exp_avg_sq": mine["exp_avg_sq"]}},
                                     "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.95), "params": [0]}]}}},
            os.path.join(folder, f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))
    tell()


def convert_deepspeed(state_folder, source, folder):
    torch, converter = package("torch"), importlib.import_module("deepspeed.checkpoint.ds_to_universal")
    arguments = argparse.Namespace(input_folder=source, output_folder=folder, num_extract_workers=4, num_merge_workers=2,
                                   keep_temp_folder=False, strict=True, inject_missing_state=False)
    begun = time.perf_counter()
    converter.main(arguments)
    converted = time.perf_counter()
    for path in files_of(folder):
        durable(path)
    tell(seconds=converted - begun, sync_s=time.perf_counter() - converted)
    for key, array in mapped_state(state_folder).items():
        kind, name = key.split("/", 1)
        made = torch.load(os.path.join(folder, "zero", name, KINDS[kind] + ".pt"), weights_only=False)["param"]
        if not numpy.array_equal(made.numpy().reshape(-1).view(numpy.uint32), array.reshape(-1).view(numpy.uint32)):
            raise RuntimeError(f"ds_to_universal made other values of {key}")


# --- DCP

def rows_of(rank, ranks, rows):
    """As torch.chunk cuts them."""
    each = -(-rows // ranks)
    return min(rank * each, rows), min((rank + 1) * each, rows)


def dcp_rank(rank, ranks, state_folder, source, target, meeting):
    """Saves the state if there is no source, else loads it and saves what was loaded."""
    torch, dist = package("torch"), importlib.import_module("torch.distributed")
    dcp, tensor = importlib.import_module("torch.distributed.checkpoint"), importlib.import_module("torch.distributed.tensor")
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (ranks,))
    whole, state = mapped_state(state_folder), {}
    for key, array in whole.items():
        first, last = rows_of(rank, ranks, len(array))
        own = torch.empty(last - first, *array.shape[1:]) if source else torch.from_numpy(numpy.array(array[first:last]))
        stride = torch.empty(array.shape, device="meta").stride()
        state[key] = tensor.DTensor.from_local(own, mesh, [tensor.Shard(0)], run_check=False, shape=torch.Size(array.shape),
                                               stride=stride)
    dist.barrier()
    begun = time.perf_counter()
    if source:
        dcp.load(state, checkpoint_id=source)
        dist.barrier()
    loaded = time.perf_counter()
    dcp.save(state, storage_writer=dcp.FileSystemWriter(target))
    dist.barrier()
    if rank == 0:
        tell(seconds=time.perf_counter() - begun, load_s=loaded - begun)
    dist.barrier()
    for key, array in whole.items():
        first, last = rows_of(rank, ranks, len(array))
        if not numpy.array_equal(state[key].to_local().numpy().view(numpy.uint32), array[first:last].view(numpy.uint32)):
            raise RuntimeError(f"DCP loaded other values of {key}")
    dist.destroy_process_group()


def dcp(ranks, state_folder, source, target):
    spawn = importlib.import_module("torch.multiprocessing").spawn
    spawn(dcp_rank, (int(ranks), state_folder, source, target, target + ".meeting"), nprocs=int(ranks))


# --- measuring

def resident_bytes(root):
    """Pss of a process and all that descend from it."""
    children, total, stack = {}, 0, [root]
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    children.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(entry))
            except OSError:
                pass  # gone
    while stack:
        process = stack.pop()
        stack += children.get(process, [])
        try:
            with open(f"/proc/{process}/smaps_rollup") as file:
                total += next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), 0)
        except OSError:
            pass
    return total


def worker(*arguments):
    """Runs this script's `arguments` in a process group of its own: what it told, with its memory's peak until then."""
    process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", *map(str, arguments)], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    peak, done = [0], threading.Event()

    def watch():
        while not done.wait(0.05):
            peak[0] = max(peak[0], resident_bytes(process.pid))

    # Daemons: the exception of a signal may come anywhere, and must end the script.
    watcher, said = threading.Thread(target=watch, daemon=True), []
    errors = threading.Thread(target=lambda: said.append(process.stderr.read()), daemon=True)
    ender = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    ender.daemon = True
    told = None
    try:
        for thread in (watcher, errors, ender):
            thread.start()
        for line in process.stdout:
            if line.startswith("told "):
                done.set()
                told = json.loads(line[5:])
        status = process.wait()
    finally:
        ender.cancel()
        done.set()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    watcher.join()
    errors.join()
    if status != 0 or told is None:
        lines = [line for line in said[0].splitlines() if line.strip()]
        raise RuntimeError(f"{arguments[0]}: ended with status {status}: {lines[-1] if lines else 'it said nothing'}")
    return dict(told, peak_bytes=peak[0])


def shardwright(program, *arguments):
    done = subprocess.run([program, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"{arguments[0]} ended with status {done.returncode}")
    return json.loads(done.stdout)


def reshard(program, source, target, layout):
    begun = time.perf_counter()
    report = shardwright(program, "reshard", source, target, "--layout", layout)
    seconds = time.perf_counter() - begun
    if not shardwright(program, "diff", source, target)["equal"]:
        raise RuntimeError(f"reshard made other values in {layout}")
    return {"seconds": seconds, "peak_bytes": report["peak_rss_bytes"]}


def copy(source, target):
    """As `cat SOURCE/* | dd bs=4M conv=fsync`."""
    os.mkdir(target)
    begun = time.perf_counter()
    with open(os.path.join(target, "copy"), "wb", buffering=0) as file:
        for path in sorted(files_of(source)):
            with open(path, "rb", buffering=0) as part:
                while block := part.read(4 << 20):
                    file.write(block)
        os.fsync(file.fileno())
    return {"seconds": time.perf_counter() - begun, "peak_bytes": None}


def ways(program, scratch, source, state_folder):
    """Name -> what converts into a new folder; and lines about what is missing."""
    found = {"plain durable copy": lambda target: copy(source, target)}
    for layout in ("d2z1", "t1"):
        found[f"shardwright, d{RANKS}z1 to {layout}"] = lambda target, to=layout: reshard(program, source, target, to)
    missing = []
    if installed("torch"):
        dcp_source = os.path.join(scratch, "dcp")
        worker("dcp", RANKS, state_folder, "", dcp_source)
        found[f"DCP, {RANKS} ranks to 2"] = lambda target: worker("dcp", 2, state_folder, dcp_source, target)
        if installed("deepspeed"):
            ds_source = os.path.join(scratch, "deepspeed")
            worker("write_deepspeed", state_folder, ds_source)
            found["DeepSpeed's ds_to_universal"] = lambda target: worker("convert_deepspeed", state_folder, ds_source, target)
        else:
            missing.append("left out: ds_to_universal; the package deepspeed is not installed")
    else:
        missing.append("left out: DCP and ds_to_universal; the package torch is not installed")
    return found, missing


def summary(name, samples):
    whole = [s["seconds"] + s.get("sync_s", 0) for s in samples]
    middle = lambda key: statistics.median(s[key] for s in samples) if key in samples[0] else None  # noqa: E731
    return {"name": name, "durable_s": statistics.median(whole), "least_s": min(whole), "most_s": max(whole),
            "seconds": middle("seconds"), "sync_s": middle("sync_s"), "load_s": middle("load_s"),
            "peak_bytes": max((s["peak_bytes"] for s in samples), key=lambda b: b or 0), "written_bytes": samples[0]["written_bytes"],
            "files": samples[0]["files"], "samples": samples}


def table(rows, header):
    print(header)
    ours = next(row["durable_s"] for row in rows if row["name"].startswith("shardwright"))
    print(f"{'':30}{'durable s':>10}{'lowest-highest':>16}{'of which sync':>15}{'/ ours':>8}{'peak MB':>9}{'written MB':>12}{'files':>7}")
    for row in rows:
        mb = [format(row[key] / 1e6, ".0f") if row[key] else "" for key in ("peak_bytes", "written_bytes")]
        spread, sync = f"{row['least_s']:.2f}-{row['most_s']:.2f}", "" if row["sync_s"] is None else f"{row['sync_s']:.2f}"
        print(f"{row['name']:30}{row['durable_s']:10.2f}{spread:>16}{sync:>15}{row['durable_s'] / ours:8.2f}"
              f"{mb[0]:>9}{mb[1]:>12}{row['files']:>7}")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("SHARDWRIGHT_BUILD", "build/release"))
    parser.add_argument("--size", type=bytes_from, default=256 << 20)
    parser.add_argument("--dir", default=".")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not os.path.isdir(arguments.dir):
        parser.error(f"--dir {arguments.dir}: not a directory")
    return arguments


def main():
    arguments = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the scratch directory is removed then too
    program, samples = os.path.join(arguments.build, "bin", "shardwright"), {}
    with tempfile.TemporaryDirectory(prefix="shardwright-peers-", dir=arguments.dir) as scratch:
        source, state_folder = os.path.join(scratch, "source"), os.path.join(scratch, "state")
        try:
            shardwright(program, "bench", "reshard", "--dir", scratch, "--size", arguments.size, "--from", f"d{RANKS}z1", "--to",
                        "t1", "--rounds", 1, "--keep", source)
            state, _ = trained_state(Shardwright(arguments.build), source, len(os.sched_getaffinity(0)))
            size, tensors = sum(array.nbytes for array in state.values()), len(state)
            put_state(state, state_folder)
            del state
            found, missing = ways(program, scratch, source, state_folder)
            for number in range(arguments.rounds + 1):  # the first is not counted
                for name in sorted(found, key=lambda name: (list(found).index(name) + number) % len(found)):
                    target = os.path.join(scratch, "target")
                    settle(scratch, size)
                    sample = found[name](target)
                    made = files_of(target)
                    sample.update(files=len(made), written_bytes=sum(map(os.path.getsize, made)))
                    samples.setdefault(name, []).append(sample)
                    shutil.rmtree(target)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            raise SystemExit(f"reshard_peers.py: error: {error}") from error
    rows = [summary(name, samples[name][1:]) for name in found]
    versions = {name: installed(name) for name in ("numpy", "torch", "deepspeed") if installed(name)}
    out = {"raw_bytes": size, "tensors": tensors, "rounds": arguments.rounds, "cores": len(os.sched_getaffinity(0)),
           "load_average": os.getloadavg()[0], "versions": versions, "missing": missing, "ways": rows}
    if arguments.json:
        print(json.dumps(out))
        return
    table(rows, f"{size / 1e6:.0f} MB of state, {tensors} tensors in {RANKS} pieces; {arguments.rounds} rounds; {out['cores']} cores, load "
                f"{out['load_average']:.1f}; " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    print(*missing, sep="\n", end="\n" if missing else "")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        {"dcp": dcp, "write_deepspeed": write_deepspeed, "convert_deepspeed": convert_deepspeed}[sys.argv[2]](*sys.argv[3:])
    else:
        main()
