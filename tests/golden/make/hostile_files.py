#!/usr/bin/python3
"""hostile_files.py OUT_DIR: writes the hostile checkpoints of tests/golden/hostile and its cases.json.

Each is tests/golden/v1/minimal-2-writers with one rule of "What a reader rejects" (ckpt/FORMAT.md) broken, and with
every digest above that place made to match, so that the rule is what refuses it. cases.json says for each the code, a
part of the message that no other rule's message has, and, where it is not the folder itself, what in it to read.
`loads` marks what only reading everything can notice. Git keeps no FIFOs: `fifo` names the file to make into one.
"""
import json
import os
import shutil
import sys
import zlib
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(GOLDEN.parent / "tools"))
import h5py  # noqa: E402
import numpy  # noqa: E402
import xxhash  # noqa: E402
import zstandard  # noqa: E402
from forge import FRAME, Forged, edit, raw_frame, remake, resign, rle_frame, set_cells  # noqa: E402
from second_reader import VERSION, fletcher32  # noqa: E402

WHOLE = GOLDEN / "v1" / "minimal-2-writers"
OUTSIDE = "../../v1/minimal-2-writers"  # as seen from a case's folder
COMMIT, MANIFEST, SHARD = "COMMIT", "manifest.h5", "rank-00000.h5"
CASES = []


def case(name, code, message, damage, **more):
    CASES.append((dict(name=name, code=code, message=message, **more), damage))


def nested(directory):
    """The checkpoint as it is, in a directory of this name."""
    def move(c):
        (c / directory).mkdir()
        for name in os.listdir(WHOLE):
            (c / name).rename(c / directory / name)
    return move


def cells(*changes):
    return lambda c: set_cells(c, *changes)


def manifest(change):
    """change(h5py.File) on the manifest, vouched for by COMMIT."""
    def damage(c):
        with h5py.File(c / MANIFEST, "r+") as m:
            change(m)
        resign(c)
    return damage


def column(name, **how):
    """A column made anew by h5py's create_dataset."""
    def change(m):
        del m[name]
        m.create_dataset(name, **how)
    return manifest(change)


def texts(name, change):
    """A column of strings, by change(list of bytes) -> list of bytes; any length."""
    def write(m):
        values = change(m[name][()].tolist())
        del m[name]
        m.create_dataset(name, data=numpy.array(values, f"S{max(map(len, values))}"))
    return manifest(write)


def first(text):
    return lambda values: [text, *values[1:]]


def unpadded(name, value):
    """The first string of a column, with NULs inside, which numpy would take for padding."""
    def write(m):
        rest = m[name][()].tolist()[1:]
        del m[name]
        size = max(map(len, [value, *rest]))
        made = m.create_dataset(name, (1 + len(rest),), f"S{size}")
        made[...] = numpy.frombuffer(b"".join(text.ljust(size, b"\0") for text in [value, *rest]), made.dtype)
    return manifest(write)


def swapped(group, i, j):
    def write(m):
        for data in m[group].values():
            values = data[()]
            values[[i, j]] = values[[j, i]]
            data[...] = values
    return manifest(write)


def line(text, digest=None):
    """A COMMIT of this line."""
    def write(c):
        end = digest or xxhash.xxh3_64_hexdigest(text.encode())
        (c / COMMIT).write_text(f"{text}\n{end}\n")
    return write


def record(c):
    return json.loads((c / COMMIT).read_text().splitlines()[0])


def link(name):
    """A file that is a symbolic link to the same one outside of the checkpoint."""
    def write(c):
        (c / name).unlink()
        (c / name).symlink_to(f"{OUTSIDE}/{name}")
    return write


def filtered(name, setup):
    """A column with other filters, by setup(creation property list)."""
    def write(m):
        values = m[name][()]
        del m[name]
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((len(values),))
        setup(creation)
        made = h5py.h5d.create(m.id, name.encode(), h5py.h5t.py_create(values.dtype), h5py.h5s.create_simple(values.shape),
                               creation)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return manifest(write)


