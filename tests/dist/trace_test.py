"""`train --trace FILE`: one file of all ranks, threads and generations, on one time line."""
import collections
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, U1, RunTestCase, layout_sets, main, run  # noqa: E402

# Odd, and large enough that a save takes longer than the way to the next forward pass.
MODEL = dict(U1, layers=5, hidden=120, heads=6, kv_heads=2, ffn=302)
# Times have three digits behind the point of a microsecond.
ROUNDING_US = 0.0021
TRAINING = {"step", "data", "forward", "backward", "reduce", "reduce copies", "gather", "clip", "optimizer", "snapshot",
            "wait for checkpoint", "wait for transfer", "eval"}
PIPELINE_ENDS = {"receive input", "send gradient"}, {"send output", "receive gradient"}
SAVING = {"save", "wait for chunk", "write", "close", "read back", "fsync", "publish part"}
COMMITTING = {"commit", "wait for parts", "manifest", "prune"}


class TraceTestCase(RunTestCase):
    def spans(self, file):
        """(process, thread name) -> spans by start, of a file that must be JSON and whose spans must nest in each row."""
        events = json.loads(file.read_text())["traceEvents"]
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        rows, found = collections.defaultdict(list), collections.defaultdict(list)
        for e in events:
            self.assertIn(e["ph"], "XM", e)
            if e["ph"] == "X":
                rows[e["pid"], e["tid"]].append(e)
        for row, spans in rows.items():
            spans.sort(key=lambda e: (e["ts"], -e["dur"]))
            around = []
            for e in spans:
                end = e["ts"] + e["dur"]
                while around and around[-1] <= e["ts"] + ROUNDING_US:
                    around.pop()
                if around:
                    self.assertLessEqual(end, around[-1] + ROUNDING_US, f"{row}: {e} ends after what is around it")
                around.append(end)
            found[row[0], names[row]] += spans
        return found

    def names(self, spans, rank, thread):
        return {e["name"] for e in spans[rank, thread]}

    def assert_saves_overlap_training(self, spans, rank):
        """Chunks were encoded while a later step's forward pass ran: what saving in the background is for."""
        forward = [e for e in spans[rank, "train"] if e["name"] == "forward"]
        both = [(a, b) for a in spans[rank, "encode"] for b in forward
                if max(a["ts"], b["ts"]) < min(a["ts"] + a["dur"], b["ts"] + b["dur"])]
        self.assertTrue(both, f"rank {rank}: nothing was encoded during a forward pass")

    def test_TraceHasThePhasesOfEachRank(self):
        config = self.config("run", MODEL, valid=self.dir / "tokens-131-4000.bin", train={"steps": 5, "eval_every": 4},
                             checkpoint={"every": 2, "keep": 1, "codec": "small"}, parallel={"sequence_parallel": True})
        file = self.dir / "trace.json"
        self.train(config, "t2p2d2z1", "--trace", file)
        spans = self.spans(file)
        for rank in range(8):
            train = self.names(spans, rank, "train")
            self.assertLessEqual(TRAINING, train, f"rank {rank}")
            # Which ranks are in which stage is the layout's; each is at one of the two ends.
            self.assertTrue(any(ends <= train for ends in PIPELINE_ENDS), train)
            self.assertLessEqual(SAVING, self.names(spans, rank, "save"), f"rank {rank}")
            self.assertEqual(self.names(spans, rank, "encode"), {"encode"})
            self.assert_saves_overlap_training(spans, rank)
            self.assertEqual(sum(e["name"] == "step" for e in spans[rank, "train"]), 5)
        self.assertLessEqual(COMMITTING, self.names(spans, 0, "save"))
        self.assertFalse(COMMITTING & self.names(spans, 1, "save"), "rank 0 alone commits")
        # One time line: in each step the ranks wait for each other, so their steps overlap in pairs.
        for number in range(1, 6):
            steps = [e for rank in range(8) for e in spans[rank, "train"] if e["name"] == "step" and e["args"]["step"] == number]
            self.assertLess(max(e["ts"] for e in steps), min(e["ts"] + e["dur"] for e in steps), f"step {number}")
        self.assertEqual([p.name for p in self.dir.glob("trace.json*")], ["trace.json"], "parts are gone")

        self.train(config, "t1d3z3", "--set", "parallel.sequence_parallel=false", "--set", "train.steps=6", "--trace", file)
        spans = self.spans(file)
        for rank in range(3):
            self.assertLessEqual({"resume", "load", "load chunk", "gather", "reduce"}, self.names(spans, rank, "train"))
            self.assertEqual(sum(e["name"] == "step" for e in spans[rank, "train"]), 1, "the first call's spans are gone")

    def test_TraceShowsWhatTheOptimizerCopies(self):
        """A save that comes late makes the optimizer copy what it is about to change."""
        config = self.config("run", TINY, train={"steps": 3}, checkpoint={"every": 2})
        file = self.dir / "trace.json"
        self.train(config, "d2", "--trace", file, env={"SHARDWRIGHT_FAULT": "shard.open:step=2=delay(700)"})
        spans = self.spans(file)
        for rank in range(2):
            optimizer = [e for e in spans[rank, "train"] if e["name"] == "optimizer"][-1]
            for name in ("before_write", "copy chunk"):
                found = [e for e in spans[rank, "train"] if e["name"] == name]
                self.assertTrue(found, name)
                for e in found:
                    self.assertGreaterEqual(e["ts"], optimizer["ts"])
                    self.assertLessEqual(e["ts"] + e["dur"], optimizer["ts"] + optimizer["dur"] + ROUNDING_US)

    def test_TraceOfAKilledRankIsReadable(self):
        config = self.config("run", TINY, train={"steps": 9}, checkpoint={"every": 2}, elastic={"on_failure": "restart"})
        file = self.dir / "trace.json"
        self.train(config, "t1p1d2z1", "--trace", file, env={"SHARDWRIGHT_FAULT": "step.backward:rank=1:step=6=kill"})
        self.assertEqual([e["rank"] for e in self.events(self.dir / "run", "rank_lost")], [1])
        [resumed] = self.events(self.dir / "run", "resume")
        spans = self.spans(file)
        for rank in range(2):
            steps = [e["args"]["step"] for e in spans[rank, "train"] if e["name"] == "step"]
            self.assertEqual(steps[-1], 9)
            # The last moments before the kill may be missing, all of a generation this short among them. The one after it is not,
            # and follows on one time line.
            again = [e for e in spans[rank, "train"] if e["name"] == "resume"][-1]
            self.assertEqual([s["args"]["step"] for s in spans[rank, "train"] if s["name"] == "step" and s["ts"] > again["ts"]],
                             list(range(resumed["step"] + 1, 10)))

    def test_TraceOfOneProcessWithoutASupervisor(self):
        """As a launcher starts it; a failure that all ranks agree on leaves a trace too."""
        config = self.config("run", TINY, train={"steps": 3})
        file = self.dir / "trace.json"
        rank = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
        self.ok("train", config, *layout_sets("t1"), "--trace", file, env=rank)
        self.assertEqual([e["args"]["step"] for e in self.spans(file)[0, "train"] if e["name"] == "step"], [1, 2, 3])
        failed = self.config("failed", TINY, train={"steps": 3})
        result = run("train", failed, *layout_sets("t1"), "--trace", file,
                     env={**rank, "SHARDWRIGHT_FAULT": "step.loss:step=2=nan"})
        self.assertEqual(result.status, 1, result)
        self.assertEqual([e["args"]["step"] for e in self.spans(file)[0, "train"] if e["name"] == "step"], [1, 2])

    def test_TraceOfTheCheckpointBench(self):
        file = self.dir / "trace.json"
        self.ok("bench", "ckpt", "--dir", self.dir, "--size", "9MiB", "--trace", file)
        spans = self.spans(file)
        self.assertLessEqual({"snapshot", "before_write", "load", "load chunk"}, self.names(spans, 0, "bench"))
        self.assertIn("commit", self.names(spans, 0, "save"))
        self.assertTrue(spans[0, "encode"])

    def test_TraceThatCannotBeWrittenIsOneLine(self):
        config = self.config("run", TINY, train={"steps": 2})
        for file in (self.dir / "none" / "trace.json", self.dir):
            result = run("train", config, "--trace", file)
            self.assertNotEqual(result.status, 0)
            self.assertIn(f"{file}: cannot write", result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result)
            self.assertFalse((self.dir / "run").exists(), "nothing was begun")
        self.assertIn("--trace: is empty", self.fails(2, "train", config, "--trace", "").stderr)


if __name__ == "__main__":
    main()
