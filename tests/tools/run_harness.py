"""Drives the real binary for tests: hard deadlines, no stray process, small real models and data.

CTest sets SHARDWRIGHT_BUILD. Every process started here carries a marker in its environment, by which strays are
found (and ended) afterwards, whatever process group they moved to.
"""
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
from array import array
from pathlib import Path

import xxhash

BUILD = Path(os.environ.get("SHARDWRIGHT_BUILD", Path(__file__).resolve().parents[2] / "build" / "release"))
BINARY = BUILD / "bin" / "shardwright"
LABEL_FILL = BUILD / "bin" / "label_fill"
MARK = "SHARDWRIGHT_TEST_MARK"
SKIPPED = 77  # the exit status that python_tests.cmake tells CTest

# The small models of the bug cases; data of fixed seed, sequence length 32.
G1 = dict(arch="gpt2", layers=4, hidden=64, heads=4, ffn=256, vocab=97, seq_len=32, tie_embeddings=True)
L1 = dict(arch="llama", layers=6, hidden=96, heads=12, kv_heads=4, ffn=176, vocab=203, seq_len=32, tie_embeddings=False)
L2 = dict(L1, layers=4, hidden=64, heads=8, kv_heads=2, ffn=96, vocab=64)
U1 = dict(L1, layers=7, hidden=40, heads=5, kv_heads=5, ffn=105, vocab=131)
T1 = dict(L1, layers=2, hidden=12, heads=3, kv_heads=3, ffn=21, vocab=33)
BL1 = dict(arch="bloom", layers=6, hidden=42, heads=6, ffn=101, vocab=97, seq_len=32, tie_embeddings=True)
TINY = dict(arch="gpt2", layers=2, hidden=12, heads=3, ffn=21, vocab=33, seq_len=8, tie_embeddings=True)


class Result:
    def __init__(self, status, stdout, stderr, seconds):
        self.status, self.stdout, self.stderr, self.seconds = status, stdout, stderr, seconds

    def json(self):
        return json.loads(self.stdout)

    def __repr__(self):
        return f"status {self.status} after {self.seconds:.1f} s\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def marked(mark):
    """Pids of live processes that carry the marker."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment and state != "Z":
            found.append(int(pid))
    return found


class Started:
    """A running shardwright; wait() gives its Result. Leaves no process behind."""

    def __init__(self, args, env=None, cwd=None, prefix=()):
        self.mark = uuid.uuid4().hex
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDWRIGHT_") or k == "SHARDWRIGHT_BUILD"}
        # Tests run side by side on few cores: threads that wait must not take a core from those that work.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        environment.update({MARK: self.mark}, **(env or {}))
        self.began = time.monotonic()
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([*map(str, prefix), str(BINARY), *map(str, args)], env=environment, cwd=cwd,
                                        stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        start_new_session=True)

    def workers(self):
        """Pids of the ranks (marked processes with a launcher's rank), by rank."""
        ranks = {}
        for pid in marked(self.mark):
            try:
                items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for item in items:
                if item.startswith(b"OMPI_COMM_WORLD_RANK="):
                    ranks[int(item.split(b"=")[1])] = pid
        return ranks

    def mpirun(self):
        """The pid of mpirun: of the marked processes, the one that has this name."""
        for pid in marked(self.mark):
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == "mpirun":
                    return pid
            except OSError:
                pass  # it ended meanwhile
        raise AssertionError(f"no mpirun\n{self._text()}")

    def signal_all(self, number):
        """Sends a signal to all marked processes, as far as they are there when their turn comes; returns their pids."""
        pids = marked(self.mark)
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        return pids

    def end(self):
        for _ in range(50):
            if not self.signal_all(signal.SIGKILL):
                break
            time.sleep(0.02)
        if self.process.poll() is None:
            self.process.wait(5)

    def wait(self, timeout=100, strays_allowed_s=3.0):
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"no end within {timeout} s\n{self._text()}")
        seconds = time.monotonic() - self.began
        limit = time.monotonic() + strays_allowed_s
        left = marked(self.mark)
        while left and time.monotonic() < limit:
            time.sleep(0.05)
            left = marked(self.mark)
        result = Result(status, *self._read(), seconds)
        if left:
            self.end()
            raise AssertionError(f"stray processes {left}\n{result}")
        return result

    def _read(self):
        texts = []
        for file in (self.out, self.err):
            file.seek(0)
            texts.append(file.read())
        return texts

    def close(self):
        self.out.close()
        self.err.close()

    def _text(self):
        return "\n---\n".join(self._read())


