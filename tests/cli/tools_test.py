"""The tools for people: config, view, --version, inspect and list as text, progress bars, manual page, completion."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BINARY, BUILD, TINY, RunTestCase, flip, main  # noqa: E402

os.environ.setdefault("HDF5_PLUGIN_PATH", str(BUILD / "plugin"))
LLAMA = dict(arch="llama", layers=3, hidden=20, heads=5, kv_heads=5, ffn=21, vocab=97, seq_len=8, tie_embeddings=False)


class ToolsTestCase(RunTestCase):
    def trained(self, name="run", layout="t3d2z1", model=TINY, **train):
        config = self.config(name, model=model, train={"steps": 4, "global_batch": 4, **train}, checkpoint={"every": 2})
        self.train(config, layout)
        return self.dir / name

    # --- config

    def test_ConfigSaysWhoSaidEachValue(self):
        path = self.config("run", model=TINY)
        line = 1 + path.read_text().splitlines().index("hidden = 12")
        text = self.ok("config", path, "--set", "optim.lr=0.25", "--set", "parallel.zero=1").stdout
        self.assertRegex(text, rf"(?m)^hidden = 12 +# {re.escape(str(path))}:{line}$")
        self.assertRegex(text, r"(?m)^lr = 0.25 +# --set$")
        self.assertRegex(text, r"(?m)^keep = 0 +# default$")
        document = self.ok("config", path, "--set", "optim.lr=0.25", "--json").json()
        self.assertEqual(document["file"], str(path))
        self.assertEqual(document["config"]["optim"]["lr"], 0.25)
        self.assertEqual(document["config"]["model"]["kv_heads"], 3)
        keys = {f"{section}.{key}" for section, values in document["config"].items() for key in values}
        self.assertEqual(set(document["sources"]), keys)
        self.assertEqual((document["sources"]["optim.lr"], document["sources"]["model.hidden"],
                          document["sources"]["checkpoint.keep"]), ("--set", f"{path}:{line}", "default"))
        # What is printed is a configuration, complete and the same.
        again = self.dir / "again.toml"
        again.write_text(text)
        second = self.ok("config", again, "--json").json()
        document["config"]["parallel"]["zero"] = 1
        self.assertEqual(second["config"], document["config"])
        self.assertNotIn("default", second["sources"].values())
        self.assertFalse((self.dir / "run").exists())

    def test_ConfigRefusesWhatTrainRefuses(self):
        path = self.config("run", model=TINY, optim={"warmup_step": 3}, train={"steps": "many"})
        for arguments in ((), ("--set", "paralel.tp=2"), ("--set", "parallel.tp=2"), ("--set", "nothing")):
            refused = self.fails(2, "config", path, *arguments)
            self.assertEqual(refused.stderr, self.fails(2, "train", path, *arguments).stderr)
            self.assertEqual(refused.stdout, "")
        self.assertEqual(self.fails(2, "config", self.dir / "none.toml").stderr,
                         self.fails(2, "train", self.dir / "none.toml").stderr)

    # --- view

    def loaded(self, run_dir):
        """Every state of the newest checkpoint, from its resharding to one rank: {kind/tensor: array}."""
        whole = self.dir / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        self.ok("reshard", run_dir, whole, "--layout", "t1")
        with h5py.File(whole / "rank-00000.h5", "r") as shard:
            return {f"{kind}/{name}": shard[kind][name][()] for kind in shard if kind != "chunks" for name in shard[kind]}

    def test_ViewShowsEveryTensorOfOddLayouts(self):
        for layout, model in (("t3d2z1", TINY), ("t5p3d1z0", LLAMA), ("d7z1", TINY)):
            with self.subTest(layout):
                run_dir = self.trained(layout, layout, model, global_batch=14)
                out = self.dir / f"{layout}.h5"
                result = self.ok("view", run_dir, out)
                self.assertRegex(result.stderr, "^shardwright: warning: .*read as NaN .*without an error.*`shardwright verify`")
                self.assertIn(f"{layout}/checkpoints/step-0000000004; step 4", result.stdout)
                expected = self.loaded(run_dir)
                with h5py.File(out, "r") as view:
                    self.assertIn("without an error", view.attrs["warning"].decode())
                    found = {f"{kind}/{name}": data for kind, group in view.items() for name, data in group.items()}
                    self.assertEqual(sorted(found), sorted(expected))
                    for name, data in found.items():
                        self.assertTrue(data.is_virtual, name)
                        self.assertEqual(data.dtype, expected[name].dtype)
                        numpy.testing.assert_array_equal(data[()], expected[name], name)
                self.verified(run_dir)

    def test_ViewAsJsonAndItsRefusals(self):
        run_dir = self.trained("run", "t1")
        out = run_dir / "newest.h5"
        document = self.ok("view", run_dir, out, "--json").json()
        self.assertEqual((document["path"], document["step"], document["source"]),
                         (str(out), 4, "checkpoints/step-0000000004"))
        self.assertEqual((document["datasets"], document["bytes"]), (3 * document["tensors"], out.stat().st_size))
        before = out.read_bytes()
        self.assertIn("exists already; ", self.fails(2, "view", run_dir, out).stderr)
        self.assertEqual(out.read_bytes(), before)
        self.assertIn("lies in a checkpoint", self.fails(2, "view", run_dir, self.checkpoint(run_dir, 4) / "v.h5").stderr)
        self.assertIn("does not exist", self.fails(2, "view", run_dir, self.dir / "none" / "v.h5").stderr)
        (self.checkpoint(run_dir, 4) / "rank-00000.h5").unlink()
        damaged = self.fails(1, "view", self.checkpoint(run_dir, 4), self.dir / "v.h5")
        self.assertIn("rank-00000.h5: missing; ", damaged.stderr)
        self.assertEqual([p.name for p in self.dir.glob("v.h5*")], [])

    # --- --version, inspect, list

    def test_VersionNamesTheLibraries(self):
        text = self.ok("--version").stdout
        self.assertRegex(text, r"^shardwright \d+\.\d+\.\d+\ncheckpoint format 1\n")
        for library in (r"HDF5 1\.\d+\.\d+", r"zstd 1\.\d+\.\d+", r"MPI v?\d+\.\d+"):
            self.assertRegex(text, library)

    def test_InspectIsForPeople(self):
        run_dir = self.trained()
        os.utime(self.checkpoint(run_dir, 4) / "COMMIT", (1.7e9, 1.7e9))
        text = self.ok("inspect", run_dir).stdout
        lines = dict(re.findall(r"(?m)^  (\w+) +(.*)$", text))
        self.assertTrue(text.startswith(str(self.checkpoint(run_dir, 4)) + "\n"))
        self.assertEqual(lines["layout"], "3-way tensor x 2-way data parallel, ZeRO 1 (t3p1d2z1): 6 ranks")
        self.assertEqual(lines["model"], "GPT-2 style, 2 layers of width 12, 3 heads, MLP of 21, vocabulary 33, "
                                         "sequences of 8, tied embeddings")
        self.assertRegex(lines["step"], r"^4, after 16 samples, loss \d")
        self.assertEqual(lines["written"], "2023-11-14 (2023-11-14T22:13:20.000Z)")
        self.assertRegex(lines["state"], r"^\d.* of exp_avg, exp_avg_sq, param$")
        self.assertRegex(lines["stored"], r"^\d.* in 6 shards, \d+ % of the state$")
        self.assertRegex(lines["status"], "^valid")
        self.assertNotIn("{", text)
        self.assertEqual(self.ok("inspect", run_dir, "--json").json()["time"], "2023-11-14T22:13:20.000Z")

    def test_ListIsATable(self):
        run_dir = self.trained("run", "t1")
        (self.checkpoint(run_dir, 2) / "rank-00000.h5").unlink()
        lines = self.ok("list", run_dir).stdout.splitlines()
        self.assertEqual(lines[0], str(run_dir / "checkpoints"))
        self.assertEqual(lines[1].split(), ["step", "status", "layout", "stored", "written", "name"])
        self.assertRegex(lines[2], r"^   4  valid    t1p1d1z0  +\d.* (ago|now)  step-0000000004$")
        self.assertRegex(lines[3], r"^   2  damaged  .*  step-0000000002$")
        self.assertRegex(lines[4], r"^      .*rank-00000.h5: missing$")
        starts = [line.index(word) for line, word in zip(lines[1:3], ("name", "step-0"))]
        self.assertEqual(*starts)

    def test_ListSaysWhatIsNoRun(self):
        empty, begun = self.dir / "empty", self.dir / "begun"
        empty.mkdir()
        (begun / "checkpoints").mkdir(parents=True)
        self.assertIn("is no run; give a run or its checkpoints directory", self.ok("list", empty).stdout)
        self.assertEqual(self.ok("list", begun).stdout, f"{begun}: a run without a checkpoint yet\n")
        self.assertEqual(self.ok("list", empty, "--json").json(), {"newest_valid": None, "checkpoints": []})
        self.assertIn("is no directory; ", self.fails(2, "list", self.dir / "none").stderr)

    def test_ListOfACheckpointSaysWhereToLook(self):
        run_dir = self.trained("run", "t1")
        checkpoint = self.checkpoint(run_dir, 4)
        right = "is a checkpoint; give the run or the directory that holds it, or ask `shardwright inspect` about this one"
        for command in (["list"], ["prune", "--keep", "1"]):
            self.assertIn(f"{checkpoint}: {right}", self.fails(2, *command, checkpoint).stderr)
        (checkpoint / "COMMIT").unlink()
        (checkpoint / "manifest.h5").unlink()
        self.assertIn(right, self.fails(2, "list", checkpoint).stderr)  # one that is not whole, too
        self.assertEqual(self.fails(2, "list", checkpoint, "--json").json()["error"]["code"], "usage")

    def test_PruneSaysWhatItWouldRemove(self):
        run_dir = self.trained("run", "t1", steps=6)
        (run_dir / "run.lock").unlink()
        before = sorted(run_dir.rglob("*"))
        second, fourth, sixth = (str(self.checkpoint(run_dir, step)) for step in (2, 4, 6))
        told = self.ok("prune", run_dir, "--keep", "1", "--dry-run")
        self.assertEqual(told.stdout, f"would remove {fourth}\nwould remove {second}\nwould keep   {sixth}\nnothing was removed\n")
        self.assertEqual(self.ok("prune", run_dir, "--keep", "1", "--dry-run", "--json").json(),
                         {"kept": [sixth], "removed": [], "would_remove": [fourth, second]})
        self.assertEqual(sorted(run_dir.rglob("*")), before)
        self.assertEqual(self.ok("prune", run_dir, "--keep", "1", "--json").json(), {"kept": [sixth], "removed": [fourth, second]})

    def test_PruneWhereNoneIsValidRemovesNothingAndSaysSo(self):
        run_dir = self.trained("run", "t1", steps=6)
        for step in (2, 4, 6):
            (self.checkpoint(run_dir, step) / "rank-00000.h5").unlink()
        self.checkpoint(run_dir, 2).rename(run_dir / "checkpoints" / "step-0000000002.superseded-1")
        before = sorted(run_dir.rglob("*"))
        for more in ([], ["--dry-run"]):
            told = self.fails(1, "prune", run_dir, "--keep", "1", *more).stderr
            self.assertRegex(told, r"\A[^\n]*/checkpoints: none of the 3 checkpoints here is valid, so nothing is removed; `shardwright list`[^\n]*\n\Z")
            self.assertEqual(self.fails(1, "prune", run_dir, "--keep", "1", "--json", *more).json()["error"]["code"], "damaged")
        self.assertEqual(sorted(run_dir.rglob("*")), before)

    def test_PruneKeepsWhatIsWholeAndNothingElseIsTouched(self):
        run_dir = self.trained("run", "t1", steps=6)
        shard = self.checkpoint(run_dir, 6) / "rank-00000.h5"
        with h5py.File(shard, "r") as file:
            address = int(file["chunks"][0]["address"])
        flip(shard, address + 1)
        # The newest looks whole and is not: it does not count, and the one that does stays.
        told = self.ok("prune", run_dir, "--keep", "1").stdout
        self.assertIn(f"removed {self.checkpoint(run_dir, 2)}\nkept    {self.checkpoint(run_dir, 6)} (damaged", told)
        self.verified(self.checkpoint(run_dir, 4))
        self.assertIn("nothing was removed", self.ok("prune", run_dir, "--keep", "1").stdout)
        # No lock is left in what is no run.
        self.assertIn("is a checkpoint; ", self.fails(2, "prune", self.checkpoint(run_dir, 4), "--keep", "1").stderr)
        self.verified(self.checkpoint(run_dir, 4))
        empty = self.dir / "empty"
        empty.mkdir()
        self.assertIn("is no run; ", self.fails(2, "prune", empty, "--keep", "1").stderr)
        self.assertEqual(os.listdir(empty), [])

    def test_DiffTellsTheFirstOfManyDifferences(self):
        run_dir = self.trained("run", "t1")
        pair = self.checkpoint(run_dir, 2), self.checkpoint(run_dir, 4)
        every = self.fails(1, "diff", *pair, "--json").json()["differences"]
        self.assertGreater(len(every), 25)
        shown, whole = self.fails(1, "diff", *pair).stdout, self.fails(1, "diff", *pair, "--all").stdout
        told = lambda text: len(re.findall("differ, the first at", text))
        self.assertEqual((told(shown), told(whole)), (20, len(every)))
        self.assertIn(f"\n... and {len(every) - 20} more; --all lists them\n", shown)
        self.assertNotIn("--all", whole)
        self.assertEqual(shown.splitlines()[-1], whole.splitlines()[-1])

    def test_TrainHelpSaysWhatKeysMayBe(self):
        text = self.ok("train", "--help").stdout
        self.assertRegex(text, r"(?m)^  optim.schedule .* \[cosine, linear, constant, wsd\]$")
        self.assertRegex(text, r"(?m)^  parallel.tp .* \[from 1\]$")

    def test_ListDeepFindsEveryDamagedOne(self):
        run_dir = self.trained("run", "t1")
        shard = self.checkpoint(run_dir, 2) / "rank-00000.h5"
        with h5py.File(shard, "r") as file:
            address = int(file["chunks"][0]["address"])
        flip(shard, address + 1)
        statuses = lambda *more: [c["status"] for c in self.ok("list", run_dir, "--json", *more).json()["checkpoints"]]
        self.assertEqual((statuses(), statuses("--deep")), (["valid", "valid"], ["valid", "damaged"]))

    # --- progress on a terminal

    def test_ProgressBarsOnATerminalOnly(self):
        if not shutil.which("script"):
            self.skipTest("no script(1)")
        run_dir = self.trained("run", "t1")
        for arguments in (("verify", run_dir), ("list", run_dir, "--deep"), ("reshard", run_dir, self.dir / "out", "--layout", "d2")):
            command = shlex.join([str(BINARY), *map(str, arguments)])
            shown = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, timeout=60,
                                   stdin=subprocess.DEVNULL).stdout.decode()
            self.assertRegex(shown, rf"\r{arguments[0]} \[#* *\] +\d+ % of .*\r\x1b\[K", arguments)
            self.assertFalse(shown.rstrip().endswith("\x1b[K"), shown)  # what is left is the answer
        self.assertEqual(self.ok("verify", run_dir).stderr, "")

    # --- manual page and completion

    def commands(self):
        """{command: flags} from --help."""
        overview = self.ok("--help").stdout
        names = [line.split()[0] for line in overview.splitlines() if line.startswith("  ")]
        found = {}
        for name in names:
            for words in [[name]] if name != "bench" else [["bench", "ckpt"], ["bench", "reshard"], ["bench", "train"]]:
                text = self.ok(*words, "--help").stdout
                found[" ".join(words)] = set(re.findall(r"(?m)^  (?:-\w,)?(--[a-z-]+)", text))
                self.assertIn("--help", found[" ".join(words)])
        return found

    def test_TheReadmeNamesEveryCommand(self):
        readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
        self.assertEqual([name for name in self.commands() if f"`{name}`" not in readme], [])

    def completed(self, *words):
        line = " ".join(words)
        script = (f'source <("{BINARY}" --completion bash); COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; '
                  f'_shardwright; printf "%s\\n" "${{COMPREPLY[@]}}"')
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "", line)
        return set(done.stdout.split())

    def test_CompletionOffersEveryCommandAndFlag(self):
        commands = self.commands()
        first = self.completed("shardwright", "")
        self.assertLessEqual({name.split()[0] for name in commands}, first)
        self.assertEqual(self.completed("shardwright", "re"), {"reshard"})
        for name, flags in commands.items():
            self.assertEqual(self.completed("shardwright", *name.split(), "--"), flags, name)
        self.assertEqual(self.completed("shardwright", "bench", ""), {"ckpt", "reshard", "train"})
        self.assertEqual(self.completed("shardwright", "train", "--resume", ""), {"auto", "must", "never"})
        self.assertEqual(self.completed("shardwright", "train", "--set", "optim.beta"), {"optim.beta1=", "optim.beta2="})
        self.assertEqual(self.completed("shardwright", "inspect", ""), set())  # a path: the shell's own names
        self.assertEqual(self.completed("shardwright", "--completion", ""), {"bash"})
        self.assertIn("bash is the one there is", self.fails(2, "--completion", "zsh").stderr)

    def test_ManualPageHasEveryCommandAndRendersWithoutWarnings(self):
        page = self.ok("--man").stdout
        self.assertTrue(page.isascii())
        if not shutil.which("groff"):
            self.skipTest("no groff")
        shown = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-P-c"], input=page, capture_output=True, text=True, timeout=60)
        self.assertEqual(shown.stderr, "")
        plain = re.sub(".\b", "", shown.stdout)
        for name, flags in self.commands().items():
            section = plain.split(f"\n   {name}\n", 1)[1]
            section = re.split(r"\n   \w|\n\w", section)[0]
            for flag in flags:
                self.assertIn(flag, section, name)
            self.assertIn(f"shardwright {name}", section)
        for word in ("optim.warmup_steps", "EXIT STATUS", "SHARDWRIGHT_FAULT", "HDF5_PLUGIN_PATH"):
            self.assertIn(word, plain)
        if shutil.which("man"):
            file = self.dir / "shardwright.1"
            file.write_text(page)
            done = subprocess.run(["man", "--warnings=w", "-l", str(file)], capture_output=True, text=True, timeout=60,
                                  env={**os.environ, "MANPAGER": "cat", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("reshard", done.stdout)


if __name__ == "__main__":
    main()
