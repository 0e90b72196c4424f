"""The position in the data is one integer and a seed: same samples in the same steps, whatever the layout and the interruptions."""
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, RunTestCase, main  # noqa: E402


class DataPositionTestCase(RunTestCase):
    def ledger(self, name, pieces, **sections):
        """Trains in pieces [(layout, until)], and returns {step: sample_ids}."""
        config = self.config(name, TINY, **sections)
        for layout, until in pieces:
            self.train(config, layout, "--stop-after", until)
        return self.samples(self.dir / name)

    def test_B68_B70_DpChangesKeepTheLedger(self):  # timeout=200
        sections = dict(train={"steps": 8, "global_batch": 12, "micro_batch": 1})
        whole = self.ledger("whole", [("d1", 8)], **sections)
        for i, (a, b) in enumerate((("d4", "d2"), ("d2", "d4"), ("d3", "d6"))):
            self.assertEqual(whole, self.ledger(f"cut{i}", [(a, 4), (b, 8)], **sections), (a, b))
        drawn = [s for ids in whole.values() for s in ids]
        self.assertEqual(len(drawn), len(set(drawn)))  # one epoch: no sample twice

    def test_B68_AccumulationCountsSamplesNotUpdates(self):
        sections = dict(train={"steps": 6, "global_batch": 8, "micro_batch": 2}, tokens=8 * 64 + 1)
        self.assertEqual(self.ledger("whole", [("t1", 6)], **sections), self.ledger("cut", [("t1", 3), ("t1", 6)], **sections))

    def test_B71_B76_EpochBoundaries(self):  # timeout=150
        """64 samples and 66 (whose remainder is dropped), global batch 8: an epoch has 8 steps."""
        for samples in (64, 66):
            tokens = 8 * samples + 1
            sections = dict(train={"steps": 16, "global_batch": 8, "micro_batch": 1}, tokens=tokens)
            whole = self.ledger(f"whole{samples}", [("d2", 16)], **sections)
            cut = self.ledger(f"cut{samples}", [("d2", 8), ("d4", 16)], **sections)
            self.assertEqual(whole, cut)
            first = [s for step in range(1, 9) for s in whole[step]]
            second = [s for step in range(9, 17) for s in whole[step]]
            self.assertEqual(len(set(first)), 64)
            self.assertEqual(len(set(second)), 64)
            self.assertNotEqual(first, second)

    def test_B73_EvaluationAtTheStartChangesNothing(self):  # timeout=150
        plain = self.config("plain", TINY, train={"steps": 6, "global_batch": 4})
        self.train(plain, "d2z1")
        data = next(self.dir.glob("tokens-33-*.bin"))
        evaluated = self.config("evaluated", TINY, train={"steps": 6, "global_batch": 4, "eval_every": 2}, data=data)
        more = ("--set", f"data.valid={data}")
        self.train(evaluated, "d2z1", *more, "--stop-after", "3")
        self.train(evaluated, "d2z1", *more)
        self.assert_losses(self.losses(self.dir / "plain"), self.losses(self.dir / "evaluated"), 0)
        self.assertEqual([r["step"] for r in self.records(self.dir / "evaluated", "eval")], [2, 4, 6])

    def test_B74_B80_KilledBetweenBackwardAndUpdate(self):  # timeout=150
        """Steps after the checkpoint are made again with the same samples."""
        sections = dict(train={"steps": 10, "global_batch": 4, "micro_batch": 1}, checkpoint={"every": 5})
        whole = self.config("whole", TINY, **sections)
        self.train(whole, "d2")
        config = self.config("run", TINY, **sections)
        self.train(config, "d2", env={"SHARDWRIGHT_FAULT": "step.optimizer:rank=1:step=8=kill"})
        run = self.dir / "run"
        ids = {}
        for record in self.records(run, "step"):
            ids.setdefault(record["step"], []).append(record["sample_ids"])
        self.assertGreater(max(map(len, ids.values())), 1)  # some steps were really made again
        for step, seen in ids.items():
            self.assertEqual(len(set(map(tuple, seen))), 1, step)
        self.assertEqual(self.samples(self.dir / "whole"), self.samples(run))
        self.assert_losses(self.losses(self.dir / "whole"), self.losses(run))

    def test_B77_AFarPositionCostsNothing(self):
        """A long schedule of small steps: going on from a far position starts at once."""
        config = self.config("run", TINY, train={"steps": 3, "global_batch": 4})
        self.train(config, "t1", "--stop-after", "2")
        began = time.monotonic()
        self.train(config, "t1")
        self.assertLess(time.monotonic() - began, 30)

    def test_B145_B149_BatchShapesAgree(self):  # timeout=150
        losses = {}
        for micro, layout in ((1, "t1"), (4, "t1"), (2, "d2"), (1, "d4"), (3, "t1")):
            name = f"m{micro}{layout}"
            config = self.config(name, TINY, train={"steps": 5, "global_batch": 12, "micro_batch": micro})
            self.train(config, layout)
            losses[name] = self.losses(self.dir / name)
        for name, found in losses.items():
            self.assert_losses(losses["m1t1"], found, 1e-5, name)

    def test_B146_ImpossibleBatchNamesPossibleOnes(self):
        config = self.config("run", TINY, train={"global_batch": 12, "micro_batch": 1})
        result = self.train(config, "d5", status=2)
        for possible in ("1", "2", "3", "4", "6", "12"):
            self.assertIn(possible, result.stderr)


if __name__ == "__main__":
    main()
