"""Generations, retention, permissions, full disks, odd paths and locks, with the real binary."""
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BINARY, TINY, RunTestCase, layout_sets, main, run, sign  # noqa: E402

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


class StorageTestCase(RunTestCase):
    def tiny(self, name="run", **more):
        sections = dict(train={"steps": 8, "global_batch": 4}, checkpoint={"every": 2})
        for section, values in more.items():
            sections.setdefault(section, {}).update(values)
        return self.config(name, TINY, **sections)

    def test_GoingBackSupersedesNewerOnes(self):  # timeout=150
        config = self.tiny()
        run_dir = self.dir / "run"
        self.train(config, "d2z1", "--stop-after", "6")
        self.train(config, "d2z1", "--resume", self.checkpoint(run_dir, 2), "--stop-after", "3")
        statuses = {(c["step"], c["status"]) for c in self.ok("list", run_dir, "--json").json()["checkpoints"]}
        self.assertEqual(statuses, {(2, "valid"), (3, "valid"), (4, "superseded"), (6, "superseded")})
        self.assertTrue(self.ok("list", run_dir, "--json").json()["newest_valid"].endswith("step-0000000003"))
        # Only prune removes them.
        pruned = self.ok("prune", run_dir, "--keep", "1", "--json").json()
        self.assertEqual(len(pruned["removed"]), 3, pruned)
        self.assertEqual(len(pruned["kept"]), 1, pruned)

    def test_ALateCommitOfAnOldGenerationDoesNothing(self):  # timeout=150
        """Rank 0 sleeps before its commit while another start takes the run over: the sleeper gives up."""
        config = self.tiny()
        run_dir = self.dir / "run"
        self.train(config, "t1", "--stop-after", "2")
        sleeper = self.start("train", config, *layout_sets("t1"), "--stop-after", "4",
                             env={"SHARDWRIGHT_FAULT": "dir.rename:step=4=delay(6000)"})
        deadline = time.monotonic() + 30
        while not list((run_dir / "checkpoints").glob("step-0000000004.tmp-*/COMMIT")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        # What a restart after a network partition does: the next generation is announced while the old one still breathes.
        record = json.loads((run_dir / "GENERATION").read_text().splitlines()[0])
        record["generation"] += 1
        (run_dir / "GENERATION").write_text(sign(record))
        result = sleeper.wait(60)
        self.assertEqual(result.status, 1, result)
        self.assertFalse(self.checkpoint(run_dir, 4).exists())
        self.assertTrue(self.ok("list", run_dir, "--json").json()["newest_valid"].endswith("step-0000000002"))

    def test_TheSecondRunOnOneDirectoryGetsStatus3(self):
        config = self.tiny(train={"steps": 100000})
        first = self.start("train", config, *layout_sets("d2"))
        deadline = time.monotonic() + 30
        while not (self.dir / "run" / "GENERATION").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        result = self.train(config, "d2", status=3)
        self.assertIn("another process", result.stderr)
        self.fails(3, "prune", self.dir / "run", "--keep", "1")
        first.end()

    def test_B108_B110_RetentionByStepNumber(self):  # timeout=150
        config = self.tiny(train={"steps": 12}, checkpoint={"every": 1, "keep": 3})
        self.train(config, "d2", "--stop-after", "11")
        self.assertEqual(self.kept(), [9, 10, 11])
        self.train(config, "d2", "--set", "checkpoint.keep=1")
        self.assertEqual(self.kept(), [12])
        self.fails(2, "train", config, *layout_sets("d2"), "--set", "checkpoint.keep=-1")

    def kept(self):
        return sorted(c["step"] for c in self.ok("list", self.dir / "run", "--json").json()["checkpoints"])

    def test_B111_B118_FullDiskKeepsTheOldOne(self):  # timeout=150
        """keep 1, and no room for the second checkpoint: the first still loads; with room again the next save works."""
        config = self.tiny(checkpoint={"every": 2, "keep": 1})
        self.train(config, "d2z1", "--stop-after", "2")
        result = run("train", config, *layout_sets("d2z1"), "--stop-after", "4",
                     env={"SHARDWRIGHT_FAULT": "shard.mid:rank=0:step=4=enospc"}, timeout=60)
        self.assertEqual(result.status, 1, result)
        self.assertIn("space", result.stderr)
        self.assertEqual(self.kept(), [2])
        self.verified(self.checkpoint(self.dir / "run", 2))
        self.train(config, "d2z1", "--stop-after", "6")
        self.assertEqual(self.kept(), [6])

    def test_AFailureWhileTheOptimizerWaitsEndsTheSaveAndNotTheTraining(self):  # timeout=150
        """A save of 13 MB takes far longer than a step of one short sequence, so the next optimizer step meets it at work."""
        model = dict(arch="llama", layers=5, hidden=240, heads=6, kv_heads=2, ffn=668, vocab=33, seq_len=8, tie_embeddings=False)
        sections = dict(train={"steps": 5, "global_batch": 3}, checkpoint={"every": 2, "codec": "small"})
        whole, config = self.config("whole", model, **sections), self.config("run", model, **sections)
        self.train(whole, "d3z1")
        result = self.train(config, "d3z1", env={"SHARDWRIGHT_FAULT": "save.window:rank=1:step=2=eio"})
        self.assertRegex(result.stdout + result.stderr, "checkpoint of step 2 failed: rank 1: .*save.window: injected failure")
        self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / "run"), 0)
        saves = {r["step"]: r for r in self.records(self.dir / "run", "checkpoint")}
        self.assertEqual({s: r["outcome"] for s, r in saves.items()}, {2: "failed", 4: "committed", 5: "committed"})
        # Nothing of the failed one is left. That its memory is given back is a unit test's (SaverWindowTest).
        self.assertEqual(sorted(p.name for p in (self.dir / "run" / "checkpoints").glob("step-*")),
                         [f"step-{s:010d}" for s in (4, 5)])
        self.same_state(self.checkpoint(self.dir / "whole", 5), self.checkpoint(self.dir / "run", 5))

    def test_B118_ARealFullFileSystem(self):  # timeout=150
        """A tmpfs with room for a few checkpoints only (needs a mount namespace)."""
        probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True)
        if probe.returncode != 0:
            self.skipTest("no mount namespaces here")
        config = self.tiny(checkpoint={"every": 2})
        small = self.dir / "small"
        small.mkdir()
        script = (f"mount -t tmpfs -o size=300k none {small} && '{BINARY}' train '{config}' --set run.dir={small}/run "
                  f"--set parallel.dp=2; echo status $?; '{BINARY}' list {small}/run --json")
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=100)
        self.assertIn("status 1", done.stdout, done)
        self.assertIn("space", done.stderr, done)
        document = json.loads(done.stdout[done.stdout.index("{"):])
        self.assertTrue(document["newest_valid"], done)

    def test_RecordsTornByAFullFileSystem(self):  # timeout=150
        """The disk fills up in the middle of a line of metrics.jsonl; with room again the run goes on, on a line of its own."""
        probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True)
        if probe.returncode != 0:
            self.skipTest("no mount namespaces here")
        config = self.tiny(train={"steps": 150}, checkpoint={"every": 0})
        small = self.dir / "small"
        small.mkdir()
        train = f"'{BINARY}' train '{config}' --set run.dir={small}/run --set parallel.dp=1"
        script = (f"mount -t tmpfs -o size=2m none {small} && {train} --stop-after 2 && "
                  f"(cat /dev/zero > {small}/ballast 2>/dev/null; truncate -s -32k {small}/ballast; {train} --stop-after 148; echo status $?; rm {small}/ballast; "
                  f"'{BINARY}' list {small}/run && '{BINARY}' inspect {small}/run && {train}; echo status $?; "
                  f"find {small} -name '*.new' -o -name '*.tmp-*'; cp {small}/run/*.jsonl '{self.dir}')")
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=140)
        self.assertEqual(re.findall(r"(?m)^status (\d+)$", done.stdout), ["1", "0"], done)
        self.assertIn("metrics.jsonl: cannot write: No space left on device; free some space", done.stderr)
        self.assertNotIn(".new", done.stdout)
        steps, torn = set(), []
        for line in (self.dir / "metrics.jsonl").read_text().splitlines():
            try:
                record = json.loads(line)
                steps.add(record.get("step"))
            except ValueError:
                torn.append(line)
        self.assertEqual(steps, set(range(1, 151)))
        self.assertEqual(len(torn), 1, torn)
        self.assertEqual(torn[0].count('{"type"'), 1, "two records on one line")

    def test_B113_B63_NamesComeFromSteps(self):
        config = self.tiny(train={"steps": 7})
        self.train(config, "t1", "--stop-after", "3")
        self.train(config, "t1")
        self.assertEqual(self.kept(), [2, 3, 4, 6, 7])

    def test_B114_TheTreeCanBeMovedAndLinked(self):  # timeout=150
        config = self.tiny()
        (self.dir / "elsewhere").mkdir()
        self.train(config, "t1", "--set", "run.dir=relative/run", "--stop-after", "4", cwd=self.dir)
        moved = self.dir / "moved tree"
        shutil.move(self.dir / "relative", moved)
        self.assertTrue(self.ok("list", moved / "run", "--json", cwd="/").json()["newest_valid"].endswith("4"))
        link = self.dir / "link"
        link.symlink_to(moved)
        self.train(config, "t1", "--set", f"run.dir={link}/run")
        self.assertEqual(max(self.steps(moved / "run")), 8)
        latest = moved / "run" / "checkpoints" / "LATEST"
        latest.unlink()
        latest.symlink_to("LATEST")
        self.train(config, "t1", "--set", f"run.dir={moved}/run", "--set", "train.steps=9")

    def test_B115_B117_Permissions(self):  # timeout=150
        """As nobody: an unwritable directory is one line at the start; a writable one below a read-only parent works."""
        parent = self.dir / "parent"
        (parent / "own").mkdir(parents=True)
        config = self.tiny()
        os.chmod(self.dir, 0o755)
        for path in self.dir.glob("*"):
            os.chmod(path, 0o644 if path.is_file() else 0o755)
        prefix = NOBODY if os.geteuid() == 0 else ()
        if prefix:
            os.chown(parent / "own", 65534, 65534)
        os.chmod(parent, 0o555)
        self.addCleanup(os.chmod, parent, 0o755)
        refused = run("train", config, "--set", f"run.dir={parent}/run", prefix=prefix)
        self.assertEqual(refused.status, 1, refused)
        self.assertEqual(len(refused.stderr.strip().splitlines()), 1, refused)
        self.assertIn(str(parent), refused.stderr)
        works = run("train", config, "--set", f"run.dir={parent}/own/run", prefix=prefix)
        self.assertEqual(works.status, 0, works)

    def test_B101_UnreadableNewestFallsBackOrStops(self):  # timeout=150
        config = self.tiny()
        self.train(config, "t1", "--stop-after", "4")
        os.chmod(self.dir, 0o755)
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "65534:65534", str(self.dir)], check=True)
        newest = self.checkpoint(self.dir / "run", 4)
        os.chmod(newest, 0)
        self.addCleanup(lambda: newest.exists() and os.chmod(newest, 0o755))
        prefix = NOBODY if os.geteuid() == 0 else ()
        result = run("train", config, *layout_sets("t1"), prefix=prefix)
        self.assertIn(result.status, (0, 1), result)
        if result.status == 0:
            self.assertEqual(self.events(self.dir / "run", "resume")[-1]["step"], 2)
        self.assertNotIn(1, [r["step"] for r in self.records(self.dir / "run", "step")][1:])

    def test_B101_NoneReadableStops(self):  # timeout=150
        """Not a fresh start, and nothing is written over."""
        config = self.tiny()
        self.train(config, "t1", "--stop-after", "4")
        os.chmod(self.dir, 0o755)
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "65534:65534", str(self.dir)], check=True)
        steps, all_of_them = self.records(self.dir / "run", "step"), sorted((self.dir / "run" / "checkpoints").glob("step-*"))
        for path in all_of_them:
            os.chmod(path, 0)
            self.addCleanup(lambda path=path: path.exists() and os.chmod(path, 0o755))
        result = run("train", config, *layout_sets("t1"), prefix=NOBODY if os.geteuid() == 0 else ())
        self.assertEqual(result.status, 1, result)
        self.assertIn("step-0000000004", result.stderr)
        self.assertEqual(self.records(self.dir / "run", "step"), steps)
        self.assertEqual(sorted((self.dir / "run" / "checkpoints").glob("step-*")), all_of_them)

    def test_B120_AnyLegalPath(self):  # timeout=200
        for name in ("with space", "umläut", "漢字", "emoji 🚀", "br[ack]et{s}", "eq=ual", "quo'te\"s", "-dash", "x" * 200):
            with self.subTest(name=name):
                base = self.dir / name
                base.mkdir()
                config = self.tiny()
                moved = base / "config.toml"
                shutil.copy(config, moved)
                sets = ("--set", "run.dir=" + json.dumps(str(base / "run"), ensure_ascii=False))
                self.ok("train", moved, *sets, "--stop-after", "2", "--set", "parallel.dp=2")
                self.ok("train", moved, *sets, "--stop-after", "3", "--set", "parallel.dp=2")
                self.ok("reshard", self.checkpoint(base / "run", 3), base / "out", "--layout", "d3")
                self.verified(base / "out")
                self.ok("inspect", base / "out")

    def test_B52_NonFiniteStopsWithoutACheckpoint(self):
        config = self.tiny(optim={"lr": 1e30, "warmup_steps": 0, "clip": 0, "schedule": "constant"},
                           checkpoint={"every": 1, "keep": 1})
        self.train(config, "d2", "--stop-after", "1", "--set", "optim.lr=1e-3")
        result = self.train(config, "d2", status=1)
        self.assertIn("finite", result.stderr)
        newest = self.ok("list", self.dir / "run", "--json").json()["newest_valid"]
        self.verified(newest)
        last = [r for r in self.records(self.dir / "run", "checkpoint") if r["outcome"] == "committed"][-1]
        self.assertTrue(newest.endswith(f"step-{last['step']:010d}"))
        self.assertEqual(self.events(self.dir / "run", "rank_lost")[0]["cause"] if self.events(self.dir / "run", "rank_lost")
                         else "nonfinite", "nonfinite")

    def test_B52_ValuesThatAreNotFiniteAreNotSaved(self):
        """The loss and norm of a step may be finite and its update not: there is no checkpoint of that."""
        config = self.tiny(optim={"lr": 1e300, "warmup_steps": 0, "clip": 0, "schedule": "constant"},
                           checkpoint={"every": 1})
        result = self.train(config, "d2", "--stop-after", "1", status=1)
        self.assertRegex(result.stderr, "error: step 1: model.* has a value that is not finite")
        self.assertEqual(self.ok("list", self.dir / "run", "--json").json()["checkpoints"], [])

    def test_B90_B103_AttemptsAreNotNow(self):
        """A reader that meets a save in work, or a leftover, says so with its own status."""
        config = self.tiny()
        saving = self.start("train", config, *layout_sets("d2"), "--stop-after", "2",
                            env={"SHARDWRIGHT_FAULT": "commit.write=delay(4000)"})
        deadline = time.monotonic() + 30
        while not (found := list((self.dir / "run" / "checkpoints").glob("step-*.tmp-*/rank-00000.h5"))):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        for command in (("inspect",), ("verify",), ("reshard", None)):
            words = [command[0], found[0].parent] + ([self.dir / "out"] if len(command) > 1 else [])
            self.fails(3, *words)
        saving.wait(60)
        self.verified(self.checkpoint(self.dir / "run", 2))

    def test_B129_NoFileLocksThere(self):
        """HDF5's own locking is off; a held flock elsewhere does not matter, and readers work beside the writer."""
        config = self.tiny()
        self.train(config, "d2", env={"HDF5_USE_FILE_LOCKING": "TRUE"})
        self.verified(self.checkpoint(self.dir / "run", 8))


if __name__ == "__main__":
    main()
