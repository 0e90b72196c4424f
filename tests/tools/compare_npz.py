#!/usr/bin/python3
"""Compares the arrays of an .npz with raw little-endian files, one per array, listed as "name dtype shape file" lines.

Usage: compare_npz.py OUT.npz LIST      (bf16 arrays arrive as the float32 of the same value)
"""
import os
import sys

import numpy


def main():
    arrays = dict(numpy.load(sys.argv[1]))
    directory = os.path.dirname(sys.argv[2])
    wrong = []
    with open(sys.argv[2], encoding="utf-8") as lines:
        for line in lines:
            name, dtype, shape, file = line.rstrip("\n").split("\t")
            with open(os.path.join(directory, file), "rb") as raw:
                data = raw.read()
            if dtype == "bf16":
                expected = (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
            else:
                kinds = {"f": "f", "i": "i", "u": "u"}
                code = "?" if dtype == "bool" else f"<{kinds[dtype[0]]}{int(dtype[1:]) // 8}"
                expected = numpy.frombuffer(data, code)
            expected = expected.reshape([int(n) for n in shape.split(",") if n])
            got = arrays.pop(name, None)
            if got is None or got.shape != expected.shape or got.dtype != expected.dtype:
                wrong.append(f"{name}: expected {expected.dtype} {expected.shape}, got {getattr(got, 'dtype', None)} "
                             f"{getattr(got, 'shape', None)}")
            elif got.tobytes() != expected.tobytes():
                wrong.append(f"{name}: other values")
    wrong += [f"{name}: not expected" for name in arrays]
    print("\n".join(wrong) or "equal")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
