"""Checkpoints made wrong with every digest right, so that the rule that is broken is what refuses them."""
import json

import h5py
import numpy
import second_reader
import xxhash
from run_harness import sign

# The magic number of a zstd frame, and a header of one segment with its content size in 4 bytes.
FRAME = b"\x28\xb5\x2f\xfd\xa0"


def edit(path, change):
    """Rewrites a file by change(bytes) -> bytes."""
    path.write_bytes(change(path.read_bytes()))


def resign(checkpoint, **fields):
    """A COMMIT that vouches for the manifest as it is now, with other fields on request (None: without it)."""
    image = (checkpoint / "manifest.h5").read_bytes()
    record = json.loads((checkpoint / "COMMIT").read_text().splitlines()[0])
    record["manifest"].update(bytes=len(image), xxh3_128=xxhash.xxh3_128_hexdigest(image))
    record = {key: value for key, value in {**record, **fields}.items() if value is not None}
    (checkpoint / "COMMIT").write_text(sign(record))


def set_cells(checkpoint, *cells):
    """Other values in places (dataset, index) of the manifest, vouched for by COMMIT."""
    with h5py.File(checkpoint / "manifest.h5", "r+") as manifest:
        for dataset, index, value in cells:
            manifest[dataset][index] = value
    resign(checkpoint)


def remake(manifest, name, change):
    """A column of the open manifest, replaced by change(values)."""
    values = change(manifest[name][()])
    del manifest[name]
    manifest.create_dataset(name, data=values)


def raw_frame(planes):
    """A zstd frame of one raw block that says its content size."""
    return FRAME + len(planes).to_bytes(4, "little") + (len(planes) << 3 | 1).to_bytes(3, "little") + planes


def rle_frame(count):
    """The same of `count` times the byte 7."""
    return FRAME + count.to_bytes(4, "little") + (count << 3 | 2 | 1).to_bytes(3, "little") + b"\7"


class Forged:
    """The first shard of a checkpoint, to be written again with every digest above it made to match; `number` is that
    of the chunk to be replaced."""

    def __init__(self, checkpoint, number=0):
        self.checkpoint, self.shard = checkpoint, checkpoint / "rank-00000.h5"
        with h5py.File(checkpoint / "manifest.h5") as manifest:
            self.at, size = (int(manifest[f"/files/table_{key}"][0]) for key in ("addr", "bytes"))
        data = self.shard.read_bytes()
        self.rows = numpy.frombuffer(data[self.at:self.at + size], second_reader.ROW).copy()
        self.row = self.rows[number]
        self.chunk = data[int(self.row["address"]):][:int(self.row["stored"])]

    def write(self, chunk):
        """Another chunk, in the place of the old one, or behind all else if it is longer."""
        row, place = self.row, int(self.row["address"])
        if len(chunk) > len(self.chunk):
            place = self.shard.stat().st_size
        with open(self.shard, "r+b") as file:
            file.seek(place)
            file.write(chunk)
        row["address"], row["stored"], row["xxh3_64"] = place, len(chunk), xxhash.xxh3_64_intdigest(chunk)
        self.sign()

    def frame(self, frame):
        """The same of a zstd frame, with its Fletcher32."""
        self.write(frame + second_reader.fletcher32(frame))

    def sign(self, rest=None):
        """The table as `rows` are now, and all digests; `rest` in place of the one of what is no chunk's."""
        with open(self.shard, "r+b") as file:
            file.seek(self.at)
            file.write(self.rows.tobytes())
        digest, data, at = xxhash.xxh3_128(), self.shard.read_bytes(), 0
        for row in numpy.sort(self.rows, order="address"):
            digest.update(data[at:int(row["address"])])
            at = int(row["address"]) + int(row["stored"])
        digest.update(data[at:])
        set_cells(self.checkpoint, ("/files/bytes", 0, len(data)),
                  ("/files/rest_xxh3_128", 0, rest or digest.hexdigest().encode()),
                  ("/files/table_xxh3_128", 0, xxhash.xxh3_128_hexdigest(self.rows.tobytes()).encode()))
