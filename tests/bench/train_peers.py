#!/usr/bin/env python3
"""Training steps of `shardwright train` beside PyTorch: the same GPT-2, batch and optimizer (AdamW, clipped), with the same
cores. Ours runs on one rank with all threads (t1), and on two ranks that share them, tensor parallel (t2) and data parallel
with ZeRO 1 (d2z1), or in the layouts that are asked for; PyTorch always in one process. Runs alternate, and medians over the rounds are compared. bf16 is PyTorch's autocast
with fp32 parameters.

    python3 tests/bench/train_peers.py [--build build/release] [--model 10m] [--dtype fp32 --dtype bf16]
        [--layout t1 --layout d2z3] [--rounds 5] [--steps 10]

Models: 10m is 6 layers x 384, vocabulary 256, batch 8 x 256; 124m is GPT-2's 12 x 768, vocabulary 50,257, batch 2 x 256.
Prints one line and ends with status 0 where PyTorch is not to be had."""

import argparse
import array
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple


class Model(NamedTuple):
    layers: int
    hidden: int
    heads: int
    vocab: int
    length: int
    batch: int

    def section(self):
        """[model] of a configuration."""
        return f"""[model]
arch = "gpt2"
layers = {self.layers}
hidden = {self.hidden}
heads = {self.heads}
vocab = {self.vocab}
seq_len = {self.length}
"""

    def flops_per_step(self):
        """Products with weights, and causal scores with their product with the values; three times forward's."""
        weights = self.vocab * self.hidden + 12 * self.layers * self.hidden**2
        attention = (self.length + 1) * self.hidden * self.layers
        return 6 * (weights + attention) * self.batch * self.length


MODELS = {"10m": Model(6, 384, 6, 256, 256, 8), "124m": Model(12, 768, 12, 50257, 256, 2)}
LAYOUTS = ["t1", "t2", "d2z1"]
LR, BETAS, DECAY, CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0


class TorchTraining:
    """PyTorch's side: a GPT-2, AdamW, clipped gradients, one batch again and again."""

    def __init__(self, shape, dtype, threads, micro_batch=None):
        import torch
        from torch import nn
        from torch.nn import functional

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        hidden = shape.hidden

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
                self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
                self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

            def forward(self, x):
                batch, length, _ = x.shape
                q, k, v = (t.view(batch, length, shape.heads, -1).transpose(1, 2)
                           for t in self.qkv(self.norm1(x)).split(hidden, dim=2))
                a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.out(a.transpose(1, 2).reshape(batch, length, hidden))
                return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

        class Gpt(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens, self.positions = nn.Embedding(shape.vocab, hidden), nn.Embedding(shape.length, hidden)
                self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
                self.norm = nn.LayerNorm(hidden)

            def forward(self, tokens, targets):
                x = self.tokens(tokens) + self.positions(torch.arange(shape.length))
                for block in self.blocks:
                    x = block(x)
                logits = functional.linear(self.norm(x), self.tokens.weight)
                return functional.cross_entropy(logits.float().view(-1, shape.vocab), targets.view(-1))

        self.torch, self.model, self.dtype, self.micro_batch = torch, Gpt(), dtype, micro_batch or shape.batch
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, betas=BETAS, weight_decay=DECAY)
        self.tokens, self.targets = torch.randint(shape.vocab, (2, shape.batch, shape.length))

    def forward_backward(self):
        """The loss, and gradients of the whole batch."""
        self.optimizer.zero_grad(set_to_none=True)
        total = 0
        for tokens, targets in zip(self.tokens.split(self.micro_batch), self.targets.split(self.micro_batch)):
            with self.torch.autocast("cpu", self.torch.bfloat16, enabled=self.dtype == "bf16"):
                loss = self.model(tokens, targets) * (len(tokens) / len(self.tokens))
            loss.backward()
            total += loss.item()
        return total

    def update(self):
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()


def torch_step_ms(shape, dtype, steps, threads):
    """Median milliseconds of a step; runs in a process of its own."""
    training = TorchTraining(shape, dtype, threads)

    def step():
        start = time.perf_counter()
        training.forward_backward()
        training.update()
        return (time.perf_counter() - start) * 1e3

    step()
    return statistics.median(step() for _ in range(steps)), training.torch.__version__


