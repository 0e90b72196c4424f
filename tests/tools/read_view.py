#!/usr/bin/python3
"""Reads every dataset of a view (shardwright view) with h5py and numpy alone.

Usage: HDF5_PLUGIN_PATH=<build>/plugin read_view.py VIEW.h5 OUT.npz

Each array of OUT.npz is named "<kind>/<tensor>" and has the tensor's global shape.
"""
import sys

import h5py
import numpy


def read(path):
    tensors = {}
    with h5py.File(path, "r") as view:
        for kind, group in view.items():
            for name, dataset in group.items():
                shape = tuple(int(n) for n in dataset.attrs["global_shape"])
                if dataset.size and not dataset.is_virtual:
                    sys.exit(f"{path}: {kind}/{name}: is no virtual dataset")
                values = dataset[()] if dataset.size else numpy.zeros(dataset.shape, dataset.dtype)
                tensors[f"{kind}/{name}"] = values.reshape(shape)  # a scalar has shape [1]
    return tensors


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    tensors = read(sys.argv[1])
    numpy.savez(sys.argv[2], **tensors)
    print(f"{len(tensors)} tensors")


if __name__ == "__main__":
    main()
