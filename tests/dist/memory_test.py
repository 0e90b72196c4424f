"""What a resume and a reshard hold in memory, on models big enough to tell."""
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import RunTestCase, layout_sets, main  # noqa: E402

MIB = 1 << 20
FLOAT = 4


def model(layers, hidden, vocab):
    return dict(arch="gpt2", layers=layers, hidden=hidden, heads=8, ffn=4 * hidden, vocab=vocab, seq_len=8, tie_embeddings=True)


class MemoryTestCase(RunTestCase):
    def filled(self, name, what, layout):
        """A labelled checkpoint, and its number of parameters."""
        path = self.labelled(what, layout, name, "--step", "1", timeout=600)
        return path, self.ok("inspect", path, "--json").json()["parameters"]

    def peaks(self, checkpoint, what, layout):
        """Peak resident bytes of each rank that has loaded the checkpoint and is about to begin the next step."""
        config = self.config(f"resume-{layout}", what, train={"steps": 2, "seed": 1, "global_batch": 24})
        started = self.start("train", config, *layout_sets(layout), "--resume", checkpoint, "--accept-changes",
                             env={"SHARDWRIGHT_FAULT": "step.begin:step=2=delay(600000)"})
        log = self.dir / f"resume-{layout}" / "events.jsonl"
        deadline = time.monotonic() + 600
        while not (log.exists() and '"resume"' in log.read_text()):
            self.assertIsNone(started.process.poll(), started._text())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
        before, peaks = None, []
        while before is None or peaks != before:  # until nothing is added any more
            before = peaks
            time.sleep(3)
            peaks = [int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024
                     for pid in started.workers().values()]
        started.end()
        return peaks

    def test_B132_ARankLoadsWhatItHolds(self):  # long
        """50 M parameters, eight ranks, ZeRO 1: values, gradients and the buffer in which they are reduced, an eighth (sixth) of
        the moments and of the reduced gradients, and 200 MiB for all else. The moments of all ranks would be 350 MB more."""
        what = model(16, 512, 512)
        checkpoint, parameters = self.filled("d8z1", what, "d8z1")
        self.assertGreater(parameters, 50e6)
        for dp in (8, 6):
            peaks = self.peaks(checkpoint, what, f"d{dp}z1")
            self.assertEqual(len(peaks), dp)
            held = FLOAT * parameters * (3 + 3 / dp)
            shard = FLOAT * parameters * (1 + 2 / dp)
            print(f"d{dp}z1: peak {max(peaks) / 1e6:.0f} MB, held {held / 1e6:.0f} MB")
            self.assertLess(max(peaks), held + 200 * MIB)
            self.assertLess(max(peaks), 2 * shard + 300e6)

    def test_B133_ReshardKeepsToItsMemory(self):  # long
        """Peak memory is set by --max-memory, not by the model: 306 to 620 MB of state, twice the model by width and by depth, and
        a tensor bigger than the limit all stay near 67 MB. Below the limit the peak varies from run to run (51 and 62 MB were
        measured for the same checkpoint), so it is compared with the limit and not with another run's."""
        limit = 64 * MIB
        peaks = {}
        for name, what in (("once", model(8, 512, 512)), ("wider", model(8, 720, 512)),
                           ("deeper", model(16, 512, 512)), ("tensor", model(1, 512, 50_000))):
            checkpoint, parameters = self.filled(name, what, "d8z1")
            report = self.ok("reshard", checkpoint, self.dir / f"{name}-out", "--layout", "t2p1d3z1", "--max-memory", str(limit), "--json",
                             timeout=600, prefix=("prlimit", "--as=536870912")).json()
            self.assertTrue(report["proof"]["ok"])
            peaks[name] = report["peak_rss_bytes"]
            print(f"{name}: {parameters * 3 * FLOAT / 1e6:.0f} MB of state, peak {peaks[name] / 1e6:.0f} MB")
        self.assertGreater(50_000 * 512 * FLOAT, limit)
        for name, peak in peaks.items():
            self.assertLess(peak, 1.25 * limit, name)


if __name__ == "__main__":
    main()