def parsed(layout):
    """The keys of [parallel] of a layout such as t2d2z1."""
    keys = {"t": "tp", "p": "pp", "d": "dp", "z": "zero"}
    return {keys[letter]: int(number) for letter, number in re.findall(r"([tpdz])(\d+)", layout)}


def our_step_ms(shape, dtype, parallel, steps, build):
    """Median milliseconds of the steps that metrics.jsonl tells of, without the first, which plans the products."""
    with tempfile.TemporaryDirectory() as work:
        generator = random.Random(1)
        tokens = array.array("H", (generator.randrange(shape.vocab) for _ in range(1 << 16)))
        with open(f"{work}/tokens.bin", "wb") as file:
            tokens.tofile(file)
        ranks = parallel.get("tp", 1) * parallel.get("pp", 1) * parallel.get("dp", 1)
        with open(f"{work}/peer.toml", "w") as file:
            file.write(f"""[run]
dir = "{work}/run"
{shape.section()}[data]
train = "{work}/tokens.bin"
format = "u16"
[train]
steps = {steps + 1}
global_batch = {shape.batch}
micro_batch = {shape.batch // parallel.get("dp", 1)}
dtype = "{dtype}"
[optim]
lr = {LR}
beta1 = {BETAS[0]}
beta2 = {BETAS[1]}
weight_decay = {DECAY}
clip = {CLIP}
schedule = "constant"
[parallel]
{"".join(f"{key} = {value}" + chr(10) for key, value in parallel.items())}
[checkpoint]
codec = "none"
""")
        subprocess.run([os.path.join(build, "bin", "shardwright"), "train", f"{work}/peer.toml", "--nproc", str(ranks)],
                       check=True, stdout=subprocess.DEVNULL)
        with open(f"{work}/run/metrics.jsonl") as file:
            times = [line["step_ms"] for line in map(json.loads, file) if line["type"] == "step"]
        return statistics.median(times[1:])


def torch_run(model, dtype, steps, threads):
    command = [sys.executable, __file__, "--torch-step", "--model", model, "--dtype", dtype, "--steps", str(steps),
               "--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("SHARDWRIGHT_BUILD", "build/release"))
    parser.add_argument("--model", action="append", choices=list(MODELS))
    parser.add_argument("--dtype", action="append", choices=["fp32", "bf16"])
    parser.add_argument("--layout", action="append", type=str)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of PyTorch; ours takes all cores")
    parser.add_argument("--torch-step", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.torch_step:
        ms, version = torch_step_ms(MODELS[arguments.model[0]], arguments.dtype[0], arguments.steps, arguments.threads)
        print(json.dumps({"step_ms": ms, "version": version}))
        return 0
    if subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode != 0:
        print(f"skipped: {sys.executable} cannot import torch, so there is nothing to compare with")
        return 0
    for model in arguments.model or ["10m"]:
        for dtype in arguments.dtype or ["fp32", "bf16"]:
            shape, theirs, version = MODELS[model], [], ""
            ours = {layout: [] for layout in arguments.layout or LAYOUTS}
            for _ in range(arguments.rounds):
                for layout, times in ours.items():
                    times.append(our_step_ms(shape, dtype, parsed(layout), arguments.steps, arguments.build))
                run = torch_run(model, dtype, arguments.steps, arguments.threads)
                theirs.append(run["step_ms"])
                version = run["version"]
            their_ms = statistics.median(theirs)
            rate = lambda ms: shape.flops_per_step() / ms * 1e-6  # GFLOP/s; the same operations are counted for both
            print(f"{model} {dtype}: PyTorch {version}, {arguments.threads} threads: {their_ms:.1f} ms a step, "
                  f"{rate(their_ms):.0f} GFLOP/s")
            for layout, times in ours.items():
                ms = statistics.median(times)
                print(f"{model} {dtype}: shardwright, {layout}: {ms:.1f} ms, {rate(ms):.0f} GFLOP/s; ratio {their_ms / ms:.2f}",
                      flush=True)
    load = os.getloadavg()[0]
    if load > 1.5 * arguments.threads:
        print(f"the machine was not quiet: load {load:.1f}, of which these runs are {arguments.threads}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
