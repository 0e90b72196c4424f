"""`plan`, presets, `reshard --plan-only` of models that need not exist, `train --plan auto`."""
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import TINY, RunTestCase, main, run  # noqa: E402

PREFIX = "shardwright: error: "
BLOOM_STAGES = "5,6,6,6,6,6,6,6,6,6,6,5"


class PlanTestCase(RunTestCase):
    def plan(self, *args):
        return self.ok("plan", *args, "--json").json()

    def one_line(self, *args):
        result = self.fails(2, *args)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 1, result)
        self.assertTrue(lines[0].startswith(PREFIX), result)
        return lines[0][len(PREFIX):]

    def test_PlanHasTheContractsFields(self):
        document = self.plan("gpt2-xl", "--gpus", 16, "--memory", "80GiB")
        self.assertEqual(document["model"], "gpt2-xl")
        self.assertEqual(document["parameters"], 1557611200)
        self.assertEqual(document["gpus"], 16)
        self.assertEqual(document["legal"], len(document["layouts"]))
        steps = [x["step_s"] for x in document["layouts"] if x["fits"]]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual([x["fits"] for x in document["layouts"]], sorted((x["fits"] for x in document["layouts"]), reverse=True))
        for entry in document["layouts"]:
            layout, memory = entry["layout"], entry["memory_bytes"]
            self.assertEqual(layout["tp"] * layout["pp"] * layout["dp"], 16)
            self.assertEqual(sum(layout["stages"]), 48)
            self.assertEqual(memory["total"], sum(v for k, v in memory.items() if k != "total"))
            self.assertEqual(entry["fits"], memory["total"] <= 80 << 30, entry)
            self.assertAlmostEqual(entry["step_s"], sum(entry["time_s"].values()), delta=1e-9 * entry["step_s"])
            self.assertGreaterEqual(entry["checkpoint_bytes"], 12 * 1557611200 // 16)
            self.assertNotIn("\n", entry["why"])

    def test_PlanForPeople(self):
        text = self.ok("plan", "llama-7b", "--gpus", 8, "--top", 3).stdout
        self.assertIn("llama-7b: 6,738,415,616 parameters on 8 GPUs of 80.0 GiB, bf16", text)
        self.assertRegex(text, r"(?m)^ +1 t\d+p\d+d\d+z\d")
        self.assertRegex(text, r"(?m)^\d+ of \d+ legal layouts fit")
        self.assertEqual(len([line for line in text.splitlines() if " % computing" in line]), 3, text)
        text = self.ok("plan", "llama-7b", "--gpus", 2, "--memory", "8GiB").stdout
        self.assertIn("does not fit: ", text)
        self.assertRegex(text, r"(?m)^0 of \d+ legal layouts fit: more GPUs")

    def test_PlanWithOptimizerStateInAFile(self):
        """A 1.5 B model on one GPU of 24 GiB, which its 18 bytes a parameter do not fit, and 6 do."""
        ask = ("gpt2-xl", "--gpus", 1, "--memory", "24GiB", "--offload")
        without, offloaded = self.plan(*ask, "none"), self.plan(*ask, "nvme")
        self.assertEqual((without["offload"], offloaded["offload"]), ("none", "nvme"))
        self.assertEqual([x["fits"] for x in without["layouts"]], [False] * without["legal"])
        best = offloaded["layouts"][0]
        self.assertTrue(best["fits"])
        self.assertEqual(best["memory_bytes"]["optimizer"], 0)
        self.assertLessEqual(best["memory_bytes"]["buffers"], 24 << 20)
        self.assertEqual(best["checkpoint_bytes"], without["layouts"][0]["checkpoint_bytes"])
        self.assertIn("optimizer state in files", self.ok("plan", *ask, "nvme").stdout)
        self.assertEqual(self.one_line("plan", *ask, "cpu"), "--offload: 'cpu' is not known; one of none, nvme")
        config = self.config("run", model=TINY, train={"steps": 1, "global_batch": 12}, parallel={"offload": "nvme"})
        self.assertEqual(self.plan(config, "--gpus", 2)["offload"], "nvme")

    def test_PlanMistakesAreOneLine(self):
        self.assertEqual(self.one_line("plan", "gpt2-xll", "--gpus", 8),
                         "gpt2-xll: is no preset and no file; the nearest preset is gpt2-xl")
        self.assertEqual(self.one_line("plan", "gpt2-xl"), "--gpus: is missing; give the number of GPUs, or a --layout")
        self.assertEqual(self.one_line("plan", "gpt2-xl", "--layout", "d8", "--gpus", 4),
                         "4 ranks: layout t1p1d8z0 needs 8; that many, or dp = 0 to fill what is given")
        self.assertIn("tp 2: does not divide the 25 heads", self.one_line("plan", "gpt2-xl", "--layout", "t2"))
        self.assertIn("none of 97 ranks is legal", self.one_line("plan", "gpt2-124m", "--gpus", 97, "--global-batch", 96))
        self.assertEqual(self.one_line("plan", "gpt2-xl", "--gpus", 8, "--dtype", "fp8"),
                         "--dtype: 'fp8' is not known; one of fp32, bf16, fp16")
        self.assertEqual(self.one_line("plan", "gpt2-xl", "--gpus", 1000000), "--gpus: is 1000000; at most 100000")

    def test_PlanOfAConfigurationFile(self):
        config = self.config("run", model=TINY, train={"steps": 1, "global_batch": 12, "micro_batch": 2})
        document = self.plan(config, "--gpus", 6)
        self.assertEqual((document["global_batch"], document["micro_batch"], document["dtype"]), (12, 2, "fp32"))
        self.assertIn("t3p1d2z1", [x["layout"]["string"] for x in document["layouts"]])

    def test_PresetFillsTheModelAndKeysChangeIt(self):
        config = self.config("run", model={"preset": "gpt2-124m", "layers": 3}, data="tokens.bin", train={"steps": 1, "global_batch": 4})
        document = self.ok("config", config, "--json").json()
        model, sources = document["config"]["model"], document["sources"]
        self.assertEqual((model["preset"], model["layers"], model["hidden"]), ("gpt2-124m", 3, 768))
        self.assertEqual(sources["model.hidden"], "preset")
        self.assertRegex(sources["model.layers"], r"run\.toml:\d+$")
        line = self.one_line("config", config, "--set", "model.preset=gpt3")
        self.assertRegex(line, r'^--set: model.preset: "gpt3" is no known value; give one of gpt2-124m, .* \(nearest: gpt2-xl\)$')

    def test_PlanOfBloomsRealLayout(self):
        document = self.plan("bloom-176b", "--gpus", 384, "--layout", "t4p12d8z1", "--stages", BLOOM_STAGES)
        [entry] = document["layouts"]
        self.assertTrue(entry["fits"], entry["why"])
        self.assertEqual(entry["layout"]["stages"], [int(n) for n in BLOOM_STAGES.split(",")])
        # The published checkpoint is 2.3 TB: 14 bytes a parameter, of which 2 are a bf16 copy of the weights.
        self.assertEqual(document["checkpoint_total_bytes"], 12 * 176247271424)
        ranks = document["ranks"]
        self.assertEqual(len(ranks), 384)
        self.assertEqual(ranks[entry["fullest_rank"]]["memory_bytes"], entry["memory_bytes"])
        self.assertEqual(sum(r["written"] for r in ranks), 176247271424)
        self.assertEqual(max(r["checkpoint_bytes"] for r in ranks), entry["checkpoint_bytes"])
        # A stage of six layers in the middle, and the first one, with its part of the vocabulary.
        hidden = 14336
        layer = 12 * hidden * hidden // 4 + 7 * hidden // 4 + 6 * hidden
        self.assertEqual(ranks[64]["parameters"], 6 * layer)
        self.assertEqual(ranks[0]["parameters"], 5 * layer + 250880 // 4 * hidden + 2 * hidden)

    def test_PlansOfMtNlgsRealLayouts(self):
        for copies in (8, 10, 12):
            document = self.plan("mt-nlg-530b", "--layout", f"t8p35d{copies}z1")
            [entry] = document["layouts"]
            self.assertTrue(entry["fits"], entry["why"])
            self.assertEqual(document["gpus"], 280 * copies)
            self.assertEqual(sum(r["written"] for r in document["ranks"]), 529600819200)

    def test_ReshardPlanOfMtNlgFromEightCopiesToTen(self):
        report = self.ok("reshard", "preset:mt-nlg-530b", "--plan-only", "--from", "t8p35d8z1", "--layout", "t8p35d10z1", "--json").json()
        self.assertEqual(report["needed_bytes"], 12 * 529600819200)
        self.assertEqual(report["read_bytes"], report["needed_bytes"])
        self.assertEqual(report["files_written"], 2800)
        written = [r["bytes"] for r in report["ranks"]]
        self.assertEqual(sum(written), 12 * 529600819200)
        self.assertLess(max(written), 1.1 * min(written))

    def test_ReshardPlansAPresetThatIsNotThere(self):
        report = self.ok("reshard", "preset:bloom-176b", "--plan-only", "--from", "t4p12d8z1", "--from-stages", BLOOM_STAGES,
                         "--layout", "t8p6d8z1", "--json").json()
        self.assertEqual(report["from"]["stages"], [int(n) for n in BLOOM_STAGES.split(",")])
        self.assertEqual(report["to"]["string"], "t8p6d8z1")
        self.assertEqual(report["needed_bytes"], 12 * 176247271424)
        self.assertEqual(report["files_written"], 384)
        self.assertEqual(sum(r["bytes"] for r in report["ranks"]), 12 * 176247271424)
        self.assertGreater(report["copies"], 384)
        self.assertEqual(report["files_read"], 384)
        self.assertTrue(all(1 <= r["source_files"] <= 384 for r in report["ranks"]))
        for args, line in (
                (("preset:bloom-176", "--plan-only", "--from", "t1", "--layout", "t2"),
                 "preset:bloom-176: is no preset; the nearest is preset:bloom-176b"),
                (("preset:gpt2-xl", self.dir / "out", "--from", "t1", "--layout", "p2"),
                 "preset:gpt2-xl: has no values to write; --plan-only, or a checkpoint"),
                (("preset:gpt2-xl", "--plan-only", "--layout", "p2"),
                 "--from: is missing; give the layout that the checkpoint would have")):
            self.assertEqual(self.one_line("reshard", *args), line)

    def test_PlansForTensOfThousandsOfGpusAreQuick(self):
        began = time.monotonic()
        document = self.plan("megatron-1t", "--gpus", 24576)
        seconds = time.monotonic() - began
        self.assertGreater(document["fitting"], 0)
        print(f"{document['legal']} layouts of 24,576 GPUs in {seconds:.2f} s")
        self.assertLess(seconds, 30)  # about 1 s on an idle core

    def test_TrainPlanAutoTrainsInTheBestLayout(self):
        config = self.config("run", model=TINY, train={"steps": 2, "global_batch": 12})
        result = self.ok("train", config, "--nproc", 2, "--plan", "auto")
        chosen = [line for line in result.stderr.splitlines() if line.startswith("shardwright: plan: ")]
        self.assertEqual(len(chosen), 1, result)
        layout = chosen[0].split()[2].rstrip(",")
        self.assertRegex(chosen[0], r"the best of \d+ legal layouts of 2 ranks: .* s a step by estimate \(.*%.*\)$")
        steps = [json.loads(line) for line in (self.dir / "run/metrics.jsonl").read_text().splitlines()]
        self.assertEqual({line["layout"] for line in steps if line["type"] == "step"}, {layout}, chosen)
        effective = (self.dir / "run/config.toml").read_text()
        degrees = dict(zip(layout[0::2], layout[1::2]))
        for key, letter in (("tp", "t"), ("pp", "p"), ("dp", "d"), ("zero", "z")):
            self.assertIn(f"\n{key} = {degrees[letter]}\n", effective)
        # The same command again goes on, whatever it chooses.
        again = self.ok("train", config, "--nproc", 2, "--plan", "auto", "--set", "train.steps=3")
        self.assertIn("shardwright: plan: ", again.stderr)

    def test_TrainPlanAutoRefusals(self):
        config = self.config("run", model=TINY, train={"steps": 2, "global_batch": 12})
        self.assertEqual(self.one_line("train", config, "--plan", "best"), "--plan: 'best' is not known; auto is what there is")
        self.assertIn("none of 5 ranks is legal", self.one_line("train", config, "--nproc", 5, "--plan", "auto"))
        self.assertRegex(
            self.one_line("train", config, "--nproc", 2, "--plan", "auto", "--set", "model.vocab=900000000"),
            r"^--plan: no layout of 2 ranks fits this machine, and t\dp\dd\dz\d does not fit: .*; a smaller model, ")


if __name__ == "__main__":
    main()
