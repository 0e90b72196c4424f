"""The documents of --json: the fields that scripts depend on, and nothing else on standard output."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "tools"))
import h5py  # noqa: E402
import numpy  # noqa: E402
from forge import remake, resign  # noqa: E402
from run_harness import BINARY, TINY, RunTestCase, main, run  # noqa: E402

# What another program may have put in place of a document, and why it cannot be shown, if it cannot.
DOCUMENTS = [(b"no JSON", "is no JSON"), (b'{"a": "\xff"}', "is no JSON"), (b'{"a": 1e400}', "number beyond 64-bit floats"),
             (b"[" * 300 + b"]" * 300, "nests too deep"), (b"", None), (b"{}", None), (b"7", None), (b'"text"', None),
             (b"[1, null]", None), (b'{"string": 7, "tp": "two"}', None), (b'{"stages": 3, "loss": "low", "samples": -1}', None),
             (b'{"tp":1,"pp":1,"dp":2,"zero":0,"vpp":1,"stages":[2],"string":null}', None)]


class DocumentsTestCase(RunTestCase):
    def trained(self, name="run", layout="t3d2z1", **train):
        config = self.config(name, model=TINY, train={"steps": 4, "global_batch": 4, **train}, checkpoint={"every": 2})
        self.train(config, layout)
        return self.dir / name

    def test_InspectJson(self):
        run_dir = self.trained()
        document = self.ok("inspect", run_dir, "--tensors", "--ranks", "--json").json()
        self.assertEqual(document["path"], str(self.checkpoint(run_dir, 4)))
        self.assertEqual((document["status"], document["step"], document["samples"]), ("valid", 4, 16))
        self.assertEqual((document["generation"], document["version"], document["ranks"]), (0, 1, 6))
        self.assertEqual(document["layout"]["string"], "t3p1d2z1")
        self.assertEqual({k: document["layout"][k] for k in ("tp", "pp", "dp", "zero", "vpp")},
                         {"tp": 3, "pp": 1, "dp": 2, "zero": 1, "vpp": 1})
        self.assertEqual(document["model"]["hidden"], 12)
        self.assertEqual(document["training"]["step"], 4)
        self.assertEqual(document["kinds"], ["exp_avg", "exp_avg_sq", "param"])
        tensors = {tensor["name"]: tensor for tensor in document["tensors"]}
        self.assertEqual(tensors["model.embed_tokens.weight"]["shape"], [33, 12])
        elements = sum(self.elements(tensor["shape"]) for tensor in document["tensors"])
        self.assertEqual(document["parameters"], elements)
        self.assertEqual(document["raw_bytes"], 3 * 4 * elements)
        for tensor in document["tensors"]:
            for kind in tensor["kinds"]:
                self.assertRegex(kind["fingerprint"], "^[0-9a-f]{32}$")
                self.assertEqual(kind["dtype"], "f32")
                self.assertGreater(kind["stored_bytes"], 0)
        # The boxes of all files cover each tensor once.
        covered = sum(self.elements(box["shape"]) for file in document["files"] for box in file["boxes"])
        self.assertEqual(covered, 3 * elements)

    @staticmethod
    def elements(shape):
        count = 1
        for extent in shape:
            count *= extent
        return count

    def test_ListVerifyPruneJson(self):
        run_dir = self.trained()
        document = self.ok("list", run_dir, "--json").json()
        self.assertEqual([c["step"] for c in document["checkpoints"]], [4, 2])
        self.assertEqual(document["newest_valid"], document["checkpoints"][0]["path"])
        for c in document["checkpoints"]:
            self.assertEqual((c["status"], c["reason"], c["layout"]["string"]), ("valid", "", "t3p1d2z1"))
            self.assertRegex(c["time"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertGreater(c["stored_bytes"], 0)
        self.assertEqual(self.ok("list", run_dir / "checkpoints", "--deep", "--json").json()["newest_valid"],
                         document["newest_valid"])
        report = self.verified(run_dir)
        self.assertEqual((report["ok"], report["step"], report["problems"]), (True, 4, []))
        self.assertTrue(all(report["checked"][what] > 0 for what in ("files", "chunks", "bytes")))
        pruned = self.ok("prune", run_dir, "--keep", "1", "--json").json()
        self.assertEqual(pruned["kept"], [str(self.checkpoint(run_dir, 4))])
        self.assertEqual(len(pruned["removed"]), 1)
        self.assertIn("step-0000000002", pruned["removed"][0])

    def test_ReshardAndDiffJson(self):
        run_dir = self.trained()
        target = self.dir / "other" / "step-0000000004"
        plan = self.ok("reshard", run_dir, target, "--layout", "d5z1", "--plan-only", "--json").json()
        self.assertFalse(target.exists())
        for field in ("copies", "files_written", "estimated_peak_bytes", "needed_bytes"):
            self.assertGreater(plan[field], 0, field)
        self.assertNotIn("proof", plan)
        self.assertEqual((plan["files_read"], plan["files_written"]), (6, 5))  # of t3p1d2z1, of d5z1
        self.assertTrue(all(1 <= rank["source_files"] <= 6 for rank in plan["ranks"]))
        document = self.ok("reshard", run_dir, target, "--layout", "d5z1", "--json").json()
        self.assertEqual((document["from"]["string"], document["to"]["string"]), ("t3p1d2z1", "t1p1d5z1"))
        self.assertEqual((document["proof"]["kind"], document["proof"]["ok"]), ("equal", True))
        self.assertEqual((document["source"], document["target"]), (str(self.checkpoint(run_dir, 4)), str(target)))
        for field in ("read_bytes", "written_bytes", "seconds", "peak_rss_bytes", "tensors"):
            self.assertGreater(document[field], 0, field)
        # Single degrees keep the source's other ones.
        single = self.ok("reshard", run_dir, self.dir / "single", "--dp", "1", "--plan-only", "--json").json()
        self.assertEqual(single["to"]["string"], "t3p1d1z1")
        same = self.ok("diff", run_dir, target, "--state", "--json").json()
        self.assertEqual((same["equal"], same["method"], same["differences"], same["training_differs"]),
                         (True, "manifest", [], {}))
        result = self.fails(1, "diff", self.checkpoint(run_dir, 2), target, "--json")
        different = result.json()
        self.assertEqual((different["equal"], different["method"]), (False, "content"))
        self.assertEqual(different["training_differs"]["step"], [2, 4])
        first = different["differences"][0]
        self.assertEqual(first["what"], "value")
        self.assertIsInstance(first["a"], float)
        self.assertGreater(first["count"], 0)

    def test_DocumentsOfOtherProgramsAreShownOrRefusedInOneLine(self):
        golden = TESTS / "golden" / "v1" / "minimal-2-writers"
        foreign = shutil.copytree(golden, self.dir / "checkpoints" / golden.name)
        for field in ("training", "model", "config", "layout"):
            for text, wrong in DOCUMENTS:
                with h5py.File(foreign / "manifest.h5", "r+") as manifest:
                    remake(manifest, f"/{field}", lambda _: numpy.frombuffer(text, numpy.uint8))
                resign(foreign)
                self.ok("verify", foreign)
                self.ok("list", self.dir)
                for command in ("inspect", foreign), ("inspect", foreign, "--json"), ("diff", golden, foreign):
                    with self.subTest(field=field, text=text[:40], command=command[0]):
                        result = run(*command)
                        shown = {"inspect": ("training", "model", "layout"), "diff": ("training",)}[command[0]]
                        if wrong and field in shown:
                            self.assertEqual(result.status, 1, result)
                            self.assertRegex(result.stderr, f"^shardwright: error: {foreign}/manifest.h5: /{field}: .*{wrong}"
                                                            "[^\n]*; [^\n]*\n$")
                        else:
                            self.assertEqual((result.status, result.stderr), (0, ""), result)
                # Words of our own about a layout are looked for where another one is asked for.
                result = run("reshard", foreign, self.dir / "out", "--tp", "2", "--plan-only")
                self.assertRegex(result.stderr, r"^shardwright: error: [^\n]+\n$")
                self.assertNotIn("unexpected", result.stderr)
            shutil.rmtree(foreign)
            shutil.copytree(golden, foreign)

    def test_EvalJson(self):
        run_dir = self.trained()
        data = next(self.dir.glob("tokens-33-*.bin"))
        document = self.ok("eval", run_dir, "--data", data, "--json").json()
        self.assertEqual(sorted(document), ["loss", "perplexity", "step", "tokens"])
        self.assertEqual(document["step"], 4)
        self.assertLess(document["loss"], 4.0)

    def test_BenchCkptJson(self):  # serial
        document = self.ok("bench", "ckpt", "--dir", self.dir, "--size", "24MiB", "--json").json()
        self.assertEqual(document["raw_bytes"], 24 << 20)
        self.assertLess(document["stored_bytes"], document["raw_bytes"])
        for name in ("memcpy_gbps", "disk_write_gbps", "disk_read_gbps", "encode_gbps", "decode_gbps"):
            self.assertGreater(document["ceilings"][name], 0, name)
        for part in ("save", "load"):
            self.assertGreater(document[part]["gbps"], 0)
        self.assertGreater(document["save"]["peak_host_bytes"], 0)
        self.assertIn(document["limited_by"], ("memory copy", "encode", "disk write", "overhead"))
        self.assertEqual([p.name for p in self.dir.iterdir()], [])

    def test_HelpHasAnExampleEverywhere(self):
        overview = self.ok("--help").stdout
        commands = [line.split()[0] for line in overview.splitlines() if line.startswith("  ") and line.split()]
        self.assertEqual(commands, ["train", "config", "reshard", "inspect", "verify", "diff", "list", "prune", "view", "plan",
                                    "eval", "doctor", "bench"])
        for command in commands:
            for arguments in [(command,)] if command != "bench" else [("bench", "ckpt"), ("bench", "reshard"), ("bench", "train")]:
                text = self.ok(*arguments, "--help").stdout
                self.assertIn("Example:\n  shardwright " + " ".join(arguments), text)
        self.assertIn("optim.warmup_steps", self.ok("train", "--help").stdout)
        points = self.ok("train", "--list-fault-points").stdout.split()
        self.assertTrue({"step.begin", "save.begin", "dir.rename", "load.mid"} <= set(points), points)
        self.assertRegex(self.ok("--version").stdout, r"^shardwright \d+\.\d+\.\d+")

    def test_B120_PathsThatBeginWithADash(self):
        run_dir = self.trained("run", "t1")
        (self.dir / "-dash ü 🙂").symlink_to(run_dir)
        self.ok("verify", "--", "-dash ü 🙂", cwd=self.dir)
        self.ok("inspect", "--json", "--", "-dash ü 🙂", cwd=self.dir)
        self.ok("reshard", "--layout", "d2", "--", "-dash ü 🙂", "-out [x]=\"y\"", cwd=self.dir)
        self.ok("verify", "./-out [x]=\"y\"", cwd=self.dir)


if __name__ == "__main__":
    main()
