#!/usr/bin/env python3
"""What saving costs a training: the fixed load is a GPT-2 of 6 layers x 384, 6 heads, sequences of 256, 16,384 tokens a step, one
rank with all cores, saving every 10 steps.

    python3 tests/bench/stall_peers.py [--build build/release] [--pairs 6] [--steps 13] [--every 10] [--batch 64]
        [--dtype fp32] [--dir .] [--set KEY=VALUE ...] [--prefix COMMAND] [--no-dcp] [--results FILE]

Stall: what `train` says of each save but the last (metrics.jsonl, stall_ms: the call, waiting before the optimizer, copies), and
its share of the median step. DCP saves the same state of the same model from a PyTorch training (train_peers.py's): at once,
asynchronously, and asynchronously with staging to shared memory; its stall is the call, and what the optimizer, after forward
and backward, still waits for.

Slowdown: pairs of runs, one that saves every so many steps and one that does not, whose order turns. Wall: the sums of step_ms of
the `every` steps around the save, from step 2 or later to the last; CPU: user and system time of all processes of a run (the
last save is in both), for the same number of steps. Median of the pairs' ratios, and between which of them the true median is
with at least 95 % (order statistics: the lowest and highest of 6 pairs have 96.9 %, of 5 93.8 %). Where that interval holds
zero, the answer is "not resolved".

--prefix: put before each command of a run, such as one that keeps others off the machine. --results: lines of earlier calls are
counted too, and new ones added. --pairs 0 reports what is in it."""

import argparse
import glob
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

from train_peers import Model, TorchTraining

SHAPE = Model(layers=6, hidden=384, heads=6, vocab=256, length=256, batch=64)
MICRO_BATCH = 8
DCP_WAYS = ("at once, 2 threads", "asynchronous, default", "asynchronous, shared memory")


def our_run(arguments, saving, work):
    """One training: its step times, saves, and CPU seconds."""
    texts = [path for path in sorted(glob.glob("/usr/share/common-licenses/*")) if not os.path.islink(path)]
    with open(f"{work}/run.toml", "w") as file:
        file.write(f"""[run]
dir = "{work}/run"
{SHAPE.section()}[data]
train = {json.dumps(texts)}
format = "text"
[train]
steps = {arguments.steps}
global_batch = {arguments.batch}
micro_batch = {min(MICRO_BATCH, arguments.batch)}
dtype = "{arguments.dtype}"
[checkpoint]
every = {arguments.every if saving else 0}
""")
    settings = [word for setting in arguments.set for word in ("--set", setting)]
    command = [*shlex.split(arguments.prefix), os.path.join(arguments.build, "bin", "shardwright"), "train",
               f"{work}/run.toml", "--nproc", "1", *settings]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"stall_peers.py: error: status {process.returncode} of {shlex.join(command)}")
    with open(f"{work}/run/metrics.jsonl") as file:
        lines = [json.loads(line) for line in file]
    steps = [line["step_ms"] for line in lines if line["type"] == "step"]
    saves = [line for line in lines if line["type"] == "checkpoint" and line["step"] < arguments.steps]
    if any(save["outcome"] != "committed" for save in saves):
        raise SystemExit(f"stall_peers.py: error: a save came to nothing: {saves}")
    return {"step_ms": steps, "window_ms": sum(steps[-arguments.every:]), "cpu_s": usage.ru_utime + usage.ru_stime,
            "saves": [{key: save[key] for key in save if key not in ("path", "type")} for save in saves]}


def dcp_stalls(arguments):
    """Stalls of three saves for each way, in milliseconds, and the median step; runs in a process of its own."""
    import logging
    import warnings

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import staging

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    training = TorchTraining(SHAPE._replace(batch=arguments.batch), arguments.dtype, arguments.threads,
                             min(MICRO_BATCH, arguments.batch))
    steps, stalls, pending = [], {way: [] for way in DCP_WAYS}, None
    stager = staging.DefaultStager(staging.StagingOptions(False, True, True, False))

    def step(save):
        """A step with a save at its start: the training thread's seconds with the save, without the rest."""
        nonlocal pending
        start = time.perf_counter()
        staged = save() if save else None
        stall = time.perf_counter() - start
        training.forward_backward()
        before = time.perf_counter()
        if staged is not None:
            staged.result()
        stall += time.perf_counter() - before
        training.update()
        if pending is not None:
            pending.result()
            pending = None
        return stall

    def saving(way, path):
        def save():
            nonlocal pending
            state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
            writer = dcp.FileSystemWriter(path, thread_count=2)
            if way == DCP_WAYS[0]:
                dcp.save(state, storage_writer=writer, no_dist=True)
                return None
            answer = dcp.async_save(state, storage_writer=writer, no_dist=True,
                                    async_stager=stager if way == DCP_WAYS[2] else None)
            pending = getattr(answer, "upload_completion", answer)
            return getattr(answer, "staging_completion", None)
        return save

    step(None)
    for number in range(4):  # the first of each way is not counted
        for way in DCP_WAYS:
            start = time.perf_counter()
            step(None) if number == 0 else None
            steps += [time.perf_counter() - start] if number == 0 else []
            stall = step(saving(way, os.path.join(arguments.dir, f"dcp-{number}-{DCP_WAYS.index(way)}")))
            if number > 0:
                stalls[way].append(1e3 * stall)
    stager.close()
    return {"step_ms": 1e3 * statistics.median(steps), "stall_ms": stalls, "version": training.torch.__version__}


