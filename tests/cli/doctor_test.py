"""shardwright doctor: what is found on this machine, and what would go wrong, each with a machine where it does."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, RunTestCase, main, run  # noqa: E402

# What doctor asks a driver and NCCL for, with the numbers that NVIDIA's would give.
DRIVER = """
int cuInit(unsigned flags) { return FAILS; }
int cuDriverGetVersion(int* version) { *version = 13010; return 0; }
int cuDeviceGetCount(int* count) { *count = 3; return 0; }
"""
NCCL = "int ncclGetVersion(int* version) { *version = 22809; return 0; }"


class DoctorTestCase(RunTestCase):
    def tiny(self, model=TINY, **sections):
        return self.config("run", model, **{"train": {"global_batch": 12, "micro_batch": 1}, **sections})

    def findings(self, *args, status=0, **more):
        result = run("doctor", *args, "--json", **more)
        self.assertEqual(result.status, status, result)
        document = result.json()
        self.assertEqual(document["ok"], status == 0)
        found = {f["subject"]: f for f in document["findings"]}
        for finding in found.values():
            self.assertEqual(finding["concern"] == "none", finding["advice"] == "", finding)
        for concern in ("error", "warning"):
            self.assertEqual(document[concern + "s"], sum(f["concern"] == concern for f in found.values()))
        return found

    def in_a_namespace(self, script):
        """Words before the command that mount what `script` says for it alone."""
        words = ["unshare", "-m", "sh", "-c", f'{script} && exec "$@"', "sh"]
        if subprocess.run([*words, "true"], capture_output=True).returncode != 0:
            self.skipTest("no mount of its own is allowed here")
        return words

    def test_OfARunAndWithout(self):
        self.assertEqual(list(self.findings(cwd=self.dir)),
                         ["cores", "memory", "open files", "shared memory", "MPI", "checkpoints", "GPU", "NCCL", "run directory"])
        found = self.findings(self.tiny(), "--nproc", 3)
        self.assertIn("2934 parameters in layout t1p1d3z0", found["memory of the run"]["found"])
        self.assertIn(str(self.dir), found["run directory"]["found"])
        self.assertRegex(found["MPI"]["found"], r"Open MPI v[0-9.]+, /.*mpirun")
        text = self.ok("doctor", self.tiny()).stdout
        self.assertRegex(text, r"(?m)^run directory +.* free, a small durable write takes [0-9.]+ ms$")
        # It looks, and leaves nothing.
        self.assertEqual([p.name for p in self.dir.iterdir() if not p.name.endswith((".toml", ".bin"))], [])

    def test_TheLauncher(self):
        self.assertIn("not found in PATH", self.findings(status=1, env={"PATH": str(self.dir)})["MPI"]["advice"])
        for says, advice in (("echo mpirun '(Open MPI)' 9.8.7", "says 'mpirun (Open MPI) 9.8.7', and this program was built with"),
                             ("exit 1", "does not tell its version")):
            (self.dir / "mpirun").write_text(f"#!/bin/sh\n{says}\n")
            (self.dir / "mpirun").chmod(0o755)
            finding = self.findings(status=1, env={"PATH": f"{self.dir}:{os.environ['PATH']}"})["MPI"]
            self.assertIn(advice, finding["advice"])

    def test_TheMachine(self):
        config = self.tiny()
        found = self.findings(config, "--nproc", 12, env={"OMP_NUM_THREADS": "100"})
        self.assertIn("12 ranks with 100 threads each take turns", found["cores"]["advice"])
        found = self.findings(config, "--nproc", 12, status=1, prefix=["prlimit", "--nofile=100:100"])
        self.assertIn("mpirun needs up to 144 for 12 ranks", found["open files"]["advice"])
        found = self.findings(config, prefix=["prlimit", f"--data={1 << 30}"])
        self.assertIn("only 1.0 GiB of it (ulimit -d)", found["memory"]["advice"])

    def test_SharedMemory(self):
        small = self.in_a_namespace("mount -t tmpfs -o size=11m tmpfs /dev/shm")
        self.assertEqual(self.findings("--nproc", 2, prefix=small)["shared memory"]["concern"], "none")
        finding = self.findings("--nproc", 3, prefix=small)["shared memory"]
        self.assertEqual(finding["concern"], "warning")
        self.assertIn("3 ranks want 12", finding["advice"])

    def test_TheDirectory(self):
        def of(path, **more):
            return self.findings(self.tiny(run={"dir": str(path)}), **more)["run directory"]
        (self.dir / "file").write_text("")
        self.assertIn("is no directory", of(self.dir / "file", status=1)["advice"])
        mounted = self.dir / "with a blank"
        mounted.mkdir()
        for options, kind, status, advice in (
                ("-t tmpfs tmpfs", "tmpfs", 0, "checkpoints take it from training and are gone with the machine"),
                ("-t tmpfs -o ro tmpfs", "tmpfs", 1, "Read-only file system"),
                ("-t tmpfs -o size=4k,nr_inodes=1 tmpfs", "tmpfs", 1, "No space left on device")):
            finding = of(mounted / "a" / "b", status=status, prefix=self.in_a_namespace(f"mount {options} '{mounted}'"))
            self.assertIn(f"{mounted}: {kind}, ", finding["found"])
            self.assertIn(advice, finding["advice"])

    def test_WhatTheRunNeeds(self):
        found = self.findings(self.tiny(dict(TINY, layers=100, hidden=30000, ffn=120000)), status=1)
        self.assertRegex(found["memory of the run"]["advice"], "needs at least .* and this machine has")
        found = self.findings(self.tiny(checkpoint={"keep": 1_000_000_000}))
        self.assertIn("keep fewer (checkpoint.keep)", found["disk of the run"]["advice"])
        # What no training would take is said as training says it.
        self.assertIn("parallel.tp", self.fails(2, "doctor", self.tiny(), "--set", "parallel.tp=0").stderr)
        self.assertEqual(self.fails(2, "doctor", self.tiny(), "--set", "parallel.tp=5").stderr,
                         self.fails(2, "train", self.tiny(), "--set", "parallel.tp=5").stderr)

    def test_TheGpu(self):
        if shutil.which("cc") is None:
            self.skipTest("no C compiler to make a driver's double with")
        def library(name, text, *flags):
            subprocess.run(["cc", "-shared", "-fPIC", *flags, "-x", "c", "-", "-o", self.dir / name], input=text, text=True,
                           check=True)
        library("libnccl.so.2", NCCL)
        library("libcuda.so.1", DRIVER, "-DFAILS=0")
        here = {"LD_LIBRARY_PATH": str(self.dir)}
        found = self.findings(env=here)
        self.assertEqual([found[s]["found"] for s in ("GPU", "NCCL")], ["driver for CUDA 13.1, 3 devices", "2.28.9"])
        library("libcuda.so.1", DRIVER, "-DFAILS=100")
        found = self.findings(env=here)
        self.assertIn("does not start (error 100)", found["GPU"]["found"])
        self.assertEqual(found["GPU"]["concern"], "warning")
        library("libcuda.so.1", "int nothing;")
        self.assertIn("is no driver", self.findings(env=here)["GPU"]["found"])


if __name__ == "__main__":
    main()
