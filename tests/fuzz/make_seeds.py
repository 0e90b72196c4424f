#!/usr/bin/env python3
"""Inputs for the corpora from a checkpoint of a run: make_seeds.py CKPT_DIR NAME. Writes tests/fuzz/corpus/<target>/NAME*, in
the forms that the targets take apart (input.h), whole and reduced to its first tensors; what is above 4 KiB is left out."""
import json
import pathlib
import sys

import h5py
import numpy

CORPUS = pathlib.Path(__file__).parent / "corpus"
DTYPES = "f32 bf16 f16 f64 i8 u8 i16 u16 i32 u32 i64 u64 bool".split()
MOST_BYTES = 4096


def number(value):
    length = max(1, (int(value).bit_length() + 7) // 8)
    return bytes([value]) if value < 0xf7 else bytes([0xf7 + length - 1]) + int(value).to_bytes(length, "little")


def numbers(values):
    return b"".join(number(int(v)) for v in values)


def text(value):
    return number(len(value)) + value


def write(target, name, data):
    if len(data) <= MOST_BYTES:
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        (CORPUS / target / name).write_bytes(data)


class Manifest:
    """The tables as lists of rows."""

    def __init__(self, path):
        with h5py.File(path) as file:
            self.columns = {f"/{g}/{c}": file[g][c][()] for g in ("tensors", "states", "boxes", "files") for c in file[g]}
            self.training = file["training"][()].tobytes()

    def __getitem__(self, column):
        return self.columns[column]

    def keep(self, tensors):
        """Only the first tensors; chunk tables are as if there had never been others."""
        kept = {"tensors": numpy.arange(len(self["/tensors/name"])) < tensors, "states": self["/states/tensor"] < tensors}
        kept["boxes"] = kept["states"][self["/boxes/state"]]
        for column in self.columns:
            group = column.split("/")[1]
            if group in kept:
                self.columns[column] = self.columns[column][kept[group]]
        rows = numpy.zeros(len(self["/files/name"]), dtype=int)
        for i in numpy.argsort(self["/boxes/first_chunk"], kind="stable"):
            f = self["/boxes/file"][i]
            self["/boxes/first_chunk"][i] = rows[f]
            rows[f] += self["/boxes/chunks"][i]
        self.columns["/files/table_bytes"] = rows * 24

    def dims(self, column, row, tensor):
        return [int(v) for v in self[column][row][:int(self["/tensors/ndim"][tensor])]]

    def encoded(self):
        out = number(len(self["/tensors/name"]))
        for i, name in enumerate(self["/tensors/name"]):
            out += text(name) + number(int(self["/tensors/ndim"][i])) + numbers(self.dims("/tensors/shape", i, i))
        out += number(len(self["/states/kind"]))
        for i, kind in enumerate(self["/states/kind"]):
            out += number(int(self["/states/tensor"][i])) + text(kind)
            out += bytes([DTYPES.index(self["/states/dtype"][i].decode())]) + b"\xff"
            out += numbers(s % 100 for s in self["/states/fingerprint"][i])
        out += number(len(self["/files/name"]))
        for i, name in enumerate(self["/files/name"]):
            out += bytes([int(name[5:10])])
            out += numbers(self[f"/files/{c}"][i] for c in ("bytes", "table_addr", "table_bytes")) + bytes([7])
        out += number(len(self["/boxes/state"]))
        for i, state in enumerate(self["/boxes/state"]):
            tensor = int(self["/states/tensor"][state])
            out += number(int(state)) + number(int(self["/boxes/file"][i]))
            out += bytes([int((self["/boxes/dataset"][i].decode() + "@0").split("@")[1])])
            for column in ("offset", "shape", "chunk"):
                out += numbers(self.dims(f"/boxes/{column}", i, tensor))
            out += number(int(self["/boxes/first_chunk"][i])) + b"\xff"
        return out + text(self.training)

    def parts(self, attempt, step):
        """What each writer said of its shard; counts are those of whole tensors, so they join only where those are whole."""
        for f, name in enumerate(self["/files/name"]):
            boxes = []
            for i in (i for i, file in enumerate(self["/boxes/file"]) if file == f):
                state = int(self["/boxes/state"][i])
                tensor = int(self["/states/tensor"][state])
                shape = self.dims("/boxes/shape", i, tensor)
                count = 1
                for extent in shape:
                    count *= extent
                boxes.append({"tensor": self["/tensors/name"][tensor].decode(), "kind": self["/states/kind"][state].decode(),
                              "dtype": self["/states/dtype"][state].decode(),
                              "global_shape": self.dims("/tensors/shape", tensor, tensor),
                              "offset": self.dims("/boxes/offset", i, tensor), "shape": shape,
                              "chunk": self.dims("/boxes/chunk", i, tensor), "dataset": self["/boxes/dataset"][i].decode(),
                              "first_chunk": int(self["/boxes/first_chunk"][i]), "chunks": int(self["/boxes/chunks"][i]),
                              "fingerprint": f"{count:032x}", "count": count})
            record = {"name": name.decode(), **{c: int(self[f"/files/{c}"][f]) for c in ("bytes", "table_addr", "table_bytes")},
                      **{c: self[f"/files/{c}"][f].decode() for c in ("rest_xxh3_128", "table_xxh3_128")}}
            yield json.dumps({"attempt": attempt, "rank": int(name[5:10]), "step": step, "error": None, "file": record,
                              "boxes": boxes}, separators=(",", ":")).encode()


def chunks(checkpoint, manifest):
    """(element size, raw bytes, stored bytes) of the chunks."""
    for i, state in enumerate(manifest["/boxes/state"]):
        f = int(manifest["/boxes/file"][i])
        shard = (checkpoint / manifest["/files/name"][f].decode()).read_bytes()
        row = int(manifest["/files/table_addr"][f]) + 24 * int(manifest["/boxes/first_chunk"][i])
        address, stored, raw = (int.from_bytes(shard[row + a:row + b], "little") for a, b in ((0, 8), (8, 12), (12, 16)))
        yield (manifest["/states/dtype"][state].decode(), raw, shard[address:address + stored])


def main(checkpoint, name):
    checkpoint = pathlib.Path(checkpoint)
    manifest = Manifest(checkpoint / "manifest.h5")
    commit = (checkpoint / "COMMIT").read_bytes()
    write("commit", name, b"\0" + commit)
    write("commit", name + "-signed", b"\2" + commit.splitlines()[0])
    generation = checkpoint.parent.parent / "GENERATION"
    if generation.exists():
        write("commit", name + "-generation", b"\1" + generation.read_bytes())
        write("commit", name + "-generation-signed", b"\3" + generation.read_bytes().splitlines()[0])
    (CORPUS / "manifest_image").mkdir(parents=True, exist_ok=True)
    (CORPUS / "manifest_image" / name).write_bytes((checkpoint / "manifest.h5").read_bytes())
    for f, shard in enumerate(manifest["/files/name"]):
        data = (checkpoint / shard.decode()).read_bytes()
        begin, length = (int(manifest[f"/files/{c}"][f]) for c in ("table_addr", "table_bytes"))
        write("chunk_table", f"{name}-{f}", number(len(data)) + data[begin:begin + length])
    seen = set()
    for dtype, raw, stored in chunks(checkpoint, manifest):
        kind = (dtype, raw, stored[4:8])
        if kind in seen or raw > 1024 or len(seen) == 6:
            continue
        seen.add(kind)
        size = {"f64": 3, "i64": 3, "u64": 3, "i8": 0, "u8": 0, "bool": 0}.get(dtype, 1 if dtype[-2:] == "16" else 2)
        write("chunk", f"{name}-{dtype}-{raw}", bytes([size]) + number(raw - 1) + stored)
        write("chunk", f"{name}-{dtype}-{raw}-sum", bytes([0x80 | size]) + number(raw - 1) + stored[:-4])
        write("filter", f"{name}-{dtype}-{raw}", b"\x80\0" + stored[:-4])
    record = json.loads(commit.splitlines()[0])
    for tensors in (len(manifest["/tensors/name"]), 3, 1):
        manifest.keep(tensors)
        write("manifest_tables", f"{name}-{tensors}", manifest.encoded())
        write("part", f"{name}-{tensors}", b"\1" + b"\n".join(manifest.parts(record["attempt"], record["step"])))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