def dcp_run(arguments, work):
    command = [*shlex.split(arguments.prefix), sys.executable, os.path.abspath(__file__), "--dcp-stalls", "--dtype", arguments.dtype,
               "--batch", str(arguments.batch), "--threads", str(arguments.threads), "--dir", work]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def interval(values):
    """(lowest, highest, confidence) around the median of what the values are drawn from: the narrowest pair of order statistics
    with at least 95 %, or all of them."""
    values, n = sorted(values), len(values)
    best = (values[0], values[-1], 1 - 2 * 0.5**n)
    for drop in range(1, n // 2):
        confidence = 1 - 2 * sum(math.comb(n, k) for k in range(drop + 1)) * 0.5**n
        if confidence < 0.95:
            break
        best = (values[drop], values[-1 - drop], confidence)
    return best


def slowdown(name, pairs, key):
    extra = [100 * (on[key] / off[key] - 1) for on, off in pairs]
    low, high, confidence = interval(extra)
    answer = "" if low > 0 or high < 0 else " (not resolved: the interval holds zero)"
    print(f"{name}: median {statistics.median(extra):+.2f} %, {100 * confidence:.1f} % interval {low:+.2f} to {high:+.2f} %, "
          f"{len(pairs)} pairs{answer}")


def report(arguments, results):
    for dtype in sorted({line["dtype"] for line in results}):
        lines = [line for line in results if line["dtype"] == dtype]
        pairs = [(line["on"], line["off"]) for line in lines if "on" in line]
        if pairs:
            step = statistics.median(ms for _, off in pairs for ms in off["step_ms"][1:])
            stalls = [save["stall_ms"] for on, _ in pairs for save in on["saves"]]
            print(f"{dtype}: a step takes {step:.0f} ms; {len(stalls)} saves of {pairs[0][0]['saves'][0]['raw_bytes'] / 1e6:.0f} MB")
            print(f"stall of a save: median {statistics.median(stalls):.2f} ms, {min(stalls):.2f} to {max(stalls):.2f}; "
                  f"{100 * statistics.median(stalls) / step:.3f} % of a step")
            slowdown(f"extra wall time when saving every {arguments.every} steps", pairs, "window_ms")
            slowdown(f"extra CPU time of a run of {arguments.steps} steps with one save more", pairs, "cpu_s")
        for line in lines:
            if "dcp" in line:
                print(f"{dtype}: DCP of PyTorch {line['dcp']['version']} beside a step of {line['dcp']['step_ms']:.0f} ms")
                for way, stalls in line["dcp"]["stall_ms"].items():
                    print(f"  {way}: median {statistics.median(stalls):.1f} ms, {min(stalls):.1f} to {max(stalls):.1f}")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("SHARDWRIGHT_BUILD", "build/release"))
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--batch", type=int, default=SHAPE.batch, help="sequences of a step")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of PyTorch")
    parser.add_argument("--dir", default=".")
    parser.add_argument("--set", action="append", default=[], help="of both runs of a pair")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--no-dcp", action="store_true")
    parser.add_argument("--results")
    parser.add_argument("--dcp-stalls", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.every < arguments.steps < 2 * arguments.every:
        parser.error("--steps: more than --every and less than twice that is right, for one save and what follows it")
    return arguments


def main():
    arguments = parsed()
    if arguments.dcp_stalls:
        print(json.dumps(dcp_stalls(arguments)))
        return 0
    results = []
    if arguments.results and os.path.exists(arguments.results):
        with open(arguments.results) as file:
            results = [json.loads(line) for line in file]

    def keep(result):
        results.append(dict(result, dtype=arguments.dtype, load=os.getloadavg()[0]))
        if arguments.results:
            with open(arguments.results, "a") as file:
                file.write(json.dumps(results[-1]) + "\n")

    def scratch():
        return tempfile.TemporaryDirectory(prefix="shardwright-stall-", dir=arguments.dir)

    for number in range(len(results), len(results) + arguments.pairs):
        pair = {}
        for saving in (True, False) if number % 2 else (False, True):
            with scratch() as work:
                pair["on" if saving else "off"] = our_run(arguments, saving, os.path.abspath(work))
        keep(pair)
    if not arguments.no_dcp:
        if subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0:
            with scratch() as work:
                keep({"dcp": dcp_run(arguments, os.path.abspath(work))})
        else:
            print(f"left out: DCP; {sys.executable} cannot import torch")
    report(arguments, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
