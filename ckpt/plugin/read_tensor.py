#!/usr/bin/env python3
"""Prints one tensor of a checkpoint: read_tensor.py CKPT_DIR TENSOR [KIND]. Needs h5py and a zstd filter: ours
(HDF5_PLUGIN_PATH=<build>/plugin) or that of `pip install hdf5plugin` (import it first)."""
import glob
import sys

import h5py
import numpy

directory, tensor, kind = (sys.argv[1:] + ["param"])[:3]
whole, filled = None, 0
for path in glob.glob(glob.escape(directory) + "/rank-*.h5"):
    with h5py.File(path) as shard:
        for name, box in shard.get(kind, {}).items():
            if name.split("@")[0] == tensor and box.size:
                if whole is None:
                    whole = numpy.zeros(box.attrs["global_shape"].astype(int), box.dtype)
                here = tuple(slice(int(o), int(o) + n) for o, n in zip(box.attrs["offset"], box.shape))
                whole[here] = box[()].reshape(whole[here].shape)  # a scalar is stored with shape [1]
                filled += box.size
if whole is None or filled != whole.size:
    sys.exit(f"{tensor} {kind}: not there, or in part only; see what `shardwright verify {directory}` says")
print(whole.dtype, whole.shape, whole, sep="\n")
