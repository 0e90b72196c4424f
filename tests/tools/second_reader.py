#!/usr/bin/python3
"""A second reader of checkpoints, written from ckpt/FORMAT.md alone: it shares no code with the library.

Usage: second_reader.py CKPT_DIR [OUT.npz]

Reads every byte, checks every digest and rule, and rebuilds the global tensors: arrays named "<kind>/<tensor>" in
OUT.npz (bf16 as its 16 bits). Prints one JSON object: the fingerprints, or, with status 1, why it refused. The codes
of refusals are those of `shardwright verify`. libhdf5 sees the manifest only, and only after its digest was checked.
"""
import io
import itertools
import json
import os
import re
import stat
import sys
import zlib
from math import prod

import h5py
import numpy
import xxhash
import zstandard

VERSION, MAX_COMMIT, MAX_MANIFEST, MAX_ROWS, MAX_MEMORY, DEFLATE = 1, 1 << 16, 1 << 30, 1 << 28, 1 << 34, 1032
MAX_CHUNK, MAX_STORED, MAX_CHUNKS, ZLIB = 1 << 20, 2 << 20, 1 << 26, b"\x78"
TYPES = {"f32": "<f4", "bf16": "<u2", "f16": "<f2", "f64": "<f8", "i8": "i1", "u8": "u1", "i16": "<i2", "u16": "<u2",
         "i32": "<i4", "u32": "<u4", "i64": "<i8", "u64": "<u8", "bool": "?"}
ROW = numpy.dtype([("address", "<u8"), ("stored", "<u4"), ("raw", "<u4"), ("xxh3_64", "<u8")])


class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def need(holds, code, message):
    if not holds:
        raise Refused(code, message)