def twice_deflated(creation):
    creation.set_deflate(9)
    creation.set_deflate(9)


def wide_numbers(m):
    kind = h5py.h5t.STD_U64LE.copy()
    kind.set_size(16)
    kind.set_precision(128)
    del m["/boxes/file"]
    h5py.h5d.create(m.id, b"/boxes/file", kind, h5py.h5s.create_simple((4,)))


def lookup3(data):
    """Bob Jenkins' hash, by which HDF5 guards its object headers."""
    mask = 0xFFFFFFFF
    state = [(0xDEADBEEF + len(data)) & mask] * 3
    words = [int.from_bytes(data[i:i + 4], "little") for i in range(0, len(data), 4)]

    def rotated(i, k):
        return (state[i] << k | state[i] >> (32 - k)) & mask

    def add():
        for i, word in enumerate(words[:3]):
            state[i] = (state[i] + word) & mask

    while len(words) > 3:
        add()
        words = words[3:]
        for a, b, c, k in ((0, 1, 2, 4), (1, 2, 0, 6), (2, 0, 1, 8), (0, 1, 2, 16), (1, 2, 0, 19), (2, 0, 1, 4)):
            state[a] = ((state[a] - state[c]) & mask) ^ rotated(c, k)
            state[c] = (state[c] + state[b]) & mask
    add()
    for c, b, k in ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)):
        state[c] = ((state[c] ^ state[b]) - rotated(b, k)) & mask
    return state[2]


def claimed(c):
    """2^27 rows in the object header of /boxes/state, which has values of 4; its checksum is made to match."""
    with h5py.File(c / MANIFEST) as m:
        at = h5py.h5o.get_info(m["/boxes/state"].id).addr
    data = bytearray((c / MANIFEST).read_bytes())
    end = at + 8 + int.from_bytes(data[at + 6:at + 8], "little")
    old, new = (numpy.array([n, n], "<u8").tobytes() for n in (4, 1 << 27))
    assert lookup3(data[at:end]) == int.from_bytes(data[end:end + 4], "little") and data[at:end].count(old) == 1
    data[at:end] = data[at:end].replace(old, new)
    data[end:end + 4] = lookup3(data[at:end]).to_bytes(4, "little")
    (c / MANIFEST).write_bytes(data)
    resign(c)


def empty_names(m):
    """Two million names without a character: a few KiB here, much more in memory."""
    for name, kind in (("/tensors/name", "S1"), ("/tensors/ndim", "u1")):
        del m[name]
        m.create_dataset(name, data=numpy.zeros(1 << 21, kind), chunks=(1 << 20,), compression="gzip", compression_opts=9)


def virtual(m):
    shape = m["/boxes/file"].shape
    del m["/boxes/file"]
    layout = h5py.VirtualLayout(shape, "u8")
    layout[:] = h5py.VirtualSource(f"{OUTSIDE}/{MANIFEST}", "/boxes/file", shape)
    m.create_virtual_dataset("/boxes/file", layout)


def relinked(to):
    def write(m):
        m.move("/boxes/file", "/elsewhere")
        m["/boxes/file"] = to
    return manifest(write)


def rows(change, **more):
    """change(rows) on the chunk table of the first shard."""
    def write(c):
        shard = Forged(c)
        change(shard.rows)
        shard.sign(**more)
    return write


def chunk(make):
    """The first chunk as make(its raw bytes' number) gives it."""
    def write(c):
        shard = Forged(c)
        shard.write(make(int(shard.rows[0]["raw"])))
    return write


def frame(make):
    return chunk(lambda raw: make(raw) + fletcher32(make(raw)))


def two_filters(c):
    """The first of the two chunks of /param/a as a zlib stream of the same bytes."""
    shard = Forged(c, 1)
    stream = zlib.compress(zstandard.decompress(shard.chunk[:-4]))
    shard.write(stream + fletcher32(stream))


