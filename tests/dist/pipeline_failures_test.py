"""What befalls a run over all three axes: killed, stopped and signalled ranks, and evaluation on the way."""
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import G1, T1, RunTestCase, layout_sets, main, run, write_u16  # noqa: E402

ENDLESS = 1_000_000


class PipelineFailuresTestCase(RunTestCase):
    def begin(self, config, name, layout):
        """Starts a run and waits until it has finished three steps."""
        started = self.start("train", config, *layout_sets(layout))
        metrics = self.dir / name / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count('"type":"step"') >= 3):
            self.assertLess(time.monotonic(), deadline, "no step was finished")
            self.assertIsNone(started.process.poll(), started._text())
            time.sleep(0.02)
        return started

    def test_B22_AKilledRankOfThreeAxes(self):  # timeout=150
        """Of eight ranks one is killed: six can still share the four heads, the four layers and the twelve sequences."""
        sections = dict(train={"steps": 6}, checkpoint={"every": 2})
        whole, config = self.config("whole", **sections), self.config("run", **sections)
        self.train(whole, "t1")
        result = run("train", config, *layout_sets("t2p2d2z1"), env={"SHARDWRIGHT_FAULT": "step.backward:rank=5:step=4=kill"})
        self.assertEqual(result.status, 0, result)
        self.assertEqual([(e["rank"], e["cause"]) for e in self.events(self.dir / "run", "rank_lost")], [(5, "signal")])
        self.assertEqual([(e["ranks"], e["layout"]) for e in self.events(self.dir / "run", "generation_start")],
                         [(8, "t2p2d2z1"), (6, "t2p1d3z1")])
        self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / "run"))
        self.assertEqual(self.samples(self.dir / "whole"), self.samples(self.dir / "run"))

    def test_AKilledStageOfASmallModel(self):  # timeout=150
        """Three stages of one tensor pair each become two: the rank of a stage in the middle dies."""
        sections = dict(train={"steps": 6, "global_batch": 3}, checkpoint={"every": 2})
        whole, config = self.config("whole", **sections), self.config("run", **sections)
        self.train(whole, "t1")
        result = run("train", config, *layout_sets("t2p3"), env={"SHARDWRIGHT_FAULT": "step.forward:rank=2:step=4=kill"})
        self.assertEqual(result.status, 0, result)
        self.assertEqual([(e["ranks"], e["layout"]) for e in self.events(self.dir / "run", "generation_start")],
                         [(6, "t2p3d1z0"), (4, "t2p2d1z0")])
        self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / "run"))

    def test_AStoppedStageIsAHang(self):  # timeout=100
        config = self.config("run", T1, train={"steps": ENDLESS}, checkpoint={"every": 50, "keep": 2},
                             elastic={"phase_deadline_s": 20, "heartbeat_s": 4})
        started = self.begin(config, "run", "p2d2z1")
        began = time.monotonic()
        os.kill(started.workers()[3], signal.SIGSTOP)
        while len(self.events(self.dir / "run", "generation_start")) < 2:
            self.assertLess(time.monotonic() - began, 20)
            time.sleep(0.05)
        self.assertEqual([(e["rank"], e["cause"]) for e in self.events(self.dir / "run", "rank_lost")], [(3, "hang")])
        started.process.send_signal(signal.SIGTERM)
        self.assertEqual(started.wait(40).status, 75)

    def test_AStageThatIsLateLosesNoRank(self):  # timeout=100
        """One stage does not send: all come to their deadline, the one that is behind is named, and all start again."""
        config = self.config("run", T1, train={"steps": 6}, elastic={"phase_deadline_s": 4})
        result = run("train", config, *layout_sets("t3p2"), env={"SHARDWRIGHT_FAULT": "step.forward:rank=1:step=3=delay(60000)"})
        self.assertEqual(result.status, 0, result)
        self.assertEqual([e["ranks"] for e in self.events(self.dir / "run", "generation_start")], [6, 6])
        lost = self.events(self.dir / "run", "rank_lost")
        self.assertEqual([(e["rank"], e["cause"]) for e in lost], [(1, "hang")], result)

    def test_B97_ASignalInAPipelineSavesAndEndsWith75(self):  # timeout=100
        sections = dict(train={"steps": 40})
        whole, config = self.config("whole", T1, **sections), self.config("run", T1, **sections)
        layout = "p2d3z1v1"
        self.train(whole, layout)
        started = self.begin(config, "run", layout)
        started.process.send_signal(signal.SIGTERM)
        result = started.wait(40)
        self.assertEqual(result.status, 75, result)
        self.assertEqual(self.events(self.dir / "run")[-1]["event"], "preempted")
        self.train(config, layout)
        self.assert_losses(self.losses(self.dir / "whole"), self.losses(self.dir / "run"), 0)
        self.assertEqual(len(self.records(self.dir / "run", "step")), 40)

    def test_B12_EvaluationOnTheWayInAPipeline(self):
        """29 samples: over two stages and two copies the last batches are uneven, over three a copy has none at the end."""
        valid = self.dir / "valid.bin"
        write_u16(valid, G1["vocab"], 32 * 29 + 1, seed=2)
        seen = {}
        for layout in ("t1", "t2p2d2z1", "p2d3z1v2"):
            config = self.config(layout, train={"steps": 4, "eval_every": 2, "micro_batch": 2}, valid=valid)
            self.train(config, layout)
            seen[layout] = {r["step"]: (r["tokens"], r["loss"]) for r in self.records(self.dir / layout, "eval")}
            self.assertEqual([r["step"] for r in self.records(self.dir / layout, "eval")], [2, 4])
        for layout, found in seen.items():
            for step, (tokens, loss) in found.items():
                self.assertEqual(tokens, 29 * 32)
                self.assertLess(abs(loss - seen["t1"][step][1]), 1e-5 * loss, (layout, step))


if __name__ == "__main__":
    main()
