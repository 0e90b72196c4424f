"""tests/bench/reshard_peers.py runs with what is installed here, compares what each made, and leaves nothing behind."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import RunTestCase, main  # noqa: E402

PEERS = Path(__file__).resolve().parents[1] / "bench" / "reshard_peers.py"


class ReshardPeersTestCase(RunTestCase):
    def peers(self, *arguments):
        return subprocess.Popen([sys.executable, str(PEERS), "--dir", str(self.dir), *map(str, arguments)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finished(self, process):
        out, err = process.communicate(timeout=100)
        self.assertEqual(os.listdir(self.dir), [])
        return process.returncode, out, err

    def test_ReshardPeersCompareTheSameState(self):
        status, out, err = self.finished(self.peers("--size", "14MiB", "--rounds", 1, "--json"))
        self.assertEqual((status, err), (0, ""))
        table = json.loads(out)
        ways = {way["name"]: way for way in table["ways"]}
        for name in ("plain durable copy", "shardwright, d4z1 to d2z1", "shardwright, d4z1 to t1"):
            self.assertGreater(ways[name]["durable_s"], 0, name)
            self.assertGreater(ways[name]["written_bytes"], 0.5 * table["raw_bytes"], name)
        self.assertEqual(ways["shardwright, d4z1 to d2z1"]["files"], 4)  # two shards, manifest, COMMIT
        self.assertEqual(ways["plain durable copy"]["files"], 1)
        self.assertTrue(9 << 20 <= table["raw_bytes"] <= 14 << 20, table)
        # What is not installed is said, what is was measured.
        for package, name in (("torch", "DCP, 4 ranks to 2"), ("deepspeed", "DeepSpeed's ds_to_universal")):
            self.assertEqual(package in table["versions"] and "torch" in table["versions"], name in ways, table)
        self.assertEqual(len(table["missing"]), 0 if len(ways) == 5 else 1, table)

    def test_ReshardPeersLeaveNothingWhenEnded(self):
        process = self.peers("--size", "10MiB", "--rounds", 1000)
        limit = time.monotonic() + 60
        while not list(self.dir.glob("*/source/COMMIT")):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finished(process)[0], 1)

    def test_ReshardPeersSayWhatIsWrongInOneLine(self):
        for wrong, told in ((("--size", "much"), "64MiB is right"), (("--dir", self.dir / "none"), "none"),
                            (("--size", "1MiB"), "is too little"), (("--build", self.dir / "none"), "none")):
            status, out, err = self.finished(self.peers("--size", "10MiB", *wrong))
            self.assertNotEqual(status, 0, wrong)
            self.assertEqual(out, "", wrong)
            self.assertIn(told, err.splitlines()[-1], wrong)
            self.assertNotIn("Traceback", err, wrong)


if __name__ == "__main__":
    main()