def table_byte(c):
    """A byte of the chunk table, with only the digest of all bytes outside the chunks made to match."""
    shard = Forged(c)
    old = xxhash.xxh3_128_hexdigest(shard.rows.tobytes()).encode()
    shard.rows["xxh3_64"][-1] = 1
    shard.sign()
    set_cells(c, ("/files/table_xxh3_128", 0, old))


def two_boxes(c):
    """The second writer's rows of /param/a go to the first one's file, under the name that is there already."""
    with h5py.File(c / MANIFEST, "r+") as m:
        chunks = int(m["/boxes/chunks"][0]), int(m["/boxes/chunks"][1]), int(m["/boxes/chunks"][2])
        m["/boxes/file"][2] = 0
        m["/boxes/first_chunk"][2] = chunks[0] + chunks[1]
        m["/boxes/first_chunk"][3] = 0
        m["/files/table_bytes"][0] = 24 * sum(chunks)
        m["/files/table_addr"][0] = 0
        m["/files/table_bytes"][1] = 24 * int(m["/boxes/chunks"][3])
    resign(c)


# The directory, COMMIT.
case("attempt", "", "still being written", nested("step-1000000007.tmp-4-2"), path="step-1000000007.tmp-4-2")
case("commit-missing", "commit", "COMMIT: not there", lambda c: (c / COMMIT).unlink())
case("commit-not-two-lines", "commit", "a checkpoint without a whole COMMIT",
     lambda c: edit(c / COMMIT, lambda data: data[:-1]))
case("commit-above-64-KiB", "commit", "at most 65536 are right", lambda c: resign(c, more=" " * (1 << 16)))
case("commit-short-digest", "commit", "a line of JSON and a line of 16 hex digits",
     lambda c: edit(c / COMMIT, lambda data: data[:-2] + b"\n"))
case("commit-other-digest", "commit", "its digest does not match; the file was changed",
     lambda c: edit(c / COMMIT, lambda data: data[:-17] + b"0" * 16 + b"\n"))
case("commit-no-json", "commit", "(no JSON object)", line('{"format":'))
case("commit-other-format", "commit", "names another format", lambda c: resign(c, format="safetensors"))
case("commit-version-0", "commit", "impossible version", lambda c: resign(c, version=0))
case("commit-other-manifest", "commit", "names another manifest",
     lambda c: resign(c, manifest={**record(c)["manifest"], "name": f"{OUTSIDE}/manifest.h5"}))
case("commit-malformed-digest", "commit", "not the fields of a COMMIT (digest",
     lambda c: resign(c, manifest={**record(c)["manifest"], "xxh3_128": "0x00"}))
case("commit-large-manifest", "commit", "at most 1 GiB is right",
     lambda c: resign(c, manifest={**record(c)["manifest"], "bytes": (1 << 30) + 1}))
case("commit-field-missing", "commit", "field 'attempt' is missing", lambda c: resign(c, attempt=None))
case("commit-field-of-another-type", "commit", "field 'step' is no whole number", lambda c: resign(c, step="7"))
case("commit-future-version", "version", "/COMMIT: version 2 of the format",
     lambda c: line(json.dumps({"format": "shardwright", "version": VERSION + 1}))(c))
case("commit-large-generation", "commit", "field 'generation' is too large", lambda c: resign(c, generation=1 << 53))
case("commit-long-run", "commit", "field 'run' is too long", lambda c: resign(c, run="r" * 257))
case("commit-other-step", "commit", "the directory says 1", nested("step-0000000001"), path="step-0000000001")
for name, file, code in (("commit", COMMIT, "commit"), ("manifest", MANIFEST, "manifest"), ("shard", SHARD, "digest")):
    case(f"{name}-symlink", code, "is a symbolic link", link(file))
    case(f"{name}-fifo", code, "is not a regular file", lambda c, file=file: (c / file).unlink(), fifo=file)

