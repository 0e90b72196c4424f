#!/usr/bin/python3
"""Rebuilds every global tensor of a checkpoint from the attributes of its shards, with h5py and numpy alone.

Usage: HDF5_PLUGIN_PATH=<build>/plugin read_with_h5py.py CKPT_DIR OUT.npz

Each array of OUT.npz is named "<kind>/<tensor>". An element that no shard holds, or that two hold, is an error.
"""
import glob
import os
import sys

import h5py
import numpy


def text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def read(directory):
    tensors, holders = {}, {}
    files = sorted(glob.glob(os.path.join(glob.escape(directory), "rank-*.h5")))
    for path in files:
        with h5py.File(path, "r") as shard:
            for kind in shard:
                if kind == "chunks":
                    continue
                for dataset in shard[kind].values():
                    key = text(dataset.attrs["kind"]) + "/" + text(dataset.attrs["tensor"])
                    shape = tuple(int(n) for n in dataset.attrs["global_shape"])
                    offset = [int(n) for n in dataset.attrs["offset"]]
                    values = dataset[()] if dataset.size else numpy.zeros(dataset.shape, dataset.dtype)
                    if not shape:  # a scalar is stored with shape [1]
                        values = values.reshape(())
                    tensor = tensors.setdefault(key, numpy.zeros(shape, values.dtype))
                    held = holders.setdefault(key, numpy.zeros(shape, numpy.uint8))
                    if tensor.shape != shape or tensor.dtype != values.dtype:
                        sys.exit(f"{path}: {key}: other shape or type than in another shard")
                    where = tuple(slice(o, o + n) for o, n in zip(offset, values.shape))
                    tensor[where] = values
                    held[where] += 1
    for key, held in holders.items():
        if not (held == 1).all():
            sys.exit(f"{key}: {int((held == 0).sum())} elements missing, {int((held > 1).sum())} held twice")
    return files, tensors


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    files, tensors = read(sys.argv[1])
    numpy.savez(sys.argv[2], **tensors)
    print(f"{len(tensors)} tensors from {len(files)} files")


if __name__ == "__main__":
    main()
