"""What a reshard shows while it works: a bar with rate and time left on a terminal, and nothing anywhere else."""
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BINARY, RunTestCase, TINY, main  # noqa: E402


class ReshardProgressTestCase(RunTestCase):
    def test_AReshardShowsRateAndTimeLeft(self):
        source = self.labelled(dict(TINY, hidden=39, ffn=12007), "t3p1d1z0")
        ours, theirs = pty.openpty()
        process = subprocess.Popen([BINARY, "reshard", source, self.dir / "target", "--layout", "t1p2d2z1", "--max-memory", "64MiB"],
                                   stderr=theirs, stdout=subprocess.PIPE, env=dict(os.environ, SHARDWRIGHT_FAULT="shard.mid=delay(150)"))
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the last writer has gone
                break
            if not piece:
                break
            shown += piece
        self.assertEqual(process.wait(60), 0, shown)
        process.stdout.close()
        os.close(ours)
        self.assertRegex(shown.decode(), r"reshard \[#+ +\] +\d+ % of [\d.]+ MiB, [\d.]+ [KMG]iB/s, \d+ s left", shown)
        self.assertTrue(shown.decode().endswith("\r\033[K"), "the bar is gone at the end")

    def test_AReshardIntoAPipeShowsNoBar(self):
        source = self.labelled(TINY, "t3p1d1z0")
        result = self.ok("reshard", source, self.dir / "target", "--layout", "t1p2d2z1",
                         env={"SHARDWRIGHT_FAULT": "shard.mid=delay(150)"})
        self.assertIsNone(re.search(r"%|left", result.stderr), result)


if __name__ == "__main__":
    main()
