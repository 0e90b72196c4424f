"""Public reports about how layers, heads and pipeline stages are cut, end to end: reshard, look into the files, go on."""
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import G1, L1, L2, U1, RunTestCase, main, write_u16  # noqa: E402


class ModelCutsTestCase(RunTestCase):
    def files(self, checkpoint):
        """Of each file, in order of ranks, its boxes of parameters as {tensor: [(offset, shape)]}."""
        found = []
        for file in self.ok("inspect", checkpoint, "--ranks", "--json").json()["files"]:
            boxes = {}
            for box in file["boxes"]:
                if box["kind"] == "param":
                    boxes.setdefault(box["tensor"], []).append((box["offset"], box["shape"]))
            found.append(boxes)
        return found

    def layers(self, boxes):
        return {int(name.split(".")[2]) for name in boxes if name.startswith("model.layers.")}

    def test_B01_OneKvHeadOverManyTensorRanks(self):
        model = dict(L2, kv_heads=1)
        config, source, expected = self.saved_run(model, "t1")
        at = source
        for layout in ("t4", "t2", "t1"):
            at = self.reshard(at, layout)
        self.same_state(source, at)
        tensors = {t["name"]: t["shape"] for t in self.ok("inspect", at, "--tensors", "--json").json()["tensors"]}
        self.assertEqual({tuple(shape) for name, shape in tensors.items() if "k_proj" in name or "v_proj" in name}, {(8, 64)})
        self.go_on(config, "t4", self.dir / "t4", expected)
        self.go_on(config, "t2", self.dir / "t2", expected)

    def test_B04_GateAndUpStayApart(self):
        """The loss of the very run that saved at t4p2 is that of its checkpoint merged on one rank."""
        valid = self.dir / "valid.bin"
        write_u16(valid, L1["vocab"], 1000, seed=2)
        config = self.config("run", L1, train={"steps": 5, "eval_every": 5}, valid=valid)
        self.train(config, "t4p2")
        source = self.checkpoint(self.dir / "run", 5)
        merged = self.reshard(source, "t1p1d1z0")
        self.same_state(source, merged)
        seen = self.records(self.dir / "run", "eval")[-1]
        found = self.ok("eval", merged, "--data", valid, "--format", "u16", "--json").json()
        self.assertEqual(found["tokens"], seen["tokens"])
        self.assertLess(abs(found["loss"] - seen["loss"]), 1e-5 * seen["loss"])

    def test_B12_EvaluationIsTheSameInEveryLayout(self):  # timeout=150
        """Of the checkpoint by itself, and in a run that goes on from it; the last batch is uneven."""
        valid = self.dir / "valid.bin"
        write_u16(valid, L1["vocab"], 32 * 29 + 1, seed=2)
        config, source, expected = self.saved_run(L1, "t1", train={"eval_every": 4}, valid=valid)
        seen = [r["loss"] for r in self.records(self.dir / "whole", "eval")]
        whole = self.ok("eval", source, "--data", valid, "--format", "u16", "--json").json()["loss"]
        for layout in ("t2", "t4", "p2", "t2p3"):
            target = self.reshard(source, layout)
            alone = self.ok("eval", target, "--data", valid, "--format", "u16", "--json").json()["loss"]
            self.assertLess(abs(alone - whole), 1e-5 * whole, layout)
            on = self.go_on(config, layout, target, expected, "--stop-after", "4")
            record, = self.records(on, "eval")
            self.assertEqual(record["tokens"], 29 * 32)
            self.assertLess(abs(record["loss"] - seen[0]), 1e-5 * seen[0], layout)

    def test_B14_TiedEmbeddingsOverStages(self):  # timeout=150
        config, source, expected = self.saved_run(G1, "t1", until=13)
        for zero in (0, 1):
            at = source
            for layout in (f"p2d2z{zero}", f"p4d1z{zero}", f"p1d2z{zero}"):
                at = self.reshard(at, layout)
            self.same_state(source, at)
        # Ten more steps: if the first and last stage's copies parted, so would the losses.
        self.go_on(config, "p2", self.dir / "p2d2z0", expected)

    def test_B15_TiedEmbeddingsHaveOneState(self):
        config, source, expected = self.saved_run(G1, "t4d2z1", until=13)
        kinds = {t["name"]: sorted(k["kind"] for k in t["kinds"])
                 for t in self.ok("inspect", source, "--tensors", "--json").json()["tensors"]}
        self.assertNotIn("lm_head.weight", kinds)
        self.assertEqual(kinds["model.embed_tokens.weight"], ["exp_avg", "exp_avg_sq", "param"])
        self.go_on(config, "t2p2d2z1", source, expected)

    def test_B17_B20_EachLayerInOneStage(self):  # timeout=150
        config, source, expected = self.saved_run(U1, "t1")
        parameters = self.ok("inspect", source, "--json").json()["parameters"]
        for layout, stages in (("p2", [4, 3]), ("p3", [3, 2, 2]), ("p4", [2, 2, 2, 1]), ("p7", [1] * 7)):
            target = self.reshard(source, layout)
            layers = [self.layers(boxes) for boxes in self.files(target)]
            self.assertEqual([len(x) for x in layers], stages)
            self.assertEqual(sorted(n for x in layers for n in x), list(range(7)))
            self.assertEqual(self.ok("inspect", target, "--json").json()["parameters"], parameters)
            self.go_on(config, layout, target, expected)

    def test_B19_VirtualStagesComeAndGo(self):  # timeout=150
        model = dict(L2, layers=8, hidden=32, heads=4, ffn=48)
        config, source, expected = self.saved_run(model, "p2")
        at = source
        for layout in ("p2v2", "p4", "p2v4", "p2"):
            at = self.reshard(at, layout)
            if layout != "p2":
                self.go_on(config, layout, at, expected)
        self.same_state(source, at)
        shutil.rmtree(self.dir / "on-p2v2")
        self.go_on(config, "p2v2", source, expected)

    def test_B22_PipelinesResume(self):  # timeout=200
        for layout in ("p2", "p4", "p2d2z1"):
            config = self.config(layout, train={"steps": 10})
            whole, half = self.dir / f"whole-{layout}", self.dir / f"half-{layout}"
            self.train(config, layout, "--set", f"run.dir={whole}")
            self.train(config, layout, "--set", f"run.dir={half}", "--stop-after", "5")
            self.train(config, layout, "--set", f"run.dir={half}")
            self.assert_losses(self.losses(whole), self.losses(half), 0, layout)
            self.assertEqual(self.samples(whole), self.samples(half))
        hidden = self.checkpoint(self.dir / "half-p2", 5) / "rank-00001.h5"
        hidden.rename(self.dir / "away.h5")
        result = self.train(config, "p2", "--set", f"run.dir={self.dir / 'third'}", "--resume", hidden.parent, status=1)
        self.assertIn(str(hidden), result.stderr)
        self.assertFalse((self.dir / "third" / "checkpoints" / "LATEST").exists())

    def test_B24_NothingIsMissingFromAPipeline(self):
        config = self.config("run", L1)
        self.train(config, "t2p2", "--stop-after", "0")
        source = self.checkpoint(self.dir / "run", 0)
        document = self.ok("inspect", source, "--tensors", "--json").json()
        hidden, kv, ffn, vocab = 96, 32, 176, 203
        layer = 2 * hidden * hidden + 2 * kv * hidden + 3 * ffn * hidden + 2 * hidden
        self.assertEqual(document["parameters"], 6 * layer + 2 * vocab * hidden + hidden)
        self.assertEqual({k["dtype"] for t in document["tensors"] for k in t["kinds"]}, {"f32"})
        files = self.files(source)
        stored = 0
        for boxes in files:
            for parts in boxes.values():
                for _, shape in parts:
                    size = 1
                    for extent in shape:
                        size *= extent
                    stored += size
        self.assertEqual(stored, document["parameters"])
        gone = source / "rank-00003.h5"
        gone.rename(self.dir / "away.h5")
        report = self.fails(1, "verify", source, "--json").json()
        self.assertIn("missing_file", {p["code"] for p in report["problems"]})
        text = str(report["problems"])
        for tensor in files[3]:
            self.assertIn(tensor, text)

    def test_B37_NormsAreNotDecayedInAnyLayout(self):  # timeout=150
        """A step with and without weight decay from the same state: all matrices differ, and no norm does."""
        config = self.config("run", L1, train={"steps": 3}, optim={"lr": 0.1, "warmup_steps": 0, "schedule": "constant"})
        self.train(config, "p4", "--stop-after", "2")
        source = self.checkpoint(self.dir / "run", 2)
        merged = self.reshard(source, "p1")
        for layout, at in (("p4", source), ("p1", merged), ("p2", self.reshard(merged, "p2"))):
            states = []
            for decay in (0, 0.1):
                on = self.dir / f"on-{layout}-{decay}"
                self.train(config, layout, "--set", f"run.dir={on}", "--resume", at, "--set", f"optim.weight_decay={decay}")
                states.append(self.fingerprints(self.checkpoint(on, 3)))
            differing = {name for name, kind in states[0] if kind == "param" and states[0][name, kind] != states[1][name, kind]}
            self.assertEqual(differing, {name for name, _ in states[0] if "norm" not in name}, layout)


if __name__ == "__main__":
    main()
