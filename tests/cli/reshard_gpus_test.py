"""`reshard --gpus N`: the planner's best layout for N, said in one line, or a reason in one line."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import L1, RunTestCase, T1, main, run  # noqa: E402


class ReshardGpusTestCase(RunTestCase):
    def test_ReshardTakesThePlannersBestLayout(self):
        source = self.labelled(L1, "t2p3d1z0")  # its batch is 12 sequences, one at a time
        config = self.config("as-trained", model=L1, train={"global_batch": 12, "micro_batch": 1, "dtype": "fp32"})
        for gpus in (1, 3, 5, 7, 12):
            target = self.dir / f"target-{gpus}"
            if gpus == 7:  # neither heads nor batch nor layers
                line = self.fails(2, "reshard", source, target, "--gpus", gpus).stderr
                self.assertRegex(line, r"\Ashardwright: error: --gpus 7: no layout is legal in training \([^\n]*dp 7[^\n]*\n\Z")
                self.assertFalse(target.exists())
                continue
            best = self.ok("plan", config, "--gpus", gpus, "--json").json()
            planned = self.ok("reshard", source, target, "--gpus", gpus, "--plan-only", "--json").json()
            self.assertFalse(target.exists())
            report = self.ok("reshard", source, target, "--gpus", gpus, "--json").json()
            self.assertEqual(report["plan"], planned["plan"])
            self.assertEqual(report["plan"]["gpus"], gpus)
            self.assertTrue(report["plan"]["fits"])
            self.assertEqual((report["plan"]["global_batch"], report["plan"]["micro_batch"]), (12, 1))
            self.assertEqual(report["to"]["tp"] * report["to"]["pp"] * report["to"]["dp"], gpus)
            self.assertEqual(report["to"]["string"], report["plan"]["layout"])
            self.assertEqual(report["plan"]["legal"], best["legal"], gpus)
            self.assertEqual(report["to"]["string"], min(
                (x for x in best["layouts"] if x["fits"]), key=lambda x: x["step_s"])["layout"]["string"])
            self.labels_are_right(target)

    def test_ReshardSaysWhatThePlannerChose(self):
        source = self.labelled(T1, "t3p1d1z0")
        for more in ((), ("--plan-only",)):
            result = self.ok("reshard", source, self.dir / "target", "--gpus", 2, *more)
            self.assertEqual(result.stderr, "")
            first, second = result.stdout.splitlines()[:2]
            self.assertRegex(first, r"^plan: t\dp\dd\dz\d, the best of \d+ legal layouts of 2 GPUs with 80\.0 GiB: \S+ s a step by estimate")
            self.assertIn(f"t3p1d1z0 -> {first.split()[1].rstrip(',')}, step", second)
            if not more:
                self.ok("verify", self.dir / "target")
                break
        self.assertIsNone(self.ok("reshard", source, self.dir / "plain", "--layout", "d2", "--json").json().get("plan"))

    def test_ReshardPlansForTheConvertedModelAndForPresets(self):
        source = self.labelled(T1, "t3p1d1z0")
        report = self.ok("reshard", source, self.dir / "larger", "--gpus", 3, "--vocab", 41, "--json").json()
        self.assertEqual(report["to"]["string"], report["plan"]["layout"])
        self.ok("verify", self.dir / "larger")
        report = self.ok("reshard", "preset:bloom-176b", "--from", "t4p12d8z1", "--gpus", 384, "--plan-only", "--json").json()
        best = self.ok("plan", "bloom-176b", "--gpus", 384, "--top", 1, "--json").json()["layouts"][0]
        self.assertEqual(report["to"]["string"], best["layout"]["string"])
        self.assertEqual(report["warnings"], [])

    def test_ReshardWarnsWhereNothingFits(self):
        result = self.ok("reshard", "preset:megatron-1t", "--from", "t8p64d6z1", "--gpus", 1, "--plan-only", "--json")
        self.assertRegex(result.stderr, r"\Ashardwright: warning: --gpus 1: no layout fits; t1p1d1z0, [^\n]*\n\Z")
        report = result.json()
        self.assertFalse(report["plan"]["fits"])
        self.assertEqual([f"shardwright: warning: {w}\n" for w in report["warnings"]], [result.stderr])

    def test_GpusBesideALayoutAreRefused(self):
        source = self.labelled(T1, "t3p1d1z0")
        for layout in (("--layout", "d2"), ("--tp", 1), ("--zero", 0), ("--stages", "1,1"), ("--rank-order", "dpt")):
            result = self.fails(2, "reshard", source, self.dir / "out", "--gpus", 2, *layout)
            self.assertEqual(result.stderr, "shardwright: error: --gpus: is given beside a layout; give the one or the other\n")
        for wrong in (0, -3, 100001, "two"):
            result = run("reshard", source, self.dir / "out", f"--gpus={wrong}")
            self.assertEqual(result.status, 2, wrong)
            self.assertRegex(result.stderr, r"\Ashardwright: error: [^\n]*--gpus[^\n]*\n\Z", wrong)
        self.assertEqual([p.name for p in self.dir.iterdir()], ["labels"])


if __name__ == "__main__":
    main()
