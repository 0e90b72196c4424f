"""tests/run.sh and .ci/run name what failed in their last lines, which is what is left of a log that was cut."""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# Instead of the real ones: `cmake` fails where FAIL_BUILD says so, `ctest` says in each build directory what was put there.
CMAKE = '''#!/bin/sh
for word; do if [ "$word" = "$FAIL_BUILD" ]; then exit 1; fi; done
'''
CTEST = '''#!/bin/sh
while [ "$1" != --test-dir ]; do shift; done
cat "$2/says" 2>/dev/null || { echo "No tests were found!!!"; exit 8; }
! grep -q "tests FAILED" "$2/says"
'''
PASSED = "100% tests passed, 0 tests failed out of 7\n\nTotal Test time (real) =   0.03 sec\n"
FAILED = """ 3/7 Test  #3: B07_First ................***Failed    0.01 sec
A test's own output: 12 - not a name (Failed)
57% tests passed, 3 tests failed out of 7

Label Time Summary:
cli       =   0.03 sec*proc (1 test)

Total Test time (real) =   0.03 sec

The following tests FAILED:
\t  3 - B07_First (Failed)
\t 14 - Shard.B50_Second/1 (SEGFAULT)                    unit
\t177 - Third (Timeout)
Errors while running CTest
"""


class RunScriptTest(unittest.TestCase):
    def setUp(self):
        self.dir = Path(tempfile.mkdtemp(prefix="run-script-"))
        self.addCleanup(shutil.rmtree, self.dir)
        for script in ("tests/run.sh", ".ci/run"):
            (self.dir / script).parent.mkdir()
            shutil.copy(REPOSITORY / script, self.dir / script)
        self.program("cli/install_deps.sh", "")
        self.program("cli/demo.sh", "exit ${FAIL_DEMO:-0}")
        self.program("bin/cmake", CMAKE)
        self.program("bin/ctest", CTEST)
        for name in ("release", "asan"):
            (self.dir / "build" / name).mkdir(parents=True)

    def program(self, name, text):
        path = self.dir / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def last_lines(self, n, status, script="tests/run.sh", *args, says=None, **env):
        for name, text in (says or {}).items():
            (self.dir / "build" / name / "says").write_text(text)
        path = f"{self.dir / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(["bash", script, *args], cwd=self.dir, env={**os.environ, "PATH": path, **env},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout.splitlines()[-n:]

    def test_NamesOfFailedTestsComeLast(self):
        self.assertEqual(self.last_lines(4, 0, says={"release": PASSED, "asan": PASSED}),
                         ["", "release     7 passed, 0 failed", "asan        7 passed, 0 failed", "14 passed, 0 failed"])
        self.assertEqual(self.last_lines(9, 1, says={"release": FAILED, "asan": FAILED}),
                         ["release     4 passed, 3 failed", "asan        4 passed, 3 failed", "8 passed, 6 failed",
                          *(f"failed in {suite}: {name}" for suite in ("release", "asan")
                            for name in ("B07_First (Failed)", "Shard.B50_Second/1 (SEGFAULT)", "Third (Timeout)"))])
        self.assertEqual(self.last_lines(3, 1, "tests/run.sh", "-R", "B07"),
                         [f"failed in release: {name}" for name in
                          ("B07_First (Failed)", "Shard.B50_Second/1 (SEGFAULT)", "Third (Timeout)")])

    def test_WhatAFailedTestPrintedComesBeforeTheSummary(self):
        said = [" 3/7 Test  #3: B07_First ................***Failed    0.01 sec", "A test's own output: 12 - not a name (Failed)"]
        lines = self.last_lines(13, 1, says={"release": PASSED, "asan": FAILED})
        end = lines.index("release     7 passed, 0 failed")
        self.assertEqual(lines[end - 3:end], [*said, ""])
        long = FAILED.replace("A test's own output", "\n".join(f"line {i}" for i in range(100)) + "\nA test's own output")
        lines = self.last_lines(100, 1, "tests/run.sh", "-R", "B07", says={"release": long})
        at = lines.index(said[1], lines.index("Errors while running CTest"))
        self.assertEqual(lines[at - 29], "line 71")
        self.assertNotIn("line 70", lines[lines.index("Errors while running CTest"):])

    def test_WhatKeepsTestsFromRunningIsNamedToo(self):
        self.assertEqual(self.last_lines(2, 1, says={"release": PASSED}),
                         ["7 passed, 1 failed", "failed in asan: ctest itself, with status 8"])
        self.assertEqual(self.last_lines(2, 1, FAIL_BUILD="asan"), ["7 passed, 1 failed", "failed in asan: the build"])
        self.assertEqual(self.last_lines(2, 1, FAIL_BUILD="release"), ["0 passed, 1 failed", "failed in release: the build"])

    def test_ContinuousIntegrationNamesTheStepThatFailed(self):
        passed, failed = {"release": PASSED, "asan": PASSED}, {"asan": FAILED}
        self.assertEqual(self.last_lines(1, 0, ".ci/run", says=passed), ["14 passed, 0 failed"])
        self.assertEqual(self.last_lines(2, 1, ".ci/run", FAIL_DEMO="3"),
                         ["14 passed, 0 failed", "failed: the demo (bash cli/demo.sh), with status 3"])
        self.assertEqual(self.last_lines(3, 1, ".ci/run", says=failed, FAIL_DEMO="1"),
                         ["failed in asan: Third (Timeout)", "failed: the demo (bash cli/demo.sh), with status 1",
                          "failed: the tests (bash tests/run.sh), with status 1"])


if __name__ == "__main__":
    unittest.main()
