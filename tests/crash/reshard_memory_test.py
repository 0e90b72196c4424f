"""The memory of a reshard: bounded by --max-memory whatever the model's size, as the system counts it and as it limits it."""
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import RunTestCase, main  # noqa: E402

MIB = 1 << 20
ALLOWANCE = 64 * MIB  # what the program and its libraries may need beside
# Values of a model with 3 kinds of 4 bytes: about 0.24, 1, 4 and 16 GB.
MODELS = {
    0.24: dict(arch="gpt2", layers=5, hidden=516, heads=6, ffn=2067, vocab=5003, seq_len=65, tie_embeddings="true"),
    1: dict(arch="gpt2", layers=7, hidden=942, heads=6, ffn=3771, vocab=10007, seq_len=65, tie_embeddings="true"),
    4: dict(arch="gpt2", layers=13, hidden=1398, heads=6, ffn=5591, vocab=20011, seq_len=65, tie_embeddings="true"),
    16: dict(arch="gpt2", layers=25, hidden=2046, heads=6, ffn=8191, vocab=50021, seq_len=65, tie_embeddings="true"),
}
# A change of all degrees, one of stages only, and one to few ranks.
CHANGES = ("t3p1d3z1", "t2p3d2z1", "t1p1d1z0")


class ReshardMemoryTestCase(RunTestCase):
    def bounded(self, size, memories=(64, 160), timeout=100, flags=()):
        source = self.labelled(MODELS[size], "t2p2d2z1", "source", "--noise", "yes", timeout=timeout)
        for layout in CHANGES:
            for memory in memories:
                limit = memory * MIB + ALLOWANCE
                report = self.ok("reshard", source, self.dir / "target", "--layout", layout, "--jobs", "2", *flags,
                                 "--max-memory", f"{memory}MiB", "--json", timeout=timeout,
                                 prefix=("prlimit", f"--data={limit}")).json()
                self.assertTrue(report["proof"]["ok"])
                self.assertLess(report["peak_rss_bytes"], limit, (layout, memory))
                if flags:  # what is changed is read once more for the proof, and embeddings twice more for the mean of their rows
                    self.assertLess(report["read_bytes"], 3 * report["needed_bytes"], (layout, memory))
                else:
                    self.assertEqual(report["read_bytes"], report["needed_bytes"], (layout, memory))
                shutil.rmtree(self.dir / "target")

    def test_ReshardsOfAnySizeNeedTheSameMemory(self):  # timeout=150
        self.bounded(0.24)

    def test_CastsAndNewRowsNeedNoMore(self):  # timeout=150
        self.bounded(0.24, memories=(64,), flags=("--cast", "exp_avg=bf16", "--cast", "exp_avg_sq=fp64", "--cast", "param=fp64",
                                                  "--vocab", "7001", "--untie"))

    def test_ReshardsOfOneGigabyteStayWithinTheirMemory(self):  # long
        self.bounded(1, timeout=600)

    def test_ReshardsOfFourGigabytesStayWithinTheirMemory(self):  # long
        self.bounded(4, timeout=600)

    def test_ReshardsOfSixteenGigabytesStayWithinTheirMemory(self):  # long
        self.bounded(16, memories=(64,), timeout=900)

    def test_AReshardUnderMpirunMakesWhatOneProcessMakes(self):
        source = self.labelled(MODELS[0.24], "t2p1d2z1", "source")
        mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3")
        report = self.ok("reshard", source, self.dir / "three", "--layout", "t3p2d1z0", "--json", prefix=mpirun).json()
        self.assertTrue(report["proof"]["ok"])
        self.ok("reshard", source, self.dir / "one", "--layout", "t3p2d1z0")
        subprocess.run(["diff", "-r", self.dir / "one", self.dir / "three"], check=True)
        # mpirun ends all once one is killed; what is left is not selectable, and the next try goes on from it.
        killed = self.start("reshard", source, self.dir / "again", "--layout", "t3p2d1z0", prefix=mpirun,
                            env={"SHARDWRIGHT_FAULT": "shard.close:rank=5=kill"}).wait()
        self.assertNotEqual(killed.status, 0, killed)
        self.assertFalse((self.dir / "again").exists())
        self.ok("reshard", source, self.dir / "again", "--layout", "t3p2d1z0", prefix=mpirun)
        subprocess.run(["diff", "-r", self.dir / "one", self.dir / "again"], check=True)
        self.assertEqual(sorted(p.name for p in self.dir.iterdir() if "tmp-" in p.name or p.name.endswith(".lock")), [])
        refused = self.start("reshard", source, self.dir / "one", "--layout", "t3p2d1z0", prefix=mpirun).wait()
        self.assertEqual(refused.status, 2, refused)
        self.assertEqual(refused.stderr.count("is there already"), 1, refused)


if __name__ == "__main__":
    main()
