"""The files of tests/golden: nothing of them changes, both readers find in the golden ones what the .json beside each
says, and refuse each hostile one by its own rule, in no time (golden_test.cc: and in little memory)."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent
sys.path.insert(0, str(GOLDEN.parent / "tools"))
import second_reader  # noqa: E402
import xxhash  # noqa: E402
from run_harness import BINARY, BUILD, RunTestCase, main  # noqa: E402

FORMAT = GOLDEN.parents[1] / "ckpt" / "FORMAT.md"
PINNED = GOLDEN / "XXH3SUMS"
HOSTILE = GOLDEN / "hostile"
MOST_CPU_S = 1.0


def digests():
    """'<digest>  <path>' of each file of v1 and hostile; a link by where it leads."""
    lines = []
    for folder in ("v1", "hostile"):
        for path in sorted((GOLDEN / folder).rglob("*")):
            if path.is_symlink():
                lines.append(f"{os.readlink(path)}  {path.relative_to(GOLDEN)}")
            elif path.is_file():
                lines.append(f"{xxhash.xxh3_128_hexdigest(path.read_bytes())}  {path.relative_to(GOLDEN)}")
    return lines


def goldens():
    return sorted(path for path in (GOLDEN / "v1").iterdir() if path.is_dir())


def expected(path):
    return json.loads(path.with_name(path.name + ".json").read_text())


def cases():
    return json.loads((HOSTILE / "cases.json").read_text())


def rule_rows():
    """The rows of the table of rejections: (rule, names of hostile files)."""
    section = FORMAT.read_text().split("## What a reader rejects")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(cells[0].strip(), re.findall(r"`([^`]+)`", cells[-1])) for cells in rows[1:]]


class GoldenFilesTestCase(RunTestCase):
    def test_GoldenFilesAreWhatTheyWere(self):
        self.assertEqual(digests(), PINNED.read_text().splitlines())

    def test_SecondReaderReadsGoldenFiles(self):
        for path in goldens():
            with self.subTest(golden=path.name):
                document = expected(path)
                commit, tensors, fingerprints = second_reader.read(str(path))
                self.assertEqual({k: commit[k] for k in ("step", "run", "generation", "attempt")},
                                 {k: document[k] for k in ("step", "run", "generation", "attempt")})
                found = [(*key, list(values.shape), fingerprints[key]) for key, values in tensors.items()]
                self.assertEqual(found, [(s["tensor"], s["kind"], s["shape"], s["fingerprint"]) for s in document["states"]])
                for state in document["states"]:
                    values = tensors[state["tensor"], state["kind"]]
                    self.assertEqual(values.dtype, second_reader.TYPES[state["dtype"]])
                    if "values" in state:
                        self.assertEqual(values.tobytes().hex(), state["values"])

    def test_TheProgramOfTheGoldenFilesIsWhatItWas(self):
        """It still saves what the .json files say, as this version writes it."""
        subprocess.run([BUILD / "bin" / "golden_files", self.dir], check=True, timeout=60)
        made = sorted(path.stem for path in self.dir.glob("*.json"))
        self.assertEqual(made, [path.name for path in goldens() if not path.name.startswith("trained-")])
        for name in made:
            self.assertEqual((self.dir / f"{name}.json").read_bytes(), (GOLDEN / "v1" / f"{name}.json").read_bytes(), name)
            self.assertEqual(second_reader.read(str(self.dir / name))[2], second_reader.read(str(GOLDEN / "v1" / name))[2])
            self.verified(self.dir / name)
            # Another program's documents are shown as they are.
            self.assertEqual(self.ok("inspect", self.dir / name, "--json").json()["layout"], {"string": "golden"})

    def test_ATrainedGoldenCheckpointIsReadByEveryTool(self):
        for path in goldens():
            if not path.name.startswith("trained-"):
                continue
            document = expected(path)
            shown = self.ok("inspect", path, "--json").json()
            self.assertEqual({key: shown[key] for key in document["inspect"]}, document["inspect"])
            fingerprints = {(s["tensor"], s["kind"]): s["fingerprint"] for s in document["states"]}
            self.assertEqual(self.fingerprints(path), fingerprints)
            for layout in ("t1d1z0", "t1p2d3z1"):
                target = self.dir / f"{path.name}-{layout}"
                self.ok("reshard", path, target, "--layout", layout)
                self.assertEqual(self.fingerprints(target), fingerprints)
                self.verified(target)

    def hostile(self, case):
        """Where to read a case; those with a FIFO are made here, because git keeps none."""
        path = HOSTILE / case["name"]
        if "fifo" in case:
            path = shutil.copytree(path, self.dir / case["name"], symlinks=True)
            os.mkfifo(path / case["fifo"])
        return path / case.get("path", "")

    def refused(self, path):
        """(status, report, resources used) of verify."""
        process = subprocess.Popen([BINARY, "verify", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.stdout.read(), process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close(), process.stderr.close()
        return process.returncode, out.decode(), err.decode(), used

    def test_HostileFilesAreRefusedByTheirOwnRule(self):  # timeout=300
        base = self.refused(GOLDEN / "v1" / "minimal-2-writers")
        self.assertEqual(base[0], 0, base)
        self.assertEqual(sorted(case["name"] for case in cases()), sorted(p.name for p in HOSTILE.iterdir() if p.is_dir()))
        messages = {}
        for case in cases():
            with self.subTest(case=case["name"]):
                path = self.hostile(case)
                status, out, err, used = self.refused(path)
                self.assertEqual(status, 1 if case["code"] else 3, (out, err))
                problems = json.loads(out)["problems"] if case["code"] else [{"code": "", "message": err}]
                said = [p["message"] for p in problems if p["code"] == case["code"] and case["message"] in p["message"]]
                self.assertTrue(said, problems)
                messages[case["name"]] = case["message"], said[0].replace(str(path), "")
                self.assertLess(used.ru_utime + used.ru_stime, MOST_CPU_S)
                with self.assertRaises(second_reader.Refused) as refusal:
                    second_reader.read(str(path))
                self.assertEqual(refusal.exception.code, case["code"] or "attempt", refusal.exception)
        # What a rule's message says, no other rule's does.
        for name, (part, text) in messages.items():
            for other, (other_part, other_text) in messages.items():
                if other_part != part:
                    self.assertNotIn(part, other_text, f"{name} and {other}")
                    self.assertNotEqual(text, other_text)

    def test_EachRuleHasAHostileFile(self):
        named = [name for _, names in rule_rows() for name in names]
        self.assertEqual(sorted(named), sorted(case["name"] for case in cases()))
        self.assertEqual(len(rule_rows()), 32)
        for rule, names in rule_rows():
            self.assertTrue(names, f"no hostile file for: {rule}")

    def test_TheProgramOfTheHostileFilesIsWhatItWas(self):
        subprocess.run(["/usr/bin/python3", GOLDEN / "make" / "hostile_files.py", self.dir / "hostile"], check=True,
                       timeout=100)
        self.assertEqual((self.dir / "hostile" / "cases.json").read_text(), (HOSTILE / "cases.json").read_text())
        for case in cases():
            self.assertEqual(sorted(p.name for p in (self.dir / "hostile" / case["name"]).rglob("*")),
                             sorted(p.name for p in (HOSTILE / case["name"]).rglob("*")))


if __name__ == "__main__":
    main()
