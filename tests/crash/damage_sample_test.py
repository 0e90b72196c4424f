"""A fixed sample of 400 damages, each given to the real `verify`, to a real training that goes on, and to stock h5py as a
second witness: what the shards' own metadata and checksums protect without us. damage_sweep.cc does all of them in memory."""
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BUILD, TINY, RunTestCase, flip, main  # noqa: E402

os.environ["HDF5_PLUGIN_PATH"] = str(BUILD / "plugin")  # before libhdf5 is loaded
import h5py  # noqa: E402
import read_with_h5py  # noqa: E402

SAMPLE = 400
WHERE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# How often each is drawn; pages, pairs and removals are few and taken once, and flipped bytes are the rest.
SHARES = {"truncated": 90, "from another attempt": 30, "from another run": 30, "from another step": 30}


def cut(path, length):
    with open(path, "r+b") as file:
        file.truncate(length)


def zero(path, at, size):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes(min(4096, size - at)))


def swap(a, b):
    kept = a.read_bytes()
    shutil.copy(b, a)
    b.write_bytes(kept)


class Damage:
    """`files`: the names of which one has to be told; `change` is applied to a directory."""

    def __init__(self, kind, what, files, change):
        self.kind, self.what, self.files, self.change = kind, what, files, change


def sample(checkpoint, others, seed=20):
    """SAMPLE damages, the same in each run of equal bytes; `others` by kind."""
    draw = random.Random(seed)
    damages = list(few(checkpoint, others, draw))
    names = sorted(os.listdir(checkpoint))
    for i in range(SAMPLE - len(damages)):
        # A file is as likely as another, whatever their sizes.
        name = names[i % len(names)]
        at = draw.randrange((checkpoint / name).stat().st_size)
        damages.append(Damage("byte flipped", f"{name} at {at}", [name], lambda path, n=name, a=at: flip(path / n, a, a % 8)))
    return damages


def few(checkpoint, others, draw):
    names = sorted(os.listdir(checkpoint))
    size = {name: (checkpoint / name).stat().st_size for name in names}
    lengths = {(n, at + by) for n in names for at in range(0, size[n], 512) for by in (-1, 0, 1) if 0 <= at + by < size[n]}

    def some(kind, pool):
        return draw.sample(sorted(pool), min(SHARES[kind], len(pool)))

    for name in names:
        yield Damage("removed", name, [name], lambda path, n=name: (path / n).unlink())
        for at in range(0, size[name], 4096):
            if any((checkpoint / name).read_bytes()[at:at + 4096]):
                yield Damage("page zeroed", f"{name} at {at}", [name], lambda path, n=name, a=at: zero(path / n, a, size[n]))
        for other in names:
            if name < other:
                yield Damage("swapped", f"{name} and {other}", [name, other], lambda path, a=name, b=other: swap(path / a, path / b))
            if name != other:
                yield Damage("copied over another", f"{name} over {other}", [other],
                             lambda path, a=name, b=other: shutil.copy(path / a, path / b))
    subsets = [[n for i, n in enumerate(names) if bits >> i & 1] for bits in range(1, 2 ** len(names) - 1)]
    for kind, other in others.items():
        for chosen in some(kind, subsets):
            def mix(path, chosen=chosen, other=other):
                for name in chosen:
                    shutil.copy(other / name, path / name)
            yield Damage(kind, ", ".join(chosen), names, mix)
    for name, length in some("truncated", lengths):
        yield Damage("truncated", f"{name} to {length}", [name], lambda path, n=name, to=length: cut(path / n, to))