# The manifest as a file, its tables.
case("manifest-missing", "missing_file", "manifest.h5: cannot be opened", lambda c: (c / MANIFEST).unlink())
case("manifest-other-size", "size", "bytes; COMMIT says", lambda c: edit(c / MANIFEST, lambda data: data + b"\0"))
case("manifest-other-digest", "digest", "not those that COMMIT vouches for",
     lambda c: edit(c / MANIFEST, lambda data: data[:-1] + bytes([data[-1] ^ 1])))
case("manifest-future-version", "version", "manifest.h5: version 2 of the format",
     manifest(lambda m: m.attrs.modify("version", VERSION + 1)))


def not_hdf5(c):
    (c / MANIFEST).write_text("not HDF5\n")
    resign(c)


case("manifest-no-hdf5", "manifest", "libhdf5 failed to parse it", not_hdf5)
case("manifest-without-version", "manifest", "libhdf5 failed to find its version",
     manifest(lambda m: m.attrs.__delitem__("version")))
case("manifest-version-0", "manifest", "version is impossible", manifest(lambda m: m.attrs.modify("version", 0)))
case("dataset-missing", "manifest", "/boxes/file is missing", manifest(lambda m: m.__delitem__("/boxes/file")))
case("dataset-of-another-rank", "manifest", "has another shape",
     manifest(lambda m: remake(m, "/boxes/file", lambda v: v.reshape(-1, 1))))
case("dataset-of-another-width", "manifest", "has another shape",
     manifest(lambda m: remake(m, "/boxes/shape", lambda v: v[:, 1:])))
case("dataset-of-other-rows", "manifest", "has other than 4 rows",
     manifest(lambda m: remake(m, "/boxes/file", lambda v: v[1:])))
case("dataset-above-2^28-rows", "manifest", "at most 2^28 are right",
     column("/boxes/state", shape=((1 << 28) + 1,), dtype="u8", chunks=(1 << 16,)))
case("numbers-signed", "manifest", "does not hold unsigned integers",
     manifest(lambda m: remake(m, "/boxes/file", lambda v: v.astype("i8"))))
case("numbers-no-integers", "manifest", "does not hold unsigned integers",
     manifest(lambda m: remake(m, "/boxes/file", lambda v: v.astype("f8"))))
case("numbers-above-64-bits", "manifest", "does not hold unsigned integers", manifest(wide_numbers))
case("strings-of-variable-length", "manifest", "does not hold fixed-length strings",
     column("/states/kind", data=["exp_avg", "param", "param"], dtype=h5py.string_dtype()))
case("strings-above-64-KiB", "manifest", "has strings of an impossible length",
     column("/states/kind", shape=(3,), dtype=f"S{(1 << 16) + 1}", chunks=(1,), compression="gzip"))
case("document-of-no-bytes", "manifest", "does not hold bytes", column("/layout", data=numpy.zeros(3, "f4")))
case("link-to-another-file", "manifest", "is a link to somewhere else",
     relinked(h5py.ExternalLink(f"{OUTSIDE}/{MANIFEST}", "/boxes/file")))
case("link-of-another-kind", "manifest", "is a link to somewhere else", relinked(h5py.SoftLink("/elsewhere")))
case("values-of-another-file", "manifest", "is stored outside the manifest", manifest(virtual))
case("values-in-another-file", "manifest", "is stored outside the manifest",
     column("/boxes/file", shape=(4,), dtype="u8", external=f"{OUTSIDE}/{SHARD}"))
case("filter-unknown", "manifest", "has filters other than",
     filtered("/boxes/file", lambda creation: creation.set_scaleoffset(h5py.h5z.SO_INT, 0)))
case("filter-twice", "manifest", "has filters other than", filtered("/boxes/file", twice_deflated))
case("values-not-there", "manifest", "bytes of values, which the manifest does not hold",
     column("/boxes/state", shape=(1 << 27,), dtype="u8", chunks=(1 << 16,), compression="gzip"))
