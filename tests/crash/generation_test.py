"""GENERATION lost or damaged in a run that has checkpoints: nothing old may outrank what comes after."""
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, RunTestCase, main, run, sign  # noqa: E402


class GenerationTestCase(RunTestCase):
    def test_ALostGenerationIsTakenFromTheCheckpoints(self):  # timeout=200
        for name, contents in (("gone", None), ("empty", b""), ("torn", b'{"run":"x'), ("bytes", bytes(range(256))),
                               ("last", sign({"run": "u", "generation": 2**64 - 1}).encode()),
                               ("negative", sign({"run": "u", "generation": -1}).encode())):
            with self.subTest(name):
                config = self.config(name, TINY, train={"steps": 6}, checkpoint={"every": 2})
                self.train(config, "t1d1z0", "--stop-after", "2")
                self.train(config, "t1d1z0", "--stop-after", "4")
                path = self.dir / name / "GENERATION"
                before = json.loads(path.read_text().splitlines()[0])
                self.assertEqual(before["generation"], 1)
                path.unlink()
                if contents is not None:
                    path.write_bytes(contents)
                result = self.train(config, "t1d1z0")
                self.assertRegex(result.stderr, r"\Ashardwright: warning: [^\n]*/GENERATION: [^\n]*; going on as generation 2 "
                                                r"of run [^\n]*\n\Z")
                after = json.loads(path.read_text().splitlines()[0])
                self.assertEqual(after, {"run": before["run"], "generation": 2})
                self.assertEqual([r["generation"] for r in self.steps(self.dir / name).values()], [0, 0, 1, 1, 2, 2])

    def test_ALostGenerationIsTakenFromTheRecordsToo(self):  # timeout=100
        config = self.config("run", TINY, train={"steps": 4}, checkpoint={"every": 0}, elastic={"enabled": False})
        for _ in range(2):
            run("train", config, env={"SHARDWRIGHT_FAULT": "step.begin:step=3=kill"})
        shutil.rmtree(self.dir / "run" / "checkpoints")
        (self.dir / "run" / "GENERATION").unlink()
        self.train(config)
        self.assertEqual([r["generation"] for r in self.steps(self.dir / "run").values()], [2, 2, 2, 2])

    def test_AReshardedCheckpointStartsARunWithItsOwnName(self):  # timeout=100
        """A new run that is given a checkpoint under checkpoints/ goes on with that checkpoint's run, a generation later."""
        config = self.config("run", TINY, train={"steps": 4})
        self.train(config, "t1d1z0", "--stop-after", "2")
        other = self.config("other", TINY, train={"steps": 4})
        target = self.checkpoint(self.dir / "other", 2)
        self.ok("reshard", self.dir / "run", target, "--layout", "d2")
        self.train(other, "d2")
        self.assertEqual([r["generation"] for r in self.steps(self.dir / "other").values()], [1, 1])
        self.assertEqual(json.loads((self.dir / "other" / "GENERATION").read_text().splitlines()[0])["run"],
                         self.ok("inspect", target, "--json").json()["run"])


if __name__ == "__main__":
    main()