class DamageSampleTestCase(RunTestCase):
    def setUp(self):
        super().setUp()
        self.toml = self.config("run", TINY, train={"steps": 7, "global_batch": 4}, checkpoint={"every": 2})
        self.begun = self.dir / "begun"
        self.trained("begun")
        self.newest, self.older = self.checkpoint(self.begun, 6), self.checkpoint(self.begun, 4)
        # Its own values, so that no file of it is one of ours: other data in the same run, and another run.
        shutil.copytree(self.begun, self.dir / "attempt")
        shutil.rmtree(self.checkpoint(self.dir / "attempt", 6))
        self.trained("attempt", "--set", "optim.lr=0.02")
        self.trained("other", "--set", "train.seed=8")
        self.damages = sample(self.newest, {"from another attempt": self.checkpoint(self.dir / "attempt", 6),
                                                "from another run": self.checkpoint(self.dir / "other", 6),
                                                "from another step": self.older})
        _, self.values = read_with_h5py.read(str(self.newest))
        # What a training does that has only the older one.
        shutil.copytree(self.begun, self.dir / "reference")
        shutil.rmtree(self.checkpoint(self.dir / "reference", 6))
        self.train(self.toml, "t1d1z0", "--set", f"run.dir={self.dir / 'reference'}")
        self.reference = self.losses(self.dir / "reference")

    def trained(self, name, *more):
        self.train(self.toml, "t1d2z1", "--set", f"run.dir={self.dir / name}", "--stop-after", "6", *more)

    def on_each(self, damages, look):
        for damage in damages:
            with self.subTest(damage=f"{damage.kind}: {damage.what}"), tempfile.TemporaryDirectory(dir=WHERE) as place:
                run = Path(place) / "run"
                shutil.copytree(self.begun, run)
                path = self.checkpoint(run, 6)
                damage.change(path)
                look(damage, run, path)

    def refused(self, damage, run, path):
        report = self.fails(1, "verify", path, "--json").json()
        told = {p["file"] for p in report["problems"]}
        self.assertTrue(told and told <= set(damage.files), f"{told} of {damage.files}")
        self.assertTrue(all(p["file"] in p["message"] for p in report["problems"]), report)

    def passed_over(self, damage, run, path):
        self.refused(damage, run, path)
        self.train(self.toml, "t1d1z0", "--set", f"run.dir={run}")
        resumed = self.events(run, "resume")[-1]
        self.assertEqual(resumed["step"], 4, resumed)
        reasons = [p["reason"] for p in resumed["passed_over"] if Path(p["path"]).name == path.name]
        self.assertTrue(any(f"/{name}" in reason for name in damage.files for reason in reasons), resumed)
        self.assert_losses(self.reference, self.losses(run), 0)

    def witness(self, path):
        """What h5py makes of the shards, in a process of its own: an error, right or wrong values, or its death."""
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                _, tensors = read_with_h5py.read(str(path))
                # Asked for by name, a tensor that was in a lost shard alone is a KeyError.
                same = all(tensors[k].tobytes() == v.tobytes() and tensors[k].dtype == v.dtype for k, v in self.values.items())
                os._exit(0 if same else 2)
            except BaseException:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return {0: "right values", 1: "error", 2: "other values"}.get(status, f"crash {status}")

    def test_VerifyNamesEachOfASampleOfDamages(self):  # timeout=300
        self.assertEqual(len(self.damages), SAMPLE)
        self.on_each(self.damages[::10], self.refused)

    def test_TrainingPassesOverASampleOfDamages(self):  # timeout=290
        self.on_each(self.damages[::10], self.passed_over)

    def test_TrainingPassesOverAllOfTheSampleOfDamages(self):  # long timeout=6000
        self.on_each(self.damages, self.passed_over)
        print(Counter(damage.kind for damage in self.damages))

    def test_H5pyNeverReadsADamagedShardSilently(self):  # timeout=300
        seen = {}

        def look(damage, run, path):
            answer = self.witness(path)
            seen.setdefault(damage.kind, Counter())[answer] += 1
            # A whole shard of another checkpoint is consistent: only COMMIT and manifest know that it is not ours.
            if not damage.kind.startswith("from another"):
                self.assertIn(answer, ("right values", "error"))
        self.on_each(self.damages, look)
        for kind, answers in sorted(seen.items()):
            print(f"{kind:<22}", dict(sorted(answers.items())))
        print(f"{'all':<22}", dict(sum(seen.values(), Counter())))


if __name__ == "__main__":
    main()