def opened(directory, name, missing, irregular):
    try:
        file = open(os.open(f"{directory}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb")
    except FileNotFoundError:
        raise Refused(missing, f"{name}: missing") from None
    except OSError:
        raise Refused(irregular, f"{name}: cannot be read") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Refused(irregular, f"{name}: no regular file")
    return file


def is_hex(text, digits):
    return isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", text) is not None


def is_count(value):
    return type(value) is int and 0 <= value < 1 << 64


def read_commit(directory):
    with opened(directory, "COMMIT", "commit", "commit") as file:
        data = file.read(MAX_COMMIT + 1)
    need(len(data) <= MAX_COMMIT, "commit", "COMMIT: larger than 64 KiB")
    lines = data.split(b"\n")
    need(len(lines) == 3 and lines[2] == b"" and len(lines[1]) == 16, "commit", "COMMIT: torn")
    need(xxhash.xxh3_64_hexdigest(lines[0]).encode() == lines[1], "commit", "COMMIT: its digest does not match")
    try:
        commit = json.loads(lines[0].decode())
        need(commit["format"] == "shardwright", "commit", "COMMIT: names another format")
        need(is_count(commit["version"]) and commit["version"] > 0, "commit", "COMMIT: impossible version")
        need(commit["version"] <= VERSION, "version", f"COMMIT: future version {commit['version']}")
        manifest = commit["manifest"]
        need(all(is_count(n) for n in (commit["step"], commit["generation"], manifest["bytes"])), "commit",
             "COMMIT: a number is not a whole one")
        need(commit["generation"] < 1 << 53, "commit", "COMMIT: impossible generation")
        need(isinstance(commit["run"], str) and isinstance(commit["attempt"], str), "commit", "COMMIT: not a text")
        need(len(commit["run"].encode()) <= 256, "commit", "COMMIT: name of the run too long")
        need(manifest["bytes"] <= MAX_MANIFEST, "commit", "COMMIT: a manifest above 1 GiB")
        need(manifest["name"] == "manifest.h5", "commit", "COMMIT: names another manifest")
        need(is_hex(manifest["xxh3_128"], 32), "commit", "COMMIT: malformed digest")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused("commit", f"COMMIT: not its fields ({error})") from None
    name = re.fullmatch(r"step-(\d{10})(\..*)?", os.path.basename(os.path.normpath(directory)))
    need(not name or int(name[1]) == commit["step"], "commit", "COMMIT: another step than the directory's name")
    return commit


class Manifest:
    """The columns of manifest.h5, as lists, and all rules that they must satisfy."""

    def __init__(self, image, step):
        self.bytes, self.memory = len(image), 0
        try:
            with h5py.File(io.BytesIO(image), "r") as self.h5:
                self.read(step)
        except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise Refused("manifest", f"manifest.h5: not the tables of the format ({error})") from None

    def column(self, name, like=None, width=None, of="u"):
        for depth in range(2, name.count("/") + 2):
            link = self.h5.get("/".join(name.split("/")[:depth]), getlink=True)
            need(isinstance(link, h5py.HardLink), "manifest", f"{name}: missing, or a link that leads elsewhere")
        data = self.h5[name]
        need(data.ndim == (2 if width else 1) and data.shape[1:] == ((width,) if width else ()), "manifest",
             f"{name}: another shape than its table has")
        need(len(data) <= MAX_ROWS and (like is None or len(data) == len(like)), "manifest", f"{name}: other rows")
        kind, size = data.dtype.kind, data.dtype.itemsize
        need(kind == of[0] and size <= {"S": 1 << 16, "u": 8, "u1": 1}[of], "manifest",
             f"{name}: another type than its table has")
        need(not data.is_virtual and not data.external, "manifest", f"{name}: stored outside the manifest")
        self.admit(name, data, size, data.size * (size + 32 if of == "S" else 1 if of == "u1" else 8))
        return data[()].tolist()

    def admit(self, name, data, size, memory):
        """Before memory is taken for a column: are its values there, and is it not too much?"""
        creation, stored = data.id.get_create_plist(), data.id.get_storage_size()
        filters = [creation.get_filter(i)[0] for i in range(creation.get_nfilters() if data.chunks else 0)]
        need(len(filters) == len({*filters} & {1, 2, 3}), "manifest", f"{name}: filters other than its table may have")
        need(prod(data.chunks or ()) * size <= MAX_CHUNK, "manifest", f"{name}: in chunks above 1 MiB")
        need(stored <= self.bytes and data.size * size <= stored * (DEFLATE if data.chunks else 1), "manifest",
             f"{name}: values that are not there")
        self.memory += memory
        need(self.memory <= min(self.bytes * DEFLATE, MAX_MEMORY), "manifest", f"{name}: too much memory")

    def read(self, step):
        version = self.h5.attrs["version"]
        need(isinstance(version, numpy.integer) and version > 0, "manifest", "manifest.h5: impossible version")
        need(version <= VERSION, "version", f"manifest.h5: future version {version}")
        self.names = self.column("/tensors/name", of="S")
        ndim = self.column("/tensors/ndim", self.names)
        shapes = self.column("/tensors/shape", self.names, 8)
        need(all(n <= 8 for n in ndim), "manifest", "/tensors/ndim: more than 8")
        self.shapes = [tuple(shape[:n]) for shape, n in zip(shapes, ndim)]
        s = self.states = {"tensor": self.column("/states/tensor")}
        s["kind"] = self.column("/states/kind", s["tensor"], of="S")
        s["dtype"] = [t.decode("latin-1") for t in self.column("/states/dtype", s["tensor"], of="S")]
        s["count"] = self.column("/states/count", s["tensor"])
        s["fingerprint"] = [tuple(f) for f in self.column("/states/fingerprint", s["tensor"], 2)]
        f = self.files = {"name": [n.decode("latin-1") for n in self.column("/files/name", of="S")]}
        for key in ("bytes", "table_addr", "table_bytes"):
            f[key] = self.column(f"/files/{key}", f["name"])
        for key in ("rest_xxh3_128", "table_xxh3_128"):
            f[key] = [d.decode("latin-1") for d in self.column(f"/files/{key}", f["name"], of="S")]
        b = self.boxes = {"state": self.column("/boxes/state")}
        for key in ("file", "first_chunk", "chunks"):
            b[key] = self.column(f"/boxes/{key}", b["state"])
        for key in ("offset", "shape", "chunk"):
            b[key] = self.column(f"/boxes/{key}", b["state"], 8)
        b["dataset"] = self.column("/boxes/dataset", b["state"], of="S")
        self.training, *_ = [bytes(self.column(d, of="u1")) for d in ("/training", "/model", "/config", "/layout")]
        self.check_tables()
        self.check_boxes()
        self.check_step(step)

    def check_step(self, step):
        try:
            training = json.loads(self.training.decode(), parse_constant=int)  # NaN is no JSON: an error
        except (ValueError, RecursionError):
            return
        said = training.get("step", step) if isinstance(training, dict) else step
        need(type(said) is int and said == step, "manifest", "/training: another step than COMMIT's")

    def check_tables(self):
        s, f = self.states, self.files
        for name in self.names + s["kind"]:
            need(1 <= len(name) <= 1024 and not set(name) & set(b"/@\0"), "manifest", f"{name}: not a legal name")
        need(all(a < b for a, b in zip(self.names, self.names[1:])), "manifest", "tensors: not sorted and unique")
        need(all(prod(shape) < 1 << 61 for shape in self.shapes), "manifest", "tensors: a shape too large")
        need(all(t < len(self.names) for t in s["tensor"]), "manifest", "states: a tensor that is not there")
        need(set(s["tensor"]) == set(range(len(self.names))), "manifest", "tensors: one without a state")
        keys = list(zip(s["tensor"], s["kind"]))
        need(all(a < b for a, b in zip(keys, keys[1:])), "manifest", "states: not sorted and unique")
        need(all(t in TYPES for t in s["dtype"]), "manifest", "states: unknown data type")
        sizes = [numpy.dtype(TYPES[t]).itemsize for t in s["dtype"]]
        need(sum(prod(self.shapes[t]) * size for t, size in zip(s["tensor"], sizes)) < 1 << 64, "manifest",
             "states: more bytes than 64 bits count")
        need(sum(f["bytes"]) < 1 << 64, "manifest", "files: more bytes than 64 bits count")
        for name in f["name"]:
            rank = re.fullmatch(r"rank-([0-9]{5,9})\.h5", name)
            need(rank and name == f"rank-{int(rank[1]):05}.h5", "path", f"{name!r}: not the name of a shard")
        need(all(a < b for a, b in zip(f["name"], f["name"][1:])), "manifest", "files: not sorted and unique")
        need(all(is_hex(d, 32) for d in f["rest_xxh3_128"] + f["table_xxh3_128"]), "manifest", "files: bad digest")
        for at, size, whole in zip(f["table_addr"], f["table_bytes"], f["bytes"]):
            need(size % 24 == 0 and at + size <= whole, "manifest", "files: a chunk table outside its file")
            need(size // 24 <= MAX_CHUNKS, "manifest", "files: a chunk table of more than 2^26 rows")

    def check_boxes(self):
        s, b = self.states, self.boxes
        last, seen = (-1, ()), set()
        rows, total = [[] for _ in self.files["name"]], [0] * len(s["tensor"])
        for i, (state, file) in enumerate(zip(b["state"], b["file"])):
            need(state < len(s["tensor"]) and file < len(rows), "manifest", f"box {i}: a state or file not there")
            tensor, kind = s["tensor"][state], s["kind"][state]
            whole = self.shapes[tensor]
            for key in ("offset", "shape", "chunk"):
                b[key][i] = tuple(b[key][i][:len(whole)])
            offset, shape, chunk = b["offset"][i], b["shape"][i], b["chunk"][i]
            need(last <= (state, offset), "manifest", f"box {i}: boxes are not sorted")
            last = (state, offset)
            name = re.escape(b"/" + kind + b"/" + self.names[tensor]) + rb"(@[1-9][0-9]{0,8})?"
            need(re.fullmatch(name, b["dataset"][i], re.S), "path", f"box {i}: a dataset not named after its state")
            need((file, b["dataset"][i]) not in seen, "manifest", f"box {i}: a dataset of another box")
            seen.add((file, b["dataset"][i]))
            need(all(n > 0 and o + n <= g for o, n, g in zip(offset, shape, whole)), "manifest",
                 f"box {i}: empty, or outside its tensor")
            need(all(1 <= c <= n for c, n in zip(chunk, shape)), "manifest", f"box {i}: a chunk that does not fit")
            need(prod(chunk) * numpy.dtype(TYPES[s["dtype"][state]]).itemsize <= MAX_CHUNK, "manifest",
                 f"box {i}: a chunk above 1 MiB")
            need(b["chunks"][i] == prod(-(-n // c) for n, c in zip(shape, chunk)), "manifest",
                 f"box {i}: another number of chunks than its grid has")
            rows[file].append((b["first_chunk"][i], b["chunks"][i]))
            total[state] += prod(shape)
        for owned, size in zip(rows, self.files["table_bytes"]):
            following = itertools.accumulate((n for _, n in sorted(owned)), initial=0)
            need([first for first, _ in sorted(owned)] + [size // 24] == list(following), "manifest",
                 "files: boxes that do not own the rows of the chunk table once each")
        for state, elements in enumerate(total):
            whole = prod(self.shapes[s["tensor"][state]])
            need(elements <= whole, "overlap", f"state {state}: boxes that share elements")
            need(elements >= whole, "coverage", f"state {state}: elements in no box")
            need(s["count"][state] == whole, "coverage", f"state {state}: a fingerprint of another count")


def read_table(fd, file):
    """The chunk table of a shard, once all of the file outside its chunks was checked too."""
    name = file["name"]
    need(os.fstat(fd).st_size == file["bytes"], "size", f"{name}: another size than the manifest says")
    table = os.pread(fd, file["table_bytes"], file["table_addr"])
    need(xxhash.xxh3_128_hexdigest(table) == file["table_xxh3_128"], "digest", f"{name}: digest of its chunk table")
    table = numpy.frombuffer(table, ROW)
    rest, at = xxhash.xxh3_128(), 0
    for row in numpy.sort(table, order="address"):
        address, stored = int(row["address"]), int(row["stored"])
        need(stored <= MAX_STORED, "digest", f"{name}: a chunk of more than 2 MiB")
        need(at <= address and address + stored <= file["bytes"], "digest", f"{name}: chunks overlap or lie outside")
        rest.update(os.pread(fd, address - at, at))
        at = address + stored
    rest.update(os.pread(fd, file["bytes"] - at, at))
    need(rest.hexdigest() == file["rest_xxh3_128"], "digest", f"{name}: digest of its bytes outside the chunks")
    return table


def fletcher32(data):
    words = numpy.frombuffer(data + b"\0" * (len(data) % 2), ">u2").astype(numpy.uint64)
    one, two = int(words.sum()), int((words * numpy.arange(len(words), 0, -1, dtype=numpy.uint64)).sum())
    low, high = ((n - 1) % 65535 + 1 if n else 0 for n in (one, two))
    return (high << 16 | low).to_bytes(4, "little")


def zstd_planes(frame, raw, where):
    try:
        need(zstandard.get_frame_parameters(frame).content_size == raw, "decode", f"{where}: frame of another size")
        decoder = zstandard.ZstdDecompressor().decompressobj()
        planes = decoder.decompress(frame)
    except zstandard.ZstdError as error:
        raise Refused("decode", f"{where}: {error}") from None
    need(decoder.eof and not decoder.unused_data, "decode", f"{where}: not exactly one frame")
    return planes


def zlib_planes(stream, raw, where):
    """zlib looks at the header, and at the Adler-32 once it comes there, which it does not where there is too much."""
    decoder = zlib.decompressobj(wbits=15)
    try:
        planes = decoder.decompress(stream, raw + 1)
    except zlib.error as error:
        raise Refused("decode", f"{where}: {error}") from None
    need(decoder.eof and not decoder.unused_data, "decode", f"{where}: not exactly one stream")
    return planes


def read_chunk(fd, row, dtype, shape, where):
    """The elements of one cell of a box's chunk grid, and whether it is a zlib stream."""
    stored, raw = os.pread(fd, int(row["stored"]), int(row["address"])), prod(shape) * dtype.itemsize
    need(xxhash.xxh3_64_intdigest(stored) == row["xxh3_64"], "chunk", f"{where}: its digest does not match")
    need(row["raw"] == raw, "decode", f"{where}: its row says another size than its box needs")
    need(len(stored) > 4, "decode", f"{where}: too short for a frame and its checksum")
    frame = stored[:-4]
    need(fletcher32(frame) == stored[-4:], "decode", f"{where}: its Fletcher32 does not match")
    inflated = frame[:1] == ZLIB
    planes = zlib_planes(frame, raw, where) if inflated else zstd_planes(frame, raw, where)
    need(len(planes) == raw, "decode", f"{where}: holds another size than its row says")
    planes = numpy.frombuffer(planes, numpy.uint8).reshape(dtype.itemsize, -1)
    return planes.T.copy().view(dtype).reshape(shape), inflated


def fingerprint(values):
    def mix(v):
        for factor in (0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53):
            v = (v ^ v >> numpy.uint64(33)) * numpy.uint64(factor)
        return v ^ v >> numpy.uint64(33)
    bits = values.reshape(-1).view(f"<u{values.dtype.itemsize}").astype(numpy.uint64)
    h = mix(mix(numpy.arange(1, len(bits) + 1, dtype=numpy.uint64)) + bits)
    g = (h ^ h >> numpy.uint64(29)) * numpy.uint64(0xBF58476D1CE4E5B9)
    g ^= g >> numpy.uint64(32)
    return int(h.sum(dtype=numpy.uint64)), int(g.sum(dtype=numpy.uint64))


def read(directory):
    """(commit, tensors, fingerprints), the latter two by (tensor, kind). Refused at the first rule that is broken."""
    base = os.path.basename(os.path.normpath(directory))
    need(".tmp-" not in base, "attempt", f"{base}: still being written, or left by a crash")
    commit = read_commit(directory)
    with opened(directory, "manifest.h5", "missing_file", "manifest") as file:
        need(os.fstat(file.fileno()).st_size == commit["manifest"]["bytes"], "size", "manifest.h5: size")
        image = file.read()
    need(xxhash.xxh3_128_hexdigest(image) == commit["manifest"]["xxh3_128"], "digest",
         "manifest.h5: not the bytes that COMMIT vouches for")
    manifest = Manifest(image, commit["step"])
    s, b, f = manifest.states, manifest.boxes, manifest.files
    stray = set(os.listdir(directory)) - {"COMMIT", "manifest.h5", *f["name"]}
    need(not stray, "path", f"{sorted(stray)}: does not belong to the checkpoint")
    arrays = [numpy.zeros(manifest.shapes[t], TYPES[d]) for t, d in zip(s["tensor"], s["dtype"])]
    holders = [numpy.zeros(a.shape, numpy.uint8) for a in arrays]
    for state, offset, shape in zip(b["state"], b["offset"], b["shape"]):
        holders[state][tuple(slice(o, o + n) for o, n in zip(offset, shape))] += 1
    for state, held in enumerate(holders):
        need((held == 1).all(), "overlap", f"state {state}: boxes that share elements, and elements in no box")
    for number, name in enumerate(f["name"]):
        with opened(directory, name, "missing_file", "digest") as shard:
            fd = shard.fileno()
            table = read_table(fd, {key: column[number] for key, column in f.items()})
            for i in (i for i, file in enumerate(b["file"]) if file == number):
                array, row = arrays[b["state"][i]], b["first_chunk"][i]
                steps = (range(0, n, c) for n, c in zip(b["shape"][i], b["chunk"][i]))
                forms = set()
                for at, entry in zip(itertools.product(*steps), table[row:row + b["chunks"][i]]):
                    where = f"{name} {b['dataset'][i].decode()} {at}"
                    cell, inflated = read_chunk(fd, entry, array.dtype, b["chunk"][i], where)
                    forms.add(inflated)
                    need(len(forms) == 1, "decode", f"{where}: another filter's chunk than those before")
                    inside = [min(c, n - o) for c, n, o in zip(b["chunk"][i], b["shape"][i], at)]
                    to = tuple(slice(o + a, o + a + n) for o, a, n in zip(b["offset"][i], at, inside))
                    array[to] = cell[tuple(slice(0, n) for n in inside)]
    tensors, sums = {}, {}
    for array, tensor, kind, said in zip(arrays, s["tensor"], s["kind"], s["fingerprint"]):
        key = manifest.names[tensor].decode(), kind.decode()
        tensors[key], sums[key] = array, "%016x%016x" % fingerprint(array)
        need(sums[key] == "%016x%016x" % said, "fingerprint", f"{key}: another fingerprint than the manifest says")
    return commit, tensors, sums


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        commit, tensors, sums = read(sys.argv[1])
    except Refused as refusal:
        print(json.dumps({"refused": {"code": refusal.code, "message": str(refusal)}}))
        sys.exit(1)
    if len(sys.argv) == 3:
        numpy.savez(sys.argv[2], **{f"{kind}/{tensor}": array for (tensor, kind), array in tensors.items()})
    print(json.dumps({"step": commit["step"], "fingerprints": [[*key, value] for key, value in sums.items()]}))


if __name__ == "__main__":
    main()
