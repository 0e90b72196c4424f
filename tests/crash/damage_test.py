"""Damage to files: the newest valid checkpoint is found, what was passed over is said and why, and losses continue."""
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import h5py  # noqa: E402
from run_harness import TINY, RunTestCase, flip, main, sign  # noqa: E402


class DamageTestCase(RunTestCase):
    LAYOUT = "t1d2z1"

    def setUp(self):
        super().setUp()
        self.toml = self.config("run", TINY, train={"steps": 8, "global_batch": 4}, checkpoint={"every": 2})
        self.train(self.toml, self.LAYOUT, "--set", f"run.dir={self.dir / 'whole'}")
        self.train(self.toml, self.LAYOUT, "--set", f"run.dir={self.dir / 'begun'}", "--stop-after", "6")
        self.expected = self.losses(self.dir / "whole")

    def sections(self, checkpoint):
        """Offsets by kind of file and section of a shard: superblock, a stored chunk, the table, other metadata."""
        shard = checkpoint / "rank-00001.h5"

        with h5py.File(shard, "r") as file:
            table = file["chunks"]
            first = table[0]
            address = int(first["address"])
            table_at = table.id.get_offset()
        size = shard.stat().st_size
        yield "superblock", shard, 9
        yield "chunk start", shard, address
        yield "chunk middle", shard, address + int(first["stored"]) // 2
        yield "chunk checksum", shard, address + int(first["stored"]) - 1
        yield "table", shard, table_at + 3
        yield "object header", shard, size - 20
        yield "manifest", checkpoint / "manifest.h5", (checkpoint / "manifest.h5").stat().st_size // 2
        yield "commit", checkpoint / "COMMIT", 30
        yield "commit digest", checkpoint / "COMMIT", (checkpoint / "COMMIT").stat().st_size - 4

    def goes_on(self, run, what):
        """Resumes: falls back past step 6 to 4, says so, and the losses continue."""
        result = self.train(self.toml, self.LAYOUT, "--set", f"run.dir={run}")
        resumed = self.events(run, "resume")[-1]
        self.assertEqual(resumed["step"], 4, f"{what}: {result}")
        passed = resumed["passed_over"]
        self.assertTrue(any("step-0000000006" in p["path"] and p["reason"] for p in passed), passed)
        self.assert_losses(self.expected, self.losses(run), 0, what)
        # Two timelines never mix: the damaged one is out of the way, the new step 6 is whole.
        self.verified(self.checkpoint(run, 6))

    def test_OneBitInEachKindOfFileAndSection(self):  # timeout=290
        for what, path, offset in list(self.sections(self.checkpoint(self.dir / "begun", 6))):
            with self.subTest(what=what):
                run = self.dir / f"run-{what.replace(' ', '-')}"
                shutil.copytree(self.dir / "begun", run)
                target = self.checkpoint(run, 6) / path.name
                flip(target, offset)
                report = self.fails(1, "verify", self.checkpoint(run, 6), "--json").json()
                self.assertTrue(report["problems"], report)
                self.assertTrue(any(path.name in p["file"] or path.name in p["message"] for p in report["problems"]), report)
                self.goes_on(run, what)

    def test_B100_OneTruncatedShardMovesAllRanks(self):  # timeout=150
        run = self.dir / "begun"
        shard = self.checkpoint(run, 6) / "rank-00001.h5"
        with open(shard, "r+b") as file:
            file.truncate(shard.stat().st_size - 100)
        listed = self.ok("list", run, "--json").json()
        self.assertTrue(listed["newest_valid"].endswith("step-0000000004"))
        self.goes_on(run, "truncated")

    def test_B22_B41_RemovedShardIsNamed(self):  # timeout=150
        run = self.dir / "begun"
        (self.checkpoint(run, 6) / "rank-00000.h5").unlink()
        entry = self.ok("list", run, "--json").json()["checkpoints"][0]
        self.assertEqual(entry["status"], "damaged")
        self.assertIn("rank-00000.h5", entry["reason"])
        # Asked for by name it is an error, never a fall-back.
        result = self.train(self.toml, self.LAYOUT, "--set", f"run.dir={run}", "--resume", self.checkpoint(run, 6), status=1)
        self.assertIn("rank-00000.h5", result.stderr)
        self.goes_on(run, "removed")

    def test_ChunkDamageOnlySeenWhileLoading(self):  # timeout=150
        """Structurally valid, content not: all ranks agree to fall back, and deep listing tells before."""
        run = self.dir / "begun"
        what, path, offset = next(s for s in self.sections(self.checkpoint(run, 6)) if s[0] == "chunk middle")
        flip(path, offset)
        self.assertTrue(self.ok("list", run, "--json").json()["newest_valid"].endswith("6"))
        deep = self.ok("list", run, "--deep", "--json").json()
        self.assertTrue(deep["newest_valid"].endswith("4"), deep)
        self.goes_on(run, what)

    def test_B107_NoEvidenceIsAFailure(self):
        run = self.dir / "begun"
        commit = self.checkpoint(run, 6) / "COMMIT"
        lines = commit.read_text().splitlines()
        commit.write_text(lines[0] + "\n")
        self.fails(1, "verify", self.checkpoint(run, 6))
        entry = self.ok("list", run, "--json").json()["checkpoints"][0]
        self.assertIn(entry["status"], ("incomplete", "damaged"))

    def test_B107_AFlippedBitOfAChunkNamesFileAndTensor(self):  # timeout=150
        """Compressed and not, by verify and by a training that is told to go on from there."""
        for codec in ("none", "small", "deflate"):
            with self.subTest(codec=codec):
                run = self.dir / f"run-{codec}"
                self.train(self.toml, self.LAYOUT, "--set", f"run.dir={run}", "--set", f"checkpoint.codec={codec}", "--stop-after", "2")
                path = self.checkpoint(run, 2)
                offset = next(at for what, _, at in self.sections(path) if what == "chunk middle")
                with h5py.File(path / "rank-00001.h5") as shard:
                    held = {name for kind in shard if kind != "chunks" for name in shard[kind]}
                flip(path / "rank-00001.h5", offset)
                problem, = self.fails(1, "verify", path, "--json").json()["problems"]
                self.assertEqual((problem["code"], problem["file"]), ("chunk", "rank-00001.h5"))
                self.assertIn(problem["tensor"], held)
                told = self.train(self.toml, self.LAYOUT, "--set", f"run.dir={self.dir / ('on-' + codec)}", "--resume", path, status=1)
                self.assertIn("rank-00001.h5", told.stderr)
                self.assertIn(f"{problem['tensor']} {problem['kind']}", told.stderr)

    def test_FutureVersionIsSaid(self):

        run = self.dir / "begun"
        commit = self.checkpoint(run, 6) / "COMMIT"
        record = json.loads(commit.read_text().splitlines()[0])
        record["version"] = 99
        commit.write_text(sign(record))
        entry = self.ok("list", run, "--json").json()["checkpoints"][0]
        self.assertEqual(entry["status"], "future_version", entry)
        result = self.fails(1, "inspect", self.checkpoint(run, 6))
        self.assertIn("99", result.stderr)
        result = self.train(self.toml, self.LAYOUT, "--set", f"run.dir={run}", "--resume", self.checkpoint(run, 6), status=1)
        self.assertIn("version", result.stderr)

    def test_StrayFilesInACommittedDirectory(self):
        (self.checkpoint(self.dir / "begun", 6) / "rank-00009.h5").write_bytes(b"x")
        report = self.fails(1, "verify", self.checkpoint(self.dir / "begun", 6), "--json").json()
        self.assertEqual([p["code"] for p in report["problems"]], ["path"], report)

    def test_FilesOfAnotherStepAreRefused(self):
        newer, older = self.checkpoint(self.dir / "begun", 6), self.checkpoint(self.dir / "begun", 4)
        shutil.copy(older / "rank-00001.h5", newer / "rank-00001.h5")
        self.fails(1, "verify", newer)
        shutil.copy(older / "manifest.h5", newer / "manifest.h5")
        self.fails(1, "verify", newer)


if __name__ == "__main__":
    main()
