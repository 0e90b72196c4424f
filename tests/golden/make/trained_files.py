#!/usr/bin/python3
"""trained_files.py OUT_DIR: trains a tiny GPT-2 in t2p2d2z1 and writes its checkpoint of step 2 to OUT_DIR/trained-gpt2-
t2p2d2z1, with a .json beside it of what a reader must find: each state's fingerprint, and what `inspect` says of it.

Like the other golden files, the committed one was written once and is not written again.
"""
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = Path(os.environ.get("SHARDWRIGHT_BUILD", Path(__file__).resolve().parents[3] / "build" / "release"))
BINARY = BUILD / "bin" / "shardwright"
CONFIG = """
[run]
dir = "run"
[model]
arch = "gpt2"
layers = 2
hidden = 16
heads = 4
ffn = 40
vocab = 97
seq_len = 8
tie_embeddings = true
[data]
train = "tokens.bin"
format = "u16"
[train]
steps = 2
global_batch = 4
micro_batch = 1
seed = 7
[optim]
lr = 1e-2
[parallel]
tp = 2
pp = 2
dp = 2
zero = 1
"""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1]).resolve() / "trained-gpt2-t2p2d2z1"
    with tempfile.TemporaryDirectory() as work:
        random.seed(97)
        (Path(work) / "tokens.bin").write_bytes(b"".join(struct.pack("<H", random.randrange(97)) for _ in range(500)))
        (Path(work) / "config.toml").write_text(CONFIG)
        subprocess.run([BINARY, "train", "config.toml"], cwd=work, check=True, timeout=300, stdout=sys.stderr)
        shutil.copytree(Path(work) / "run" / "checkpoints" / "step-0000000002", out)
    shown = json.loads(subprocess.run([BINARY, "inspect", out, "--tensors", "--json"], check=True, timeout=60,
                                      capture_output=True).stdout)
    keys = ("step", "samples", "run", "generation", "version", "ranks", "parameters", "raw_bytes", "stored_bytes")
    commit = json.loads((out / "COMMIT").read_text().splitlines()[0])
    expected = {
        "step": shown["step"], "run": shown["run"], "generation": shown["generation"], "attempt": commit["attempt"],
        "inspect": {key: shown[key] for key in keys},
        "states": [{"tensor": t["name"], "kind": k["kind"], "dtype": k["dtype"], "shape": t["shape"],
                    "fingerprint": k["fingerprint"]} for t in shown["tensors"] for k in t["kinds"]]}
    out.with_name(out.name + ".json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
