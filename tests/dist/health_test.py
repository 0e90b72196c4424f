"""What a run does when a loss is not finite, and what it says of one that leaps."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, RunTestCase, main  # noqa: E402

SPOILED = {"SHARDWRIGHT_FAULT": "step.loss:rank=1:step=5:nth=1=nan"}


class HealthTestCase(RunTestCase):
    def tiny(self, name, policy, **more):
        return self.config(name, TINY, train={"steps": 8, "global_batch": 6}, checkpoint={"every": 2},
                           health={"on_nonfinite": policy, **more})

    def all_samples(self, name):
        """Samples of each record in the order of the data, by what became of them."""
        found = [(r["samples"], r["type"], r.get("reason")) for kind in ("step", "skipped") for r in self.records(self.dir / name, kind)]
        return sorted(set(found), key=lambda r: r[0])

    def test_NonFiniteStopsUnlessAskedOtherwise(self):
        config = self.tiny("run", "stop")
        result = self.train(config, "d2z1", status=1, env=SPOILED)
        self.assertRegex(result.stderr, "error: step 5: the loss is nan and the gradient norm .*; finite ones .*on_nonfinite")
        self.assertTrue(self.ok("list", self.dir / "run", "--json").json()["newest_valid"].endswith("step-0000000004"))

    def test_ABatchIsSkipped(self):  # timeout=150
        """The eight steps are made all the same, of the other batches; a resume after it goes on as if uninterrupted."""
        config = self.tiny("run", "skip")
        self.train(config, "d2z1", env=SPOILED)
        self.assertEqual(self.all_samples("run"), [(6 * n, "skipped" if n == 5 else "step", "nonfinite" if n == 5 else None)
                                                   for n in range(1, 10)])
        newest = self.ok("inspect", self.dir / "run", "--json").json()
        self.assertEqual((newest["step"], newest["samples"], newest["training"]["skipped_steps"]), (8, 54, 1))
        other = self.tiny("other", "skip")
        self.train(other, "d2z1", "--stop-after", "6", env=SPOILED)
        self.train(other, "d2z1")
        self.assert_losses(self.losses(self.dir / "run"), self.losses(self.dir / "other"), 0)
        self.same_state(self.checkpoint(self.dir / "run", 8), self.checkpoint(self.dir / "other", 8))

    def test_SkippingHasAnEnd(self):
        config = self.tiny("run", "skip", max_skips=3)
        result = self.train(config, "d2", status=1, env={"SHARDWRIGHT_FAULT": "step.loss:step=5=nan"})
        self.assertIn("step 5: the loss is nan", result.stderr)
        self.assertEqual(len(self.records(self.dir / "run", "skipped")), 3)

    def test_TheRunGoesBackAndPassesTheBatchOver(self):  # timeout=150
        """As if the batch had been skipped at once, bit for bit; pipelines and uneven data parallel ranks too."""
        for layout in ("p2d2z1", "d3z1"):
            back, skipped = self.tiny(f"back-{layout}", "rollback"), self.tiny(f"skip-{layout}", "skip")
            self.train(back, layout, env=SPOILED)
            self.train(skipped, layout, env=SPOILED)
            run = self.dir / f"back-{layout}"
            self.assertEqual([(e["step"], e["samples"]) for e in self.events(run, "rolled_back")], [(4, 24)])
            self.assertEqual([r["reason"] for r in self.records(run, "skipped")], ["rollback"])
            self.assert_losses(self.losses(self.dir / f"skip-{layout}"), self.losses(run), 0)
            self.same_state(self.checkpoint(self.dir / f"skip-{layout}", 8), self.checkpoint(run, 8))

    def test_GoingBackNeedsACheckpointAndHasAnEnd(self):
        config = self.tiny("run", "rollback")
        result = self.train(config, "d2", "--set", "checkpoint.every=0", status=1, env=SPOILED)
        self.assertRegex(result.stderr, "step 5: the loss is nan.*going back: .*no checkpoint")
        config = self.tiny("often", "rollback", max_skips=2)
        self.train(config, "d2", status=1, env={"SHARDWRIGHT_FAULT": "step.loss:step=5=nan"})
        self.assertEqual(len(self.events(self.dir / "often", "rolled_back")), 2)
        self.verified(self.checkpoint(self.dir / "often", 4))

    def test_B52_APoisonedStateIsLeftBehind(self):
        """The loss and norm of a step are finite and its update is not: no checkpoint of it, and the run goes back or ends."""
        config = self.tiny("run", "rollback", max_skips=1)
        self.train(config, "d2", "--stop-after", "2")
        result = self.train(config, "d2", "--set", "optim.lr=1e300", "--set", "optim.warmup_steps=0", "--set", "checkpoint.every=1",
                            status=1)
        self.assertRegex(result.stderr, "step 3: model.* has a value that is not finite")
        self.assertEqual(len(self.events(self.dir / "run", "rolled_back")), 1)
        self.assertTrue(self.ok("list", self.dir / "run", "--json").json()["newest_valid"].endswith("step-0000000002"))

    def test_SpikesAreTold(self):
        """A rate that is far too high for one stretch makes the loss leap: an event says so."""
        config = self.config("run", TINY, train={"steps": 12, "global_batch": 6}, health={"loss_spike": 1.2})
        self.train(config, "d2", "--stop-after", "10", "--set", "optim.lr=1e-3")
        result = self.train(config, "d2", "--set", "train.steps=30", "--set", "optim.lr=1e-3", "--set", "health.loss_spike=0")
        self.assertEqual(self.events(self.dir / "run", "spike"), [], result)
        config = self.config("high", TINY, train={"steps": 40, "global_batch": 6}, health={"loss_spike": 1.2},
                             optim={"lr": 3, "clip": 0, "warmup_steps": 30, "schedule": "constant"})
        self.train(config, "d2")
        spikes = self.events(self.dir / "high", "spike")
        self.assertTrue(spikes)
        for spike in spikes:
            self.assertGreater(spike["value"], spike["usual"])


if __name__ == "__main__":
    main()
