"""reshard --cast, --vocab, --tie and --untie: what becomes of every value, seen by a reader that shares no code, and training from it."""
import sys
from pathlib import Path

import h5py
import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import second_reader  # noqa: E402
from forge import remake, resign  # noqa: E402
from run_harness import G1, L1, RunTestCase, main, run  # noqa: E402

EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
KINDS = ("param", "exp_avg", "exp_avg_sq")


def values(checkpoint):
    return second_reader.read(checkpoint)[1]


def bf16(array):
    """The upper halves of fp32 values, rounded to the nearest, from halfway to even."""
    bits = array.view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


class ConversionTestCase(RunTestCase):
    def bits(self, a, b, what):
        self.assertEqual(a.dtype, b.dtype, what)
        self.assertTrue((a.view(numpy.uint8) == b.view(numpy.uint8)).all(), what)

    def converted(self, source, layout, *flags, name=None, **more):
        """Path and report of a reshard with flags."""
        target = self.dir / (name or "-".join(["to", layout, *map(str, flags)]).replace("=", "")) / source.name
        report = self.ok("reshard", source, target, "--layout", layout, *flags, "--json", **more).json()
        self.assertTrue(report["proof"]["ok"], report)
        self.verified(target)
        return target, report

    def saved(self, model, layout, name="run"):
        """A configuration, the checkpoint of step 3 of a run of it, and the losses of the steps after that."""
        config = self.config(name, model, checkpoint={"every": 3})
        self.train(config, layout)
        return config, self.checkpoint(self.dir / name, 3), {s: loss for s, loss in self.losses(self.dir / name).items() if s > 3}

    def test_VocabularyGrowsAndShrinks(self):  # timeout=200
        for model, layouts in ((G1, ("t2p2d1z0", "t4d1z1", "d5z1", "t1")), (L1, ("t2p3d1z0", "d7z3", "p3d2z1", "t4"))):
            with self.subTest(model["arch"]):
                vocab, name = model["vocab"], model["arch"]
                config, source, expected = self.saved(model, layouts[0], name)
                before = values(source)
                tables = [EMBEDDINGS] if model["tie_embeddings"] else [EMBEDDINGS, HEAD]
                grown, report = self.converted(source, layouts[1], "--vocab", vocab + 34, name=name + "-grown")
                self.assertEqual(report["proof"]["kind"], "equal")
                self.assertIn(f"vocabulary {vocab} -> {vocab + 34}: 34 new rows", report["conversions"][0])
                after = values(grown)
                self.assertEqual(before.keys(), after.keys())
                for (tensor, kind), old in before.items():
                    new = after[tensor, kind]
                    if tensor not in tables:
                        self.bits(old, new, (tensor, kind))
                        continue
                    self.assertEqual(new.shape, (vocab + 34, model["hidden"]))
                    self.bits(old, new[:vocab], (tensor, kind))
                    row = (old.astype(numpy.float64).sum(axis=0) / vocab).astype(numpy.float32)
                    if kind != "param":
                        row = numpy.zeros_like(row)
                    for r in range(vocab, vocab + 34):
                        self.bits(new[r], row, (tensor, kind, r))
                # Smaller again by another layout: what there was. Smaller still: the first rows.
                back, report = self.converted(grown, layouts[2], "--vocab", vocab, name=name + "-back")
                self.assertIn("the last 34 rows dropped", report["conversions"][0])
                self.same_state(source, back)
                small, _ = self.converted(source, layouts[3], "--vocab", 3, name=name + "-small")
                for kind in KINDS:
                    self.bits(values(small)[EMBEDDINGS, kind], before[EMBEDDINGS, kind][:3], kind)
                # Training goes on from the larger one, and from the one made smaller as if nothing had been.
                self.go_on(config, "d3z1", back, expected, name=name + "-on")
                self.assertIn(f"vocab: {vocab + 34}, here {vocab}", self.fails(2, "train", config, "--resume", grown).stderr)
                self.train(config, "d2z3", "--set", f"model.vocab={vocab + 34}", "--resume", grown,
                           "--set", f"run.dir={self.dir / (name + '-larger')}")
                losses = self.losses(self.dir / (name + "-larger"))
                self.assertEqual(sorted(losses), sorted(expected))
                # The new rows take their share of the probability, no more than so many mean rows can.
                for step, loss in losses.items():
                    self.assertLess(abs(loss - expected[step]), numpy.log((vocab + 34) / vocab) + 0.1, (step, losses, expected))

    def test_EmbeddingsAreUntiedAndTied(self):  # timeout=120
        config, source, expected = self.saved(G1, "t2d2z1")
        untied, report = self.converted(source, "p2d3z1", "--untie")
        self.assertIn("untied", report["conversions"][0])
        before, after = values(source), values(untied)
        self.assertEqual(set(after) - set(before), {(HEAD, kind) for kind in KINDS})
        for kind in KINDS:
            self.bits(after[HEAD, kind], before[EMBEDDINGS, kind], kind)
        tied, _ = self.converted(untied, "d3z2", "--tie")
        self.same_state(source, tied)
        # So does another vocabulary with it: new rows are made of equal ones.
        larger, _ = self.converted(untied, "d3z2", "--tie", "--vocab", 113, name="larger")
        self.same_state(larger, self.converted(source, "t2d5z1", "--vocab", 113, name="as-large")[0])
        self.go_on(config, "d3z2", tied, expected, name="tied")
        # The first loss is the tied model's; then each part goes its own way, and can no longer be tied.
        run_dir = self.dir / "untied"
        self.train(config, "p2d3z1", "--resume", untied, "--set", "model.tie_embeddings=false", "--set", f"run.dir={run_dir}")
        losses = self.losses(run_dir)
        first, *_, last = sorted(expected)
        self.assertLess(abs(losses[first] - expected[first]), 1e-5)
        self.assertNotEqual(losses[last], expected[last])
        target = self.dir / "no" / f"step-{last:010d}"
        result = self.fails(2, "reshard", self.checkpoint(run_dir, last), target, "--tie")
        self.assertIn(f"{HEAD} differs from {EMBEDDINGS} in '", result.stderr)
        self.assertFalse(target.exists())

    def test_CastsRoundOnceAndAreSaid(self):  # timeout=120
        config, source, expected = self.saved(L1, "t1d3z1")
        before = values(source)
        flags = ["--cast", "exp_avg=bf16", "--cast", "exp_avg_sq=bf16", "--paranoid"]
        cast, report = self.converted(source, "t4p3d1z0", *flags, name="cast")
        self.assertEqual(report["proof"], {"kind": "cast", "tensors": len(before), "ok": True})
        self.assertEqual(report["conversions"], ["exp_avg cast from f32 to bf16", "exp_avg_sq cast from f32 to bf16"])
        after = values(cast)
        for (tensor, kind), old in before.items():
            self.bits(after[tensor, kind], old if kind == "param" else bf16(old), (tensor, kind))
        # The values need not be the source's any more; diff says so by type, inspect shows it.
        result = self.fails(1, "diff", source, cast)
        self.assertIn("exp_avg: dtype differs: f32 against bf16", result.stdout)
        # Training keeps fp32 moments: it refuses others with what makes them so, and goes on from those.
        result = self.fails(2, "train", config, "--resume", cast, "--set", f"run.dir={self.dir / 'refused'}")
        self.assertIn("its exp_avg is bf16 and its exp_avg_sq is bf16, and training goes on from f32; `shardwright reshard", result.stderr)
        self.assertIn("DST --cast exp_avg=fp32 --cast exp_avg_sq=fp32` makes one", result.stderr)
        kinds = self.ok("inspect", cast, "--tensors", "--json").json()["tensors"][0]["kinds"]
        self.assertEqual({k["kind"]: k["dtype"] for k in kinds}, {"param": "f32", "exp_avg": "bf16", "exp_avg_sq": "bf16"})
        wide, report = self.converted(cast, "t1d5z1", "--cast", "exp_avg=fp32", "--cast", "exp_avg_sq=f32", name="wide")
        again = values(wide)
        for (tensor, kind), new in after.items():
            self.bits(again[tensor, kind], new if kind == "param" else (new.astype(numpy.uint32) << 16).view(numpy.float32),
                      (tensor, kind))
        run_dir = self.go_on(config, "t1d3z1", wide, expected, relative=1e-2, name="wide")
        first = min(expected)
        self.assertLess(abs(self.losses(run_dir)[first] - expected[first]), 1e-6)  # weights are the same, moments nearly
        # A cast to what a kind is already changes nothing, and is none.
        _, report = self.converted(source, "d3z1", "--cast", "param=fp32", name="same")
        self.assertEqual((report["proof"]["kind"], report["conversions"]), ("equal", []))

    def test_WeightsAloneForOtherPrograms(self):  # timeout=120
        _, source, _ = self.saved(G1, "d2z1")
        before = values(source)
        for name, convert in (("bf16", bf16), ("fp16", lambda a: a.astype(numpy.float16)), ("fp64", lambda a: a.astype(numpy.float64))):
            target, report = self.converted(source, "t1", "--weights-only", "--cast", f"param={name}", "--untie", "--vocab", 131,
                                            name=name)
            after = values(target)
            self.assertEqual({kind for _, kind in after}, {"param"})
            rows = before[EMBEDDINGS, "param"]
            mean = rows.astype(numpy.float64).sum(axis=0)[None] / len(rows)
            for (tensor, _), new in after.items():
                old = before[EMBEDDINGS if tensor == HEAD else tensor, "param"]
                self.bits(new[:len(old)], convert(old), tensor)
                if tensor in (EMBEDDINGS, HEAD):
                    self.assertEqual(new.shape, (131, 64))
                    self.bits(new[97:], numpy.repeat(new[97:98], 34, axis=0), tensor)
                    if name != "bf16":  # numpy has no rounding of fp64 to bf16
                        self.bits(new[97], convert(mean)[0], tensor)
            self.assertEqual(len(report["conversions"]), 4)
        self.assertIn("its param is bf16", self.fails(2, "eval", self.dir / "bf16", "--data", self.dir / "tokens-97-4000.bin").stderr)

    def test_ValuesTooLargeForTheTypeAreRefused(self):
        source = self.labelled(G1, "t2d3z1", "labels/step-0000000000")  # labels are integers up to 2^24
        for jobs in (1, 3):
            target = self.dir / f"half-{jobs}"
            result = self.fails(2, "reshard", source, target, "--layout", "d2", "--cast", "exp_avg=fp16", "--jobs", jobs)
            self.assertRegex(result.stderr, r"(?m)^shardwright: error: \S+ exp_avg: has values too large for f16; a wider type, or no cast$")
            self.assertEqual(list(self.dir.glob("half*")), [])

    def test_ASourceWhoseFingerprintIsNotThatOfItsValues(self):
        source = self.labelled(G1, "t2d3z1", "labels/step-0000000000")
        with h5py.File(source / "manifest.h5", "r+") as manifest:
            def one_bit(sums):
                sums[0] ^= 1
                return sums
            remake(manifest, "states/fingerprint", one_bit)
        resign(source)
        for flags in (["--cast", "exp_avg=bf16", "--cast", "param=fp64", "--cast", "exp_avg_sq=bf16"], []):
            target = self.dir / "out"
            result = self.fails(1, "reshard", source, target, "--layout", "d2", *flags)
            self.assertIn("reads with another fingerprint than it was saved with" if flags else "the fingerprint differs", result.stderr)
            self.assertFalse(target.exists())

    def test_TheSameFilesHoweverManyWork(self):
        source = self.labelled(L1, "t2d3z1", "labels/step-0000000000")
        flags = ["--layout", "p2d3z1", "--cast", "exp_avg=bf16", "--vocab", 211, "--codec", "small"]
        files = {}
        for name, prefix, more in (("one", (), ["--jobs", 1]), ("seven", (), ["--jobs", 7]),
                                   ("many", ("mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "3"), [])):
            target = self.dir / name / "step-0000000000"
            result = run("reshard", source, target, *flags, *more, prefix=prefix)
            self.assertEqual(result.status, 0, result)
            self.verified(target)
            files[name] = {p.name: p.read_bytes() for p in target.glob("rank-*")}
        self.assertEqual(len(files["one"]), 6)
        self.assertEqual(files["one"], files["seven"])
        self.assertEqual(files["one"], files["many"])

    def test_AnotherConversionTakesNothingOfAnInterruptedOne(self):
        source = self.labelled(L1, "t2d3z1", "labels/step-0000000000")
        target = self.dir / "out" / "step-0000000000"
        words = ("reshard", source, target, "--layout", "d5", "--json")
        killed = run(*words, "--cast", "exp_avg=bf16", env={"SHARDWRIGHT_FAULT": "part.rename:rank=4=kill"})
        self.assertEqual(killed.status, -9, killed)
        # The same one would take up what it left.
        parts = [p for d in target.parent.glob("*.tmp-*") for p in d.glob("*.part")]
        self.assertTrue(parts)
        attempts = {path.name for path in target.parent.glob("*.tmp-*")}
        self.assertEqual(run(*words, "--vocab", 211, env={"SHARDWRIGHT_FAULT": "part.rename:rank=4=kill"}).status, -9)
        attempts |= {path.name for path in target.parent.glob("*.tmp-*")}
        self.assertEqual(len(attempts), 2)
        report = self.ok(*words, "--cast", "exp_avg=fp64").json()
        self.assertEqual(report["shards_kept"], 0)
        after = values(target)
        for (_, kind), array in after.items():
            self.assertEqual(array.dtype, numpy.float64 if kind == "exp_avg" else numpy.float32)

    def test_ThePlanSaysWhatIsDone(self):
        source = self.labelled(G1, "t2d3z1", "labels/step-0000000000")
        for i, flags in enumerate((["--vocab", 61], ["--vocab", 197], ["--untie"], ["--cast", "param=bf16"],
                                   ["--weights-only", "--cast", "param=fp64", "--vocab", 98])):
            words = ("reshard", source, self.dir / f"out-{i}", "--layout", "d3z1", *flags, "--json")
            plan, report = self.ok(*words, "--plan-only").json(), self.ok(*words).json()
            for key in ("passed_through", "recoded"):
                self.assertEqual(plan["chunks"][key], report["chunks"][key], (flags, key))
            self.assertEqual(plan["conversions"], report["conversions"])
            self.assertEqual(plan["files_written"], len(list((self.dir / f"out-{i}").glob("rank-*"))))

    def test_MistakesAreOneLine(self):
        source = self.labelled(G1, "d2z1", "labels/step-0000000000")
        for flags, says in ((["--cast", "exp_avg"], "'exp_avg' is no KIND=DTYPE"), (["--cast", "=bf16"], "is no KIND=DTYPE"),
                            (["--cast", "exp_avg=int8"], "give it as exp_avg=bf16 (fp32, bf16, fp16 or fp64)"),
                            (["--cast", "weights=bf16"], "has no 'weights' that is kept; what is: exp_avg, exp_avg_sq, param"),
                            (["--cast", "exp_avg=bf16", "--weights-only"], "has no 'exp_avg' that is kept; what is: param"),
                            (["--cast", "param=bf16", "--cast", "param=fp16"], "'param' is given twice"),
                            (["--vocab", "0"], "--vocab"), (["--tie", "--untie"], "beside --untie"),
                            (["--tie"], "the embeddings are tied already")):
            result = self.fails(2, "reshard", source, self.dir / "out", "--layout", "d1", *flags)
            self.assertEqual(len(result.stderr.splitlines()), 1, result)
            self.assertIn(says, result.stderr)
            self.assertFalse((self.dir / "out").exists())
        result = self.fails(2, "reshard", "preset:gpt2-124m", "--from", "t1", "--layout", "d2", "--plan-only", "--vocab", 3)
        self.assertIn("belong to a checkpoint", result.stderr)


if __name__ == "__main__":
    main()
