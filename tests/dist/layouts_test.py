"""One meaning of a run in every layout, by command line: the same weights at step 0, the same samples, the same losses.

Many more layouts are trained without a command line, by layout_matrix; the ones here take the way through
configuration, launcher and checkpoint.
"""
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import G1, L1, L2, T1, TINY, U1, RunTestCase, main, printed, slug  # noqa: E402


class LayoutsTestCase(RunTestCase):
    def compare(self, layouts, model, **sections):
        reference = self.config("reference", model, **sections)
        self.train(reference, "t1", "--stop-after", "0")
        step0 = self.fingerprints(self.checkpoint(self.dir / "reference", 0))
        self.train(reference, "t1")
        losses, samples = self.losses(self.dir / "reference"), self.samples(self.dir / "reference")
        self.assertEqual(sorted(losses), list(range(1, 7)))
        self.assertLess(losses[6], losses[1])
        for layout in layouts:
            with self.subTest(layout=layout):
                run = self.dir / slug(layout)
                config = self.config(run.name, model, **sections)
                self.train(config, layout, "--stop-after", "0")
                self.assertEqual(step0, self.fingerprints(self.checkpoint(run, 0)))
                self.train(config, layout)
                self.assert_losses(losses, self.losses(run), 1e-5, layout)
                self.assertEqual(samples, self.samples(run))
                self.assertEqual({r["layout"] for r in self.steps(run).values()}, {printed(layout)})

    def test_LayoutsOfG1(self):
        self.compare(["t2p2d2z1"], G1)

    def test_LayoutsOfL1(self):
        self.compare(["t4p2 sp gpipe"], L1)

    def test_LayoutsOfL2(self):
        self.compare(["t2p2d2v2"], L2)

    def test_LayoutsOfU1(self):
        self.compare(["t5 sp", "p4 stages=1,2,2,2"], U1)

    def test_LayoutsOfT1(self):
        self.compare(["d7z1"], T1, train={"global_batch": 14})

    def test_B08_VocabularyThatTpDoesNotDivide(self):  # timeout=150
        """G1 has vocabulary 97; fifty steps at t1, t2, t4 from the same weights."""
        config = self.config("one", train={"steps": 50}, optim={"lr": 3e-3})
        self.train(config, "t1")
        for layout in ("t2", "t4"):
            other = self.config(layout, train={"steps": 50}, optim={"lr": 3e-3})
            self.train(other, layout)
            self.assert_losses(self.losses(self.dir / "one"), self.losses(self.dir / layout), 1e-4, layout)

    def test_B03_MoreTensorRanksThanKvHeads(self):
        """L2 has 2 KV heads: each is held by two of four ranks, which must stay in step for twenty steps."""
        for layout in ("t1", "t4"):
            config = self.config(layout, L2, train={"steps": 20}, optim={"lr": 3e-3})
            self.train(config, layout)
        self.assert_losses(self.losses(self.dir / "t1"), self.losses(self.dir / "t4"))

    def test_B43_ZeroStagesGiveTheSameNumbers(self):  # timeout=150
        for model, name, layouts in ((T1, "T1", ("d1", "d3", "d4")), (L1, "L1", ("d3",))):
            for layout in layouts:
                for zero in range(4 if layout == "d3" else 2):
                    config = self.config(f"{name}{layout}z{zero}", model, train={"steps": 20}, optim={"lr": 1e-3})
                    self.train(config, f"{layout}z{zero}")
                    self.assert_losses(self.losses(self.dir / f"{name}{layout}z0"),
                                       self.losses(self.dir / f"{name}{layout}z{zero}"), 1e-6, f"{name} {layout}z{zero}")

    def test_B34_B125_HugeVocabularyAndEmptyShards(self):  # timeout=150
        """A tiny model whose embedding dwarfs its norms: most dp pieces are empty, on save and on resume."""
        model = dict(TINY, vocab=4096)
        config = self.config("wide", model, train={"steps": 6, "global_batch": 84}, tokens=9000,
                             checkpoint={"every": 3})
        self.train(config, "d4z1", "--stop-after", "3", "--set", "train.global_batch=84")
        for layout in ("d4z1", "d3z1", "d7z1"):
            copy = self.dir / f"copy-{layout}"
            shutil.copytree(self.dir / "wide", copy)
            self.train(config, layout, "--set", f"run.dir={copy}")
        losses = [self.losses(self.dir / f"copy-{x}") for x in ("d4z1", "d3z1", "d7z1")]
        self.assert_losses(losses[0], losses[1])
        self.assert_losses(losses[0], losses[2])


if __name__ == "__main__":
    main()
