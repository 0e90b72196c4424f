"""Public reports about optimizer shards, their padding and empty pieces: any number of data parallel ranks to any other."""
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import G1, L1, T1, RunTestCase, main  # noqa: E402


class DataParallelChangesTestCase(RunTestCase):
    def all_to_all(self, model, sources, targets):
        for written in sources:
            source = self.labelled(model, written, f"from-{written}")
            for layout in targets:
                with self.subTest(written=written, layout=layout):
                    self.labels_are_right(self.reshard(source, layout, f"{written}-{layout}"))

    def test_B06_TheFirstLossAfterEightPieces(self):
        config, source, expected = self.saved_run(L1, "d8z3", train={"global_batch": 24})
        for layout in ("d1", "d6z2"):
            self.go_on(config, layout, self.reshard(source, layout), expected, "--stop-after", "4")

    def test_B25_PaddingIsNoData(self):  # timeout=150
        config, source, expected = self.saved_run(L1, "d4z1")
        at = {layout: self.reshard(source, layout) for layout in ("d6z1", "d5z1", "d7z1", "d3z1")}
        for target in at.values():
            self.same_state(source, target)
        self.same_state(source, self.reshard(at["d6z1"], "d4z1"))
        self.go_on(config, "d6z1", at["d6z1"], expected)
        self.go_on(config, "d3z1", at["d3z1"], expected)

    def test_B26_RanksOfPadding(self):
        """A model so small that most of 24 ranks have nothing of most tensors."""
        self.all_to_all(T1, ["d24z2", "d1"], ["d1", "d5z1"])

    def test_B30_ATrainerWithEmptyPieces(self):
        config, source, expected = self.saved_run(T1, "d12z3")
        self.go_on(config, "d12z3", source, expected)
        self.go_on(config, "t3d2z2", source, expected)

    def test_B32_ATableOfOneRow(self):
        """One position: a (1, 64) table, copied over tensor parallel ranks and cut over data parallel ones."""
        model = dict(G1, seq_len=1)
        source = self.labelled(model, "t1")
        there = self.reshard(source, "t4d2z1")
        back = self.reshard(there, "t1")
        self.same_state(source, back)
        self.labels_are_right(back)
        config, saved, expected = self.saved_run(model, "t1")
        self.go_on(config, "t4d2z3", self.reshard(saved, "t4d2z3", "trained"), expected)

    def test_B35_EveryStageAndDegreeToEveryOther(self):
        self.all_to_all(T1, [f"d{d}z{z}" for d in (1, 2, 4) for z in (0, 1)], ["d1z0", "d3z1", "d6z0"])
        for name, written, layout in (("a", "d2z0", "d3z2"), ("b", "d4z3", "d1z0")):
            config, source, expected = self.saved_run(T1, written)
            self.go_on(config, layout, source, expected)
            shutil.rmtree(self.dir / "whole")

    def test_B35_EveryStageAndDegreeOfL1(self):  # long
        self.all_to_all(L1, *([f"d{d}z{z}" for d in degrees for z in range(4)] for degrees in ((1, 2, 4), (1, 3, 6))))

    def test_B145_TheBatchShapeMayChangeOnTheWay(self):
        """Micro-batch 1, then 4, then 2, of one global batch: steps, learning rates, samples and losses stay."""
        sections = dict(train={"steps": 6, "global_batch": 4})
        whole, cut = self.config("whole", T1, **sections), self.config("cut", T1, **sections)
        self.train(whole, "t1")
        for micro, until in ((1, 2), (4, 4), (2, 6)):
            self.train(cut, "t1", "--set", f"train.micro_batch={micro}", "--stop-after", until)
        self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / "cut"), 1e-6)
        self.assertEqual(self.samples(self.dir / "whole"), self.samples(self.dir / "cut"))
        for run in ("whole", "cut"):
            self.assertEqual(len(self.steps(self.dir / run)), 6)
        self.assertEqual(*({s: r["lr"] for s, r in self.steps(self.dir / run).items()} for run in ("whole", "cut")))

    def test_B146_ResumeOnAnImpossibleCountTouchesNothing(self):
        config = self.config("run", T1)
        self.train(config, "d4", "--stop-after", "3")
        checkpoints = self.dir / "run" / "checkpoints"
        before = sorted(checkpoints.rglob("*"))
        result = self.train(config, "d5", status=2)
        self.assertIn("possible dp: 1, 2, 3, 4, 6, 12", result.stderr)
        self.assertEqual(before, sorted(checkpoints.rglob("*")))
        warned = self.ok("reshard", self.dir / "run", self.dir / "d5", "--layout", "d5")
        self.assertIn("warning", warned.stderr)
        self.assertIn("global_batch", warned.stderr)
        self.train(config, "d6", "--stop-after", "4")
        self.train(config, "d3", "--stop-after", "5")
        self.assertEqual({s: r["samples"] for s, r in self.steps(self.dir / "run").items()}, {s: 12 * s for s in range(1, 6)})

    def test_B149_ElasticRanksAreTheSameRun(self):  # timeout=150
        sections = dict(train={"steps": 20})
        whole, run = self.config("whole", T1, **sections), self.config("run", T1, **sections)
        self.train(whole, "d1")
        for layout, until in (("d2", 5), ("d4", 10), ("d3", 15), ("d6", 20)):
            self.train(run, layout, "--stop-after", until)
        self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / "run"))
        self.assertEqual(self.samples(self.dir / "whole"), self.samples(self.dir / "run"))


if __name__ == "__main__":
    main()
