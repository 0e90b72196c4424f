"""Errors and signals of one rank are everyone's within a deadline; ranks never disagree on what to do next."""
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, RunTestCase, layout_sets, main, run  # noqa: E402


class AgreementTestCase(RunTestCase):
    def tiny(self, name="run", **more):
        sections = dict(train={"steps": 8, "global_batch": 12}, checkpoint={"every": 2},
                        elastic={"phase_deadline_s": 20, "heartbeat_s": 5})
        for section, values in more.items():
            sections.setdefault(section, {}).update(values)
        return self.config(name, TINY, **sections)

    def test_B91_OneRankCannotWriteItsFile(self):  # timeout=150
        """Rank 2 finds a directory where its shard belongs: that save fails with its reason, older ones stay, nobody waits for ever."""
        config = self.tiny()
        self.train(config, "d4z1", "--stop-after", "2")
        obstacle = self.dir / "run" / "checkpoints" / "step-0000000004.tmp-1-0" / "rank-00002.h5"
        # The attempt's name is known in advance: generation 1, its first save. The start tidies leftovers, so wait for it.
        started = self.start("train", config, *layout_sets("d4z1"), "--stop-after", "4",
                             env={"SHARDWRIGHT_FAULT": "step.begin:rank=0:step=3=delay(3000)"})
        deadline = time.monotonic() + 30
        while not self.events(self.dir / "run", "generation_start")[1:]:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        time.sleep(0.5)
        obstacle.mkdir(parents=True)
        result = started.wait(60)
        self.assertEqual(result.status, 1, result)
        failed = self.events(self.dir / "run", "checkpoint_failed")
        self.assertEqual([e["step"] for e in failed], [4], result)
        self.assertIn("rank-00002.h5", failed[0]["reason"])
        self.assertTrue(self.ok("list", self.dir / "run", "--json").json()["newest_valid"].endswith("2"))

    def test_B91_OneRankCannotLoad(self):  # timeout=120
        config = self.tiny()
        self.train(config, "d4z1", "--stop-after", "4")
        (self.checkpoint(self.dir / "run", 4) / "rank-00002.h5").unlink()
        (self.checkpoint(self.dir / "run", 2) / "rank-00002.h5").unlink()
        began = time.monotonic()
        result = self.train(config, "d4z1", status=1)
        self.assertLess(time.monotonic() - began, 30)
        self.assertIn("rank-00002.h5", result.stderr)

    def test_B93_ASlowRankAtLoadIsWaitedFor(self):  # timeout=120
        config = self.tiny()
        self.train(config, "d3z1", "--stop-after", "2")
        self.train(config, "d3z1", env={"SHARDWRIGHT_FAULT": "load.plan:rank=1=delay(3000)"})
        self.assertEqual(self.events(self.dir / "run", "rank_lost"), [])

    def test_B95_ManyRanksAndAFreshNestedPath(self):  # timeout=150
        config = self.tiny(train={"global_batch": 12, "micro_batch": 1, "steps": 2})
        for attempt in range(3):
            deep = self.dir / f"a{attempt}" / "b" / "c" / "d"
            self.ok("train", config, *layout_sets("d12"), "--set", f"run.dir={deep}", "--stop-after", "1")
            self.verified(self.checkpoint(deep, 1))

    def test_B84_AStuckWriterFailsByItsDeadline(self):  # timeout=120
        """A rank whose shard never gets done: the attempt fails naming it, training goes on."""
        config = self.tiny(checkpoint={"every": 4, "commit_deadline_s": 2})
        result = run("train", config, *layout_sets("d3z1"), timeout=90,
                     env={"SHARDWRIGHT_FAULT": "shard.mid:rank=2:step=4=delay(6000)"})
        self.assertEqual(result.status, 0, result)
        failed = self.events(self.dir / "run", "checkpoint_failed")
        self.assertEqual([e["step"] for e in failed], [4], result)
        self.assertIn("rank 2", failed[0]["reason"])
        self.verified(self.checkpoint(self.dir / "run", 8))

    def test_B97_SignalToOneRankOnly(self):  # timeout=200
        """SIGTERM to rank 3 alone at drawn times: one save at a common step, status 75, and the run goes on from it exactly."""
        whole = self.tiny("whole", train={"steps": 40, "global_batch": 12})
        self.train(whole, "d4z1")
        draw = random.Random(3)
        for attempt in range(3):
            name = f"cut{attempt}"
            config = self.tiny(name, train={"steps": 40, "global_batch": 12})
            # Slow steps, so that the signal meets the run at work.
            started = self.start("train", config, *layout_sets("d4z1"),
                                 env={"SHARDWRIGHT_FAULT": f"step.forward:rank=1:step={draw.randrange(2, 6)}=delay(2500)"})
            deadline = time.monotonic() + 40
            while True:
                metrics = self.dir / name / "metrics.jsonl"
                if metrics.exists() and metrics.read_text().count('"type":"step"') >= 1 and 3 in started.workers():
                    break
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            time.sleep(draw.random() * 0.5)
            os.kill(started.workers()[3], signal.SIGTERM)
            result = started.wait(30)
            self.assertEqual(result.status, 75, result)
            self.assertTrue(self.events(self.dir / name, "preempted"))
            self.train(config, "d4z1")
            self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / name), 0)

    def test_B81_B89_TheSnapshotIsTheBoundarysState(self):  # timeout=150
        """A slow writer and a large learning rate: what is in the file is the state of its step, and every record says that step."""
        config = self.tiny("slow", train={"steps": 9, "global_batch": 12}, optim={"lr": 0.5, "warmup_steps": 0},
                           checkpoint={"every": 3, "on_busy": "skip"})
        run("train", config, *layout_sets("d2z1"), env={"SHARDWRIGHT_FAULT": "shard.open:rank=0:step=3=delay(3000)"})
        synchronous = self.tiny("sync", train={"steps": 9, "global_batch": 12}, optim={"lr": 0.5, "warmup_steps": 0},
                                checkpoint={"every": 3, "async": False})
        self.train(synchronous, "d2z1")
        self.assertEqual(self.fingerprints(self.checkpoint(self.dir / "sync", 3)),
                         self.fingerprints(self.checkpoint(self.dir / "slow", 3)))
        outcomes = {r["step"]: r["outcome"] for r in self.records(self.dir / "slow", "checkpoint")}
        self.assertEqual(outcomes[3], "committed")
        self.assertEqual(outcomes[6], "skipped")
        self.assertEqual(outcomes[9], "committed")
        counts = self.events(self.dir / "slow", "saves")[-1]
        self.assertEqual((counts["committed"], counts["failed"], counts["skipped"]), (2, 0, 1))
        document = self.ok("inspect", self.checkpoint(self.dir / "slow", 3), "--json").json()
        self.assertEqual((document["step"], document["training"]["step"]), (3, 3))

    def test_B98_KilledAtRandomTimes(self):  # timeout=250
        """All processes killed at drawn moments while it saves every step: each time a whole checkpoint is found and the losses go on."""
        self.killed_at_random(6)

    def test_B87_KilledAtAHundredRandomTimes(self):  # long
        self.killed_at_random(100)

    def killed_at_random(self, times):
        whole = self.tiny("whole", train={"steps": 30, "global_batch": 4}, checkpoint={"every": 1, "keep": 2})
        self.train(whole, "t1")
        expected = self.losses(self.dir / "whole")
        draw = random.Random(11)
        config = self.tiny("run", train={"steps": 30, "global_batch": 4}, checkpoint={"every": 1, "keep": 2})
        for _ in range(times):
            started = self.start("train", config, *layout_sets("d2z1"))
            seen = None
            deadline = time.monotonic() + 40
            metrics = self.dir / "run" / "metrics.jsonl"
            while time.monotonic() < deadline:
                lines = metrics.read_text().count("\n") if metrics.exists() else 0
                if seen is None:
                    seen = lines
                if lines > seen or started.process.poll() is not None:
                    break
                time.sleep(0.01)
            time.sleep(draw.random() * 0.3)
            started.end()
            checkpoints = self.dir / "run" / "checkpoints"
            if checkpoints.exists() and list(checkpoints.glob("step-*")):
                listed = self.ok("list", self.dir / "run", "--json").json()
                if listed["newest_valid"]:
                    self.verified(listed["newest_valid"])
        self.train(config, "d2z1")
        self.assert_losses(expected, self.losses(self.dir / "run"))

    def test_B94_FiveHundredSavesWithDelays(self):  # long
        """No save hangs: 500 saves by 8 ranks, drawn delays, none over ten times the median and a second."""
        config = self.tiny(train={"steps": 500, "global_batch": 8, "micro_batch": 1}, checkpoint={"every": 1, "keep": 2})
        self.train(config, "d8", timeout=2500, env={"SHARDWRIGHT_FAULT": "shard.open:rank=5:nth=7=delay(200)"})
        seconds = sorted(r["total_s"] for r in self.records(self.dir / "run", "checkpoint"))
        self.assertEqual(len(seconds), 500)
        self.assertLess(seconds[-1], 10 * seconds[250] + 1)


if __name__ == "__main__":
    main()
