"""The supervisor: what becomes of a run when ranks, mpirun or the supervisor itself are killed, stopped or told to stop."""
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, RunTestCase, layout_sets, main, run  # noqa: E402

LAYOUT = "d4z1"
ENDLESS = 1_000_000


class SupervisionTestCase(RunTestCase):
    def tiny(self, name, steps=8, elastic=None, **more):
        sections = dict(train={"steps": steps, "global_batch": 12, "micro_batch": 1}, checkpoint={"every": 2, "keep": 2},
                        elastic={"phase_deadline_s": 20, "heartbeat_s": 4, **(elastic or {})})
        for section, values in more.items():
            sections.setdefault(section, {}).update(values)
        return self.config(name, TINY, **sections)

    def begin(self, config, name, fault=None, layout=LAYOUT, steps=3):
        """Starts a run and waits until it has finished some steps."""
        started = self.start("train", config, *layout_sets(layout), env={"SHARDWRIGHT_FAULT": fault} if fault else {})
        metrics = self.dir / name / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count('"type":"step"') >= steps):
            self.assertLess(time.monotonic(), deadline, "no step was finished")
            self.assertIsNone(started.process.poll(), started._text())
            time.sleep(0.02)
        return started

    def names(self, name):
        return [e["event"] for e in self.events(self.dir / name)]

    def errors(self, result):
        return [line for line in result.stderr.splitlines() if line.startswith("shardwright: error:")]

    def wait_for_generation(self, started, name, number):
        """Waits until a step of this generation is finished."""
        metrics = self.dir / name / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (metrics.exists() and f'"generation":{number},"loss"' in metrics.read_text()):
            self.assertLess(time.monotonic(), deadline, f"no step of generation {number}")
            self.assertIsNone(started.process.poll(), started._text())
            time.sleep(0.01)

    def test_KilledRanksOneAfterTheOther(self):  # timeout=150
        """kill -9 from outside of rank 1, later of rank 0: four ranks, three, two, and the losses of an undisturbed run."""
        self.train(self.tiny("whole", 120, checkpoint={"every": 0}), "t1")
        config = self.tiny("run", 120, checkpoint={"every": 20})
        started = self.begin(config, "run")
        os.kill(started.workers()[1], signal.SIGKILL)
        self.wait_for_generation(started, "run", 1)
        os.kill(started.workers()[0], signal.SIGKILL)
        result = started.wait(90)
        self.assertEqual(result.status, 0, result)
        lost = self.events(self.dir / "run", "rank_lost")
        self.assertEqual([(e["rank"], e["cause"], e["detail"]) for e in lost], [(1, "signal", "signal 9"), (0, "signal", "signal 9")])
        starts = self.events(self.dir / "run", "generation_start")
        self.assertEqual([(e["ranks"], e["layout"]) for e in starts],
                         [(4, "t1p1d4z1"), (3, "t1p1d3z1"), (2, "t1p1d2z1")])
        self.assertEqual(self.names("run")[-1], "done")
        self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / "run"))

    def test_RestartKeepsTheLayout(self):  # timeout=100
        config = self.tiny("run", checkpoint={"every": 0}, elastic={"on_failure": "restart"})
        result = run("train", config, *layout_sets("d3z1"), env={"SHARDWRIGHT_FAULT": "step.backward:rank=0:step=5=kill"})
        self.assertEqual(result.status, 0, result)
        self.assertEqual([e["ranks"] for e in self.events(self.dir / "run", "generation_start")], [3, 3])
        # Steps far shorter than the time between heartbeats are counted all the same. Rank 0 writes them down before it
        # begins the next; another rank can be in step 5 before rank 0 has written down step 4.
        self.assertEqual(self.events(self.dir / "run", "generation_end")[0]["lost_steps"], 4)

    def test_AStoppedRankIsLost(self):  # timeout=100
        config = self.tiny("run", ENDLESS)
        started = self.begin(config, "run")
        began = time.monotonic()
        os.kill(started.workers()[2], signal.SIGSTOP)
        while len(self.events(self.dir / "run", "generation_start")) < 2:
            self.assertLess(time.monotonic() - began, 20)
            time.sleep(0.05)
        lost = self.events(self.dir / "run", "rank_lost")
        self.assertEqual([(e["rank"], e["cause"]) for e in lost], [(2, "hang")])
        started.process.send_signal(signal.SIGTERM)
        self.assertEqual(started.wait(30).status, 75)

    def test_AHangLosesNoRank(self):  # timeout=100
        """One rank stays in its forward pass: all come to their deadline, the one that is behind is named, and all start again."""
        config = self.tiny("run", elastic={"phase_deadline_s": 3})
        result = run("train", config, *layout_sets("d3z1"), env={"SHARDWRIGHT_FAULT": "step.forward:rank=1:step=5=delay(60000)"})
        self.assertEqual(result.status, 0, result)
        self.assertEqual([e["ranks"] for e in self.events(self.dir / "run", "generation_start")], [3, 3])
        lost = self.events(self.dir / "run", "rank_lost")
        self.assertEqual([(e["rank"], e["cause"]) for e in lost], [(1, "hang")], result)
        logs = "".join(p.read_text() for p in (self.dir / "run" / "logs" / "gen-0000").glob("rank-*.log"))
        self.assertIn("step exceeded its deadline of 3 s", logs)

    def test_SignalsEndWith75AndTheRunGoesOn(self):  # timeout=200
        whole = self.tiny("whole", 40)
        self.train(whole, LAYOUT)
        for name, number, to_all in (("term", signal.SIGTERM, False), ("int", signal.SIGINT, False), ("usr1", signal.SIGUSR1, False),
                                      ("hup", signal.SIGHUP, False), ("all", signal.SIGTERM, True)):
            with self.subTest(name):
                config = self.tiny(name, 40, checkpoint={"every": 0})
                started = self.begin(config, name, "step.forward:rank=1:step=4=delay(1500)")
                # "all" is what systemd and scancel do: mpirun gets the signal too.
                if to_all:
                    started.signal_all(number)
                else:
                    started.process.send_signal(number)
                result = started.wait(30)
                self.assertEqual(result.status, 75, result)
                self.assertEqual(self.errors(result), [])
                self.assertEqual(self.names(name)[-1], "preempted")
                self.assertEqual(self.events(self.dir / name, "rank_lost"), [])
                self.train(config, LAYOUT)
                self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / name), 0)

    def test_ASignalBeforeTheRanksAreUp(self):  # timeout=60
        config = self.tiny("run", ENDLESS)
        started = self.start("train", config, *layout_sets(LAYOUT))
        deadline = time.monotonic() + 20
        while not (self.dir / "run" / "events.jsonl").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        started.process.send_signal(signal.SIGTERM)
        result = started.wait(40)
        self.assertEqual(result.status, 75, result)

    def test_ASecondSignalEndsAtOnce(self):  # timeout=60
        config = self.tiny("run", ENDLESS, checkpoint={"every": 0})
        started = self.begin(config, "run", "shard.open:rank=1=delay(30000)")
        started.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        self.assertIsNone(started.process.poll())
        started.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        result = started.wait(25)
        self.assertLess(time.monotonic() - began, 20)  # the save would take 30 s
        self.assertEqual(result.status, 1, result)
        self.assertEqual(len(self.errors(result)), 1, result)
        self.assertEqual(self.names("run")[-1], "given_up")

    def test_TheSameSignalTwiceIsOneRequest(self):  # timeout=100
        """timeout(1) signals its child and then the whole group: the run saves all the same."""
        for gap in (0, 0.001, 0.02):
            name = f"gap{gap}"
            config = self.tiny(name, ENDLESS)
            started = self.begin(config, name)
            started.process.send_signal(signal.SIGTERM)
            time.sleep(gap)
            started.process.send_signal(signal.SIGTERM)
            result = started.wait(40)
            self.assertEqual(result.status, 75, (gap, result))

    def test_AKilledSupervisorLeavesNoProcess(self):  # timeout=60
        """SIGKILL to the supervisor, with one rank stopped: everything is gone within a second; the run starts again."""
        config = self.tiny("run", ENDLESS)
        started = self.begin(config, "run")
        os.kill(started.workers()[3], signal.SIGSTOP)
        started.process.kill()
        result = started.wait(10, strays_allowed_s=1)
        self.assertEqual(result.status, -signal.SIGKILL)
        self.train(config, LAYOUT, "--stop-after", "6")

    def test_AKilledMpirunIsStartedAgain(self):  # timeout=100
        config = self.tiny("run", 60)
        started = self.begin(config, "run", "step.forward:rank=2:step=8=delay(3000)")
        os.kill(started.mpirun(), signal.SIGKILL)
        result = started.wait(60)
        self.assertEqual(result.status, 0, result)
        self.assertEqual([e["ranks"] for e in self.events(self.dir / "run", "generation_start")], [4, 4])
        self.assertEqual(self.events(self.dir / "run", "rank_lost"), [])

    def test_OneRunAtATime(self):  # timeout=100
        config = self.tiny("run", ENDLESS)
        started = self.begin(config, "run")
        for more in ([], ["--set", f"run.dir={self.dir}/other", "--set", f"checkpoint.dir={self.dir}/run/checkpoints"]):
            result = run("train", config, *layout_sets(LAYOUT), *more, timeout=20)
            self.assertEqual(result.status, 3, result)
            self.assertEqual(len(self.errors(result)), 1, result)
        started.process.send_signal(signal.SIGTERM)
        self.assertEqual(started.wait(30).status, 75)

    def test_GivesUpWithOneLine(self):  # timeout=100
        for name, elastic, why in (("off", {"enabled": False}, "enabled"), ("few", {"min_ranks": 4}, "min_ranks"),
                                   ("spent", {"on_failure": "restart", "max_restarts": 0}, "max_restarts")):
            with self.subTest(name):
                config = self.tiny(name, elastic=elastic)
                result = run("train", config, *layout_sets(LAYOUT), env={"SHARDWRIGHT_FAULT": "step.begin:rank=2:step=3=kill"})
                self.assertEqual(result.status, 1, result)
                self.assertEqual(len(self.errors(result)), 1, result)
                self.assertIn(why, result.stderr)
                self.assertIn("signal 9", result.stderr)
                self.assertIn(why, self.events(self.dir / name, "given_up")[0]["reason"])

    def test_WhatIsAskedWronglyIsNotTriedAgain(self):  # timeout=100
        """An error that only the ranks can find ends the run with its own status and one line, in one generation."""
        config = self.tiny("run")
        self.train(config, LAYOUT, "--stop-after", "2")
        result = run("train", config, *layout_sets(LAYOUT), "--set", "train.seed=8")
        self.assertEqual(result.status, 2, result)
        self.assertEqual(len(self.errors(result)), 1, result)
        self.assertEqual(len(self.events(self.dir / "run", "generation_start")), 2)

    def test_ANonFiniteLossStopsTheRun(self):  # timeout=100
        config = self.tiny("run", 200, optim={"lr": 1e30, "warmup_steps": 0, "schedule": "constant"})
        result = run("train", config, *layout_sets("d2"))
        self.assertEqual(result.status, 1, result)
        self.assertEqual(len(self.errors(result)), 1, result)
        self.assertEqual([e["cause"] for e in self.events(self.dir / "run", "rank_lost")], ["nonfinite"], result)
        self.assertEqual(len(self.events(self.dir / "run", "generation_start")), 1)

    def test_IdleRanksAreSaidAndStepIn(self):  # timeout=150
        """Six ranks lose one: five cannot share twelve sequences, so four go on and one is idle; it steps in for the next."""
        config = self.tiny("run", 120, checkpoint={"every": 20})
        started = self.begin(config, "run", "step.begin:rank=5:step=4=kill", layout="d6z1")
        self.wait_for_generation(started, "run", 1)
        os.kill(started.workers()[0], signal.SIGKILL)
        result = started.wait(90)
        self.assertEqual(result.status, 0, result)
        self.assertEqual([e["ranks"] for e in self.events(self.dir / "run", "generation_start")], [6, 4, 4])
        self.assertIn("idle", result.stderr)

    def test_NothingIsLeftBehind(self):  # timeout=100
        """After kills and a hang: no shared-memory segment and no session directory of ours."""
        config = self.tiny("run")
        temporary = self.dir / "tmp"
        temporary.mkdir()
        before = set(os.listdir("/dev/shm"))
        result = run("train", config, *layout_sets(LAYOUT),
                     env={"SHARDWRIGHT_FAULT": "step.begin:rank=2:step=3=kill", "TMPDIR": str(temporary)})
        self.assertEqual(result.status, 0, result)
        self.assertEqual(os.listdir(temporary), [])
        new = [n for n in set(os.listdir("/dev/shm")) - before if n.startswith(f"shardwright-{os.getuid()}-")]
        # Other runs of this user may be at work; only locked directories are theirs.
        self.assertEqual([n for n in new if not self.locked(Path("/dev/shm") / n / "lock")], [])

    def locked(self, path):
        try:
            with open(path, "r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # locked, or gone in the meantime
            return True
        return False

    def test_OutputNobodyReadsDoesNotEndTheRun(self):  # timeout=60
        config = self.tiny("run", 20)
        started = self.start("train", config, *layout_sets("d2"), prefix=["/bin/bash", "-c", 'exec "$@" > >(exec true)', "bash"])
        result = started.wait(50)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(self.names("run")[-1], "done")

    def test_TwoOrAllRanksKilledAtOnce(self):  # timeout=150
        """mpirun knows only who was first: one slot goes, the run goes on and ends."""
        for name, victims in (("two", (0, 2)), ("all", (0, 1, 2, 3))):
            with self.subTest(name):
                config = self.tiny(name, 40)
                started = self.begin(config, name, "step.forward:rank=1:step=8=delay(1500)")
                workers = started.workers()
                for rank in victims:
                    os.kill(workers[rank], signal.SIGKILL)
                result = started.wait(60)
                self.assertEqual(result.status, 0, result)
                self.assertEqual([e["ranks"] for e in self.events(self.dir / name, "generation_start")], [4, 3])
                self.assertEqual(len(self.events(self.dir / name, "rank_lost")), 1)

    def test_UnderNohupATerminalMayClose(self):  # timeout=60
        config = self.tiny("run", 60)
        started = self.start("train", config, *layout_sets("d2"), prefix=["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh"])
        while not self.steps_done("run"):
            time.sleep(0.02)
        os.kill(started.process.pid, signal.SIGHUP)
        result = started.wait(50)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(self.names("run")[-1], "done")

    def steps_done(self, name):
        metrics = self.dir / name / "metrics.jsonl"
        return metrics.exists() and '"type":"step"' in metrics.read_text()

    def test_AReaderThatStopsReadingStopsNothing(self):  # timeout=60
        """A pager that waits for its user: the run goes on, and still hears signals."""
        config = self.tiny("run", ENDLESS)
        fifo = self.dir / "fifo"
        os.mkfifo(fifo)
        pipe = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, pipe)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(pipe, b"." * 4096)
        started = self.start("train", config, *layout_sets("d2"),
                             prefix=["/bin/bash", "-c", f'exec "$@" > "{fifo}"', "bash"])
        while not self.steps_done("run"):
            self.assertIsNone(started.process.poll())
            time.sleep(0.02)
        started.process.send_signal(signal.SIGTERM)
        result = started.wait(30)
        self.assertEqual(result.status, 75, result)
        self.assertEqual(self.names("run")[-1], "preempted")


if __name__ == "__main__":
    main()
