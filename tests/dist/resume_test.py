"""Save, end, go on: bit for bit in the same layout, to 1e-5 in others, from the checkpoint that was meant."""
import math
import shutil
import subprocess
import sys
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BUILD, TINY, RunTestCase, main, run  # noqa: E402


class ResumeTestCase(RunTestCase):
    def halves(self, layout, model=None, **sections):
        """An uninterrupted run of 10 steps, and another ended at 5. Returns both run directories and a config."""
        sections.setdefault("train", {}).setdefault("steps", 10)
        more = {"model": model} if model else {}
        config = self.config("run", **more, **sections)
        whole, half = self.dir / "whole", self.dir / "half"
        self.train(config, layout, "--set", f"run.dir={whole}")
        self.train(config, layout, "--set", f"run.dir={half}", "--stop-after", "5")
        return config, whole, half

    def same_layout(self, layout, **sections):
        config, whole, half = self.halves(layout, **sections)
        self.train(config, layout, "--set", f"run.dir={half}")
        self.assert_losses(self.losses(whole), self.losses(half), 0, layout)
        self.assertEqual(self.fingerprints(self.checkpoint(whole, 10)), self.fingerprints(self.checkpoint(half, 10)))
        self.assertEqual(self.samples(whole), self.samples(half))

    def test_ResumeSameLayoutBitForBit(self):  # timeout=200
        for layout in ("t1d1z0", "t2d2z1", "t1d3z0"):
            with self.subTest(layout=layout):
                self.same_layout(layout)
                shutil.rmtree(self.dir / "whole"), shutil.rmtree(self.dir / "half")

    def test_ResumeOtherLayoutsDirectlyAndThroughReshard(self):  # timeout=300
        config, whole, half = self.halves("t2d2z1")
        expected = self.losses(whole)
        for layout in ("t1d1z0", "t4d1z1", "t1d3z1", "t2d3z0"):
            with self.subTest(layout=layout):
                direct, through = self.dir / f"direct-{layout}", self.dir / f"through-{layout}"
                shutil.copytree(half, direct)
                self.train(config, layout, "--set", f"run.dir={direct}")
                self.assert_losses(expected, self.losses(direct), 1e-5, f"direct {layout}")
                resharded = self.reshard(self.checkpoint(half, 5), layout, f"resharded-{layout}")
                self.verified(resharded)
                self.train(config, layout, "--set", f"run.dir={through}", "--resume", resharded)
                found = self.losses(through)
                self.assert_losses({s: l for s, l in expected.items() if s > 5}, found, 1e-5, f"through {layout}")
                # The same state in the same layout: how it came there makes no difference to a single bit.
                self.assertEqual({s: l for s, l in self.losses(direct).items() if s > 5}, found)

    def test_B54_B56_StepAndBetasRestored(self):  # timeout=150
        """Resume at step 3, where Adam's bias correction matters, z0 and z1."""
        for layout in ("d2z0", "d2z1"):
            config = self.config("run", TINY, train={"steps": 8, "global_batch": 4}, optim={"beta2": 0.999})
            whole, half = self.dir / f"whole-{layout}", self.dir / f"half-{layout}"
            self.train(config, layout, "--set", f"run.dir={whole}")
            self.train(config, layout, "--set", f"run.dir={half}", "--stop-after", "3")
            self.train(config, layout, "--set", f"run.dir={half}")
            self.assert_losses(self.losses(whole), self.losses(half), 0, layout)

    def test_B56_OtherBetasAreSaid(self):
        config = self.config("run", TINY, train={"global_batch": 4})
        self.train(config, "t1", "--stop-after", "2")
        result = self.train(config, "t1", "--set", "optim.beta2=0.999")
        self.assertIn("beta2", result.stderr + result.stdout)

    def test_B58_B59_LearningRateIsAFunctionOfTheStep(self):  # timeout=150
        config = self.config("run", TINY, train={"steps": 20, "global_batch": 4},
                             optim={"lr": 1e-3, "warmup_steps": 10, "schedule": "cosine"})
        self.train(config, "t1", "--stop-after", "6")
        self.train(config, "t1", "--stop-after", "10")
        rates = {s: r["lr"] for s, r in self.steps(self.dir / "run").items()}
        self.assertAlmostEqual(rates[7], 0.7e-3, delta=1e-12)
        # Overriding the schedule means all of the new one.
        self.train(config, "t1", "--set", "optim.lr=1e-4", "--set", "optim.min_lr=0")
        for step, record in self.steps(self.dir / "run").items():
            if step > 10:
                expected = 1e-4 * 0.5 * (1 + math.cos(math.pi * (step - 10) / (20 - 10)))
                self.assertAlmostEqual(record["lr"], expected, delta=1e-9)

    def test_B63_B79_NoStepTwiceOverThreeResumes(self):  # timeout=150
        config = self.config("run", TINY, train={"steps": 20, "global_batch": 4}, checkpoint={"every": 1})
        for end in ("1", "5", "10", "20"):
            self.train(config, "d2z1", "--stop-after", end)
        records = self.records(self.dir / "run", "step")
        self.assertEqual([r["step"] for r in records], list(range(1, 21)))
        whole = self.config("whole", TINY, train={"steps": 20, "global_batch": 4})
        self.train(whole, "d2z1")
        self.assertEqual(self.samples(self.dir / "whole"), self.samples(self.dir / "run"))
        self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / "run"), 0)

    def test_B64_LastStepIsSavedOnce(self):  # timeout=150
        config = self.config("run", TINY, train={"steps": 23, "global_batch": 4}, checkpoint={"every": 10})
        self.train(config, "t1", "--stop-after", "17")
        self.train(config, "t1")
        steps = [c["step"] for c in self.ok("list", self.dir / "run", "--json").json()["checkpoints"]]
        self.assertEqual(steps[0], 23)
        self.assertIn(20, steps)
        before = sorted((p, p.stat().st_mtime_ns) for p in (self.dir / "run" / "checkpoints").rglob("*.h5"))
        result = self.train(config, "t1")
        after = sorted((p, p.stat().st_mtime_ns) for p in (self.dir / "run" / "checkpoints").rglob("*.h5"))
        self.assertEqual(before, after, result)
        saved = [r["step"] for r in self.records(self.dir / "run", "checkpoint")]
        self.assertEqual(len(saved), len(set(saved)))

    def test_B65_WeightsOnlyIsSaidAndAllowed(self):  # timeout=150
        config = self.config("run", TINY, train={"global_batch": 4})
        self.train(config, "t1", "--stop-after", "3")
        stripped = self.dir / "weights"
        self.ok("reshard", self.checkpoint(self.dir / "run", 3), stripped, "--weights-only")
        self.assertEqual(self.ok("inspect", stripped, "--json").json()["kinds"], ["param"])
        other = self.config("other", TINY, train={"global_batch": 4})
        result = self.train(other, "t1", "--resume", stripped, status=2)
        self.assertIn("--accept-changes", result.stderr)
        self.train(other, "t1", "--resume", stripped, "--accept-changes")
        self.assertEqual(min(self.steps(self.dir / "other")), 4)

    def test_B66_AnExplicitStepWinsOrFails(self):  # timeout=150
        config = self.config("run", TINY, train={"steps": 20, "global_batch": 4}, checkpoint={"every": 5})
        self.train(config, "t1", "--stop-after", "15")
        run = self.dir / "run"
        result = self.train(config, "t1", "--resume", self.checkpoint(run, 12), status=2)
        self.assertIn("step-0000000012", result.stderr)
        self.assertIn("such as step-0000000015, step-0000000010, step-0000000005", result.stderr)
        self.train(config, "t1", "--resume", self.checkpoint(run, 10), "--stop-after", "11")
        self.assertEqual([r["step"] for r in self.records(run, "step")][-1], 11)
        listed = self.ok("list", run, "--json").json()["checkpoints"]
        self.assertTrue(any(c["step"] == 15 and c["status"] == "superseded" for c in listed), listed)
        self.assertEqual([Path(e["path"]).name.split(".")[0] for e in self.events(run, "superseded")],
                         ["step-0000000015"])

    def test_B142_B101_NeverAFreshStartUnasked(self):  # timeout=150
        config = self.config("run", TINY, train={"global_batch": 4})
        missing = self.train(config, "t1", "--resume", self.dir / "nowhere", status=2)
        self.assertIn("nowhere", missing.stderr)
        empty = self.dir / "empty"
        empty.mkdir()
        self.train(config, "t1", "--resume", empty, status=2)
        a_file = self.dir / "file"
        a_file.write_text("x")
        self.train(config, "t1", "--resume", a_file, status=2)
        self.train(config, "t1", "--resume", "must", status=1)
        fresh = self.train(config, "t1", "--stop-after", "2")
        self.assertIn("fresh", fresh.stdout + fresh.stderr)
        self.train(config, "t1", "--resume", "never", status=2)
        # Damage the only one: some but none valid is an error, not a new beginning.
        (self.checkpoint(self.dir / "run", 2) / "manifest.h5").unlink()
        self.train(config, "t1", status=1)
        other = self.config("other", dict(TINY, hidden=24), train={"global_batch": 4})
        self.train(other, "t1", "--stop-after", "1")
        result = self.train(config, "t1", "--set", f"run.dir={self.dir / 'third'}", "--resume", self.dir / "other", status=2)
        self.assertIn("hidden", result.stderr)

    def test_FilesOfAnotherRunAmongOurOwnAreDamage(self):
        """A manifest of another run would be refused for its seed; among other files of this run it is passed over."""
        for name, seed in (("run", 7), ("other", 8)):
            self.config(name, TINY, train={"steps": 4, "seed": seed}, checkpoint={"every": 2, "codec": "none"})
            self.train(self.dir / f"{name}.toml", "d2z1")
        newest, own = self.checkpoint(self.dir / "run", 4), self.dir / "own"
        newest.rename(own)
        shutil.copytree(self.checkpoint(self.dir / "other", 4), newest)
        result = run("train", self.dir / "run.toml", "--nproc", "2")  # whole: nothing is guessed
        self.assertEqual(result.status, 2, result)
        self.assertIn("train.seed: 8 in the checkpoint", result.stderr)
        shutil.copy(own / "rank-00001.h5", newest / "rank-00001.h5")
        result = self.train(self.dir / "run.toml", "d2z1", "--set", "train.steps=5")
        self.assertRegex(result.stdout, "passed over [^ ]*step-0000000004: .*rank-00001.h5")
        self.assertRegex(result.stdout, "resuming from [^ ]*step-0000000002 ")

    def test_B144_FirstLossAfterReshardContinues(self):  # timeout=150
        config, whole, half = self.halves("d4z1")
        target = self.dir / "resharded"
        self.ok("reshard", self.checkpoint(half, 5), target, "--layout", "d2z1")
        self.train(config, "d2z1", "--set", f"run.dir={self.dir / 'on'}", "--resume", target)
        stored = self.ok("inspect", target, "--json").json()["training"]["loss"]
        self.assertEqual(stored, self.losses(half)[5])
        self.assert_losses({6: self.losses(whole)[6]}, {6: self.losses(self.dir / "on")[6]})

    def test_B144_ScrambledWeightsAreTold(self):
        """One matrix in an order of chance, in a checkpoint that every digest calls good: the first loss shows it."""
        data = self.dir / "counting.bin"
        data.write_bytes(array("H", (i % 33 for i in range(4000))).tobytes())
        config = self.config("run", TINY, data=data, train={"steps": 60}, optim={"lr": 2e-2}, checkpoint={"every": 50})
        self.train(config, "d2z1")
        self.assertLess(self.losses(self.dir / "run")[50], 1.5)
        source = self.checkpoint(self.dir / "run", 50)
        for scrambled in (False, True):
            if scrambled:
                matrix = max(self.ok("inspect", source, "--tensors", "--json").json()["tensors"], key=lambda t: math.prod(t["shape"]))
                made = subprocess.run([BUILD / "bin" / "scramble", source, self.dir / "scrambled", matrix["name"]], check=True,
                                      stdout=subprocess.PIPE, text=True, timeout=60)
                source = made.stdout.strip()
                self.verified(source)
            on = self.dir / f"on-{scrambled}"
            result = self.train(config, "d2z1", "--set", f"run.dir={on}", "--resume", source)
            self.assertEqual("warning: step 51: the loss is" in result.stdout, scrambled, result)
            self.assertEqual([e["what"] for e in self.events(on, "spike")][:1], ["loss after resume"] if scrambled else [])

    def test_B10_ReplicatedTensorsSurviveTpChanges(self):  # timeout=150
        config = self.config("run", train={"steps": 4})
        self.train(config, "t2z1", "--stop-after", "3")
        source = self.checkpoint(self.dir / "run", 3)
        for layout in ("t1z1", "t4"):
            target = self.dir / layout
            self.ok("reshard", source, target, "--layout", layout)
            result = self.ok("diff", source, target, "--state", "--json").json()
            self.assertTrue(result["equal"], result)
            self.train(config, layout, "--set", f"run.dir={self.dir / ('on-' + layout)}", "--resume", target)
        self.assert_losses(self.losses(self.dir / "on-t1z1"), self.losses(self.dir / "on-t4"))

    def test_B102_OneRestartPathForAllRankCounts(self):  # timeout=200
        config = self.config("run", TINY, train={"steps": 4, "global_batch": 12})
        self.ok("train", config, "--nproc", "4", "--set", "parallel.dp=0", "--stop-after", "2")
        losses = []
        for ranks in (4, 2, 3, 1):
            copy = self.dir / f"copy-{ranks}"
            shutil.copytree(self.dir / "run", copy)
            self.ok("train", config, "--nproc", ranks, "--set", "parallel.dp=0", "--set", f"run.dir={copy}")
            losses.append(self.losses(copy))
        for other in losses[1:]:
            self.assert_losses(losses[0], other)


if __name__ == "__main__":
    main()
