#!/usr/bin/env python3
"""Trains a GPT-2 on text and leaves its last checkpoint: a state with the entropy of real weights and moments, for peers.py.

    python3 tests/bench/trained_state.py RUN_DIR [--build build/release] [--model 10m|50m] [--dtype fp32|bf16] [--steps 300]
        [--batch 8] [TEXT FILES...]

Models, of bytes (vocabulary 256), sequences of 256: 10m is 6 layers x 384, 50m is 4 x 1,024. Text: the licences of any Debian
machine where no files are given. The run's directory must be new; `peers.py --state RUN_DIR` reads its newest checkpoint.
"""

import argparse
import glob
import json
import os
import subprocess
import sys

MODELS = {"10m": (6, 384, 6), "50m": (4, 1024, 16)}  # layers, hidden, heads


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--build", default=os.environ.get("SHARDWRIGHT_BUILD", "build/release"))
    parser.add_argument("--model", choices=list(MODELS), default="10m")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    texts = arguments.texts or [path for path in sorted(glob.glob("/usr/share/common-licenses/*"))
                                if os.path.isfile(path) and not os.path.islink(path)]
    if not texts:
        parser.error("no text files; name some")
    if os.path.exists(arguments.run):
        parser.error(f"{arguments.run}: exists; a new directory is right")
    os.makedirs(arguments.run)
    layers, hidden, heads = MODELS[arguments.model]
    config = os.path.join(arguments.run, "trained_state.toml")
    with open(config, "w") as file:
        file.write(f"""[run]
dir = {json.dumps(os.path.abspath(arguments.run))}
[model]
arch = "gpt2"
layers = {layers}
hidden = {hidden}
heads = {heads}
vocab = 256
seq_len = 256
[data]
train = {json.dumps([os.path.abspath(text) for text in texts])}
format = "text"
[train]
steps = {arguments.steps}
global_batch = {arguments.batch}
micro_batch = {arguments.batch}
dtype = "{arguments.dtype}"
[optim]
lr = 6e-4
warmup_steps = {max(1, arguments.steps // 10)}
""")
    return subprocess.run([os.path.join(arguments.build, "bin", "shardwright"), "train", config, "--nproc", "1"],
                          stdout=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