case("values-beyond-the-end", "manifest", "bytes of values, which the manifest does not hold", claimed)
case("table-chunk-above-1-MiB", "manifest", "is cut in chunks above 1 MiB",
     column("/config", data=numpy.frombuffer(b"{}", "u1"), maxshape=(None,), chunks=((1 << 20) + 1,), compression="gzip"))
case("tables-of-too-much-memory", "manifest", "too much for a manifest of", manifest(empty_names))

# What the tables say.
for where, dataset, phrase in (("tensor", "/tensors/name", ": its name is empty"), ("kind", "/states/kind", ": its kind is empty")):
    for what, text in (("empty", b""), ("slash", b"a/b"), ("at", b"a@1"), ("above-1024-bytes", b"a" * 1025)):
        case(f"{where}-name-{what}", "manifest", phrase, texts(dataset, first(text)))
    case(f"{where}-name-nul", "manifest", phrase, unpadded(dataset, b"a\0b"))
case("tensors-not-sorted", "manifest", "tensors are not sorted by name", texts("/tensors/name", first(b"c")))
case("tensors-twice", "manifest", "tensors are not sorted by name", texts("/tensors/name", first(b"b")))
case("tensor-without-state", "manifest", "has no state", cells(("/states/tensor", 2, 0), ("/states/kind", 2, b"q")))
case("ndim-above-8", "manifest", "/tensors/ndim is above 8", cells(("/tensors/ndim", 0, 9)))
case("shape-too-large", "manifest", "the bytes of shape [", cells(("/tensors/shape", 0, [1 << 31, 1 << 31] + [0] * 6)))
case("states-too-large", "manifest", "the bytes of all states do not fit",
     cells(("/tensors/shape", 0, [1 << 30, 1 << 30] + [0] * 6), ("/tensors/ndim", 1, 1),
           ("/tensors/shape", 1, [1 << 60] + [0] * 7)))
case("state-of-no-tensor", "manifest", "tensor row ", cells(("/states/tensor", 2, 1 << 32)))
case("states-not-sorted", "manifest", "states are not sorted and unique", swapped("/states", 0, 1))
case("states-twice", "manifest", "states are not sorted and unique", cells(("/states/kind", 0, b"param")))
case("dtype-unknown", "manifest", "dtype 'f8'", cells(("/states/dtype", 0, b"f8")))
for what, text in (("outside", b"../x-00000.h5"), ("absolute", b"/rank-00000.h5"), ("other", b"rank-0000a.h5"),
                   ("padded", b"rank-000000.h5")):
    case(f"file-name-{what}", "path", "not the name of a shard", texts("/files/name", first(text)))
case("files-not-sorted", "manifest", "files are not sorted by name", texts("/files/name", first(b"rank-00002.h5")))
case("files-twice", "manifest", "files are not sorted by name", texts("/files/name", first(b"rank-00001.h5")))
case("files-too-large", "manifest", "the bytes of all files do not fit",
     cells(("/files/bytes", 0, 1 << 63), ("/files/bytes", 1, 1 << 63)))
case("chunk-table-outside", "manifest", "its chunk table (", cells(("/files/table_addr", 0, (1 << 64) - 1)))
case("chunk-table-ragged", "manifest", "its chunk table (", cells(("/files/table_bytes", 0, 25)))
case("chunk-table-above-2^26-rows", "manifest", "rows; at most 67108864",
     cells(("/files/bytes", 0, 1 << 40), ("/files/table_bytes", 0, 24 * ((1 << 26) + 1))))
