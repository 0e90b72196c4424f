#!/usr/bin/env bash
# The whole of Shardwright in a few minutes, on real text: bash cli/demo.sh [TEXT FILES...]
#
# Trains a small GPT on eight ranks, 2-way tensor x 2 pipeline stages x 2-way data parallel, with asynchronous checkpoints;
# kills one rank with SIGKILL, watches the run go on with what remains, reshards the checkpoint for a third layout, finishes
# there, and compares every loss with a run that nothing disturbed. Ends with status 1 unless the ranks really changed and the losses agree within 1e-5.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

steps=120 every=20 kill_at=50 reshard_at=80
texts=("$@")
if [ ${#texts[@]} -eq 0 ]; then
  # The licence texts of any Debian machine.
  for file in /usr/share/common-licenses/*; do
    if [ -f "$file" ] && [ ! -L "$file" ]; then texts+=("$file"); fi
  done
fi
if [ ${#texts[@]} -eq 0 ]; then
  echo "demo.sh: error: /usr/share/common-licenses: holds no texts; give text files, as bash cli/demo.sh book.txt" >&2
  exit 2
fi
for file in "${texts[@]}"; do
  if [ ! -r "$file" ] || [ ! -f "$file" ]; then
    echo "demo.sh: error: $file: cannot be read; give text files, as bash cli/demo.sh book.txt" >&2
    exit 2
  fi
done

for i in "${!texts[@]}"; do texts[i]=$(realpath "${texts[i]}"); done

# From here on all commands are what one would type in the repository.
cd "$repository"
unset SHARDWRIGHT_FAULT
work=build/demo
shardwright=build/release/bin/shardwright
rm -rf "$work"
mkdir -p "$work"

say() { printf '\n== %s\n' "$*"; }
# run <log> <command...>: shows the command, keeps its output in the log, and shows the log's end if it fails.
run() {
  local log=$work/$1.log
  shift
  printf '$ %s\n' "$*"
  if ! "$@" >"$log" 2>&1; then
    echo "demo.sh: error: the command above: failed; the end of $log says why:" >&2
    tail -n 20 "$log" >&2
    exit 1
  fi
}

say "Dependencies (nothing to do if they are installed)"
bash cli/install_deps.sh

say "Build"
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
fi
run configure cmake --preset release
run build cmake --build --preset release --target shardwright

python3 - "$work" "$steps" "$every" "${texts[@]}" <<'PYTHON'
import json, os, sys
work, steps, every, *texts = sys.argv[1:]
paths = ", ".join(json.dumps(os.path.abspath(text), ensure_ascii=False) for text in texts)
for name in ("disturbed", "undisturbed"):
    with open(f"{work}/{name}.toml", "w") as file:
        file.write(f"""[run]
dir = {json.dumps(f"{work}/{name}", ensure_ascii=False)}

[model]            # 0.8 million parameters, byte by byte
arch = "gpt2"
layers = 4
hidden = 128
heads = 4
vocab = 256
seq_len = 64

[data]
train = [{paths}]
format = "text"

[train]
steps = {steps}
global_batch = 12
micro_batch = 2
seed = 1

[optim]
lr = 1e-3
warmup_steps = 10

[parallel]
tp = 2
pp = 2
dp = 2
zero = 1

[checkpoint]
every = {every}
async = true
""")
size = sum(os.path.getsize(text) for text in texts)
print(f"Training data: {len(texts)} text(s), {size} bytes")
PYTHON

say "An undisturbed run, for comparison: 8 ranks, 2-way tensor x 2-stage pipeline x 2-way data parallel, ZeRO 1"
run undisturbed "$shardwright" train "$work/undisturbed.toml" --nproc 8

say "The same run, but rank 5 gets SIGKILL in step $kill_at; what remains goes on by itself"
run disturbed env "SHARDWRIGHT_FAULT=step.backward:rank=5:step=$kill_at=kill" \
  "$shardwright" train "$work/disturbed.toml" --nproc 8 --stop-after "$reshard_at"
grep -E 'lost|resuming|changed layout' "$work/disturbed.log" || true

checkpoint=$(printf 'step-%010d' "$reshard_at")
say "The checkpoint of step $reshard_at, written again for 4-way tensor parallel in 2 stages, and proven equal"
run reshard "$shardwright" reshard "$work/disturbed" "$work/resharded/$checkpoint" --layout t4p2d1z0
cat "$work/reshard.log"
run verify "$shardwright" verify "$work/resharded/$checkpoint"
cat "$work/verify.log"
run diff "$shardwright" diff "$work/disturbed" "$work/resharded/$checkpoint"
cat "$work/diff.log"

say "To the end in that layout"
run resumed "$shardwright" train "$work/disturbed.toml" --resume "$work/resharded/$checkpoint" \
  --set parallel.tp=4 --set parallel.pp=2 --set parallel.dp=1 --set parallel.zero=0

say "What happened"
python3 cli/demo_report.py "$work/disturbed" "$work/undisturbed" "$reshard_at"
