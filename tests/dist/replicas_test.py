"""`checkpoint.check_replicas`: no checkpoint is made of state of which two ranks hold different copies."""
import itertools
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import RunTestCase, layout_sets, main, run, slug  # noqa: E402

# Odd sizes; the embedding is tied, heads and KV heads are cut or shared by two and three ranks.
GPT = dict(arch="gpt2", layers=5, hidden=36, heads=6, ffn=77, vocab=103, seq_len=19, tie_embeddings=True)
LLAMA = dict(arch="llama", layers=5, hidden=36, heads=6, kv_heads=2, ffn=55, vocab=101, seq_len=19, tie_embeddings=False)
BLOOM = dict(GPT, arch="bloom")
DIFFERENT = re.compile(r"tensor '(\S+)' kind '(\S+)' box .*: rank (\d+) holds other values than rank (\d+), where equal ones are right")


class ReplicasTestCase(RunTestCase):
    def flipped(self, model, layout, rank, nth, dtype="fp32", kind="param", fades=False):
        """One bit of the nth copy on one rank (None: on all that have one) flips at the boundary of step 4; returns the tensor that
        is named."""
        name = slug(f"{model['arch']}-{layout}-{dtype}-{rank}-{nth}")
        config = self.config(name, model, train={"steps": 6, "dtype": dtype}, checkpoint={"every": 2})
        where = "" if rank is None else f":rank={rank}"
        result = run("train", config, *layout_sets(layout), env={"SHARDWRIGHT_FAULT": f"save.replica{where}:step=4:nth={nth}=flip"})
        outcomes = {r["step"]: r for r in self.records(self.dir / name, "checkpoint")}
        self.assertEqual(outcomes[2]["outcome"], "committed", result)
        self.assertEqual(outcomes[4]["outcome"], "failed", result)
        found = DIFFERENT.fullmatch(outcomes[4]["reason"].split(";")[0])
        self.assertTrue(found, outcomes[4])
        tensor, found_kind, *ranks = found.groups()
        self.assertNotEqual(*ranks)
        if rank is not None:
            self.assertIn(str(rank), ranks, outcomes[4])
        self.assertEqual(found_kind, kind)
        [event, *_] = self.events(self.dir / name, "checkpoint_failed")
        self.assertEqual((event["step"], event["reason"]), (4, outcomes[4]["reason"]))
        # Training goes on. What comes from masters is put right by the next step; whether two steps round one bit of a master or a
        # moment away depends on the values.
        last_failed = outcomes[6]["outcome"] == "failed"
        self.assertFalse(last_failed and fades)
        self.assertEqual(result.status, 1 if last_failed else 0, result)
        newest = self.ok("list", self.dir / name, "--json").json()["newest_valid"]
        self.assertTrue(newest.endswith("step-0000000002" if last_failed else "step-0000000006"), newest)
        self.verified(newest)
        self.assertEqual([p.name for p in (self.dir / name / "checkpoints").iterdir() if "tmp" in p.name or "trash" in p.name], [])
        return tensor

    def test_FlippedBitInADataParallelCopyIsFound(self):
        self.flipped(GPT, "t2d2", 3, 4)
        self.flipped(GPT, "p2d3", 4, 2, kind="exp_avg")
        self.flipped(LLAMA, "d2", 1, 3, "bf16", kind="exp_avg_sq")

    def test_FlippedBitInATensorParallelCopyIsFound(self):
        for layout, model in (("t2", LLAMA), ("t3d2z1 sp", BLOOM), ("t2d2z3", GPT)):
            tensor = self.flipped(model, layout, None, 1)
            self.assertRegex(tensor, "norm|bias|embed_positions")

    def test_FlippedBitInATiedEmbeddingIsFound(self):
        """Small enough to be written by one stage at one place of the data axis: the other stage has a copy there."""
        self.assertEqual(self.flipped(GPT, "p3d1z1", None, 1), "model.embed_tokens.weight")
        self.assertEqual(self.flipped(GPT, "p2d2z3", None, 2, kind="exp_avg"), "model.embed_tokens.weight")
        self.assertEqual(self.flipped(BLOOM, "p2d3z3", None, 4, "bf16", kind="value", fades=True), "model.embed_tokens.weight")

    def test_FlippedBitInAValueIsFoundAndPutRightByTheNextStep(self):
        self.flipped(LLAMA, "d3z1", 2, 3, fades=True)
        self.flipped(GPT, "d2z2", 0, 1, "bf16", kind="value", fades=True)
        self.flipped(BLOOM, "d3", 1, 4, "fp16", kind="value", fades=True)

    def unflipped(self, model, layout, dtype):
        name = slug(f"{model['arch']}-{layout}-{dtype}")
        # The first scale overflows, so that steps are passed over as well.
        train = {"steps": 5, "dtype": dtype, **({"loss_scale": 2.0 ** 30} if dtype == "fp16" else {})}
        config = self.config(name, model, train=train, checkpoint={"every": 1})
        self.train(config, layout, "--stop-after", 3)
        self.train(config, layout)
        outcomes = self.records(self.dir / name, "checkpoint")
        self.assertEqual([(r["step"], r["outcome"]) for r in outcomes], [(s, "committed") for s in range(1, 6)], name)
        return outcomes

    def test_EqualCopiesRaiseNoAlarm(self):  # timeout=300
        layouts = ("t2d2", "d3z1", "p2d3", "t2 sp", "t2p2d2z2", "d2z3", "t3p2v2 stages=1,1,2,1")
        for i, layout in enumerate(layouts):
            for outcome in self.unflipped((GPT, LLAMA, BLOOM)[i % 3], layout, ("fp32", "bf16", "fp16")[(i + i // 3) % 3]):
                self.assertGreater(outcome["replicas_s"], 0)

    def test_EqualCopiesRaiseNoAlarmInAnyLayout(self):  # long
        layouts = ("t2d2", "d3z1", "p2d3", "t2 sp", "t2p2d2z2", "d2z3", "t3p2v2 stages=1,1,2,1", "t6", "t2d3z3 sp", "p4d2z2", "p3d2z1 gpipe")
        for model, layout, dtype in itertools.product((GPT, LLAMA, BLOOM), layouts, ("fp32", "bf16", "fp16")):
            if model is not LLAMA or not layout.startswith("t3"):  # 3 ranks cannot share 2 KV heads
                self.unflipped(model, layout, dtype)

    def test_WithoutCopiesOrTheKeyNothingIsCompared(self):
        """With ZeRO 3 no rank has what another one writes, and alone there is no other rank: no place where the fault could strike."""
        fault = {"SHARDWRIGHT_FAULT": "save.replica=eio"}
        for layout, more in (("d3z3", ()), ("t1", ()), ("d2", ("--set", "checkpoint.check_replicas=false"))):
            config = self.config(slug(layout), GPT, train={"steps": 2}, checkpoint={"every": 1})
            self.train(config, layout, *more, env=fault)


if __name__ == "__main__":
    main()
