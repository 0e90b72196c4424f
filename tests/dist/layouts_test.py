"""One meaning of a run in every layout: the same weights at step 0, the same samples, the same losses."""
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import G1, TINY, RunTestCase, degrees, main  # noqa: E402

LAYOUTS = [f"t{t}d{d}z{z}" for t in (1, 2, 4) for d in (1, 2, 3) for z in (0, 1) if t * d <= 8]


class LayoutsTestCase(RunTestCase):
    def compare(self, layouts, model=G1, relative=1e-5, **sections):
        reference = self.config("reference", model, **sections)
        self.train(reference, "t1d1z0", "--stop-after", "0")
        step0 = self.fingerprints(self.checkpoint(self.dir / "reference", 0))
        self.train(reference, "t1d1z0")
        losses, samples = self.losses(self.dir / "reference"), self.samples(self.dir / "reference")
        self.assertEqual(sorted(losses), list(range(1, 7)))
        self.assertLess(losses[6], losses[1])
        for layout in layouts:
            with self.subTest(layout=layout):
                config = self.config(layout, model, **sections)
                self.train(config, layout, "--stop-after", "0")
                self.assertEqual(step0, self.fingerprints(self.checkpoint(self.dir / layout, 0)))
                self.train(config, layout)
                self.assert_losses(losses, self.losses(self.dir / layout), relative, layout)
                self.assertEqual(samples, self.samples(self.dir / layout))
                self.assertEqual({r["layout"] for r in self.steps(self.dir / layout).values()},
                                 {self.printed(layout)})

    def printed(self, layout):
        d = degrees(layout)
        return f"t{d['tp']}p{d['pp']}d{d['dp']}z{d['zero']}"

    def test_LayoutsTp1(self):  # timeout=200
        self.compare([x for x in LAYOUTS if x.startswith("t1")])

    def test_LayoutsTp2(self):  # timeout=250
        self.compare([x for x in LAYOUTS if x.startswith("t2")])

    def test_LayoutsTp4(self):  # timeout=250
        self.compare([x for x in LAYOUTS if x.startswith("t4")])

    def test_B08_VocabularyThatTpDoesNotDivide(self):  # timeout=150
        """G1 has vocabulary 97; fifty steps at t1, t2, t4 from the same weights."""
        config = self.config("one", train={"steps": 50}, optim={"lr": 3e-3})
        self.train(config, "t1")
        for layout in ("t2", "t4"):
            other = self.config(layout, train={"steps": 50}, optim={"lr": 3e-3})
            self.train(other, layout)
            self.assert_losses(self.losses(self.dir / "one"), self.losses(self.dir / layout), 1e-4, layout)

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
