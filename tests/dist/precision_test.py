"""Training in 16-bit types: fp32 masters are the state, so runs change type and layout; fp16's loss scale is part of a checkpoint."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BL1, TINY, T1, RunTestCase, main  # noqa: E402


class PrecisionTestCase(RunTestCase):
    def test_LayoutsAgreeInSixteenBits(self):  # timeout=200
        """Against fp32 1e-2. Layouts of one type differ by roundings that fall the other way: 1e-3, measured below 2e-5 at 10 M."""
        for dtype in ("bf16", "fp16"):
            for model, layouts in ((TINY, ("t3d2z1", "d3z2", "p2d3z3", "d6z3")), (T1, ("t3d2z3", "p2d2z2"))):
                name = f"{dtype}-{model['arch']}"
                plain = self.config(name, model, train={"steps": 4}, run={"dir": str(self.dir / name)})
                self.train(plain)
                exact = self.losses(self.dir / name)
                single = self.dir / f"{name}-single"
                self.train(plain, "t1", "--set", f"train.dtype={dtype}", "--set", f"run.dir={single}")
                self.assert_losses(exact, self.losses(single), 1e-2, name)
                for layout in layouts:
                    run = self.dir / f"{name}-{layout}"
                    self.train(plain, layout, "--set", f"train.dtype={dtype}", "--set", f"run.dir={run}",
                               "--set", "parallel.recompute=" + ("full" if "z3" in layout else "selective"))
                    self.assert_losses(self.losses(single), self.losses(run), 1e-3, f"{name} {layout}")

    def test_LayoutsOfABloomAgreeInSixteenBits(self):  # timeout=200
        """Saved in one type, layout and way to recompute, gone on with in others."""
        config = self.config("run", BL1, train={"steps": 4}, checkpoint={"every": 2})
        self.train(config)
        exact = self.losses(self.dir / "run")
        for dtype, layouts in (("bf16", ("t3d2z3", "p4 stages=1,2,2,1")), ("fp16", ("t2p2 sp", "d3z2"))):
            single = self.dir / dtype
            self.train(config, "t1", "--set", f"train.dtype={dtype}", "--set", f"run.dir={single}")
            self.assert_losses(exact, self.losses(single), 1e-2, dtype)
            for layout, recompute in zip(layouts, ("full", "selective")):
                self.go_on(config, layout, self.checkpoint(single, 2), {s: x for s, x in self.losses(single).items() if s > 2},
                           "--set", f"train.dtype={dtype}", "--set", f"parallel.recompute={recompute}", relative=1e-3, name="on-" + dtype)

    def test_B45_MastersPassThroughOtherTypesUntouched(self):  # timeout=150
        """What fp32 saved is adopted by runs of other types and layouts and saved again with each bit, moments and rate included."""
        config = self.config("run", TINY, train={"steps": 8}, checkpoint={"every": 4})
        self.train(config, "d2z1")
        source = self.checkpoint(self.dir / "run", 4)
        whole = self.losses(self.dir / "run")
        for dtype, layout in (("bf16", "d3z3"), ("fp16", "t3z0"), ("bf16", "p2d2z2")):
            there = self.dir / f"{dtype}-{layout}"
            sets = ("--set", f"train.dtype={dtype}", "--set", f"run.dir={there}", "--resume", source)
            result = self.train(config, layout, *sets, "--stop-after", "4")
            self.assertIn(f'changed train.dtype: "fp32" in the checkpoint, "{dtype}" here', result.stdout)
            adopted = self.checkpoint(there, 4)
            self.assertEqual(self.fingerprints(source), self.fingerprints(adopted))
            # And on in fp32: the very run that never left it, up to the order of sums.
            back = self.dir / f"back-{dtype}-{layout}"
            self.train(config, "d2z1", "--set", f"run.dir={back}", "--resume", adopted)
            self.assert_losses({s: loss for s, loss in whole.items() if s > 4}, self.losses(back), 0)

    def test_ARunChangesItsTypeOnTheWay(self):  # timeout=150
        config = self.config("run", TINY, train={"steps": 12}, checkpoint={"every": 3})
        self.train(config, "t1", "--set", f"run.dir={self.dir / 'fp32'}")
        for until, (dtype, layout) in zip((3, 6, 9, 12), (("fp32", "d2z1"), ("bf16", "d3z3"), ("fp16", "t3d2z2"), ("fp32", "p2d2z1"))):
            self.train(config, layout, "--set", f"train.dtype={dtype}", "--stop-after", until)
        self.assert_losses(self.losses(self.dir / "fp32"), self.losses(self.dir / "run"), 1e-2)
        self.assertEqual(self.ok("inspect", self.dir / "run", "--json").json()["training"]["loss_scale"], 1)

    def test_B61_TheLossScaleIsPartOfTheState(self):  # timeout=150
        """A scale that overflows at first: batches are passed over, counted, and not counted as steps; a resume goes on with it."""
        config = self.config("run", TINY, train={"steps": 8, "dtype": "fp16", "loss_scale": 2.0 ** 36, "loss_scale_window": 3},
                             checkpoint={"every": 4})
        self.train(config, "d2z1")
        skipped = self.records(self.dir / "run", "skipped")
        self.assertTrue(skipped)
        self.assertEqual({r["reason"] for r in skipped}, {"overflow"})
        steps = self.steps(self.dir / "run")
        self.assertEqual(list(steps), list(range(1, 9)))
        document = self.ok("inspect", self.dir / "run", "--json").json()
        self.assertEqual(document["training"]["skipped_steps"], len(skipped))
        self.assertEqual(document["samples"], 12 * (8 + len(skipped)))
        self.assertEqual([r["lr"] for r in steps.values()],
                         [r["lr"] for r in self.steps_of_fp32(config).values()])  # no step of the schedule is lost
        self.assertLess(steps[8]["loss"], steps[1]["loss"])
        for layout, relative in (("d2z1", 0), ("t3z3", 1e-3)):
            there = self.dir / f"on-{layout}"
            self.train(config, layout, "--set", f"run.dir={there}", "--resume", self.checkpoint(self.dir / "run", 4))
            self.assert_losses({s: r["loss"] for s, r in steps.items() if s > 4}, self.losses(there), relative)
            self.assertEqual(self.ok("inspect", there, "--json").json()["training"]["loss_scale"], document["training"]["loss_scale"])

    def steps_of_fp32(self, config):
        run = self.dir / "fp32"
        self.train(config, "d2z1", "--set", "train.dtype=fp32", "--set", f"run.dir={run}")
        return self.steps(run)

    def test_B47_WeightsAloneFillTheMastersToo(self):  # timeout=150
        config = self.config("run", TINY, train={"steps": 8}, checkpoint={"every": 4})
        self.train(config, "d2")
        weights = self.reshard(self.checkpoint(self.dir / "run", 4), "t1", "weights", "--weights-only")
        data = next(self.dir.glob("tokens-33-*.bin"))
        before = self.ok("eval", weights, "--data", data, "--json").json()["loss"]
        for dtype, layout in (("bf16", "d2z1"), ("fp16", "d3z3")):
            there = self.dir / f"{dtype}-{layout}"
            self.train(config, layout, "--set", f"train.dtype={dtype}", "--set", f"run.dir={there}", "--set", "optim.lr=1e-9",
                       "--resume", weights, "--accept-changes", "--stop-after", "5")
            after = self.ok("eval", there, "--data", data, "--json").json()["loss"]
            self.assertLess(abs(after - before), 1e-4 * before, (dtype, layout))


if __name__ == "__main__":
    main()
