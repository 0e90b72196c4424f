"""Resharding by command line: round trips, the proof, the label fill, differences found from manifests alone."""
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BUILD, TINY, RunTestCase, main, run  # noqa: E402

MODEL = "arch=gpt2,layers=4,hidden=64,heads=4,ffn=256,vocab=97,seq_len=32"


class ReshardTestCase(RunTestCase):
    def trained(self, layout="t2d2z1", **more):
        config = self.config("run", **more)
        self.train(config, layout, "--stop-after", "3")
        return self.checkpoint(self.dir / "run", 3)

    def test_RoundTripIsTheIdentity(self):  # timeout=200
        source = self.trained("t2d3z1")
        a = self.fingerprints(source)
        at = source
        for i, layout in enumerate(("t4d1z0", "t1d7z1", "t1d1z0", "t2d3z1")):
            at = self.reshard(at, layout, f"hop{i}")
            self.assertEqual(a, self.fingerprints(at), layout)
            self.verified(at)
        # Back in the first layout: the same boxes in the same files, each bit equal.
        def boxes(path):
            return self.ok("inspect", path, "--ranks", "--json").json()["files"]
        self.assertEqual(boxes(source), boxes(at))
        for shard in sorted(source.glob("rank-*.h5")):
            self.assertTrue((at / shard.name).exists())
        one, two = self.rebuilt(source), self.rebuilt(at)
        self.assertEqual(one, two)

    def rebuilt(self, checkpoint):
        """Global tensors as h5py sees them, by our plugin, from shard attributes alone."""
        out = self.dir / f"{checkpoint.name}-{abs(hash(checkpoint))}.npz"
        subprocess.run(["/usr/bin/python3", str(Path(__file__).parents[1] / "tools" / "read_with_h5py.py"), str(checkpoint),
                        str(out)], check=True, timeout=60, env={**os.environ, "HDF5_PLUGIN_PATH": str(BUILD / "plugin")})
        import numpy
        with numpy.load(out) as arrays:
            return {name: (arrays[name].shape, arrays[name].tobytes()) for name in arrays.files}

    def test_DiffIsDecidedFromManifestsAlone(self):
        source = self.trained()
        target = self.reshard(source, "t1d3z0")
        for shard in [*source.glob("rank-*.h5"), *target.glob("rank-*.h5")]:
            self.assertGreater(shard.stat().st_size, 0)
        trace = self.dir / "trace"
        result = run("diff", source, target, "--json", prefix=("strace", "-f", "-e", "trace=openat,open", "-o", trace))
        self.assertEqual(result.status, 0, result)
        self.assertEqual(result.json()["method"], "manifest")
        self.assertNotIn("rank-0", trace.read_text())

    def test_DiffNamesOneChangedElement(self):
        tool = BUILD / "bin" / "label_fill"
        a, b = self.dir / "a", self.dir / "b"
        subprocess.run([tool, a, "--model", MODEL, "--layout", "t2d2z1"], check=True, timeout=60)
        subprocess.run([tool, b, "--model", MODEL, "--layout", "t1d3z0", "--change",
                        "model.layers.2.mlp.up_proj.weight:param:17,5"], check=True, timeout=60)
        result = self.fails(1, "diff", a, b, "--json").json()
        self.assertEqual(len(result["differences"]), 1, result)
        one = result["differences"][0]
        self.assertEqual((one["tensor"], one["kind"], one["what"], one["index"], one["count"]),
                         ("model.layers.2.mlp.up_proj.weight", "param", "value", [17, 5], 1))

    def test_LabelFillProvesTheMerge(self):  # timeout=200
        tool = BUILD / "bin" / "label_fill"
        for written in ("t2d3z1", "t4d2z0", "t1d7z1"):
            path = self.dir / written
            subprocess.run([tool, path, "--model", MODEL, "--layout", written], check=True, timeout=60)
            for layout in ("t1d1z0", "t4d1z1", "t2d5z1"):
                target = self.reshard(path, layout, f"{written}-{layout}")
                subprocess.run([tool, "--check", target], check=True, timeout=60)

    def test_B44_ReadableAnywhere(self):
        """Saved by four ranks; inspect, verify, list and export on one process."""
        source = self.trained("t2d2z1")
        document = self.ok("inspect", source, "--json").json()
        self.assertEqual((document["ranks"], document["layout"]["string"]), (4, "t2p1d2z1"))
        self.verified(source)
        self.reshard(source, "t1d1z0")

    def test_B24_B37_TheManifestListsEverything(self):
        source = self.trained("t2d2z1")
        document = self.ok("inspect", source, "--tensors", "--json").json()
        hidden, layers, ffn, vocab, seq = 64, 4, 256, 97, 32
        layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * ffn + ffn + hidden + 4 * hidden
        self.assertEqual(document["parameters"], vocab * hidden + seq * hidden + layers * layer + 2 * hidden)
        self.assertEqual(document["raw_bytes"], 3 * 4 * document["parameters"])
        self.assertEqual(sorted(document["kinds"]), ["exp_avg", "exp_avg_sq", "param"])
        sys_path = source / "rank-00001.h5"
        sys_path.rename(self.dir / "away.h5")
        report = self.fails(1, "verify", source, "--json").json()
        self.assertTrue(any(p["code"] == "missing_file" and "rank-00001.h5" in p["file"] for p in report["problems"]))

    def test_B86_LatestAfterEveryMode(self):  # timeout=200
        for asynchronous in (True, False):
            for zero in (0, 1):
                name = f"run{asynchronous}{zero}"
                config = self.config(name, TINY, train={"steps": 4, "global_batch": 4},
                                     checkpoint={"every": 2, "async": asynchronous})
                self.train(config, f"d2z{zero}")
                found = self.ok("list", self.dir / name, "--json").json()
                self.assertTrue(found["newest_valid"].endswith("step-0000000004"), found)
                latest = self.dir / name / "checkpoints" / "LATEST"
                self.assertIn("step-0000000004", latest.read_text())
                latest.unlink()
                done = self.train(config, f"d2z{zero}", "--set", "train.steps=5")
                self.assertEqual(max(self.steps(self.dir / name)), 5, done)
                self.assertEqual([r["step"] for r in self.records(self.dir / name, "step")], [1, 2, 3, 4, 5])

    def test_B137_WritingIsSpread(self):
        """Without ZeRO four ranks still write a quarter each."""
        model = dict(arch="gpt2", layers=4, hidden=256, heads=4, ffn=1024, vocab=997, seq_len=32)
        config = self.config("run", model, train={"global_batch": 4})
        self.train(config, "d4z0", "--stop-after", "0")
        files = self.ok("inspect", self.checkpoint(self.dir / "run", 0), "--ranks", "--json").json()["files"]
        sizes = [sum(_elements(b["shape"]) for b in f["boxes"]) for f in files]
        self.assertEqual(len(sizes), 4)
        self.assertLess(max(sizes), 2 * sum(sizes) / 4)

    def test_StockToolsReadShards(self):
        source = self.trained("t2d2z1")
        tensors = self.rebuilt(source)
        self.assertEqual(len(tensors), 3 * len({name for (name, kind) in self.fingerprints(source)}))
        shard = next(iter(sorted(source.glob("rank-*.h5"))))
        boxes = self.ok("inspect", source, "--ranks", "--json").json()["files"][0]["boxes"]
        matrix = next(b for b in boxes if len(b["shape"]) == 2)
        dump = subprocess.run(["h5dump", "-d", f"/{matrix['kind']}/{matrix['tensor']}", str(shard)], timeout=60, text=True,
                              capture_output=True, env={**os.environ, "HDF5_PLUGIN_PATH": str(BUILD / "plugin")})
        self.assertEqual(dump.returncode, 0, dump.stderr)
        self.assertRegex(dump.stdout, r"\(0,0\): -?[0-9.e-]+, -?[0-9.e-]+")

    def test_B39_SavingAfterLoadingRepeatsTheState(self):
        """Nothing trained in between: another run started there and ended at once holds the same bits."""
        source = self.trained("t2p2")
        for layout in ("p3", "d3z3", "p2d2z2"):
            config = self.config(layout)
            self.train(config, layout, "--resume", source, "--stop-after", "3")
            self.assertEqual(self.fingerprints(source), self.fingerprints(self.checkpoint(self.dir / layout, 3)), layout)


def _elements(shape):
    product = 1
    for extent in shape:
        product *= extent
    return product


if __name__ == "__main__":
    main()