case("file-malformed-digest", "manifest", "manifest.h5: digest 'X", cells(("/files/rest_xxh3_128", 0, b"X" * 32)))
case("box-of-no-state", "manifest", ": state row ", cells(("/boxes/state", 3, 1 << 40)))
case("box-of-no-file", "manifest", ": file row ", cells(("/boxes/file", 0, 1 << 63)))
case("boxes-not-sorted", "manifest", "boxes are not sorted by state and offset", swapped("/boxes", 1, 2))
for what, text in (("outside", b"/param/../x"), ("other", b"/param/x"), ("numbered-0", b"/exp_avg/a@0"),
                   ("numbered-long", b"/exp_avg/a@1234567890")):
    case(f"dataset-name-{what}", "path", ": dataset '", texts("/boxes/dataset", first(text)))
case("box-empty", "manifest", ": empty, or outside the shape", cells(("/boxes/shape", (0, 0), 0)))
case("box-outside", "manifest", ": empty, or outside the shape", cells(("/boxes/offset", (2, 0), 1 << 62)))
case("chunk-of-0", "manifest", "does not fit [", cells(("/boxes/chunk", (0, 0), 0)))
case("chunk-beyond-its-box", "manifest", "does not fit [", cells(("/boxes/chunk", (0, 0), 4)))
case("chunk-above-1-MiB", "manifest", "is more than 1048576 bytes",
     cells(("/tensors/shape", (0, 0), 1 << 20), ("/boxes/shape", (0, 0), 1 << 20), ("/boxes/chunk", (0, 0), 1 << 20)))
case("chunks-miscounted", "manifest", "chunks where ", cells(("/boxes/chunks", 1, 3)))
case("rows-not-owned-once", "manifest", "do not own the ", cells(("/boxes/first_chunk", 1, 0)))
case("dataset-of-two-boxes", "manifest", "two boxes name the dataset", two_boxes)
case("training-step", "manifest", "its training state is of step", lambda c: resign(c, step=1))
case("element-in-two-boxes", "overlap", "share elements", cells(("/boxes/offset", (2, 0), 1)))
case("element-in-no-box", "coverage", "are in no box",
     cells(("/tensors/shape", (0, 0), 4), ("/states/count", 0, 8), ("/states/count", 1, 8)))
case("fingerprint-count", "coverage", "its fingerprint counts", cells(("/states/count", 0, 5)))


# Shards and chunks.
case("stray-file", "path", "does not belong to the checkpoint", lambda c: (c / "rank-00009.h5").write_text("x\n"),
     loads=True)
case("shard-missing", "missing_file", "rank-00000.h5: cannot be opened: No such file", lambda c: (c / SHARD).unlink())
case("shard-other-size", "size", "bytes; the manifest says", lambda c: edit(c / SHARD, lambda data: data + b"\0"))
case("chunk-table-other-digest", "digest", "the digest of its chunk table does not match", table_byte)
case("chunk-row-outside", "digest", "chunks inside the file, apart from each other",
     rows(lambda r: r["address"].__setitem__(0, 1 << 40)))
case("chunk-rows-share-bytes", "digest", "chunks inside the file, apart from each other",
     rows(lambda r: r["address"].__setitem__(0, int(r["address"][1]) + 1)))
case("chunk-stored-above-2-MiB", "digest", "stored bytes; at most 2097152",
     rows(lambda r: r["stored"].__setitem__(0, (1 << 21) + 1)))
case("shard-other-bytes", "digest", "its bytes outside the chunks are not those",
     lambda c: edit(c / SHARD, lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:]))
case("chunk-other-digest", "chunk", "the digest of chunk 0 does not match", rows(lambda r: r["xxh3_64"].__setitem__(0, 7)))
case("chunk-raw-size", "decode", "bytes; its box needs", rows(lambda r: r["raw"].__setitem__(0, 1)))
case("chunk-too-short", "decode", "too short for a frame", chunk(lambda raw: b"\0" * 4))
case("chunk-fletcher32", "decode", "its Fletcher32 does not match", chunk(lambda raw: rle_frame(raw) + b"\xff" * 4))
case("chunk-frame-without-size", "decode", "its frame does not say that it holds",
     frame(lambda raw: FRAME[:4] + b"\x00\x58" + (raw << 3 | 1).to_bytes(3, "little") + b"\7" * raw))
