"""`shardwright bench reshard`: the contract's fields, what they mean, its mistakes, and that it leaves nothing behind."""
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BINARY, RunTestCase, main  # noqa: E402


class BenchReshardTestCase(RunTestCase):
    def bench(self, *arguments):
        document = self.ok("bench", "reshard", "--dir", self.dir, "--rounds", 1, "--json", *arguments).json()
        self.assertEqual([p.name for p in self.dir.iterdir()], [])
        return document

    def test_BenchReshardJson(self):
        document = self.bench("--size", "14MiB", "--from", "t2p1d3z1", "--to", "t3p2d1z0", "--jobs", 2)
        self.assertEqual(document["from"]["string"], "t2p1d3z1")
        self.assertEqual(document["to"]["string"], "t3p2d1z0")
        self.assertTrue(9 << 20 <= document["raw_bytes"] <= 14 << 20, document)
        self.assertTrue(document["raw_bytes"] / 2 < document["stored_bytes"] < document["raw_bytes"], document)
        for name in ("copy_s", "reshard_s", "seconds_per_gb", "ratio_to_copy", "ratio_to_early_copy"):
            self.assertGreater(document[name], 0, name)
        self.assertAlmostEqual(document["ratio_to_copy"], document["reshard_s"] / document["copy_s"])  # of one round
        self.assertAlmostEqual(document["seconds_per_gb"], document["reshard_s"] / document["stored_bytes"] * 1e9)
        self.assertEqual(document["read_per_needed"], 1)
        self.assertTrue(8 << 20 < document["peak_rss_bytes"] < 576 << 20, document)
        self.assertTrue(0 <= document["passed_through_share"] < 1, document)
        self.assertEqual(document["scaling"], [{"jobs": 2, "seconds": document["reshard_s"]}])

    def test_BenchReshardToTheSameLayoutPassesAllThrough(self):
        document = self.bench("--size", "14MiB", "--from", "p3d2z1", "--to", "p3d2z1", "--jobs", 1, "--max-memory", "64MiB")
        self.assertEqual(document["passed_through_share"], 1)
        self.assertEqual(document["model"]["layers"], 3)

    def test_BenchReshardKeepsItsCheckpoint(self):
        kept = self.dir / "kept"
        arguments = ("bench", "reshard", "--dir", self.dir, "--size", "10MiB", "--rounds", 1, "--jobs", 1, "--keep", kept)
        self.ok(*arguments)
        self.assertEqual([p.name for p in self.dir.iterdir()], ["kept"])
        self.assertTrue(self.ok("verify", kept, "--json").json()["ok"])
        self.assertEqual(self.ok("inspect", kept, "--json").json()["layout"]["string"], "t2p2d2z1")
        self.assertIn("kept is there already", self.fails(2, *arguments).stderr)

    def test_BenchReshardMeasuresEachNumberOfJobs(self):
        result = self.ok("bench", "reshard", "--dir", self.dir, "--size", "10MiB", "--rounds", 1)
        jobs = [int(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("jobs")]
        cores = int(subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout)
        self.assertEqual(jobs, sorted({2 ** k for k in range(12) if 2 ** k < cores} | {cores}))

    def test_BenchReshardSaysMistakesInOneLine(self):
        for wrong, told in ((("--size", "1MiB"), "--size: 1.0 MiB is too little for 2 layers; at least"),
                            (("--from", "t5"), "tp 5: does not divide"), (("--to", "t2p"), "t2p"), (("--to", "z9"), "z"),
                            (("--jobs", 0), "--jobs"), (("--rounds", 0), "--rounds"), (("--dir", self.dir / "none"), "none"),
                            (("--size", "10MiB", "--max-memory", "1MiB"), "--max-memory")):
            place = () if wrong[0] == "--dir" else ("--dir", self.dir)
            result = self.fails(2, "bench", "reshard", *place, *wrong)
            self.assertRegex(result.stderr, r"\Ashardwright: error: [^\n]+\n\Z", wrong)
            self.assertIn(told, result.stderr, wrong)
            self.assertEqual([p.name for p in self.dir.iterdir()], [], wrong)

    def test_WhatAKilledBenchReshardLeftTheNextRemoves(self):
        process = subprocess.Popen([BINARY, "bench", "reshard", "--dir", self.dir, "--size", "10MiB", "--rounds", "1000"])
        limit = time.monotonic() + 60
        while not list(self.dir.glob("*/source/COMMIT")):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        self.assertNotEqual([p.name for p in self.dir.iterdir()], [])
        self.bench("--size", "10MiB", "--jobs", 1)


if __name__ == "__main__":
    main()
