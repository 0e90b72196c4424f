"""`offload = nvme`: the same losses and checkpoints, bit for bit, with optimizer state in a file; its errors end the run; and a model that a
limit on memory refuses trains."""
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import G1, L1, T1, TINY, RunTestCase, layout_sets, main, run  # noqa: E402

NVME = ("--set", "parallel.offload=nvme")
# Address space that malloc only reserves, 64 MiB for each thread, would hide what the rank needs.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
# More than one window of the file on each rank, of sizes that end nowhere near its bounds.
WIDE = dict(arch="gpt2", layers=3, hidden=165, heads=5, ffn=661, vocab=97, seq_len=16, tie_embeddings=True)


class OffloadTestCase(RunTestCase):
    def equal(self, name, model, layout, **sections):
        """Six steps with and without, a checkpoint every second one; then from the middle of each with the other."""
        sections.setdefault("checkpoint", {"every": 2})
        config = self.config(name, model, **sections)
        runs = {}
        for kind in ("none", "nvme"):
            runs[kind] = self.dir / f"{name}-{kind}"
            self.train(config, layout, "--set", f"run.dir={runs[kind]}", "--set", f"parallel.offload={kind}")
        expected = self.losses(runs["none"])
        self.assert_losses(expected, self.losses(runs["nvme"]), 0, f"{name} {layout}")
        for step in (2, 6):
            self.same_state(self.checkpoint(runs["none"], step), self.checkpoint(runs["nvme"], step))
        self.verified(self.checkpoint(runs["nvme"], 4))
        for kind, other in (("none", "nvme"), ("nvme", "none")):
            on = self.dir / f"{name}-{kind}-{other}"
            self.train(config, layout, "--set", f"run.dir={on}", "--set", f"parallel.offload={other}",
                       "--resume", self.checkpoint(runs[kind], 2))
            self.assert_losses({s: loss for s, loss in expected.items() if s > 2}, self.losses(on), 0, f"{kind} to {other}")
            self.same_state(self.checkpoint(runs["none"], 6), self.checkpoint(on, 6))
        return config, runs["nvme"], expected

    def test_OffloadIsBitForBitEqual(self):  # timeout=200
        for layout in ("t1", "d3z1"):
            with self.subTest(layout=layout):
                self.equal(f"g1-{layout}", G1, layout)

    def test_OffloadIsBitForBitEqualZero2And3(self):  # timeout=240
        self.equal("t2d2z2", L1, "t2d2z2")
        self.equal("d3z3", T1, "d3z3")

    def test_OffloadIsBitForBitEqualIn16Bits(self):  # timeout=240
        for dtype, layout in (("bf16", "d2"), ("fp16", "d3z3")):
            with self.subTest(dtype=dtype):
                self.equal(f"{dtype}-{layout}", TINY, layout, train={"dtype": dtype})

    def test_OffloadIsBitForBitEqualOverSeveralWindows(self):  # timeout=240
        self.equal("wide", WIDE, "d2z1", train={"dtype": "bf16", "global_batch": 4})

    def test_OffloadedCheckpointGoesOnInAnotherLayout(self):  # timeout=200
        config, source, expected = self.saved_run(dict(G1, layers=2), "t2d2z2", parallel={"offload": "nvme"})
        self.go_on(config, "d3z3", source, expected)
        self.go_on(config, "p2", source, expected, "--set", "parallel.offload=none", name="memory")
        self.go_on(config, "d2z1", self.reshard(source, "d2z1"), expected, name="through")

    def test_SaveSeesItsStepWhateverComesAfter(self):  # timeout=200
        """The save of step 2 is held up in the middle of its reads while later steps overwrite the state."""
        config = self.config("slow", G1, checkpoint={"every": 2, "on_busy": "skip"})
        for kind, fault in (("none", None), ("nvme", "offload.read:nth=8=delay(3000)")):
            self.train(config, "d2z1", "--set", f"run.dir={self.dir / kind}", "--set", f"parallel.offload={kind}",
                       env={"SHARDWRIGHT_FAULT": fault} if fault else None)
        [held_up] = [r for r in self.records(self.dir / "nvme", "checkpoint") if r["step"] == 2]
        self.assertGreaterEqual(held_up["total_s"], 3)
        for step in (2, 6):
            self.same_state(self.checkpoint(self.dir / "none", step), self.checkpoint(self.dir / "nvme", step))

    def test_OffloadGoesOnAfterAKill(self):  # timeout=200
        config = self.config("run", G1, checkpoint={"every": 2}, parallel={"offload": "nvme"}, elastic={"on_failure": "restart"})
        self.train(config, "d3z1", "--set", f"run.dir={self.dir / 'whole'}")
        for point in ("step.optimizer:rank=1:step=5", "offload.write:rank=2:nth=4", "offload.read:rank=0:nth=5"):
            directory = self.dir / point.split(":")[0]
            self.train(config, "d3z1", "--set", f"run.dir={directory}", env={"SHARDWRIGHT_FAULT": f"{point}=kill"})
            self.assertTrue(self.events(directory, "rank_lost"), point)
            self.assert_losses(self.losses(self.dir / "whole"), self.losses(directory), 0, point)
            self.assertEqual([p.name for p in directory.iterdir() if "offload" in p.name], [])

    def test_OffloadGoesBackToACheckpoint(self):  # timeout=200
        """A loss that is not finite at step 5: both go back to step 4, pass the batch over and go on alike."""
        config = self.config("run", TINY, train={"steps": 7, "dtype": "bf16"}, checkpoint={"every": 2}, health={"on_nonfinite": "rollback"})
        for kind in ("none", "nvme"):
            self.train(config, "d2z1", "--set", f"run.dir={self.dir / kind}", "--set", f"parallel.offload={kind}",
                       env={"SHARDWRIGHT_FAULT": "step.loss:step=5:nth=1=nan"})
            self.assertEqual(len(self.events(self.dir / kind, "rolled_back")), 1)
        self.assert_losses(self.losses(self.dir / "none"), self.losses(self.dir / "nvme"), 0)
        self.same_state(self.checkpoint(self.dir / "none", 7), self.checkpoint(self.dir / "nvme", 7))

    def test_OffloadStartsFromWeightsAlone(self):  # timeout=200
        config, source, _ = self.saved_run(TINY, "d2", train={"dtype": "bf16"})
        weights = self.reshard(source, "d3z1", "weights", "--weights-only")
        for kind in ("none", "nvme"):
            self.train(config, "d3z1", "--set", f"run.dir={self.dir / kind}", "--set", f"parallel.offload={kind}", "--resume", weights, "--accept-changes")
        self.assert_losses(self.losses(self.dir / "none"), self.losses(self.dir / "nvme"), 0)
        self.same_state(self.checkpoint(self.dir / "none", 6), self.checkpoint(self.dir / "nvme", 6))

    def test_NoCheckpointOfOffloadedValuesThatAreNotFinite(self):
        """After one step of an absurd learning rate masters are infinite; the loss before it was not."""
        config = self.config("run", TINY, train={"steps": 1, "dtype": "bf16"}, optim={"lr": 1e38, "warmup_steps": 0, "schedule": "constant", "weight_decay": 1e38},
                             elastic={"enabled": False})
        for kind in ("none", "nvme"):
            result = self.train(config, "d2z1", "--set", f"run.dir={self.dir / kind}", "--set", f"parallel.offload={kind}", status=1)
            self.assertRegex(result.stderr, "step 1: .* has a value that is not finite, so there is no checkpoint of it")

    def test_OffloadErrorsEndTheRun(self):  # timeout=200
        config = self.config("run", TINY, parallel={"offload": "nvme"}, elastic={"enabled": False})
        for point, action, words in (("offload.create", "enospc", "No space left"), ("offload.write:nth=3", "eio", "Input/output error"),
                                     ("offload.read:nth=2", "eio", "Input/output error")):
            for layout in ("t1", "d3z1"):
                with self.subTest(point=point, layout=layout):
                    directory = self.dir / f"{point}-{layout}"
                    result = self.train(config, layout, "--set", f"run.dir={directory}", status=1,
                                        env={"SHARDWRIGHT_FAULT": f"{point}={action}"})
                    [line] = [line for line in result.stderr.splitlines() if "error" in line]
                    self.assertIn(words, line)
                    self.assertFalse((directory / "checkpoints").exists() and any((directory / "checkpoints").glob("step-*")))

    def test_OffloadNeedsItsDirectoryAndRoom(self):
        config = self.config("run", dict(WIDE, hidden=330, ffn=1321), parallel={"offload": "nvme"})
        missing = self.dir / "not there"
        result = self.train(config, "t1", "--set", f'parallel.offload_dir="{missing}"', status=2)
        self.assertIn(str(missing), result.stderr)
        # A limit on the size of files stands for a full disk (mpirun needs 16 MiB): 31 MB are offloaded.
        result = run("train", config, *layout_sets("t1"), prefix=("prlimit", "--fsize=20000000"))
        self.assertEqual(result.status, 1, result)
        [line] = [line for line in result.stderr.splitlines() if "error" in line]
        self.assertRegex(line, "no room for the [0-9]+ bytes of optimizer state")
        self.assertEqual(self.records(self.dir / "run", "step"), [])

    def peak_bytes(self, config, *sets):
        """Virtual memory of a rank that has saved at step 2, at its most."""
        started = self.start("train", config, *layout_sets("t1"), *sets, env={"SHARDWRIGHT_FAULT": "step.begin:step=3=delay(600000)", **ONE_ARENA})
        saved, deadline = self.checkpoint(self.dir / "free", 2), time.monotonic() + 150
        while not saved.exists():
            self.assertIsNone(started.process.poll(), started._text())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
        [rank] = started.workers().values()
        peak = int(re.search(r"VmPeak:\s+(\d+) kB", Path(f"/proc/{rank}/status").read_text())[1]) * 1024
        started.end()
        return peak

    def test_TrainsWhereStateExceedsTheLimitOnMemory(self):  # timeout=290
        """A limit on address space that is 100 MB above what the rank needs with its 590 MB of state in a file: it trains, saves and
        goes on, with the losses of no limit; with the state in memory it does not begin."""
        model = dict(arch="gpt2", layers=6, hidden=825, heads=5, ffn=3301, vocab=97, seq_len=8, tie_embeddings=True)
        config = self.config("run", model, train={"dtype": "bf16", "steps": 4, "global_batch": 1}, checkpoint={"every": 2, "verify_writes": False},
                             elastic={"enabled": False})
        limit = self.peak_bytes(config, *NVME, "--set", f"run.dir={self.dir / 'free'}") + 100_000_000
        prefix = ("prlimit", f"--as={limit}")
        self.train(config, "t1", "--set", f"run.dir={self.dir / 'memory'}")
        refused = self.train(config, "t1", "--set", f"run.dir={self.dir / 'refused'}", status=1, prefix=prefix, env=ONE_ARENA)
        self.assertRegex(refused.stderr, "error: .*memory")
        self.train(config, "t1", *NVME, "--set", f"run.dir={self.dir / 'file'}", "--stop-after", "3", prefix=prefix, env=ONE_ARENA)
        self.train(config, "t1", *NVME, "--set", f"run.dir={self.dir / 'file'}", prefix=prefix, env=ONE_ARENA)
        self.assert_losses(self.losses(self.dir / "memory"), self.losses(self.dir / "file"), 0)
        self.same_state(self.checkpoint(self.dir / "memory", 4), self.checkpoint(self.dir / "file", 4))


if __name__ == "__main__":
    main()
