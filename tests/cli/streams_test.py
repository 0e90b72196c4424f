"""Standard streams that are closed, full or abandoned: no success without the answer, no file in a stream's place."""
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BINARY, TINY, RunTestCase, main  # noqa: E402


class StreamsTestCase(RunTestCase):
    def setUp(self):
        super().setUp()
        self.file = self.config("run", TINY, train={"steps": 2, "global_batch": 4})

    def shell(self, arguments, redirection):
        words = " ".join(f"'{a}'" for a in arguments)
        return subprocess.run(["bash", "-c", f"'{BINARY}' {words} {redirection}"], capture_output=True, text=True,
                              timeout=100, stdin=subprocess.DEVNULL)

    def asked(self):
        """Every question, as text and as JSON."""
        run, checkpoint = self.dir / "run", self.checkpoint(self.dir / "run", 2)
        questions = [["list", run], ["inspect", run], ["verify", run], ["diff", run, checkpoint], ["prune", run, "--keep", "3"],
                     ["eval", run, "--data", self.dir / "tokens-33-4000.bin"],
                     ["reshard", run, self.dir / "none", "--layout", "d2", "--plan-only"]]
        return [["--help"], ["--version"], ["train", "--list-fault-points"], *questions, *[q + ["--json"] for q in questions]]

    def test_NoSuccessWithoutTheAnswer(self):
        self.ok("train", self.file)
        for redirection in (">&-", ">/dev/full"):
            for arguments in self.asked():
                done = self.shell(arguments, redirection)
                self.assertEqual(done.returncode, 1, (arguments, redirection, done))
                self.assertRegex(done.stderr, r"\Ashardwright: error: standard output: cannot be written: [^\n]*; [^\n]*\n\Z",
                                 (arguments, redirection))
        for redirection in ("2>&-", "2>/dev/full", "<&-"):
            for arguments in self.asked():
                done = self.shell(arguments, redirection)
                self.assertEqual(done.returncode, 0, (arguments, redirection, done))
                if "--json" in arguments:
                    json.loads(done.stdout)

    def test_AnErrorKeepsItsStatusAndItsOneLine(self):
        for redirection in (">&-", ">/dev/full", "2>&-"):
            done = self.shell(["inspect", self.dir / "none", "--json"], redirection)
            self.assertEqual(done.returncode, 2, done)
            self.assertEqual(len(done.stderr.splitlines()), 0 if redirection == "2>&-" else 1, done)

    def test_ATrainingGoesOnUnwatchedAndWritesInNoStrangersFile(self):  # timeout=150
        for number, redirection in enumerate((">&-", ">/dev/full", "2>&-", "<&- >&- 2>&-", "2>/dev/full")):
            file = self.config(f"run{number}", TINY, train={"steps": 4, "global_batch": 4}, checkpoint={"every": 2})
            done = self.shell(["train", file, "--set", "parallel.dp=2"], redirection)
            self.assertEqual(done.returncode, 0, (redirection, done))
            if redirection in (">&-", ">/dev/full"):
                self.assertRegex(done.stderr, r"\Ashardwright: warning: standard output: [^\n]*\n\Z", redirection)
            run = self.dir / f"run{number}"
            self.assertEqual(sorted(self.losses(run)), [1, 2, 3, 4])
            self.assertEqual(self.events(run)[-1]["event"], "done")
            for step in (2, 4):
                self.verified(self.checkpoint(run, step))


if __name__ == "__main__":
    main()
