"""tests/README.md says what CTest knows."""
import os
import subprocess
import sys
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[1] / "tools" / "bug_case_map.py"
BUILD = os.environ.get("SHARDWRIGHT_BUILD", str(Path(__file__).resolve().parents[2] / "build" / "release"))


class ReadmeTest(unittest.TestCase):
    def test_TheMapOfBugCasesIsUpToDate(self):
        done = subprocess.run([sys.executable, TOOL, BUILD, "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
