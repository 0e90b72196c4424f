"""A rank killed at each named point: the run goes on by itself from the newest whole checkpoint, or the next start does; the
losses continue; nothing selectable is not whole; no process is left."""
import itertools
import random
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, RunTestCase, layout_sets, main, run  # noqa: E402

RANKS = 4
LAYOUT = "d4z1"
TRAINING_POINTS = ["step.begin", "step.forward", "step.backward", "step.loss", "step.optimizer", "save.begin", "save.window", "shard.open",
                   "shard.mid", "shard.close", "shard.fsync", "part.rename", "manifest.write", "commit.write", "commit.rename", "dir.rename",
                   "retire", "load.plan", "load.mid"]
COMMITTER_ONLY = {"manifest.write", "commit.write", "commit.rename", "dir.rename", "retire"}


class FaultPointsTestCase(RunTestCase):
    SECTIONS = dict(train={"steps": 8, "global_batch": 12, "micro_batch": 1}, checkpoint={"every": 2, "keep": 2},
                    elastic={"phase_deadline_s": 20, "heartbeat_s": 5})

    def setUp(self):
        super().setUp()
        reference = self.config("reference", TINY, **self.SECTIONS)
        self.train(reference, "t1")
        self.expected = self.losses(self.dir / "reference")
        # Where the load points are tested, the run goes on from here.
        begun = self.config("begun", TINY, **self.SECTIONS)
        self.train(begun, LAYOUT, "--stop-after", "4")

    def one(self, point, rank, action="kill"):
        with self.subTest(point=point, rank=rank, action=action):
            name = f"{point}-{rank}-{action}"
            directory = self.dir / name
            config = self.config(name, TINY, **self.SECTIONS)
            if point.startswith("load"):
                shutil.copytree(self.dir / "begun", directory)
            step = ":step=5" if point.startswith("step.") else ":step=4" if point in ("save.begin", "save.window") else ""
            fault = f"{point}:rank={rank}{step}={action}"
            result = run("train", config, *self.sets(), env={"SHARDWRIGHT_FAULT": fault}, timeout=90)
            self.assertEqual(result.status, 0, f"{fault}: {result}")
            self.assert_losses(self.expected, self.losses(directory), 1e-5, fault)
            lost = [e for e in self.events(directory, "rank_lost")]
            self.assertTrue(lost, f"{fault} did not strike: {result}")
            self.assertEqual(lost[0]["rank"], rank, lost)
            self.sound(directory)

    def sets(self):
        return layout_sets(LAYOUT)

    def sound(self, directory):
        listed = self.ok("list", directory, "--json").json()
        self.assertTrue(listed["newest_valid"].endswith("step-0000000008"), listed)
        for entry in listed["checkpoints"]:
            if entry["status"] == "valid":
                self.verified(entry["path"])
        for path in (directory / "checkpoints").iterdir():
            self.assertFalse(".tmp-" in path.name or ".trash-" in path.name, path)

    def cases(self):
        for point in TRAINING_POINTS:
            for rank in range(RANKS):
                if point not in COMMITTER_ONLY or rank == 0:
                    yield point, rank

    def sample(self, part, parts):
        """A fixed sample: each point once, with a rank drawn by a fixed seed."""
        draw = random.Random(5)
        chosen = [(point, 0 if point in COMMITTER_ONLY else draw.randrange(RANKS)) for point in TRAINING_POINTS]
        for point, rank in chosen[part::parts]:
            self.one(point, rank)

    def test_KilledAtFaultPointsPart1(self):  # timeout=290
        self.sample(0, 3)

    def test_KilledAtFaultPointsPart2(self):  # timeout=290
        self.sample(1, 3)

    def test_KilledAtFaultPointsPart3(self):  # timeout=290
        self.sample(2, 3)

    def test_AllRanksAtAllFaultPoints(self):  # long
        for point, rank in self.cases():
            self.one(point, rank)

    def test_StoppedRankIsFound(self):  # timeout=120
        self.one("step.backward", 2, "stop")

    def test_FailingWritesAreSaidAndTrainingGoesOn(self):  # timeout=200
        """An I/O error or a full disk in one save of one rank: that attempt dies, the next save works, exit 0."""
        for point, action in itertools.product(("shard.mid", "shard.fsync", "manifest.write"), ("eio", "enospc")):
            with self.subTest(point=point, action=action):
                rank = 0 if point in COMMITTER_ONLY else 3
                name = f"{point}-{action}"
                config = self.config(name, TINY, **self.SECTIONS)
                result = run("train", config, *self.sets(), timeout=90,
                             env={"SHARDWRIGHT_FAULT": f"{point}:rank={rank}:step=4={action}"})
                self.assertEqual(result.status, 0, result)
                failed = self.events(self.dir / name, "checkpoint_failed")
                self.assertEqual([e["step"] for e in failed], [4], result)
                outcomes = [(r["step"], r["outcome"]) for r in self.records(self.dir / name, "checkpoint")]
                self.assertEqual(outcomes, [(2, "committed"), (4, "failed"), (6, "committed"), (8, "committed")])
                self.assert_losses(self.expected, self.losses(self.dir / name), 1e-5)
                self.sound(self.dir / name)

    def test_LastDueSaveFailing(self):
        """The last save is not valid: status 1, one line, the one before it loads."""
        config = self.config("run", TINY, **self.SECTIONS)
        result = run("train", config, *self.sets(), timeout=90, env={"SHARDWRIGHT_FAULT": "shard.mid:rank=1:step=8=enospc"})
        self.assertEqual(result.status, 1, result)
        self.assertEqual(len([l for l in result.stderr.splitlines() if l.startswith("shardwright: error:")]), 1, result)
        listed = self.ok("list", self.dir / "run", "--json").json()
        self.assertTrue(listed["newest_valid"].endswith("step-0000000006"))
        # The same command again makes it good.
        self.train(config, LAYOUT)
        self.assertTrue(self.ok("list", self.dir / "run", "--json").json()["newest_valid"].endswith("step-0000000008"))

    def test_ReshardKilledAnywhereLeavesNothingSelectable(self):  # timeout=200
        source = self.checkpoint(self.dir / "begun", 4)
        for point in ("shard.open", "shard.mid", "shard.close", "part.rename", "manifest.write", "commit.write", "commit.rename",
                      "dir.rename"):
            with self.subTest(point=point):
                target = self.dir / f"target-{point}"
                result = run("reshard", source, target, "--layout", "d3z1", env={"SHARDWRIGHT_FAULT": f"{point}=kill"})
                self.assertEqual(result.status, -9, result)
                self.assertFalse(target.exists())
                again = self.ok("reshard", source, target, "--layout", "d3z1", "--json").json()
                self.assertTrue(again["proof"]["ok"])
                self.verified(target)
                self.assertEqual([], [p.name for p in self.dir.iterdir() if p.name.startswith(target.name + ".tmp")])


if __name__ == "__main__":
    main()
