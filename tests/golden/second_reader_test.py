"""The second reader (tests/tools/second_reader.py), written from ckpt/FORMAT.md alone, and ours say the same of every
checkpoint: the same values and fingerprints of good ones, the same reason for damaged ones."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import h5py  # noqa: E402
import numpy  # noqa: E402
import second_reader  # noqa: E402
from forge import Forged, edit, raw_frame, remake, resign, rle_frame, set_cells  # noqa: E402
from run_harness import BUILD, TINY, RunTestCase, flip, main  # noqa: E402

LABEL_FILL = BUILD / "bin" / "label_fill"
TOOLS = Path(second_reader.__file__).parent
# The models of the bug cases.
L1 = "arch=llama,layers=6,hidden=96,heads=12,kv_heads=4,ffn=176,vocab=203,seq_len=32,tie_embeddings=false"
T1 = "arch=llama,layers=2,hidden=12,heads=3,kv_heads=3,ffn=21,vocab=33,seq_len=32,tie_embeddings=false"


def label(tensor, kind, shape):
    """What label_fill writes: each element's number, displaced by FNV-1a of its state's name."""
    shift = 1469598103934665603
    for byte in f"{tensor}|{kind}".encode():
        shift = (shift ^ byte) * 1099511628211 % (1 << 64)
    numbers = numpy.arange(numpy.prod(shape, dtype=int), dtype=numpy.uint64) + numpy.uint64(shift & 0xFFFFFF)
    return (numbers & numpy.uint64(0xFFFFFF)).astype(numpy.float32).reshape(shape)


def replace(path, by):
    shutil.copy(by, path)


def fifo(path):
    path.unlink()
    os.mkfifo(path)


class SecondReaderTestCase(RunTestCase):
    def filled(self, model, layout, name, *more):
        path = self.dir / name
        subprocess.run([LABEL_FILL, path, "--model", model, "--layout", layout, *more], check=True, timeout=60)
        return path

    def agreed(self, path):
        """Both read it, with the same fingerprints of the same states; returns the tensors."""
        commit, tensors, fingerprints = second_reader.read(str(path))
        self.assertEqual(fingerprints, self.fingerprints(path))
        self.assertEqual(commit["step"], self.verified(path)["step"])
        return tensors

    def labelled(self, path):
        for (tensor, kind), values in self.agreed(path).items():
            numpy.testing.assert_array_equal(values, label(tensor, kind, values.shape), f"{tensor} {kind}")

    def refused(self, path, code):
        """Both refuse it, for the same reason."""
        with self.assertRaises(second_reader.Refused) as refusal:
            second_reader.read(str(path))
        self.assertEqual(refusal.exception.code, code, refusal.exception)
        problems = self.fails(1, "verify", path, "--json").json()["problems"]
        self.assertIn(code, [p["code"] for p in problems], f"{refusal.exception}: {problems}")

    def damaged(self, whole, name, code, damage):
        with self.subTest(damage=name):
            path = self.dir / "damaged" / whole.name
            shutil.rmtree(path.parent, ignore_errors=True)
            shutil.copytree(whole, path)
            path = damage(path) or path
            if code:
                self.refused(path, code)
            else:
                self.agreed(path)

    def test_SecondReaderGivesTheWorkedValues(self):
        text = (TOOLS.parents[1] / "ckpt" / "FORMAT.md").read_text()
        for numbers in (numpy.zeros((), "<u4"), numpy.arange(105, dtype="<u4").reshape(3, 5, 7)):
            self.assertIn("`%016x%016x`" % second_reader.fingerprint(numbers), text)
        self.assertIn(f"`{second_reader.fletcher32(b'123456789').hex(' ')}`", text)

    def test_SecondReaderAgreesOnLayouts(self):
        for model, layout in ((L1, "t2p3d2z1"), (L1, "t1d1z0"), (T1, "t1d7z1")):
            self.labelled(self.filled(model, layout, layout))

    def test_SecondReaderAgreesOnReshardedAndWeights(self):
        source = self.filled(T1, "t3d2z1", "source")
        self.ok("reshard", source, self.dir / "other", "--layout", "t1p2d5z1")
        self.labelled(self.dir / "other")
        self.ok("reshard", source, self.dir / "weights", "--layout", "t1d1z0", "--weights-only")
        self.labelled(self.dir / "weights")
        self.assertEqual({kind for _, kind in self.agreed(self.dir / "weights")}, {"param"})

    def test_SecondReaderAgreesOnTrainedByEveryCodec(self):
        """And libhdf5, which goes by the shards' own metadata, sees the same values; those of deflate without a plugin."""
        seen = []
        for codec in ("none", "fast", "small", "deflate"):
            config = self.config(codec, TINY, train={"steps": 2, "global_batch": 4}, checkpoint={"codec": codec})
            self.train(config, "t1d2z1" if codec == "fast" else "t1d1z0")
            path = self.checkpoint(self.dir / codec, 2)
            tensors = self.agreed(path)
            subprocess.run(["/usr/bin/python3", TOOLS / "read_with_h5py.py", path, self.dir / "h5py.npz"],
                           env={**os.environ, "HDF5_PLUGIN_PATH": "/nowhere" if codec == "deflate" else str(BUILD / "plugin")},
                           check=True, timeout=60, capture_output=True)
            with numpy.load(self.dir / "h5py.npz") as arrays:
                self.assertEqual({f"{k}/{t}": v.tobytes() for (t, k), v in tensors.items()},
                                 {name: arrays[name].tobytes() for name in arrays.files})
            seen.append(sum((path / name).stat().st_size for name in os.listdir(path)))
        self.assertGreater(seen[0], max(seen[2:]))

    def test_TheH5pyExampleReadsATensor(self):
        def example(tensor, kind):
            return subprocess.run(["/usr/bin/python3", TOOLS.parents[1] / "ckpt" / "plugin" / "read_tensor.py", path,
                                   tensor, kind], env={**os.environ, "HDF5_PLUGIN_PATH": str(BUILD / "plugin")},
                                  timeout=60, capture_output=True, text=True)
        path = self.filled(T1, "t3d2z1", "t3d2z1")
        values = label("lm_head.weight", "exp_avg", (33, 12))
        shown = example("lm_head.weight", "exp_avg").stdout
        self.assertEqual(shown, f"float32\n(33, 12)\n{values}\n")
        (path / "rank-00000.h5").unlink()
        self.assertIn("in part only", example("lm_head.weight", "exp_avg").stderr)

    def test_SecondReaderRefusesDamagedBytes(self):  # timeout=300
        whole, other = self.filled(T1, "t1d2z1", "step-0000000006", "--step", "6"), self.filled(T1, "t1d2z1", "other")
        forged = Forged(whole)
        address, stored = int(forged.rows[0]["address"]), int(forged.rows[0]["stored"])
        size = {name: (whole / name).stat().st_size for name in os.listdir(whole)}
        shard, manifest = "rank-00000.h5", "manifest.h5"
        for section, name, offset, code in (
                ("superblock", shard, 9, "digest"), ("chunk start", shard, address, "chunk"),
                ("chunk middle", shard, address + stored // 2, "chunk"),
                ("chunk checksum", shard, address + stored - 1, "chunk"), ("table", shard, forged.at + 3, "digest"),
                ("object header", shard, size[shard] - 20, "digest"), ("superblock", manifest, 9, "digest"),
                ("middle", manifest, size[manifest] // 2, "digest"), ("end", manifest, size[manifest] - 1, "digest"),
                ("JSON", "COMMIT", 30, "commit"), ("newline", "COMMIT", size["COMMIT"] - 18, "commit"),
                ("digest", "COMMIT", size["COMMIT"] - 4, "commit"), ("end", "COMMIT", size["COMMIT"] - 1, "commit")):
            self.damaged(whole, f"{name}: {section}", code, lambda c: flip(c / name, offset))
        for name, missing, cut, irregular in (
                (shard, "missing_file", "size", "digest"), (manifest, "missing_file", "size", "manifest"),
                ("COMMIT", "commit", "commit", "commit")):
            self.damaged(whole, f"{name} missing", missing, lambda c: (c / name).unlink())
            self.damaged(whole, f"{name} a FIFO", irregular, lambda c: fifo(c / name))
            for keep in (0, size[name] // 2, size[name] - 1):
                self.damaged(whole, f"{name} cut at {keep}", cut, lambda c: os.truncate(c / name, keep))
            self.damaged(whole, f"{name} longer", cut, lambda c: edit(c / name, lambda data: data + b"\n"))
        self.damaged(whole, "zeros", "digest", lambda c: edit(c / shard, lambda data: bytes(len(data))))
        self.damaged(whole, "manifest of another step", "digest", lambda c: replace(c / manifest, other / manifest))
        self.damaged(whole, "COMMIT of another step", "commit", lambda c: replace(c / "COMMIT", other / "COMMIT"))
        self.damaged(whole, "garbage", "commit", lambda c: edit(c / "COMMIT", lambda _: bytes(range(256))))
        self.damaged(whole, "name of another step", "commit", lambda c: c.rename(c.with_name("step-0000000007")))
        self.damaged(whole, "stray file", "path", lambda c: replace(c / "rank-00009.h5", whole / shard))

        def swap(c):
            (c / shard).rename(c / "x")
            (c / "rank-00001.h5").rename(c / shard)
            (c / "x").rename(c / "rank-00001.h5")
        even = self.filled(T1, "t3d1z0", "even")
        same_size = (even / shard).stat().st_size == (even / "rank-00001.h5").stat().st_size
        self.damaged(even, "shards swapped", "digest" if same_size else "size", swap)

    def test_SecondReaderRefusesForgedChunks(self):
        """Every digest matches; what they vouch for is wrong."""
        whole = self.filled(T1, "t1d2z1", "whole")
        forged = Forged(whole)
        raw = int(forged.rows[0]["raw"])

        def written(make):
            return lambda c: Forged(c).frame(make(raw))
        self.damaged(whole, "other values", "fingerprint", written(lambda n: rle_frame(n)))
        self.damaged(whole, "Fletcher32", "decode", lambda c: Forged(c).write(forged.chunk[:-1] + b"\xff"))
        self.damaged(whole, "another size", "decode", written(lambda n: raw_frame(b"\0" * 8)))
        self.damaged(whole, "two frames", "decode", written(lambda n: rle_frame(n) + raw_frame(b"")))
        self.damaged(whole, "frame cut short", "decode", written(lambda n: rle_frame(n)[:-1]))
        self.damaged(whole, "no frame", "decode", written(lambda n: b"not a frame"))

    def test_SecondReaderRefusesWhatTheRulesForbid(self):  # timeout=300
        """COMMIT and manifest are whole, and break one rule each."""
        whole = self.filled(T1, "t3d1z0", "whole")
        with h5py.File(whole / "manifest.h5") as m:
            names, kinds, boxes = m["/tensors/name"][()], m["/states/kind"][()], m["/boxes/dataset"][()]
            rows, first = int(m["/boxes/shape"][0, 0]), int(m["/boxes/first_chunk"][0])
            self.assertEqual(m["/boxes/state"][:3].tolist(), [0, 0, 0])
        future, cells = second_reader.VERSION + 1, (
            ("/tensors/name", 0, b"a/b", "manifest"), ("/tensors/name", 0, b"a@b", "manifest"),
            ("/tensors/name", 0, b"", "manifest"), ("/tensors/name", 0, b"z", "manifest"),
            ("/tensors/name", 1, names[0], "manifest"), ("/tensors/ndim", 0, 9, "manifest"),
            ("/tensors/shape", 0, [1 << 40] * 8, "manifest"),
            ("/states/tensor", 0, 1 << 32, "manifest"), ("/states/tensor", 2, 1, "manifest"),
            ("/states/kind", 0, b"z", "manifest"), ("/states/kind", 1, kinds[0], "manifest"),
            ("/states/dtype", 0, b"f8", "manifest"), ("/states/count", 0, 1, "coverage"),
            ("/states/fingerprint", (0, 0), 1, "fingerprint"),
            ("/boxes/state", 0, 1 << 40, "manifest"), ("/boxes/file", 0, 1 << 63, "manifest"),
            ("/boxes/dataset", 0, b"/param/../x", "path"), ("/boxes/dataset", 0, boxes[0] + b"@0", "path"),
            ("/boxes/offset", (1, 0), 0, "overlap"), ("/boxes/offset", (2, 0), 1 << 62, "manifest"),
            ("/boxes/offset", (0, 0), 2 * rows, "manifest"), ("/boxes/shape", (0, 0), 0, "manifest"),
            ("/boxes/chunk", (0, 0), 0, "manifest"), ("/boxes/chunk", (0, 0), rows + 1, "manifest"),
            ("/boxes/chunks", 0, 2, "manifest"), ("/boxes/first_chunk", 0, first + 1, "manifest"),
            ("/files/name", 0, b"../x-00000.h5", "path"), ("/files/name", 0, b"rank-0000a.h5", "path"),
            ("/files/name", 1, b"rank-00000.h5", "manifest"), ("/files/bytes", 0, 10, "manifest"),
            ("/files/table_addr", 0, (1 << 64) - 1, "manifest"), ("/files/table_bytes", 0, 23, "manifest"),
            ("/files/rest_xxh3_128", 0, b"X" * 32, "manifest"), ("/files/table_xxh3_128", 0, b"0" * 32, "digest"))
        for dataset, index, value, code in cells:
            self.damaged(whole, f"{dataset}[{index}] = {value}", code, lambda c: set_cells(c, (dataset, index, value)))
        for extent, code in ((rows + 1, "overlap"), (rows - 1, "coverage")):
            self.damaged(whole, f"{extent} rows for {rows}", code, lambda c: set_cells(
                c, ("/boxes/shape", (0, 0), extent), ("/boxes/chunk", (0, 0), extent)))

        elsewhere = shutil.copy(whole / "manifest.h5", self.dir / "elsewhere.h5")
        with h5py.File(elsewhere) as m:
            (self.dir / "values").write_bytes(m["/boxes/file"][()].tobytes())

        def manifest(change):
            def damage(c):
                with h5py.File(c / "manifest.h5", "r+") as m:
                    change(m)
                resign(c)
            return damage
        for name, code, change in (
                ("future version", "version", lambda m: m.attrs.modify("version", future)),
                ("version 0", "manifest", lambda m: m.attrs.modify("version", 0)),
                ("no version", "manifest", lambda m: m.attrs.__delitem__("version")),
                ("no table", "manifest", lambda m: m.__delitem__("/boxes/file")),
                ("signed numbers", "manifest", lambda m: remake(m, "/boxes/file", lambda v: v.astype("i8"))),
                ("fewer rows", "manifest", lambda m: remake(m, "/boxes/file", lambda v: v[1:])),
                ("other width", "manifest", lambda m: remake(m, "/boxes/shape", lambda v: v[:, 1:])),
                ("a link to another file", "manifest", lambda m: place(m, h5py.ExternalLink(elsewhere, "/boxes/file"))),
                ("a dataset of another file", "manifest", lambda m: place(m, virtual(elsewhere))),
                ("values in another file", "manifest", lambda m: place(m, None, external=self.dir / "values")),
                ("unknown dataset and attribute", None,
                 lambda m: (m.create_dataset("/boxes/colour", data=[1]), m.attrs.create("colour", 1)))):
            self.damaged(whole, f"manifest: {name}", code, manifest(change))
        for field, value, code in (
                ("version", future, "version"), ("version", (1 << 32) + 1, "version"), ("version", 0, "commit"),
                ("format", "other", "commit"), ("step", "1", "commit"), ("step", -1, "commit"), ("run", 1, "commit"),
                ("run", "x" * 257, "commit"), ("generation", 1 << 53, "commit"), ("step", 1, "manifest"),
                ("colour", "unknown, so ignored", None),
                ("manifest", {"name": "../manifest.h5", "bytes": 1, "xxh3_128": "0" * 32}, "commit")):
            self.damaged(whole, f"COMMIT: {field} {value}", code, lambda c: resign(c, **{field: value}))


def virtual(path):
    """The column /boxes/file of another manifest, as a dataset that reads it from there."""
    with h5py.File(path) as other:
        layout = h5py.VirtualLayout(other["/boxes/file"].shape, "u8")
        layout[:] = h5py.VirtualSource(other["/boxes/file"])
    return layout


def place(file, what, **more):
    """The column /boxes/file put elsewhere, with the same values."""
    shape = file["/boxes/file"].shape
    del file["/boxes/file"]
    if isinstance(what, h5py.VirtualLayout):
        file.create_virtual_dataset("/boxes/file", what)
    elif what is not None:
        file["/boxes/file"] = what
    else:
        file.create_dataset("/boxes/file", shape, "u8", **more)


if __name__ == "__main__":
    main()
