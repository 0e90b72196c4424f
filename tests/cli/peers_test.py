"""tests/bench/peers.py runs with what is installed here, compares what it loads, and leaves nothing behind."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, RunTestCase, main  # noqa: E402

PEERS = Path(__file__).resolve().parents[1] / "bench" / "peers.py"


class PeersTestCase(RunTestCase):
    def peers(self, *arguments):
        (self.dir / "scratch").mkdir(exist_ok=True)
        return subprocess.Popen([sys.executable, str(PEERS), "--dir", str(self.dir / "scratch"), *map(str, arguments)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finished(self, process):
        out, err = process.communicate(timeout=100)
        self.assertEqual(os.listdir(self.dir / "scratch"), [])
        return process.returncode, out, err

    def test_PeersCompareATrainedBf16State(self):
        self.train(self.config("run", model=TINY, train={"steps": 3, "dtype": "bf16"}), "t1")
        status, out, err = self.finished(self.peers("--state", self.dir / "run", "--rounds", 1, "--copies", 3, "--json"))
        self.assertEqual((status, err), (0, ""))
        table = json.loads(out)
        ways = {way["name"]: way for way in table["ways"]}
        for name in ("plain durable write", "plain, O_DIRECT", "h5py, no filter", "shardwright, auto", "shardwright, fast",
                     "shardwright, none", "shardwright, auto, all 14 B", "shardwright, fast, asynchronous"):
            self.assertGreater(ways[name]["save_gbps"], 0, name)
            self.assertGreater(ways[name]["load_gbps"], 0, name)
        self.assertEqual(table["type"], "bf16")
        parameters = 33 * 12 + 8 * 12 + 2 * (4 * 12 + 4 * 12 * 12 + 4 * 12 + 2 * 12 * 21 + 21 + 12) + 2 * 12
        self.assertEqual(table["raw_bytes"], 3 * 14 * parameters)
        self.assertEqual(ways["plain durable write"]["stored_ratio"], 1)
        self.assertEqual(ways["plain, without the bf16 weights"]["stored_ratio"], 12 / 14)
        stall = ways["shardwright, fast, asynchronous"]["stall_ms"]
        self.assertIsNone(ways["shardwright, fast"]["stall_ms"], "lent memory: the caller waits")
        self.assertTrue(0 < stall["call"] <= stall["staged"] <= stall["whole"], stall)

    def test_PeersTableOfARandomState(self):
        status, out, err = self.finished(self.peers("--size", "60KiB", "--rounds", 1, "--only", "plain*", "--only", "*fast*"))
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"random fp32 state of 0 MB, 3 tensors; 1 rounds")
        self.assertRegex(out, r"(?m)^plain durable write +\d.* 1\.00 ")
        self.assertRegex(out, r"(?m)^shardwright, fast, asynchronous .*\d, \d+, \d+$")

    def test_PeersLeaveNothingWhenEnded(self):
        process = self.peers("--size", "1MiB", "--rounds", 1000, "--only", "*none")
        limit = time.monotonic() + 60
        while not os.listdir(self.dir / "scratch"):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finished(process)[0], 1)

    def test_PeersSayWhatIsWrongInOneLine(self):
        for wrong, told in ((("--state", self.dir / "none"), "does not exist"), (("--size", "much"), "64MiB is right"),
                            (("--dir", self.dir / "none"), "none"), (("--only", "nothing"), "matches no way")):
            status, out, err = self.finished(self.peers("--size", "60KiB", *wrong))
            self.assertNotEqual(status, 0, wrong)
            self.assertEqual(out, "", wrong)
            self.assertIn(told, err.splitlines()[-1], wrong)
            self.assertNotIn("Traceback", err, wrong)


if __name__ == "__main__":
    main()