case("chunk-frame-of-another-size", "decode", "its frame does not say that it holds", frame(lambda raw: rle_frame(raw + 1)))
case("chunk-frame-claims-4-GiB", "decode", "its frame does not say that it holds",
     frame(lambda raw: FRAME + b"\xff" * 4 + rle_frame(raw)[9:]))
case("chunk-bytes-after-the-frame", "decode", "not exactly one zstd frame", frame(lambda raw: rle_frame(raw) + b"\0"))
case("chunk-second-frame", "decode", "not exactly one zstd frame", frame(lambda raw: rle_frame(raw) + raw_frame(b"")))
case("chunk-zstd-refuses", "decode", "chunk: zstd: ",
     frame(lambda raw: FRAME + raw.to_bytes(4, "little") + (2 << 3 | 4 | 1).to_bytes(3, "little") + b"\xff\xff"))
case("chunk-decodes-to-another-size", "decode", "chunk: zstd: ",
     frame(lambda raw: FRAME + raw.to_bytes(4, "little") + rle_frame(raw - 1)[9:]))
# Zlib streams; chunk 0 of the shard is alone in its box.
case("chunk-zlib-too-short", "decode", "zlib: too short for a stream", frame(lambda raw: b"\x78\x01\1\0\0"))
case("chunk-zlib-other-check", "decode", "a window of 32 KiB and no dictionary are right",
     frame(lambda raw: b"\x78\x02" + zlib.compress(b"\7" * raw)[2:]))
case("chunk-zlib-dictionary", "decode", "a window of 32 KiB and no dictionary are right",
     frame(lambda raw: b"\x78\x20" + b"\0\0\0\1" + zlib.compress(b"\7" * raw)[2:]))
case("chunk-zlib-other-window", "decode", "its frame does not say that it holds",
     frame(lambda raw: b"\x68\x05" + zlib.compress(b"\7" * raw)[2:]))
case("chunk-zlib-refuses", "decode", "zlib: the stream is damaged",
     frame(lambda raw: b"\x78\x01\7" + zlib.compress(b"\7" * raw)[3:]))
case("chunk-zlib-cut-short", "decode", "zlib: the stream is damaged",
     frame(lambda raw: b"\x78\x01\0" + raw.to_bytes(2, "little") + (65535 - raw).to_bytes(2, "little") + b"\7" * raw))
case("chunk-zlib-holds-more", "decode", "zlib: it holds more than", frame(lambda raw: zlib.compress(b"\7" * (raw + 1))))
case("chunk-zlib-holds-1-MiB", "decode", "zlib: it holds more than", frame(lambda raw: zlib.compress(bytes(1 << 20))))
case("chunk-zlib-holds-less", "decode", "zlib: it holds 23 bytes; 24 are right",
     frame(lambda raw: zlib.compress(b"\7" * (raw - 1))))
case("chunk-bytes-after-the-stream", "decode", "not exactly one zlib stream",
     frame(lambda raw: zlib.compress(b"\7" * raw) + b"\0"))
case("chunk-second-stream", "decode", "not exactly one zlib stream",
     frame(lambda raw: zlib.compress(b"\7" * raw) + zlib.compress(b"")))
case("chunk-adler32", "decode", "zlib: its Adler-32 does not match",
     frame(lambda raw: zlib.compress(b"\7" * raw)[:-1] + b"\xff"))
case("chunks-of-two-filters", "decode", "a dataset has one filter", two_filters, loads=True)
case("fingerprint", "fingerprint", "values have fingerprint", frame(rle_frame), loads=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for about, damage in CASES:
        made = out / about["name"]
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(WHOLE, made)
        damage(made)
    (out / "cases.json").write_text(json.dumps([about for about, _ in CASES], indent=1) + "\n")


if __name__ == "__main__":
    main()