def run(*args, env=None, cwd=None, timeout=100, prefix=()):
    started = Started(args, env, cwd, prefix)
    try:
        return started.wait(timeout)
    finally:
        started.close()


def toml_value(value):
    return json.dumps(value, ensure_ascii=False)


def write_u16(path, vocab, tokens, seed=1):
    """Random tokens with some structure to learn: a noisy walk."""
    draw = random.Random(seed)
    values, at = array("H"), 0
    for _ in range(tokens):
        at = (at + 1 if draw.random() < 0.7 else draw.randrange(vocab)) % vocab
        values.append(at)
    if sys.byteorder == "big":
        values.byteswap()
    Path(path).write_bytes(values.tobytes())


class RunTestCase(unittest.TestCase):
    """A temporary directory with data, and the questions tests ask of runs and checkpoints."""

    def setUp(self):
        self.dir = Path(tempfile.mkdtemp(prefix="shardwright-test-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.started = []
        self.addCleanup(lambda: [(s.end(), s.close()) for s in self.started])

    def config(self, name, model=G1, data=None, valid=None, tokens=4000, **sections):
        """Writes <dir>/<name>.toml with the run directory <dir>/<name>; sections override the defaults."""
        if data is None:
            data = self.dir / f"tokens-{model['vocab']}-{tokens}.bin"
            if not data.exists():
                write_u16(data, model["vocab"], tokens)
        tables = {
            "run": {"dir": str(self.dir / name)},
            "model": dict(model),
            "data": {"train": str(data), "format": "u16", **({"valid": str(valid)} if valid else {})},
            "train": {"steps": 6, "global_batch": 12, "micro_batch": 1, "seed": 7, "log_samples": True},
            # At 1e-2 L1 makes ten times as much of a rounding in each step, so that layouts part by more than 1e-5.
            "optim": {"lr": 2e-3, "warmup_steps": 2, "schedule": "cosine", "clip": 1.0},
            "parallel": {},
            "checkpoint": {"verify_writes": True},
            "health": {},
            "elastic": {},
        }
        for section, values in sections.items():
            tables[section].update(values)
        text = "".join(f"[{s}]\n" + "".join(f"{k} = {toml_value(v)}\n" for k, v in t.items()) + "\n"
                       for s, t in tables.items())
        path = self.dir / f"{name}.toml"
        path.write_text(text)
        return path

    def start(self, *args, **more):
        started = Started(args, **more)
        self.started.append(started)
        return started

    def ok(self, *args, **more):
        result = run(*args, **more)
        self.assertEqual(result.status, 0, f"{args}: {result}")
        return result

    def fails(self, status, *args, **more):
        result = run(*args, **more)
        self.assertEqual(result.status, status, f"{args}: {result}")
        return result

    def train(self, config, layout="t1d1z0", *args, status=0, **more):
        """Trains in a layout such as t2d3z1, with more words as layout_sets knows; the rank count follows from it."""
        result = run("train", config, *layout_sets(layout), *args, **more)
        self.assertEqual(result.status, status, f"train {config} {layout} {args}: {result}")
        return result

    def saved_run(self, model, layout, at=3, until=6, **sections):
        """Trains `until` steps; returns the configuration, the checkpoint of step `at`, and the losses after it."""
        sections.setdefault("train", {})["steps"] = until
        config, whole = self.config("run", model, checkpoint={"every": at}, **sections), self.dir / "whole"
        self.train(config, layout, "--set", f"run.dir={whole}")
        return config, self.checkpoint(whole, at), {s: loss for s, loss in self.losses(whole).items() if s > at}

    def go_on(self, config, layout, checkpoint, expected, *more, relative=1e-5, name="on"):
        """Goes on from a checkpoint in a run of its own, whose losses must be the first of those expected. Returns its directory."""
        run = self.dir / f"{name}-{slug(layout)}"
        self.train(config, layout, "--set", f"run.dir={run}", "--resume", checkpoint, *more)
        found = self.losses(run)
        self.assert_losses({s: loss for s, loss in expected.items() if s <= max(found)}, found, relative, f"{name} {layout}")
        return run

    def reshard(self, source, layout, target=None, *more):
        """Reshards to a layout such as "p4 stages=1,2,2,2" and returns the target, by default <dir>/<slug of the layout>."""
        target = self.dir / (target or slug(layout))
        letters, *words = layout.split()
        stages = [word.split("=")[1] for word in words if word.startswith("stages=")]
        report = self.ok("reshard", source, target, "--layout", letters, *(["--stages", *stages] if stages else []), *more,
                         "--json").json()
        self.assertTrue(report["proof"]["ok"], report)
        return target

    def labelled(self, model, layout, name="labels", *more, timeout=60):
        """A checkpoint <dir>/<name> in which each value tells where it belongs; `more`: options of label_fill."""
        path = self.dir / name
        keys = ",".join(f"{k}={str(v).lower()}" for k, v in model.items())
        subprocess.run([LABEL_FILL, path, "--model", keys, "--layout", layout, *more], check=True, timeout=timeout)
        return path

    def labels_are_right(self, checkpoint):
        subprocess.run([LABEL_FILL, "--check", checkpoint], check=True, timeout=60)

    def same_state(self, a, b):
        """Two checkpoints hold the same training state and the same values, bit for bit."""
        report = self.ok("diff", a, b, "--state", "--json").json()
        self.assertTrue(report["equal"], report)

    def records(self, run_dir, kind):
        lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
        return [r for r in map(json.loads, filter(None, lines)) if r["type"] == kind]

    def steps(self, run_dir):
        """Last record of the highest generation, by step."""
        best = {}
        for r in self.records(run_dir, "step"):
            if r["step"] not in best or r["generation"] >= best[r["step"]]["generation"]:
                best[r["step"]] = r
        return dict(sorted(best.items()))

    def losses(self, run_dir):
        return {s: r["loss"] for s, r in self.steps(run_dir).items()}

    def samples(self, run_dir):
        return {s: r["sample_ids"] for s, r in self.steps(run_dir).items()}

    def events(self, run_dir, event=None):
        found = [json.loads(line) for line in (Path(run_dir) / "events.jsonl").read_text().splitlines() if line]
        return [e for e in found if event is None or e["event"] == event]

    def fingerprints(self, checkpoint):
        document = self.ok("inspect", checkpoint, "--tensors", "--json").json()
        return {(t["name"], k["kind"]): k["fingerprint"] for t in document["tensors"] for k in t["kinds"]}

    def checkpoint(self, run_dir, step):
        return Path(run_dir) / "checkpoints" / f"step-{step:010d}"

    def assert_losses(self, expected, found, relative=1e-5, what=""):
        self.assertEqual(sorted(expected), sorted(found), what)
        for step, loss in expected.items():
            if relative == 0:
                self.assertEqual(loss, found[step], f"{what} step {step}")
            else:
                self.assertLessEqual(abs(loss - found[step]), relative * abs(loss),
                                     f"{what} step {step}: {loss} against {found[step]}")

    def verified(self, path):
        report = self.ok("verify", path, "--json").json()
        self.assertTrue(report["ok"], report)
        return report


def degrees(layout):
    """{'tp': 2, ...} of a layout string."""
    letters = {"t": "tp", "p": "pp", "d": "dp", "z": "zero", "v": "vpp"}
    values, at = {"tp": 1, "pp": 1, "dp": 1, "zero": 0}, 0
    while at < len(layout):
        end = at + 1
        while end < len(layout) and layout[end].isdigit():
            end += 1
        values[letters[layout[at]]] = int(layout[at + 1:end])
        at = end
    return values


def layout_sets(layout):
    """The --set words of a layout, which may be followed by gpipe, sp (sequence parallel) and stages=1,2,2,2."""
    letters, *words = layout.split()
    keys = degrees(letters)
    for word in words:
        if word == "gpipe":
            keys["schedule"] = word
        elif word == "sp":
            keys["sequence_parallel"] = "true"
        else:
            keys["stages"] = f"[{word.removeprefix('stages=')}]"
    return [word for key, value in keys.items() for word in ("--set", f"parallel.{key}={value}")]


def printed(layout):
    """The layout's degrees as metrics and manifests print them."""
    d = degrees(layout.split()[0])
    return f"t{d['tp']}p{d['pp']}d{d['dp']}z{d['zero']}" + (f"v{d['vpp']}" if d.get("vpp", 1) > 1 else "")


def slug(layout):
    """The layout as part of a file's name."""
    return layout.replace(" ", "-").replace("=", "").replace(",", "")


def sign(record):
    """A signed record of the contract: JSON line and its XXH3-64, as COMMIT and GENERATION have it."""
    line = json.dumps(record, separators=(",", ":"))
    return f"{line}\n{xxhash.xxh3_64_hexdigest(line.encode())}\n"


def flip(path, offset, bit=0):
    """Flips one bit of a file in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def main():
    """As unittest.main, with a status of its own for CTest where all that was asked for was skipped."""
    result = unittest.main(verbosity=2, exit=False).result
    for _, why in result.skipped:
        print(f"SKIPPED: {why}")
    nothing_ran = result.skipped and result.testsRun <= len(result.skipped)
    sys.exit(SKIPPED if nothing_ran else not result.wasSuccessful())
