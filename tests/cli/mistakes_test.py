"""What a person sees after a mistake: one clear line, the right exit status, nothing done."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BINARY, T1, TINY, RunTestCase, layout_sets, main, run  # noqa: E402

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
PREFIX = "shardwright: error: "


class MistakesTestCase(RunTestCase):
    def tiny(self, name="run", **sections):
        sections.setdefault("train", {})
        sections["train"] = {"steps": 4, "global_batch": 4, **sections["train"]}
        return self.config(name, model=TINY, **sections)

    def refused(self, status, *args, **more):
        """The error lines, without their prefix; nothing else is on standard error, nothing on standard output."""
        result = self.fails(status, *args, **more)
        self.assertEqual(result.stdout, "", result)
        lines = result.stderr.splitlines()
        self.assertTrue(lines and all(line.startswith(PREFIX) for line in lines), result)
        lines = [line[len(PREFIX):] for line in lines]
        for line in lines:
            self.assertRegex(line, r"^.+: .+; .+", result)
        return lines

    def one_line(self, status, *args, **more):
        lines = self.refused(status, *args, **more)
        self.assertEqual(len(lines), 1, lines)
        return lines[0]

    def test_UnknownKeyNamesTheNearest(self):
        config = self.tiny(optim={"warmup_step": 3})
        line = self.one_line(2, "train", config)
        self.assertRegex(line, rf"^{config}:\d+: optim.warmup_step: unknown key; "
                               r"the nearest known one is optim.warmup_steps$")
        self.assertFalse((self.dir / "run").exists())

    def test_UnknownKeyOfSet(self):
        line = self.one_line(2, "train", self.tiny(), "--set", "paralel.tp=2")
        self.assertEqual(line, "--set: paralel.tp: unknown key; the nearest known one is parallel.tp")

    def test_WrongTypesAreSaidTogether(self):
        config = self.tiny(train={"steps": "many"}, optim={"lr": True}, checkpoint={"every": 1.5})
        lines = self.refused(2, "train", config)
        self.assertEqual(len(lines), 3, lines)
        text = "\n".join(lines)
        self.assertIn("train.steps: the text 'many' has the wrong type; give a whole number from 0", text)
        self.assertIn("optim.lr: true has the wrong type; give a number from 0", text)
        self.assertIn("checkpoint.every: the number 1.5 has the wrong type; give a whole number from 0", text)

    def test_ImpossibleLayoutNamesPossibleOnes(self):
        line = self.one_line(2, "train", self.tiny(), "--set", "parallel.tp=2")  # 3 heads
        self.assertRegex(line, r"\b1\b.*\b3\b", line)
        self.assertIn("heads", line)
        self.assertTrue(line.endswith("; nearest legal layouts of 2 ranks: t1p1d2z0, t1p2d1z0"), line)
        line = self.one_line(2, "train", self.tiny(train={"micro_batch": 4}), "--set", "parallel.dp=4")
        self.assertTrue(line.endswith("possible dp: 1; none of 4 ranks is legal, nearest legal layout of 3 ranks: t3p1d1z0"),
                        line)
        line = self.one_line(2, "train", self.tiny(), "--set", "parallel.pp=2", "--set", "parallel.vpp=2")
        self.assertIn("pp x vpp of at most 2; nearest legal layouts of 2 ranks: t1p2d1z0, t1p1d2z0", line)
        line = self.one_line(2, "train", self.tiny(), "--set", "parallel.pp=2", "--set", "parallel.stages=[2, 1]")
        self.assertIn("stages: sum to 3 layers; the model has 2, as in 1,1; nearest legal layouts", line)

    def test_LayoutsThatCannotBe(self):
        """Each line names the rule and layouts that keep it."""
        config = self.config("run", dict(T1, layers=4))
        for layout, line in (
                ("t2", "t2p1d1z0: tp 2: does not divide the 3 heads; possible with 3 heads and 3 KV heads: 1, 3; "
                       "nearest legal layouts of 2 ranks: t1p1d2z0, t1p2d1z0"),
                ("p5", "t1p5d1z0: pp 5: is more than the 4 layers; possible pp: 1 to 4; none of 5 ranks is legal, "
                       "nearest legal layouts of 4 ranks: t1p4d1z0, t1p2d2z0, t1p1d4z0"),
                ("v2", "t1p1d1z0v2: vpp 2: needs a pipeline and pp is 1; vpp 1, or pp of at least 2; "
                       "nearest legal layout of 1 rank: t1p1d1z0"),
                ("p2d4v2", "t1p2d4z0v2: vpp 2: interleaving needs micro-batches divisible by pp and there are 3; "
                           "pp of 3, or vpp 1; nearest legal layouts of 8 ranks: "),
                ("p3 stages=2,2", "t1p3d1z0: stages: 2 numbers for 3 stages (pp x vpp); one number a stage, as in 2,1,1; "
                                  "nearest legal layouts of 3 ranks: t1p3d1z0, t1p1d3z0, t3p1d1z0"),
                ("p2 stages=2,3", "t1p2d1z0: stages: sum to 5 layers; the model has 4, as in 2,2; "
                                  "nearest legal layouts of 2 ranks: t1p2d1z0, t1p1d2z0"),
                ("p2 stages=4,0", "t1p2d1z0: stages: one has no layer; at least 1 layer in each, as in 3,1; "
                                  "nearest legal layouts of 2 ranks: t1p2d1z0, t1p1d2z0")):
            with self.subTest(layout=layout):
                found = self.one_line(2, "train", config, *layout_sets(layout))
                self.assertTrue(found.startswith(f"layout {line}"), found)
        self.assertFalse((self.dir / "run").exists())

    def test_ModelsThatCannotBe(self):
        config = self.config("run", T1)
        for changes, line in (
                (["heads=4", "kv_heads=4"], "model.heads: 4 heads of hidden 12 have the odd size 3; "
                              "rotary positions turn pairs, so hidden / heads must be even"),
                (["kv_heads=2"], "model.kv_heads: 2 KV heads do not divide the 3 heads; "
                                 "each KV head serves as many heads: a divisor of 3"),
                (["dropout=0.1"], "model.dropout: is 0.1 with arch llama; 0, a llama has none"),
                (["dropout=1.0"], "--set: model.dropout: 1 is out of range; give a number from 0, below 1"),
                (["arch=gpt2", "kv_heads=1"], "model.kv_heads: is 1 with 3 heads; gpt2 has as many KV heads as heads (or 0)"),
                (["arch=bloom", "kv_heads=1"], "model.kv_heads: is 1 with 3 heads; bloom has as many KV heads as heads (or 0)")):
            with self.subTest(changes=changes):
                sets = [word for change in changes for word in ("--set", f"model.{change}")]
                self.assertEqual(self.one_line(2, "train", config, *sets), line)
        self.assertFalse((self.dir / "run").exists())

    def test_WhatChangesNothingIsNoMistake(self):
        """Sequence parallelism without tensor parallelism, and a schedule without a pipeline."""
        config = self.tiny()
        self.train(config, "t1")
        self.train(config, "t1 sp gpipe", "--set", f"run.dir={self.dir / 'other'}")
        self.assertEqual(self.losses(self.dir / "run"), self.losses(self.dir / "other"))
        self.train(config, "p2v2 gpipe", "--set", f"run.dir={self.dir / 'third'}", "--set", "model.layers=4")

    def test_NprocThatContradictsTheLayout(self):
        line = self.one_line(2, "train", self.tiny(parallel={"tp": 3, "dp": 1}), "--nproc", "4")
        self.assertIn("4", line)

    def test_MissingDataFile(self):
        config = self.tiny(data={"train": str(self.dir / "no such.bin")})
        line = self.one_line(2, "train", config)
        self.assertIn(str(self.dir / "no such.bin"), line)

    def test_MissingConfiguration(self):
        line = self.one_line(2, "train", self.dir / "none.toml")
        self.assertIn(str(self.dir / "none.toml"), line)
        self.assertIn("CONFIG", self.one_line(2, "train"))

    def test_WhatIsNotBuiltYetSaysSo(self):
        for change in ("train.device=cuda", "parallel.comm=nccl"):
            self.assertIn("is not built yet; ", self.one_line(2, "train", self.tiny(), "--set", change))

    def test_UnwritableDirectory(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become nobody")
        config = self.tiny()
        self.dir.chmod(0o755)
        locked = self.dir / "locked"
        locked.mkdir(mode=0o555)
        line = self.one_line(1, "train", config, "--set", f"run.dir={locked}/run", prefix=NOBODY)
        self.assertIn(str(locked), line)

    def test_NoSpaceForAReshard(self):
        probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True)
        if probe.returncode != 0:
            self.skipTest("no mount namespaces here")
        self.train(self.tiny(), "t1")
        small = self.dir / "small"
        small.mkdir()
        script = (f"mount -t tmpfs -o size=8k none {small} && '{BINARY}' reshard '{self.dir}/run' '{small}/step-0000000004' "
                  f"--layout d2; echo status $?; ls {small}")
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=100)
        self.assertIn("status 1", done.stdout, done)
        self.assertNotIn("step-0000000004\n", done.stdout, done)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, done)
        self.assertIn("space", lines[0])

    def test_DamagedCheckpointsNameTheFile(self):
        self.train(self.tiny(), "t1")
        checkpoint = self.checkpoint(self.dir / "run", 4)
        self.assertEqual(self.one_line(2, "inspect", self.dir / "none").count(str(self.dir / "none")), 1)
        commit = (checkpoint / "COMMIT").read_text()
        (checkpoint / "COMMIT").write_text(commit[:40])
        line = self.one_line(1, "inspect", checkpoint)
        self.assertIn("COMMIT", line)
        (checkpoint / "COMMIT").write_text(commit)
        manifest = (checkpoint / "manifest.h5").read_bytes()
        (checkpoint / "manifest.h5").write_bytes(manifest[:100])
        self.assertIn("manifest.h5", self.one_line(1, "inspect", checkpoint))
        self.assertEqual(self.fails(1, "verify", checkpoint, "--json").json()["problems"][0]["code"], "size")

    def test_AnotherModelNamesTheDifferingFields(self):
        self.train(self.tiny(), "t1")
        line = self.one_line(2, "train", self.tiny(train={"steps": 6}), "--set", "model.ffn=24", "--set", "model.layers=3")
        self.assertIn("layers", line)
        self.assertIn("ffn", line)
        self.assertIn("21", line)
        self.assertIn("24", line)

    def test_TheTargetExists(self):
        self.train(self.tiny(), "t1")
        (self.dir / "there").mkdir()
        line = self.one_line(2, "reshard", self.dir / "run", self.dir / "there", "--layout", "d2")
        self.assertIn(str(self.dir / "there"), line)
        self.assertEqual(list((self.dir / "there").iterdir()), [])
        other = self.dir / "other"
        self.ok("reshard", self.dir / "run", other, "--layout", "d2")
        line = self.one_line(2, "reshard", self.dir / "run", other / "inside", "--layout", "d3")
        self.assertIn(f"is inside the checkpoint {other}", line)
        self.verified(other)

    def test_FlagsAndCommands(self):
        self.assertEqual(self.one_line(2, "inspct", "x"), "inspct: unknown command; the nearest known one is inspect")
        self.assertEqual(self.one_line(2, "train", "x.toml", "--nprocs", "3"),
                         "--nprocs: unknown flag of 'train'; the nearest known one is --nproc")
        self.assertEqual(self.one_line(2, "train", "x.toml", "--nproc", "three"),
                         "--nproc: 'three' is not possible; give a whole number from 1 to 100000")
        for given in ("99999999999", "99999999999999999999999", "100001"):
            self.assertEqual(self.one_line(2, "train", self.tiny(), "--nproc", given),
                             f"--nproc: '{given}' is not possible; give a whole number from 1 to 100000")
        for command in (["reshard", "a", "b", "--jobs"], ["bench", "ckpt", "--threads"], ["bench", "reshard", "--jobs"], ["bench", "train", "--threads"]):
            self.assertEqual(self.one_line(2, *command, "1025"),
                             f"{command[-1]}: '1025' is not possible; give a whole number from 1 to 1024")
        self.assertEqual(self.one_line(2, "reshard", "a", "b", "--zero", "4"), "--zero: '4' is not possible; give a whole number from 0 to 3")
        self.assertEqual(self.one_line(2, "prune", self.dir, "--keep", "0"),
                         "--keep: '0' is not possible; give a whole number from 1")
        self.assertEqual(self.one_line(2, "prune", self.dir, "--keep", "-1"),
                         "--keep: '-1' is not possible; give a whole number from 1")
        self.assertIn("--max-memory: 'lots' is no size", self.one_line(2, "reshard", "a", "b", "--max-memory", "lots"))
        self.assertIn("--layout: is given beside", self.one_line(
            2, "reshard", self.trained(), self.dir / "x", "--layout", "d2", "--tp", "1"))
        self.assertIn("unknown command", self.one_line(2, "sample"))
        self.one_line(2)
        self.one_line(2, "bench")
        self.one_line(2, "verify")

    def trained(self):
        self.train(self.tiny(), "t1")
        return self.dir / "run"

    def test_AMistypedFaultIsRefused(self):
        line = self.one_line(2, "list", self.dir, env={"SHARDWRIGHT_FAULT": "step.bogin=kill"})
        self.assertIn("step.begin", line)

    def test_AFaultSaysWhatWouldBeRight(self):
        for text, right in (("x", "<point>"), ("=kill", "nearest"), ("step.begin", "<point>"), ("step.begin=", "kill, stop"),
                            ("step.begin=boom", "kill, stop"), ("step.begin:rank=x=kill", "not a number"),
                            ("step.begin:rank=-1=kill", "not a number"), ("step.begin:foo=1=kill", "rank, step"),
                            ("step.begin:nth=0=kill", "nth=1"), ("step.begin=delay", "delay(ms)"),
                            ("step.begin=delay(-1)", "not a number"), ("step.begin:step=99999999999999999999=kill", "not a number"),
                            ("step.begin=kill;x", "kill, stop")):
            for command in (["list", self.dir], ["train", self.tiny()]):
                line = self.one_line(2, *command, env={"SHARDWRIGHT_FAULT": text})
                self.assertIn("SHARDWRIGHT_FAULT", line)
                self.assertIn(right, line)

    def test_ASizeThatCannotBeMeantIsRefusedAtOnce(self):
        for change in (["ffn"], ["vocab"], ["hidden"], ["hidden", "ffn", "vocab"]):
            sizes = {"hidden": 120_000, **{key: 99_999_999 for key in change}}
            sets = [word for key, size in sizes.items() for word in ("--set", f"model.{key}={size}")]
            result = self.fails(2, "train", self.tiny(), *sets, "--set", "parallel.dp=2")
            self.assertRegex(result.stderr, r"\A[^\n]*\[model\]: [^\n]* needs at least [^\n]*, and this machine has [^\n]*; [^\n]*\n\Z")
            self.assertLess(result.seconds, 10)
        self.assertFalse((self.dir / "run").exists())

    def test_MoreThreadsThanTheMachineHoldsAreRefusedAtOnce(self):
        for given in ("1025", "99999999999"):
            self.assertEqual(self.one_line(2, "train", self.tiny(), env={"OMP_NUM_THREADS": given}, timeout=20),
                             f"OMP_NUM_THREADS: '{given}' is not possible; give a whole number from 1 to 1024, or unset it")
        self.assertFalse((self.dir / "run").exists())

    def test_DataThatIsNoFile(self):
        os.mkfifo(self.dir / "fifo")
        checkpoint = self.trained()
        for path in (self.dir / "fifo", "/dev/null", self.dir):
            self.assertIn("not a regular file", self.one_line(2, "train", self.tiny(), "--set", f"data.train={path}", timeout=20))
            self.assertIn("not a regular file", self.one_line(2, "eval", checkpoint, "--data", path, timeout=20))

    def test_AConfigurationThatIsNoFile(self):
        os.mkfifo(self.dir / "fifo")
        (self.dir / "huge").touch()
        os.truncate(self.dir / "huge", 1 << 36)
        for path in (self.dir, self.dir / "fifo", "/dev/null", self.dir / "huge"):
            self.assertIn(str(path), self.one_line(2, "train", path, timeout=20))
        for contents in (b"", bytes(range(256)), b"\0" * 99, b"[model]\n[model]\n", b"[train]\nsteps=1\nsteps=2\n",
                         b"[[model]]\nlayers=1\n", b"model = 1\n", b"a=" + b"[" * 100_000, "[model]".encode("utf-16")):
            path = self.dir / "bad.toml"
            path.write_bytes(contents)
            self.refused(2, "train", path)

    def test_ByteOrderMarkAndCarriageReturnsAreTaken(self):
        path = self.tiny()
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        self.ok("train", path, "--stop-after", "1")

    def test_ATargetNamedLikeSomethingElse(self):
        run_dir = self.trained()
        checkpoints = run_dir / "checkpoints"
        for name, right in (("step-0000000009", "step-0000000004"), ("step-0000000004.tmp-9-9", "not whole"),
                            ("step-0000000004.trash-1-1", "not whole"), ("step-0000000004.superseded-1", "not whole"),
                            ("x.tmp-r-0123456789abcdef", "not whole")):
            self.assertIn(right, self.one_line(2, "reshard", run_dir, checkpoints / name, "--layout", "d2"))
        self.assertEqual(sorted(p.name for p in checkpoints.iterdir()), ["LATEST", "run.lock", "step-0000000004"])
        line = self.one_line(1, "reshard", run_dir, self.dir / ("y" * 240), "--layout", "d2")
        self.assertIn("name too long", line.lower())
        self.assertNotIn("defect", line)

    def test_TooFewDescriptorsAreNamed(self):
        run_dir = self.trained()
        for limit in (12, 32):  # with 32 Open MPI would hang
            line = self.one_line(1, "train", self.tiny("other"), prefix=("prlimit", f"--nofile={limit}"), timeout=20)
            self.assertIn("ulimit -n", line)
        self.ok("train", self.tiny("raised"), prefix=("prlimit", "--nofile=24:1024"))
        for limit in (1000, 1 << 20):
            line = self.one_line(1, "train", self.tiny("small"), prefix=("prlimit", f"--fsize={limit}"), timeout=20)
            self.assertEqual(line, f"file size: {limit} bytes are allowed, and mpirun needs 16777216; a higher limit (ulimit -f)")
        self.ok("verify", run_dir, prefix=("prlimit", "--nofile=12"))

    def test_ControlCharactersOfAPathStayInOneLine(self):
        line = self.one_line(2, "verify", f"{self.dir}/a\nb\x1b[1m")
        self.assertIn(r"/a\nb\x1b[1m: does not exist; ", line)

    def test_EmptyNames(self):
        config = self.tiny()
        for args in (["verify", ""], ["list", ""], ["train", config, "--resume", ""],
                     ["train", config, "--set", "data.train="], ["train", config, "--set", 'data.valid=[""]']):
            self.assertIn("empty; ", self.one_line(2, *args))
        config.write_text(config.read_text().replace("[run]\n", '[run]\n"dir" = "a\\u0000b"\n# ', 1))
        self.assertIn("run.dir: has a NUL character; ", self.one_line(2, "train", config))

    def test_EveryErrorSaysWhatWouldBeRight(self):
        config = self.tiny()
        self.ok("train", config, "--stop-after", "1")
        checkpoint = self.checkpoint(self.dir / "run", 1)
        (checkpoint / "manifest.h5").unlink()
        self.one_line(1, "inspect", checkpoint)
        self.one_line(2, "inspect", self.dir)
        (self.dir / "run" / "metrics.jsonl").unlink()
        (self.dir / "run" / "metrics.jsonl").mkdir()
        self.one_line(1, "train", config)
        (checkpoint / "COMMIT").write_text("")
        shutil.rmtree(self.dir / "run" / "metrics.jsonl")
        line = self.one_line(1, "train", config, "--resume", checkpoint)
        self.assertRegex(line, r"^.*/COMMIT: torn; ")

    def test_ErrorsAsJson(self):
        result = self.fails(2, "inspect", self.dir / "none", "--json")
        error = result.json()["error"]
        self.assertEqual(error["code"], "missing")
        self.assertEqual(error["path"], str(self.dir / "none"))
        self.assertEqual(result.stderr, f"{PREFIX}{error['message']}\n")
        self.assertEqual(self.fails(2, "inspect", "--json", "--bogus").json()["error"]["code"], "usage")

    def test_APipeThatClosesIsQuiet(self):
        script = f"'{BINARY}' train --help | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)
        self.assertEqual((done.stdout, done.stderr), ("0\n", ""))
        full = subprocess.run(f"'{BINARY}' train --help > /dev/full", shell=True, capture_output=True, text=True, timeout=30)
        self.assertEqual(full.returncode, 1)
        self.assertEqual(len(full.stderr.splitlines()), 1, full)


if __name__ == "__main__":
    main()
